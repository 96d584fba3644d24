//! Identity and roles of a peer. A role is never taken from what a peer claims: the MGS lists the NIDs of every server,
//! and the NID that a message came from decides. LNet is responsible for that NID being the sender's.
//!
//! Certificates would add a second field to [`Identity`] and a second kind of evidence to [`Servers::is_server`]; the
//! tables of opcodes and roles would stay as they are.

use crate::RpcError;
use nacre_base::{Nid, TargetKind, TargetName, Time};
use nacre_rt::Rt;
use nacre_wire::mgs::{Config, TargetEntry};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Evidence of a peer's identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The NID that its messages come from.
    pub nid: Nid,
}

/// A set of roles. Each line of a service's table names the roles that it admits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Roles(u8);

impl Roles {
    /// Every peer: a client need not prove anything.
    pub const CLIENT: Roles = Roles(1);
    /// Nodes that the MGS lists for an MDT of the file system.
    pub const MDT: Roles = Roles(2);
    /// Nodes that the MGS lists for an OST of the file system.
    pub const OST: Roles = Roles(4);
    /// The node of the target itself: tools of its administrator.
    pub const LOCAL: Roles = Roles(8);

    /// The union of both sets.
    pub const fn or(self, other: Roles) -> Roles {
        Roles(self.0 | other.0)
    }

    /// Returns whether the two have a role in common.
    pub const fn includes(self, other: Roles) -> bool {
        self.0 & other.0 != 0
    }

    /// Role of a server of targets of this kind.
    pub const fn of(kind: TargetKind) -> Roles {
        match kind {
            TargetKind::Mgt => Roles::LOCAL,
            TargetKind::Mdt => Roles::MDT,
            TargetKind::Ost => Roles::OST,
        }
    }

    /// Role of the nodes that the MGS lists for this target: that of its kind alone, because anybody may add an OST.
    pub fn of_entry(entry: &TargetEntry) -> Roles {
        entry.target.parse::<TargetName>().map_or(Roles(0), |name| Roles::of(name.kind))
    }
}

impl std::fmt::Display for Roles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names =
            [(Roles::CLIENT, "clients"), (Roles::MDT, "MDTs"), (Roles::OST, "OSTs"), (Roles::LOCAL, "the node itself")];
        let names: Vec<_> = names.iter().filter(|(role, _)| self.includes(*role)).map(|(_, name)| *name).collect();
        f.write_str(&names.join(" and "))
    }
}

/// How well a connecting peer has proven to be the client that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The MGS lists the peer's NID for the target that it connects as.
    Proven,
    /// Nothing but the peer's own claim: it must not replace a client that answers at another NID.
    Claimed,
}

/// Fetches the current configuration from the MGS.
pub type AskMgs = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Config, RpcError>> + Send>> + Send + Sync>;

/// The servers of a file system, as the MGS lists them.
pub struct Servers {
    rt: Rt,
    config: watch::Receiver<Arc<Config>>,
    /// Servers known from an earlier start, used until the MGS has answered in this one.
    kept: Mutex<Vec<Arc<TargetEntry>>>,
    ask: AskMgs,
    /// Held while the MGS is asked, so that unknown peers cause one question at a time.
    asked: tokio::sync::Mutex<Asked>,
}

/// Latest configuration that was fetched because a peer was not listed.
#[derive(Default)]
struct Asked {
    /// When the question was sent; `None` before the first.
    at: Option<Time>,
    /// The configuration; `None` if the MGS did not answer.
    config: Option<Box<Config>>,
}

/// Pause between two questions to the MGS that unknown peers cause.
const ASK_PAUSE: Duration = Duration::from_millis(200);

impl Servers {
    /// The servers in `config`, which is kept current; `ask` fetches a newer configuration.
    pub fn new(rt: &Rt, config: watch::Receiver<Arc<Config>>, ask: AskMgs) -> Servers {
        Servers { rt: rt.clone(), config, kept: Mutex::default(), ask, asked: tokio::sync::Mutex::default() }
    }

    /// Uses `entries` as the list until the MGS has given one.
    pub fn keep(&self, entries: Vec<Arc<TargetEntry>>) {
        *self.kept.lock() = entries;
    }

    /// Returns whether the MGS lists this peer for a target that `is` accepts. A peer that is missing in the list known
    /// here may be in a newer one, so the MGS is asked. If the MGS does not answer, an error is returned and nothing is
    /// decided.
    pub async fn is_server(
        &self,
        who: Identity,
        is: impl Fn(&TargetEntry) -> bool + Send + Sync,
    ) -> Result<bool, RpcError> {
        let lists = |targets: &[Arc<TargetEntry>]| targets.iter().any(|t| is(t) && t.nids.contains(&who.nid));
        // The loopback carries only messages of this process, which can access the storage of its targets anyway.
        if who.nid == Nid::LO || self.known(lists) {
            return Ok(true);
        }
        // Boxed, because it is rare, and the future of every request whose sender is checked would contain it otherwise.
        Box::pin(self.ask_now(lists)).await
    }

    /// Like [`Servers::is_server`], for any target whose kind gives one of the `wanted` roles.
    pub async fn has_role(&self, who: Identity, wanted: Roles) -> Result<bool, RpcError> {
        self.is_server(who, |entry| wanted.includes(Roles::of_entry(entry))).await
    }

    /// Calls `look` with the list that is known here.
    pub fn known<T>(&self, look: impl Fn(&[Arc<TargetEntry>]) -> T) -> T {
        let config = self.config.borrow();
        if config.version == 0 { look(&self.kept.lock()) } else { look(&config.targets) }
    }

    /// Calls `look` with a list that was requested after this call began.
    async fn ask_now<T>(&self, look: impl Fn(&[Arc<TargetEntry>]) -> T) -> Result<T, RpcError> {
        let begun = self.rt.now();
        let mut asked = self.asked.lock().await;
        if asked.at.is_none_or(|at| at < begun) {
            if let Some(at) = asked.at {
                self.rt.sleep_until(at + ASK_PAUSE).await;
            }
            asked.at = Some(self.rt.now());
            asked.config = (self.ask)().await.ok().map(Box::new);
        }
        asked.config.as_ref().map(|config| look(&config.targets)).ok_or(RpcError::TimedOut)
    }
}

/// Keeps refusals, of which unknown peers can cause any number, from filling the log: one line a second.
#[derive(Default, Debug)]
pub struct Refusals(AtomicU64);

impl Refusals {
    /// Returns whether a refusal at `now` is logged for people; the other refusals are logged for debugging only.
    pub fn is_worth_a_line(&self, now: Time) -> bool {
        let second = now.0 / 1_000_000_000 + 1;
        self.0.swap(second, Ordering::Relaxed) != second
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_rt::Sim;
    use std::sync::atomic::AtomicUsize;

    fn entry(target: &str, nid: Nid) -> Arc<TargetEntry> {
        Arc::new(TargetEntry { target: target.into(), nids: vec![nid], ..TargetEntry::default() })
    }

    fn config(version: u64, targets: Vec<Arc<TargetEntry>>) -> Config {
        Config { version, targets, ..Config::default() }
    }

    fn who(node: u32) -> Identity {
        Identity { nid: Nid::sim(node) }
    }

    #[test]
    fn the_list_decides_and_the_mgs_is_asked_about_those_who_are_not_in_it() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        sim.block_on(Time::from_secs(60), async move {
            let (sender, receiver) = watch::channel(Arc::new(Config::default()));
            let (asked, newest) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
            let (count, answer) = (asked.clone(), newest.clone());
            let ask: AskMgs = Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
                let answer: Option<Config> = answer.lock().clone();
                Box::pin(async move { answer.ok_or(RpcError::TimedOut) })
            });
            let servers = Servers::new(&rt, receiver, ask);
            // A configuration counts only for checks that began before it was requested, so time must pass in between.
            let moment = || rt.sleep(Duration::from_millis(1));
            // Nothing is known and the MGS does not answer: nothing is decided, except by the list from an earlier
            // start.
            assert!(servers.has_role(who(1), Roles::MDT).await.is_err());
            servers.keep(vec![entry("n-MDT0000", Nid::sim(1))]);
            assert_eq!(servers.has_role(who(1), Roles::MDT).await, Ok(true));
            moment().await;
            assert!(servers.has_role(who(2), Roles::MDT).await.is_err());
            let list = vec![entry("n-MDT0000", Nid::sim(2)), entry("n-OST0000", Nid::sim(3))];
            sender.send_replace(Arc::new(config(1, list.clone())));
            *newest.lock() = Some(config(1, list.clone()));
            let before = asked.load(Ordering::Relaxed);
            assert_eq!(servers.has_role(who(2), Roles::MDT).await, Ok(true));
            assert_eq!(servers.has_role(Identity { nid: Nid::LO }, Roles::MDT).await, Ok(true));
            assert_eq!(asked.load(Ordering::Relaxed), before, "the known are let in without a question");
            moment().await;
            assert_eq!(servers.has_role(who(1), Roles::MDT).await, Ok(false), "the kept list counts no more");
            assert_eq!(servers.has_role(who(3), Roles::MDT).await, Ok(false), "an OST is no MDT");
            assert_eq!(servers.is_server(who(3), |t| t.target == "n-OST0000").await, Ok(true));
            // A server that registered a moment ago is in the MGS's list, but not yet in the one known here.
            let later = [list, vec![entry("n-MDT0001", Nid::sim(4))]].concat();
            *newest.lock() = Some(config(2, later));
            moment().await;
            assert_eq!(servers.has_role(who(4), Roles::MDT).await, Ok(true));
            // Unknown peers that come together cause one question, and the next question has to wait.
            let before = asked.load(Ordering::Relaxed);
            let stranger = |n| servers.has_role(who(n), Roles::MDT);
            moment().await;
            assert_eq!(tokio::join!(stranger(5), stranger(6), stranger(7)), (Ok(false), Ok(false), Ok(false)));
            assert_eq!(asked.load(Ordering::Relaxed) - before, 1);
            let begun = rt.now();
            for _ in 0..5 {
                moment().await;
                assert_eq!(stranger(5).await, Ok(false));
            }
            assert!(rt.now().since(begun) >= 4 * ASK_PAUSE);
        });
    }

    #[test]
    fn refusals_fill_no_log() {
        let refusals = Refusals::default();
        let lines = (0..3000).filter(|ms| refusals.is_worth_a_line(Time(ms * 1_000_000))).count();
        assert_eq!(lines, 3);
    }
}
