//! Faults of the network that `lnetctl fault` asks for, in processes that were started with `--faults`.

use crate::routing::Refusal;
use nacre_base::Errno;
use nacre_lnet::{FaultEffect, FaultRule, FaultStatus, Lnet, Nodes, Often};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

/// A rule as it is asked for. Times are in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AskedRule {
    /// `*`, `*@tcp1` or a NID.
    pub source: Option<String>,
    /// The same.
    pub destination: Option<String>,
    /// A portal's number.
    pub portal: Option<u32>,
    /// `PUT`, `GET`, `REPLY` or `ACK`.
    pub message: Option<String>,
    /// One in so many.
    pub rate: Option<u32>,
    /// One in each interval.
    pub interval_ms: Option<u64>,
    /// The delay; without it messages are dropped.
    pub latency_ms: Option<u64>,
}

/// Changes the rules that drop messages, or those that delay them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleTask {
    /// Adds one.
    Add(AskedRule),
    /// Removes those with this source and destination; all if neither is named.
    Remove(AskedRule),
    /// Lists them.
    List,
    /// Forgets their counts.
    Reset,
}

/// Carries out a task for rules that delay messages, or for those that drop them.
pub(crate) fn carry_out(lnet: &Lnet, delays: bool, task: &RuleTask) -> Result<Value, Refusal> {
    if !crate::faults::allowed() {
        let why =
            "this process was not started with --faults, so nobody can make its network fail: nacre --faults ROLE ...";
        return Err((Errno::EPERM, why.to_owned()));
    }
    let is_meant = |rule: &FaultRule| matches!(rule.effect, FaultEffect::Delay(_)) == delays;
    match task {
        RuleTask::Add(asked) => {
            let rule = asked.check(delays).map_err(|why| (Errno::EINVAL, why))?;
            if !lnet.add_fault(rule) {
                return Err((Errno::ENOSPC, "there are too many rules".to_owned()));
            }
        }
        RuleTask::Remove(asked) => {
            let nodes = |text: &Option<String>| text.as_deref().map(str::parse::<Nodes>).transpose();
            let source = nodes(&asked.source).map_err(|why| (Errno::EINVAL, why))?;
            let destination = nodes(&asked.destination).map_err(|why| (Errno::EINVAL, why))?;
            let is_named = |rule: &FaultRule| {
                source.is_none_or(|source| source == rule.source)
                    && destination.is_none_or(|destination| destination == rule.destination)
            };
            if lnet.remove_faults(|rule| is_meant(rule) && is_named(rule)) == 0 {
                return Err((Errno::ENOENT, "there is no such rule".to_owned()));
            }
        }
        RuleTask::Reset => lnet.reset_faults(is_meant),
        RuleTask::List => {
            let all = lnet.faults().into_iter().filter(|status| is_meant(&status.rule));
            return Ok(all.map(|status| describe(&status)).collect());
        }
    }
    Ok(Value::Null)
}

impl AskedRule {
    fn check(&self, delays: bool) -> Result<FaultRule, String> {
        let nodes = |name: &str, text: &Option<String>| match text {
            Some(text) => text.parse().map_err(|why| format!("--{name}: {why}")),
            None => Err(format!("--{name} is needed: a NID, *@NETWORK or *")),
        };
        let often = match (self.rate, self.interval_ms) {
            (Some(rate), None) if rate > 0 => Often::OneIn(rate),
            (None, Some(ms)) if ms > 0 => Often::Every(Duration::from_millis(ms)),
            _ => {
                return Err(
                    "either --rate N (one message in N) or --interval MS (one in each interval) is needed".to_owned()
                );
            }
        };
        let effect = match (delays, self.latency_ms) {
            (false, None) => FaultEffect::Drop,
            (true, Some(ms)) if (1..=600_000).contains(&ms) => FaultEffect::Delay(Duration::from_millis(ms)),
            (true, _) => return Err("--latency is needed: 1 to 600000 ms".to_owned()),
            (false, Some(_)) => return Err("--latency is for fault delay".to_owned()),
        };
        let message = match self.message.as_deref().map(str::to_uppercase) {
            None => None,
            Some(named) => Some(
                FaultRule::MESSAGES
                    .into_iter()
                    .find(|kind| *kind == named)
                    .ok_or("--message is PUT, GET, REPLY or ACK")?,
            ),
        };
        Ok(FaultRule {
            source: nodes("source", &self.source)?,
            destination: nodes("dest", &self.destination)?,
            portal: self.portal,
            message,
            effect,
            often,
        })
    }
}

fn describe(FaultStatus { rule, matched, struck }: &FaultStatus) -> Value {
    let mut m = serde_json::Map::new();
    m.insert("source".into(), json!(rule.source.to_string()));
    m.insert("dest".into(), json!(rule.destination.to_string()));
    if let Some(portal) = rule.portal {
        m.insert("portal".into(), json!(portal));
    }
    if let Some(message) = rule.message {
        m.insert("message".into(), json!(message));
    }
    match rule.often {
        Often::OneIn(rate) => m.insert("rate".into(), json!(rate)),
        Often::Every(interval) => m.insert("interval_ms".into(), json!(interval.as_millis() as u64)),
    };
    let struck_name = match rule.effect {
        FaultEffect::Drop => "dropped",
        FaultEffect::Delay(latency) => {
            m.insert("latency_ms".into(), json!(latency.as_millis() as u64));
            "delayed"
        }
    };
    m.insert("matched".into(), json!(matched));
    m.insert(struck_name.into(), json!(struck));
    Value::Object(m)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_checked_before_it_is_added() {
        let of = |from: &str| AskedRule {
            source: Some(from.to_owned()),
            destination: Some("*".to_owned()),
            ..AskedRule::default()
        };
        let drop = AskedRule { rate: Some(2), message: Some("put".to_owned()), ..of("*@tcp1") };
        let rule = drop.check(false).unwrap();
        assert_eq!((rule.often, rule.effect, rule.message), (Often::OneIn(2), FaultEffect::Drop, Some("PUT")));
        let delay = AskedRule { interval_ms: Some(5), latency_ms: Some(30), ..of("10.0.0.1@tcp") };
        assert_eq!(delay.check(true).unwrap().effect, FaultEffect::Delay(Duration::from_millis(30)));
        for (asked, delays, why) in [
            (AskedRule { rate: Some(1), ..AskedRule::default() }, false, "--source is needed"),
            (of("*"), false, "--rate"),
            (AskedRule { rate: Some(0), ..of("*") }, false, "--rate"),
            (AskedRule { rate: Some(1), interval_ms: Some(1), ..of("*") }, false, "--rate"),
            (AskedRule { rate: Some(1), ..of("*") }, true, "--latency is needed"),
            (AskedRule { rate: Some(1), latency_ms: Some(1), ..of("*") }, false, "--latency is for fault delay"),
            (AskedRule { rate: Some(1), message: Some("hello".to_owned()), ..of("*") }, false, "--message"),
            (AskedRule { rate: Some(1), ..of("eth0") }, false, "--source: "),
        ] {
            assert!(asked.check(delays).unwrap_err().contains(why), "{asked:?}");
        }
    }

    #[test]
    fn without_faults_it_is_refused() {
        let sim = nacre_rt::Sim::new(1);
        let lnet = Lnet::new(sim.rt(), nacre_lnet::LnetOptions::default(), nacre_base::Faults::new());
        assert_eq!(carry_out(&lnet, false, &RuleTask::List).unwrap_err().0, Errno::EPERM);
    }
}
