//! Settings that can change while a node runs: `lnetctl set`, and the `global` part of lnet.conf. A table gives each its name,
//! which is Lustre's, and what it may be.

use crate::options::LnetOptions;
use std::time::Duration;

/// Settings of a running node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How often a message whose gateway died, or whose NID of a peer cannot be reached, is given to another one.
    pub retry_count: u32,
    /// Whether this node finds out by itself which NIDs a peer has.
    pub discovery: bool,
    /// Whether each purpose has a reserve of all credits and buffers and a queue of its own.
    pub lanes: bool,
    /// Whether a message that comes by a gateway is dropped if this node has no route back by it.
    pub drop_asym_route: bool,
    /// How long a GET waits for its REPLY.
    pub transaction_timeout: Duration,
    /// Taken off the health of a peer, which is at most 1000, for a message that it could not be sent, and given back for one
    /// that it was sent. Zero: all peers count as healthy.
    pub health_sensitivity: u32,
    /// Interval of pings of a gateway that is not in use. Zero: no gateway is pinged.
    pub alive_router_check_interval: Duration,
    /// The rules by which gateways are judged.
    pub gateways: GatewayRules,
}

/// The rules by which gateways are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayRules {
    /// A gateway is dead if it leaves a ping unanswered for so long.
    pub router_ping_timeout: Duration,
    /// Whether a new gateway must answer a ping before it is used.
    pub check_routers_before_use: bool,
    /// Whether a gateway is left for a network on which its interfaces do not work.
    pub avoid_asym_router_failure: bool,
    /// Whether a gateway that does not answer counts as dead.
    pub auto_down: bool,
    /// Of a gateway's interfaces on a network, the percentage that must work.
    pub router_sensitivity: u32,
    /// A gateway that has been dead for so long is not pinged any more. Zero: it is pinged for ever.
    pub recovery_limit: Duration,
    /// Longest interval between pings of a dead gateway.
    pub max_recovery_ping_interval: Duration,
}

impl Default for GatewayRules {
    fn default() -> GatewayRules {
        GatewayRules {
            router_ping_timeout: Duration::from_millis(1500),
            check_routers_before_use: false,
            avoid_asym_router_failure: true,
            auto_down: true,
            router_sensitivity: 100,
            recovery_limit: Duration::ZERO,
            max_recovery_ping_interval: Duration::from_secs(60),
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::of(&LnetOptions::default())
    }
}

impl Settings {
    /// The settings that a node with these options begins with.
    pub(crate) fn of(options: &LnetOptions) -> Settings {
        Settings {
            retry_count: u32::from(options.retry_count),
            discovery: true,
            lanes: options.lanes,
            drop_asym_route: options.drop_asym_route,
            transaction_timeout: options.transaction_timeout,
            health_sensitivity: 100,
            alive_router_check_interval: options.alive_router_check_interval,
            gateways: GatewayRules::default(),
        }
    }

    /// Changes the setting with this name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let field = Settings::FIELDS.iter().find(|field| field.name == name);
        let field = field.ok_or_else(|| format!("there is no setting {name}"))?;
        let bad = |means: &str| Err(format!("{name}: {value:?} is not {means}"));
        match field.kind {
            Kind::Flag(of) => match value {
                "0" | "1" => *of(self) = value == "1",
                _ => return bad("0 or 1"),
            },
            Kind::Number(of, most) => match value.parse() {
                Ok(number) if number <= most => *of(self) = number,
                _ => return bad(&format!("a number from 0 to {most}")),
            },
            Kind::Seconds(of, least, most) => match seconds(value) {
                Some(time) if time.is_zero() && least == 0 => *of(self) = time,
                Some(time) if time >= Duration::from_millis(least) && time <= Duration::from_secs(most) => {
                    *of(self) = time;
                }
                _ if least == 0 => return bad(&format!("a number of seconds from 0 to {most}")),
                _ => return bad(&format!("a number of seconds from {} to {most}", least as f64 / 1000.0)),
            },
        }
        Ok(())
    }

    /// Names and values in the order in which `lnetctl global show` prints them. Times are in seconds.
    pub fn values(&self) -> Vec<(&'static str, f64)> {
        let mut copy = *self;
        let value = |field: &Field| match field.kind {
            Kind::Flag(of) => f64::from(u8::from(*of(&mut copy))),
            Kind::Number(of, _) => f64::from(*of(&mut copy)),
            Kind::Seconds(of, ..) => of(&mut copy).as_secs_f64(),
        };
        let names = Settings::FIELDS.iter().map(|field| field.name);
        names.zip(Settings::FIELDS.iter().map(value).collect::<Vec<_>>()).collect()
    }

    /// True if there is a setting with this name.
    pub fn has(name: &str) -> bool {
        Settings::FIELDS.iter().any(|field| field.name == name)
    }

    const FIELDS: &[Field] = &[
        Field { name: "discovery", kind: Kind::Flag(|s| &mut s.discovery) },
        Field { name: "lanes", kind: Kind::Flag(|s| &mut s.lanes) },
        Field { name: "drop_asym_route", kind: Kind::Flag(|s| &mut s.drop_asym_route) },
        Field { name: "retry_count", kind: Kind::Number(|s| &mut s.retry_count, 255) },
        Field { name: "transaction_timeout", kind: Kind::Seconds(|s| &mut s.transaction_timeout, 1000, 3600) },
        Field { name: "health_sensitivity", kind: Kind::Number(|s| &mut s.health_sensitivity, 1000) },
        Field { name: "router_sensitivity", kind: Kind::Number(|s| &mut s.gateways.router_sensitivity, 100) },
        Field { name: "recovery_limit", kind: Kind::Seconds(|s| &mut s.gateways.recovery_limit, 0, 86_400 * 365) },
        Field {
            name: "max_recovery_ping_interval",
            kind: Kind::Seconds(|s| &mut s.gateways.max_recovery_ping_interval, 1000, 3600),
        },
        Field {
            name: "alive_router_check_interval",
            kind: Kind::Seconds(|s| &mut s.alive_router_check_interval, 0, 3599),
        },
        Field { name: "router_ping_timeout", kind: Kind::Seconds(|s| &mut s.gateways.router_ping_timeout, 100, 600) },
        Field { name: "check_routers_before_use", kind: Kind::Flag(|s| &mut s.gateways.check_routers_before_use) },
        Field { name: "avoid_asym_router_failure", kind: Kind::Flag(|s| &mut s.gateways.avoid_asym_router_failure) },
        Field { name: "auto_down", kind: Kind::Flag(|s| &mut s.gateways.auto_down) },
    ];
}

/// One setting: its name, and where it is kept.
struct Field {
    name: &'static str,
    kind: Kind,
}

enum Kind {
    Flag(fn(&mut Settings) -> &mut bool),
    /// With the largest value.
    Number(fn(&mut Settings) -> &mut u32, u32),
    /// With the shortest time in milliseconds, and the longest in seconds.
    Seconds(fn(&mut Settings) -> &mut Duration, u64, u64),
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_named_and_have_bounds() {
        let mut settings = Settings::of(&LnetOptions::default());
        let value = |settings: &Settings, name| settings.values().iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        for (name, text, wanted) in [
            ("retry_count", "0", 0.0),
            ("drop_asym_route", "1", 1.0),
            ("transaction_timeout", "150", 150.0),
            ("router_ping_timeout", "0.5", 0.5),
            ("alive_router_check_interval", "0", 0.0),
            ("recovery_limit", "0", 0.0),
            ("auto_down", "0", 0.0),
        ] {
            settings.set(name, text).unwrap();
            assert_eq!(value(&settings, name), Some(wanted), "{name}");
        }
        for (name, text, why) in [
            ("retry_count", "256", "retry_count: \"256\" is not a number from 0 to 255"),
            ("drop_asym_route", "yes", "drop_asym_route: \"yes\" is not 0 or 1"),
            ("transaction_timeout", "0", "transaction_timeout: \"0\" is not a number of seconds from 1 to 3600"),
            ("router_ping_timeout", "NaN", "router_ping_timeout: \"NaN\" is not a number of seconds from 0.1 to 600"),
            ("recovery_limit", "-1", "recovery_limit: \"-1\" is not a number of seconds from 0 to 31536000"),
            ("numa_range", "0", "there is no setting numa_range"),
        ] {
            let before = settings;
            assert_eq!(settings.set(name, text).unwrap_err(), why);
            assert_eq!(settings, before);
        }
        assert!(Settings::has("auto_down") && Settings::has("discovery") && !Settings::has("numa_range"));
    }
}
