//! Settings of the link in one direction, and changes of them as people write them: `delay=46ms,rate=1gbit,loss=0.1%`.

use crate::share::Share;
use crate::units::{self, BadValue, Rate};
use std::fmt;
use std::time::Duration;

/// Longest packet in bytes: the MTU of both devices.
pub const MTU: usize = 1500;
/// Shortest queue that the bandwidth-delay product may give: a hundred packets, so that a short link still takes a burst.
const BDP_MIN_BYTES: u64 = 100 * MTU as u64;

/// One direction of a link, as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Link {
    /// Time from the departure of a packet's last bit to its arrival.
    pub delay: Duration,
    /// Greatest random addition to the delay, drawn uniformly between zero and this.
    pub jitter: Duration,
    /// Bits a second; none is as fast as the emulator.
    pub rate: Option<Rate>,
    /// Limit of the queue before the rate.
    pub queue: QueueLimit,
    /// Share of departed packets that never arrive.
    pub loss: Share,
    /// Share of packets that arrive after the delay alone and overtake packets that jitter holds up.
    pub reorder: Share,
}

/// Limit of a queue, as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueLimit {
    /// As many bytes as the rate carries in one round trip.
    #[default]
    BandwidthDelayProduct,
    /// So many bytes.
    Bytes(u64),
}

/// One direction of a link with all numbers known: what the engine obeys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// As in [`Link`].
    pub delay: Duration,
    /// As in [`Link`].
    pub jitter: Duration,
    /// As in [`Link`].
    pub rate: Option<Rate>,
    /// Most bytes in the queue. At least one packet fits.
    pub queue_max: u64,
    /// As in [`Link`].
    pub loss: Share,
    /// As in [`Link`].
    pub reorder: Share,
}

impl Link {
    /// The link with a change made.
    pub fn with(self, change: &Change) -> Link {
        Link {
            delay: change.delay.unwrap_or(self.delay),
            jitter: change.jitter.unwrap_or(self.jitter),
            rate: change.rate.unwrap_or(self.rate),
            queue: change.queue.unwrap_or(self.queue),
            loss: change.loss.unwrap_or(self.loss),
            reorder: change.reorder.unwrap_or(self.reorder),
        }
    }

    /// Refuses settings that contradict each other.
    pub fn check(&self) -> Result<(), BadValue> {
        if !self.reorder.is_none() && self.jitter.is_zero() {
            let why =
                "reordering needs jitter, because a packet overtakes those that jitter holds up; set jitter as well";
            return Err(BadValue(why.to_owned()));
        }
        Ok(())
    }

    /// The numbers for the engine. `delay_back` is the delay of the other direction, which makes the round trip.
    pub fn shape(&self, delay_back: Duration) -> Shape {
        let product = |rate: Rate| rate.bytes_in(self.delay + delay_back).max(BDP_MIN_BYTES);
        let queue_max = match self.queue {
            QueueLimit::Bytes(bytes) => bytes,
            QueueLimit::BandwidthDelayProduct => self.rate.map_or(BDP_MIN_BYTES, product),
        };
        let Link { delay, jitter, rate, loss, reorder, .. } = *self;
        Shape { delay, jitter, rate, queue_max, loss, reorder }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate.map_or("unlimited".to_owned(), |rate| rate.to_string());
        let queue = match self.queue {
            QueueLimit::BandwidthDelayProduct => "bdp".to_owned(),
            QueueLimit::Bytes(bytes) => bytes.to_string(),
        };
        let Link { delay, jitter, loss, reorder, .. } = self;
        write!(f, "delay={delay:?},rate={rate},queue={queue},loss={loss},jitter={jitter:?},reorder={reorder}")
    }
}

/// Settings that change; the others stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// A new delay.
    pub delay: Option<Duration>,
    /// A new jitter.
    pub jitter: Option<Duration>,
    /// A new rate, or none.
    pub rate: Option<Option<Rate>>,
    /// A new limit of the queue.
    pub queue: Option<QueueLimit>,
    /// A new share of losses.
    pub loss: Option<Share>,
    /// A new share of packets that overtake.
    pub reorder: Option<Share>,
}

impl Change {
    /// Reads settings with commas or blanks between them. Each may occur once.
    pub fn parse(text: &str) -> Result<Change, BadValue> {
        let mut change = Change::default();
        let mut settings = text.split([',', ' ', '\t']).filter(|word| !word.is_empty()).peekable();
        if settings.peek().is_none() {
            return Err(BadValue(format!("a setting is missing; {FORM}")));
        }
        settings.try_for_each(|setting| change.add(setting))?;
        Ok(change)
    }

    fn add(&mut self, setting: &str) -> Result<(), BadValue> {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(BadValue(format!("`{setting}` is no setting; {FORM}")));
        };
        let was_given = match key {
            "delay" => self.delay.replace(units::duration(value)?).is_some(),
            "rtt" => self.delay.replace(units::duration(value)? / 2).is_some(),
            "jitter" => self.jitter.replace(units::duration(value)?).is_some(),
            "rate" => self.rate.replace(rate(value)?).is_some(),
            "queue" => self.queue.replace(queue(value)?).is_some(),
            "loss" => self.loss.replace(value.parse()?).is_some(),
            "reorder" => self.reorder.replace(value.parse()?).is_some(),
            _ => return Err(BadValue(format!("there is no setting `{key}`; {FORM}"))),
        };
        if was_given { Err(BadValue(format!("`{setting}` sets a value twice; give it once"))) } else { Ok(()) }
    }
}

/// How to write settings, for messages.
const FORM: &str = "write name=value, with the names delay, rtt, rate, queue, loss, jitter and reorder";

/// Reads a rate, or `unlimited`.
pub fn rate(text: &str) -> Result<Option<Rate>, BadValue> {
    if text.trim() == "unlimited" { Ok(None) } else { text.parse().map(Some) }
}

/// Reads the limit of a queue: a size, or `bdp`.
pub(crate) fn queue(text: &str) -> Result<QueueLimit, BadValue> {
    match text.trim() {
        "bdp" => Ok(QueueLimit::BandwidthDelayProduct),
        text => units::bytes(text, MTU as u64).map(QueueLimit::Bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(text: &str) -> Link {
        Link::default().with(&Change::parse(text).unwrap())
    }

    #[test]
    fn a_change_leaves_other_settings_alone() {
        let before = link("delay=46ms,rate=1gbit loss=0.1%");
        let after = before.with(&Change::parse("delay=60ms").unwrap());
        assert_eq!(after, Link { delay: Duration::from_millis(60), ..before });
        assert_eq!(after.to_string(), "delay=60ms,rate=1gbit,queue=bdp,loss=0.1%,jitter=0ns,reorder=0%");
        assert_eq!(before.with(&Change::parse("rate=unlimited").unwrap()).rate, None);
        assert_eq!(link("rtt=92ms").delay, Duration::from_millis(46));
    }

    #[test]
    fn errors_say_what_was_wrong() {
        let error = |text: &str| Change::parse(text).unwrap_err().to_string();
        assert!(error("").contains("a setting is missing"));
        assert!(error("delay").contains("`delay` is no setting"));
        assert!(error("speed=1gbit").contains("no setting `speed`"));
        assert!(error("delay=1ms,rtt=2ms").contains("twice"));
        assert!(error("loss=2").contains("percent sign"));
        assert!(error("queue=100").contains("one packet must fit"));
        assert!(link("reorder=1%").check().unwrap_err().to_string().contains("needs jitter"));
        assert!(link("reorder=1%,jitter=1ms").check().is_ok());
    }

    #[test]
    fn a_queue_holds_a_round_trip_unless_told() {
        let back = Duration::from_millis(46);
        assert_eq!(link("delay=46ms,rate=1gbit").shape(back).queue_max, 11_500_000);
        assert_eq!(link("delay=46ms,rate=1gbit,queue=1MiB").shape(back).queue_max, 1 << 20);
        assert_eq!(link("delay=1ms,rate=10mbit").shape(Duration::ZERO).queue_max, BDP_MIN_BYTES);
    }
}
