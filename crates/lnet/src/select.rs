//! Path selection: which interface a message leaves by. A pure rule. A network that the node is not on is reached by `routes`.

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

/// Among the interfaces that reach the destination, being on its network with its kind of address, the healthiest, then the
/// one with most credits, then the one that has carried least; none if no interface reaches it.
pub(crate) fn choose(candidates: impl Iterator<Item = Candidate>, to: Nid) -> Option<usize> {
    candidates
        .enumerate()
        .filter(|(_, c)| c.nid.reaches(to))
        .max_by_key(|(i, c)| (c.health, c.available_credits, u64::MAX - c.sequence, std::cmp::Reverse(*i)))
        .map(|(interface, _)| interface)
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
        let chosen = |upto: usize| choose(all[..upto].iter().copied(), to);
        assert_eq!(chosen(1), None);
        assert_eq!((2..=5).map(chosen).collect::<Vec<_>>(), [Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(chosen(6), Some(4), "IPv4 leaves by IPv4");
        let to: Nid = "2001:db8::1@tcp".parse().unwrap();
        assert_eq!(choose(all.into_iter(), to), Some(5));
        assert_eq!(choose(all[..5].iter().copied(), to), None);
    }
}
