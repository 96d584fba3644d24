//! Which nodes of a test ask which others. A pure rule.

use nacre_base::Nid;
use std::fmt;
use std::str::FromStr;

/// The spread of the nodes that ask over those that are asked: for each `from` of the first, `to` of the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Distribution {
    /// Nodes that ask.
    pub from: u32,
    /// Nodes that each of them asks.
    pub to: u32,
}

impl Default for Distribution {
    fn default() -> Distribution {
        Distribution { from: 1, to: 1 }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.from, self.to)
    }
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Distribution, String> {
        let wrong =
            || format!("{text:?} is no distribution: write how many clients share how many servers, such as 4:2");
        let (from, to) = text.split_once(':').ok_or_else(wrong)?;
        let (from, to) = (from.parse().map_err(|_| wrong())?, to.parse().map_err(|_| wrong())?);
        if from == 0 || to == 0 { Err(wrong()) } else { Ok(Distribution { from, to }) }
    }
}

/// The targets of each node that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestPlan(pub Vec<(Nid, Vec<Nid>)>);

impl TestPlan {
    /// Each `from` nodes of the first group share the next `to` nodes of the second, which begins anew at its end.
    pub fn new(from: &[Nid], to: &[Nid], distribution: Distribution) -> TestPlan {
        assert!(!to.is_empty(), "somebody has to be asked");
        let (share, each) = (distribution.from as usize, (distribution.to as usize).min(to.len()));
        let targets = |index: usize| (0..each).map(|n| to[(index / share * each + n) % to.len()]).collect();
        TestPlan(from.iter().enumerate().map(|(index, nid)| (*nid, targets(index))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_spread_as_the_distribution_says() {
        let clients: Vec<Nid> = (1..=4).map(Nid::sim).collect();
        let servers: Vec<Nid> = (11..=13).map(Nid::sim).collect();
        let of = |text: &str| {
            let plan = TestPlan::new(&clients, &servers, text.parse().unwrap());
            let numbers = plan.0.into_iter().map(|(_, targets)| targets.iter().map(ToString::to_string).collect());
            numbers.collect::<Vec<Vec<String>>>()
        };
        assert_eq!(of("1:1"), [["11@sim"], ["12@sim"], ["13@sim"], ["11@sim"]]);
        assert_eq!(of("2:1"), [["11@sim"], ["11@sim"], ["12@sim"], ["12@sim"]]);
        assert_eq!(of("4:2"), [["11@sim", "12@sim"]; 4]);
        assert_eq!(of("1:9"), [["11@sim", "12@sim", "13@sim"]; 4], "no node asks another twice");
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        for wrong in ["", "1", "0:1", "1:0", "a:b", "1:2:3"] {
            assert!(wrong.parse::<Distribution>().unwrap_err().contains("such as 4:2"), "{wrong}");
        }
    }
}
