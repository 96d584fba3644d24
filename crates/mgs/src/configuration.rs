//! The configuration that the MGS answers from: a copy in memory of what the store has, kept current by the store's news. Changes
//! are made by rules on a draft of that copy, and hold if the store commits them.

use crate::draft::Draft;
use crate::error::ConfigError;
use crate::state::State;
use crate::store::{CHANGES_MAX, Changes, ConfigStore, Outcome, StoreError};
use nacre_osd::OsdError;
use nacre_rt::Rt;
use nacre_wire::mgs::ConfigReply;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{OwnedMutexGuard, oneshot, watch};

/// In place of a revision: this MGS stops, and hears of no commits any more.
const STOPPED: u64 = u64::MAX;

/// The configuration of all file systems.
pub(crate) struct Configuration {
    rt: Rt,
    store: Arc<dyn ConfigStore>,
    state: Mutex<State>,
    /// Held by the change that is under way, so that changes of this MGS are never in each other's way.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Revision of `state`.
    revision: watch::Sender<u64>,
    /// Number of calls that wanted to know all that was committed before them.
    refreshes: AtomicU64,
    /// Calls up to this number know that. Held by the one that asks the store, on behalf of all that have come meanwhile.
    refreshed: tokio::sync::Mutex<u64>,
    waiting: Waiting,
}

/// Requests that wait for news of a file system.
struct Waiting {
    by_fsname: Mutex<BTreeMap<String, watch::Sender<()>>>,
    /// Nodes that wait for a file system that is not there yet.
    for_unknown: watch::Sender<()>,
}

impl Configuration {
    /// An empty configuration, to be loaded from `store`.
    pub(crate) fn new(rt: &Rt, store: Arc<dyn ConfigStore>) -> Configuration {
        let waiting = Waiting { by_fsname: Mutex::default(), for_unknown: watch::channel(()).0 };
        let (rt, state, turn, revision) = (rt.clone(), Mutex::default(), Arc::default(), watch::channel(0).0);
        let (refreshes, refreshed) = Default::default();
        Configuration { rt, store, state, turn, revision, refreshes, refreshed, waiting }
    }

    /// The store.
    pub(crate) fn store(&self) -> &Arc<dyn ConfigStore> {
        &self.store
    }

    /// Replaces everything with what the store had at this revision.
    pub(crate) fn replace(&self, revision: u64, entries: BTreeMap<Vec<u8>, Vec<u8>>) {
        *self.state.lock() = State::new(revision, entries);
        self.note_revision(revision);
        self.wake_all();
    }

    /// Tells the waiters of a new revision of the state, unless this MGS has stopped meanwhile.
    fn note_revision(&self, revision: u64) {
        self.revision.send_if_modified(|known| {
            let goes_on = *known != STOPPED;
            if goes_on {
                *known = revision;
            }
            goes_on
        });
    }

    /// The store has made a commit. Returns the file systems that it changed, whose waiting requests have been woken.
    pub(crate) fn handle_commit(&self, revision: u64, changes: &Changes) -> Vec<String> {
        let changed = {
            let mut state = self.state.lock();
            let changed = state.handle_commit(revision, changes);
            self.note_revision(state.revision());
            changed
        };
        self.wake(&changed);
        changed
    }

    /// Looks at the entries.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Draft) -> T) -> T {
        look(&self.state.lock().draft())
    }

    /// The newest version for an asker that has version `since`.
    pub(crate) fn reply(&self, fsname: &str, since: u64) -> Result<ConfigReply, ConfigError> {
        self.state.lock().reply(fsname, since)
    }

    /// Makes a change by the rule `make`, which runs once more if another MGS has changed something meanwhile. When this
    /// returns, the change is durable, and all requests that wait for it have been woken.
    pub(crate) async fn change<T>(
        self: &Arc<Self>,
        make: impl Fn(&mut Draft) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        let mut turn = self.turn.clone().lock_owned().await;
        loop {
            let (base, made, (changes, urgent)) = {
                let state = self.state.lock();
                let mut draft = state.draft();
                (state.revision(), make(&mut draft), draft.into_changes())
            };
            if made.is_err() || changes.is_empty() {
                // Nothing may be refused, or found to be done, because of something that is no longer so.
                self.refresh().await?;
                if self.state.lock().revision() == base {
                    return made;
                }
                continue;
            }
            if changes.len() > CHANGES_MAX {
                return Err(ConfigError::TooMany(changes.len()));
            }
            let outcome;
            (turn, outcome) = self.commit(turn, base, changes, urgent).await?;
            if let Outcome::Made(_) = outcome {
                return made;
            }
            self.refresh().await?;
            if self.state.lock().revision() == base {
                let what = "its last commit is another one than it has told of";
                return Err(StoreError::Refused(what.to_owned()).into());
            }
        }
    }

    /// Commits changes in a task of its own, because a requester that gives up must not keep this MGS from learning the
    /// outcome. The task holds the turn until then.
    async fn commit(
        self: &Arc<Self>,
        turn: OwnedMutexGuard<()>,
        base: u64,
        changes: Changes,
        urgent: bool,
    ) -> Result<(OwnedMutexGuard<()>, Outcome), StoreError> {
        let (tell, told) = oneshot::channel();
        let this = self.clone();
        drop(self.rt.spawn(async move {
            let outcome = this.store.commit(base, &changes, urgent).await;
            if let Ok(Outcome::Made(revision)) = &outcome {
                this.handle_commit(*revision, &changes);
            }
            let _ = tell.send((turn, outcome));
        }));
        let (turn, outcome) = told.await.map_err(|_| StoreError::Osd(OsdError::Closed))?;
        Ok((turn, outcome?))
    }

    /// Ends all waits for commits, because this MGS stops and hears of none any more.
    pub(crate) fn stop(&self) {
        self.revision.send_replace(STOPPED);
        self.wake_all();
    }

    /// Waits until this MGS knows all that was committed before the call. Calls that come while the store is being asked share
    /// the next question, so that a thousand clients that mount together ask the store a few times.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let call = self.refreshes.fetch_add(1, Ordering::Relaxed) + 1;
        let mut refreshed = self.refreshed.lock().await;
        if *refreshed >= call {
            return Ok(());
        }
        let calls = self.refreshes.load(Ordering::Relaxed);
        let head = self.store.head().await?;
        let mut revision = self.revision.subscribe();
        // The sender is part of this, so it is there.
        let heard = revision.wait_for(|revision| *revision >= head).await.map(|revision| *revision);
        if heard.is_ok_and(|revision| revision == STOPPED) {
            return Err(StoreError::Away("this MGS stops".to_owned()));
        }
        *refreshed = calls;
        Ok(())
    }

    /// Tells of news of a file system from now on.
    pub(crate) fn subscribe(&self, fsname: &str) -> watch::Receiver<()> {
        let is_known = self.read(|draft| crate::config::version(draft, fsname).is_ok_and(|version| version > 0));
        if !is_known {
            return self.waiting.for_unknown.subscribe();
        }
        let mut all = self.waiting.by_fsname.lock();
        all.entry(fsname.to_owned()).or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// Wakes the requests that wait for news of these file systems.
    pub(crate) fn wake(&self, fsnames: &[String]) {
        let all = self.waiting.by_fsname.lock();
        fsnames.iter().filter_map(|fsname| all.get(fsname)).for_each(|waiting| waiting.send_replace(()));
        // A file system may have become known after a request began to wait for it.
        self.waiting.for_unknown.send_replace(());
    }

    /// Wakes all requests that wait for news.
    pub(crate) fn wake_all(&self) {
        self.waiting.by_fsname.lock().values().for_each(|waiting| waiting.send_replace(()));
        self.waiting.for_unknown.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::{MemoryConnection, MemoryStore};
    use crate::store::tests::simulated;
    use crate::store::{Contents, News};
    use std::time::Duration;

    /// Two MGSs on one store, each with a task that follows its news.
    fn two(rt: &Rt) -> [(Arc<Configuration>, Arc<MemoryConnection>); 2] {
        let store = MemoryStore::new(rt, Duration::from_millis(5));
        [store.connect(), store.connect()].map(|connection| {
            let configuration = Arc::new(Configuration::new(rt, connection.clone()));
            let (following, connected) = (configuration.clone(), connection.clone());
            drop(rt.spawn(async move {
                let mut seen = 0;
                loop {
                    let Ok((upto, news)) = connection.news(seen).await else { continue };
                    seen = upto;
                    for news in news {
                        let News::Commit(revision, changes) = news else { continue };
                        following.handle_commit(revision, &changes);
                    }
                }
            }));
            (configuration, connected)
        })
    }

    fn number(draft: &Draft, key: &[u8]) -> u64 {
        draft.get(key).map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
    }

    /// A store that counts the questions for its last commit.
    #[derive(Debug)]
    struct Counting {
        store: Arc<MemoryConnection>,
        asked: AtomicU64,
    }

    #[async_trait::async_trait]
    impl ConfigStore for Counting {
        async fn load(&self) -> Result<Contents, StoreError> {
            self.store.load().await
        }

        async fn commit(&self, base: u64, changes: &Changes, urgent: bool) -> Result<Outcome, StoreError> {
            self.store.commit(base, changes, urgent).await
        }

        async fn head(&self) -> Result<u64, StoreError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.store.head().await
        }

        async fn news(&self, seen: u64) -> Result<(u64, Vec<News>), StoreError> {
            self.store.news(seen).await
        }

        async fn publish(&self, name: &str, notice: Option<&[u8]>, lives: Duration) -> Result<(), StoreError> {
            self.store.publish(name, notice, lives).await
        }
    }

    #[test]
    fn those_who_come_together_share_a_question_to_the_store() {
        simulated(|rt| async move {
            let store = MemoryStore::new(&rt, Duration::from_millis(20)).connect();
            let store = Arc::new(Counting { store, asked: AtomicU64::new(0) });
            let configuration = Arc::new(Configuration::new(&rt, store.clone()));
            let refresh = |_| {
                let configuration = configuration.clone();
                rt.spawn(async move { configuration.refresh().await.unwrap() })
            };
            for task in (0..1000).map(refresh).collect::<Vec<_>>() {
                task.await;
            }
            let asked = store.asked.load(Ordering::Relaxed);
            assert!((1..=2).contains(&asked), "asked {asked} times");
            configuration.refresh().await.unwrap();
            assert_eq!(store.asked.load(Ordering::Relaxed), asked + 1, "who comes later asks again");
        });
    }

    #[test]
    fn what_two_mgss_give_out_is_given_once() {
        simulated(|rt| async move {
            let mgss = two(&rt);
            let given = Arc::new(Mutex::new(Vec::new()));
            let tasks: Vec<_> = (0..40)
                .map(|n| {
                    let (mgs, given) = (mgss[n % 2].0.clone(), given.clone());
                    rt.spawn(async move {
                        let take = |draft: &mut Draft| {
                            let next = number(draft, b"next") + 1;
                            draft.put(b"next", &next.to_le_bytes());
                            Ok(next)
                        };
                        let taken = mgs.change(take).await.unwrap();
                        given.lock().push(taken);
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            let mut given = given.lock().clone();
            given.sort_unstable();
            assert_eq!(given, (1..=40).collect::<Vec<u64>>());
        });
    }

    /// The store had made the change and the MGS did not know of it, so every later change and read waited for ever.
    #[test]
    fn a_change_that_was_given_up_is_known_all_the_same() {
        simulated(|rt| async move {
            let store = MemoryStore::new(&rt, Duration::from_secs(3)).connect();
            // No task follows the news of this store, as with an MGT.
            let mgs = Arc::new(Configuration::new(&rt, store));
            let put = |draft: &mut Draft| {
                draft.put(b"a", &[1]);
                Ok(())
            };
            assert!(rt.timeout(Duration::from_secs(1), mgs.change(put)).await.is_err(), "given up");
            let again = |draft: &mut Draft| {
                assert!(draft.get(b"a").is_some(), "it was made");
                draft.put(b"b", &[1]);
                Ok(())
            };
            rt.timeout(Duration::from_secs(60), mgs.change(again)).await.unwrap().unwrap();
        });
    }

    #[test]
    fn whoever_waits_for_news_of_a_store_is_told_that_there_will_be_none() {
        simulated(|rt| async move {
            let store = MemoryStore::new(&rt, Duration::from_millis(5));
            let (mgs, other) = (Arc::new(Configuration::new(&rt, store.connect())), store.connect());
            other.commit(0, &Changes::from([(b"a".to_vec(), Some(vec![1]))]), false).await.unwrap();
            let waiting = mgs.clone();
            let task = rt.spawn(async move { assert!(matches!(waiting.refresh().await, Err(StoreError::Away(_)))) });
            rt.sleep(Duration::from_secs(1)).await;
            assert!(!task.is_finished());
            mgs.stop();
            task.await;
            // A commit that was under way ends the stop as little as the news of one.
            mgs.handle_commit(1, &Changes::new());
            other.commit(1, &Changes::from([(b"b".to_vec(), Some(vec![1]))]), false).await.unwrap();
            assert!(matches!(mgs.refresh().await, Err(StoreError::Away(_))));
        });
    }

    /// A target that has just moved at one MGS was refused by another, which had not heard of that yet.
    #[test]
    fn nothing_is_refused_for_what_is_no_longer_so() {
        simulated(|rt| async move {
            let [(a, _), (b, connection)] = two(&rt);
            connection.set_cut(true);
            let put = |draft: &mut Draft| {
                draft.put(b"open", &[1]);
                Ok(())
            };
            a.change(put).await.unwrap();
            let enter = |draft: &mut Draft| match draft.get(b"open") {
                Some(_) => Ok(()),
                None => Err(ConfigError::NotSet("open".to_owned())),
            };
            connection.set_cut(false);
            assert!(b.read(|draft| draft.get(b"open").is_none()), "it has not heard yet");
            b.change(enter).await.unwrap();
        });
    }

    #[test]
    fn a_change_at_one_mgs_wakes_those_who_wait_at_another() {
        simulated(|rt| async move {
            let [(a, _), (b, _)] = two(&rt);
            let mut waiting = b.subscribe("n");
            let mut other = b.subscribe("n");
            let bump = |draft: &mut Draft| {
                let next = number(draft, b"version/n") + 1;
                draft.put(b"version/n", &next.to_le_bytes());
                Ok(())
            };
            a.change(bump).await.unwrap();
            rt.timeout(Duration::from_secs(1), waiting.changed()).await.unwrap().unwrap();
            let mut waiting = b.subscribe("n");
            other.mark_unchanged();
            a.change(bump).await.unwrap();
            rt.timeout(Duration::from_secs(1), waiting.changed()).await.unwrap().unwrap();
        });
    }
}
