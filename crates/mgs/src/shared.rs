//! An MGS whose configuration is in a store that other MGSs share. All of them are equal, and each answers for all changes. What
//! belongs to one of them (its clients' connections, their leases, the servers that it hears) is in its memory only. An MGS
//! that does not hear the store ends, so that its clients go to another.

use crate::configuration::Configuration;
use crate::draft::{Draft, Entries};
use crate::heartbeats::Changed;
use crate::store::{ConfigStore, Contents, News, Outcome, StoreError};
use crate::{Mgs, TABLES, config, file_systems_of, logged, not_started};
use nacre_base::{Errno, TargetName, Time, Uuid};
use nacre_osd::mem::{MemOptions, MemOsd};
use nacre_ptlrpc::{LEASE, RpcNode, ServerRequest};
use nacre_rt::Rt;
use nacre_tgt::{TargetConfig, TargetError};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// An MGS that has not heard the store for so long ends. A new leader of the store is found sooner.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// Pause after a question that the store did not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Prefix of the notices that name clients which a server has evicted.
const EVICTED: &str = "evicted/";
/// Prefix of the notice in which an MGS names the targets that it calls silent, a line each.
const SILENT: &str = "silent/";
/// Prefix of the notice in which an MGS names the targets that another one calls silent, and that it hears.
const HEARD: &str = "heard/";
/// Most targets that are read from one notice.
const TARGETS_MAX: usize = 1 << 16;
/// How often such a notice is published again, so that it does not end.
const REPEATED_AFTER: Duration = LEASE.checked_div(3).expect("not by zero");

/// State of an MGS that publishes notices for the other MGSs on its store.
#[derive(Default)]
pub(crate) struct Sharing {
    /// Number of notices that name evicted clients.
    notices: AtomicU64,
    turns: Mutex<Turns>,
    /// Wakes the task that tells the others which targets are silent.
    tell: Arc<Notify>,
}

/// When servers' reports of evictions may become notices: each has a turn in every [`Turns::EACH`], and may take
/// [`Turns::AHEAD`] of them ahead, so that no server can fill the store. A sans-IO engine.
#[derive(Default)]
struct Turns {
    /// The time of the next turn of each server that has taken some ahead.
    next: BTreeMap<Uuid, Time>,
}

impl Turns {
    const EACH: Duration = Duration::from_secs(2);
    const AHEAD: u32 = 16;

    /// Takes the server's next turn, and returns its time.
    fn take(&mut self, server: Uuid, now: Time) -> Time {
        self.next.retain(|_, next| *next > now);
        let turn = self.next.get(&server).copied().unwrap_or(now);
        self.next.insert(server, turn + Self::EACH);
        let ahead = Self::EACH * Self::AHEAD;
        if turn.since(now) <= ahead { now } else { now + (turn.since(now) - ahead) }
    }
}

/// A start of an MGS on a shared store.
struct Session {
    /// Number of this start. No other start of any MGS on this store has it.
    instance: u64,
    /// UUID of the MGS that all of them are.
    uuid: Uuid,
    contents: Contents,
}

impl Session {
    async fn begin(rt: &Rt, store: &dyn ConfigStore) -> Result<Session, StoreError> {
        let fresh = Uuid::from_random(rt.random(), rt.random());
        loop {
            let Contents { revision, entries, .. } = store.load().await?;
            let (begun, (changes, urgent)) = begin(&entries, fresh);
            let (instance, uuid) = begun?;
            if let Outcome::Made(_) = store.commit(revision, &changes, urgent).await? {
                return Ok(Session { instance, uuid, contents: store.load().await? });
            }
        }
    }
}

type Begun = (Result<(u64, Uuid), StoreError>, (crate::store::Changes, bool));

fn begin(entries: &Entries, fresh: Uuid) -> Begun {
    let mut draft = Draft::new(entries);
    draft.use_reserve();
    let begun = config::begin_session(&mut draft, fresh).map_err(|error| StoreError::Refused(error.to_string()));
    (begun, draft.into_changes())
}

impl Mgs {
    /// Serves the configuration in `store`, as any number of other MGSs may do at the same time. The UUID in `config` is that of
    /// the store.
    pub async fn start_shared(
        node: &RpcNode,
        store: Arc<dyn ConfigStore>,
        config: TargetConfig,
    ) -> Result<Arc<Mgs>, TargetError> {
        let rt = node.rt();
        let Session { instance, uuid, mut contents } = Session::begin(rt, &*store).await.map_err(not_started)?;
        let osd = Arc::new(MemOsd::new(rt, TABLES, MemOptions::default()));
        nacre_tgt::set_instance(&*osd, instance - 1).await?;
        let target = nacre_tgt::Target::open(node, osd, TargetConfig { uuid, ..config }).await?;
        assert_eq!(target.instance(), instance, "the instance is that of the store");
        let (seen, notices) = (contents.seen, std::mem::take(&mut contents.notices));
        let sharing = Sharing::default();
        let told = sharing.tell.clone();
        let mgs = Mgs::serve(target, Configuration::new(rt, store.clone()), contents, Some(sharing)).await?;
        mgs.handle_notices(notices, rt.now());
        drop(rt.spawn(tell_silent(Arc::downgrade(&mgs), rt.clone(), told)));
        drop(rt.spawn(follow(Arc::downgrade(&mgs), rt.clone(), store, seen)));
        Ok(mgs)
    }

    /// Resolves when this MGS must end, because its store has not answered for long, or has ended.
    pub async fn lost(&self) {
        let mut lost = self.lost.subscribe();
        let _ = lost.wait_for(|lost| *lost).await;
    }

    /// Tells the other MGSs which clients a server has evicted, because they may hold their leases there. A server that reports too
    /// often waits for its turn.
    pub(crate) async fn tell_evicted(&self, request: &ServerRequest, clients: &[Uuid]) -> Result<(), Errno> {
        let Some(sharing) = self.sharing.as_ref().filter(|_| !clients.is_empty()) else { return Ok(()) };
        let rt = self.target.rt();
        // Taken once, so that a report that the store must be asked for again is still one notice.
        let number = sharing.notices.fetch_add(1, Ordering::Relaxed);
        let turn = sharing.turns.lock().take(request.export.client(), rt.now());
        let name = format!("{EVICTED}{}.{number}", self.target.instance());
        let notice: Vec<u8> = clients.iter().flat_map(|client| client.0).collect();
        let publish = || async {
            rt.sleep_until(turn).await;
            Ok(self.configuration.store().publish(&name, Some(&notice), LEASE).await?)
        };
        self.unless_abandoned(request, publish).await.map_err(logged)
    }

    /// The silent targets may have changed: the other MGSs should know.
    pub(crate) fn tell_others(&self) {
        if let Some(sharing) = &self.sharing {
            sharing.tell.notify_one();
        }
    }

    /// Servers have evicted these clients: their leases end.
    pub(crate) fn handle_evicted(&self, clients: impl Iterator<Item = Uuid>, now: Time) {
        for client in clients {
            if self.leases.lock().handle_evicted(client, now) {
                self.end_lease(client);
            }
        }
    }

    fn handle_notices(&self, notices: BTreeMap<String, Vec<u8>>, now: Time) {
        let notices = notices.into_iter().map(|(name, notice)| News::Notice(name, Some(notice)));
        notices.for_each(|notice| self.handle_news(notice, now));
    }

    fn handle_news(&self, news: News, now: Time) {
        match news {
            News::Commit(revision, changes) => drop(self.configuration.handle_commit(revision, &changes)),
            News::Notice(name, notice) => self.handle_notice(&name, notice, now),
        }
    }

    /// Handles a notice of another MGS. What its own notices say is known here, and ends of leases must not be counted twice.
    fn handle_notice(&self, name: &str, notice: Option<Vec<u8>>, now: Time) {
        let own = self.target.instance().to_string();
        let of_others = |prefix: &str| {
            let rest = name.strip_prefix(prefix)?;
            (rest.split('.').next() != Some(&own)).then_some(rest)
        };
        if let (Some(_), Some(notice)) = (of_others(EVICTED), &notice) {
            let (clients, _) = notice.as_chunks();
            self.handle_evicted(clients.iter().copied().map(Uuid), now);
        } else if let Some(mgs) = of_others(SILENT) {
            let changed = self.heartbeats.lock().handle_other(mgs, notice.as_deref().map(targets_in));
            self.handle_silence(changed);
        } else if let (Some(_), Some(notice)) = (of_others(HEARD), &notice) {
            let changed = self.heartbeats.lock().handle_heard_elsewhere(&targets_in(notice));
            self.handle_silence(changed);
        }
    }

    /// Other MGSs have changed which targets are silent.
    fn handle_silence(&self, (silent, heard): Changed) {
        if !silent.is_empty() {
            tracing::info!("{}: another MGS hears nothing", silent.join(", "));
        }
        if !heard.is_empty() {
            tracing::info!("{}: another MGS hears them", heard.join(", "));
        }
        self.configuration.wake(&file_systems_of(&[silent, heard].concat()));
        self.tell_others();
    }
}

/// Names of targets in a notice. It may have been written by anybody who may write to the store.
fn targets_in(notice: &[u8]) -> BTreeSet<String> {
    let lines = notice.split(|byte| *byte == b'\n').filter_map(|line| str::from_utf8(line).ok());
    lines.filter(|line| line.parse::<TargetName>().is_ok()).map(str::to_owned).take(TARGETS_MAX).collect()
}

/// Tells the other MGSs which targets this one calls silent, and which of theirs it hears: after each change, and again and
/// again while there are any.
async fn tell_silent(mgs: Weak<Mgs>, rt: Rt, tell: Arc<Notify>) {
    let mut told: [(BTreeSet<String>, Time); 2] = Default::default();
    loop {
        let Some(mgs) = mgs.upgrade().filter(|mgs| !mgs.stopping.load(Ordering::Acquire)) else { return };
        let wanted = {
            let heartbeats = mgs.heartbeats.lock();
            [(SILENT, heartbeats.own_silent()), (HEARD, heartbeats.contested())]
        };
        let mut failed = false;
        for ((prefix, targets), (told, at)) in wanted.into_iter().zip(&mut told) {
            let is_over = !targets.is_empty() && rt.now().since(*at) >= REPEATED_AFTER;
            if *told == targets && !is_over {
                continue;
            }
            let name = format!("{prefix}{}", mgs.target.instance());
            let notice = targets.iter().cloned().collect::<Vec<_>>().join("\n");
            // An empty notice says that this MGS calls nothing silent, and its end that the MGS has ended.
            match mgs.configuration.store().publish(&name, Some(notice.as_bytes()), LEASE).await {
                Ok(()) => (*told, *at) = (targets, rt.now()),
                Err(error) => {
                    tracing::debug!(%error, "the other MGSs were not told of silent targets");
                    failed = true;
                }
            }
        }
        drop(mgs);
        let pause = if failed { RETRY_PAUSE } else { REPEATED_AFTER };
        let _ = rt.timeout(pause, tell.notified()).await;
    }
}

/// Keeps the MGS's copy of the configuration current, until the MGS ends or has lost the store.
async fn follow(mgs: Weak<Mgs>, rt: Rt, store: Arc<dyn ConfigStore>, mut seen: u64) {
    let mut answered = rt.now();
    loop {
        let news = rt.timeout(LOST_AFTER, store.news(seen)).await;
        let news = news.unwrap_or_else(|_| Err(StoreError::Away("no answer".to_owned())));
        let Some(mgs) = mgs.upgrade().filter(|mgs| !mgs.stopping.load(Ordering::Acquire)) else { return };
        let failure = match news {
            Ok((upto, news)) => {
                (seen, answered) = (upto, rt.now());
                news.into_iter().for_each(|news| mgs.handle_news(news, rt.now()));
                continue;
            }
            Err(StoreError::Forgotten(_)) => match store.load().await {
                Ok(contents) => {
                    (seen, answered) = (contents.seen, rt.now());
                    mgs.configuration.replace(contents.revision, contents.entries);
                    mgs.handle_notices(contents.notices, rt.now());
                    continue;
                }
                Err(error) => error,
            },
            Err(error) => error,
        };
        tracing::debug!(error = %failure, "no news of the configuration");
        if rt.now().since(answered) >= LOST_AFTER {
            let silent = LOST_AFTER.as_secs();
            tracing::warn!(
                "{failure}; no answer for {silent} s: this MGS stops until there is one, and clients and servers go on with another MGS"
            );
            mgs.lost.send_replace(true);
            return;
        }
        drop(mgs);
        rt.sleep(RETRY_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_reports_too_often_waits_for_its_turn() {
        let (mut turns, now, busy, other) = (Turns::default(), Time::from_secs(100), Uuid([1; 16]), Uuid([2; 16]));
        for _ in 0..=Turns::AHEAD {
            assert_eq!(turns.take(busy, now), now);
        }
        assert_eq!(turns.take(busy, now), now + Turns::EACH);
        assert_eq!(turns.take(busy, now + Turns::EACH), now + Turns::EACH * 2);
        assert_eq!(turns.take(other, now), now, "each server has turns of its own");
        let later = now + Turns::EACH * (Turns::AHEAD + 4);
        assert_eq!((turns.take(busy, later), turns.next.len()), (later, 1), "who has all of its turns is forgotten");
    }

    #[test]
    fn what_is_no_target_in_a_notice_is_left_out() {
        let read = targets_in(b"nacre-OST0001\n\xff\nnothing\n\nnacre-MDT0000");
        assert_eq!(read.into_iter().collect::<Vec<_>>(), ["nacre-MDT0000", "nacre-OST0001"]);
    }
}
