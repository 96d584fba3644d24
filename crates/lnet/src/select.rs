//! Path selection: which interface a message leaves by, and who is next on its way. A pure rule.
//!
//! Today a destination is reached over an interface on its own network, and the next hop is the destination itself.
//! Routes to other networks (remote network to gateways, by priority, hops, health and queue) have their place here:
//! they will answer with the gateway as `next_hop`.

use crate::error::LnetError;
use nacre_base::Nid;

/// What the choice needs to know of an interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) nid: Nid,
    /// 0 to 1000.
    pub(crate) health: u32,
    pub(crate) available_credits: i64,
    /// Messages given to it so far: the round robin among equals.
    pub(crate) sequence: u64,
}

/// How a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    /// Which of the candidates.
    pub(crate) interface: usize,
    /// Whom the driver sends it to.
    pub(crate) next_hop: Nid,
}

/// Among the interfaces that reach the destination, being on its network with its kind of address, the healthiest, then the one with most credits, then the one
/// that has carried least.
pub(crate) fn choose(candidates: impl Iterator<Item = Candidate>, to: Nid) -> Result<Path, LnetError> {
    candidates
        .enumerate()
        .filter(|(_, c)| c.nid.reaches(to))
        .max_by_key(|(i, c)| (c.health, c.available_credits, u64::MAX - c.sequence, std::cmp::Reverse(*i)))
        .map(|(interface, _)| Path { interface, next_hop: to })
        .ok_or(LnetError::NoRoute(to.network))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_then_health_then_credits_then_turns() {
        let c = |nid: &str, health, available_credits, sequence| Candidate {
            nid: nid.parse().unwrap(),
            health,
            available_credits,
            sequence,
        };
        let all = [
            c("10.0.0.9@tcp1", 1000, 99, 0),
            c("10.0.0.9@tcp", 900, 99, 0),
            c("10.0.0.9@tcp", 1000, 5, 0),
            c("10.0.0.9@tcp", 1000, 7, 4),
            c("10.0.0.9@tcp", 1000, 7, 3),
            c("2001:db8::9@tcp", 1000, 99, 0),
        ];
        let to: Nid = "10.0.0.1@tcp".parse().unwrap();
        let chosen = |upto: usize| choose(all[..upto].iter().copied(), to).map(|p| (p.interface, p.next_hop));
        assert_eq!(chosen(1), Err(LnetError::NoRoute(to.network)));
        assert_eq!(chosen(2), Ok((1, to)));
        assert_eq!(chosen(3), Ok((2, to)));
        assert_eq!(chosen(4), Ok((3, to)));
        assert_eq!(chosen(5), Ok((4, to)));
        assert_eq!(chosen(6), Ok((4, to)), "IPv4 leaves by IPv4");
        let to: Nid = "2001:db8::1@tcp".parse().unwrap();
        assert_eq!(choose(all.into_iter(), to), Ok(Path { interface: 5, next_hop: to }));
        assert_eq!(choose(all[..5].iter().copied(), to), Err(LnetError::NoRoute(to.network)));
    }
}
