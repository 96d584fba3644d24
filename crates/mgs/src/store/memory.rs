//! A store in memory that several MGSs share, for the simulator: what etcd promises and no more. Its replies take time, an MGS
//! can be cut off from it, also while a commit is under way, and old news is forgotten.

use super::{CHANGES_MAX, Changes, ConfigStore, Contents, News, Outcome, StoreError};
use async_trait::async_trait;
use nacre_base::Time;
use nacre_rt::Rt;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Time after which a call that waits for news returns without any, and a call to a store that is cut off fails.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often an MGS that is cut off asks again about a commit.
const RETRY: Duration = Duration::from_millis(100);
/// Latest events that are remembered.
const EVENTS_MAX: usize = 200;

/// The store. Cloning shares it.
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    rt: Rt,
    /// Longest time of a message to the store or from it.
    delay: Duration,
    kept: Mutex<Kept>,
    moved: watch::Sender<u64>,
}

#[derive(Default)]
struct Kept {
    /// Number of all commits and notices.
    seen: u64,
    /// Number of the last commit.
    head: u64,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Notices, with the times at which they end.
    notices: BTreeMap<String, (Vec<u8>, Time)>,
    /// The latest events; the last has the number `seen`.
    events: VecDeque<News>,
}

impl Kept {
    fn note(&mut self, event: News) {
        self.seen += 1;
        self.events.push_back(event);
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    fn handle_time(&mut self, now: Time) {
        let over = |(_, (_, ends)): &(&String, &(Vec<u8>, Time))| *ends <= now;
        let ended: Vec<String> = self.notices.iter().filter(over).map(|(name, _)| name.clone()).collect();
        for name in ended {
            self.notices.remove(&name);
            self.note(News::Notice(name, None));
        }
    }

    fn commit(&mut self, base: u64, changes: &Changes) -> Outcome {
        assert!(changes.len() <= CHANGES_MAX, "{} changes at once", changes.len());
        if base != self.head {
            return Outcome::Conflict;
        }
        for (key, value) in changes {
            match value {
                Some(value) => self.entries.insert(key.clone(), value.clone()),
                None => self.entries.remove(key),
            };
        }
        self.head = self.seen + 1;
        self.note(News::Commit(self.head, changes.clone()));
        Outcome::Made(self.head)
    }

    /// The events after number `seen`; `None` if some of them are forgotten.
    fn after(&self, seen: u64) -> Option<Vec<News>> {
        let missing = usize::try_from(self.seen.saturating_sub(seen)).ok()?;
        let first = self.events.len().checked_sub(missing)?;
        Some(self.events.range(first..).cloned().collect())
    }
}

impl MemoryStore {
    /// An empty store, to which a message takes up to `delay`.
    pub fn new(rt: &Rt, delay: Duration) -> MemoryStore {
        let moved = watch::channel(0).0;
        MemoryStore(Arc::new(Shared { rt: rt.clone(), delay, kept: Mutex::default(), moved }))
    }

    /// A connection of one MGS.
    pub fn connect(&self) -> Arc<MemoryConnection> {
        Arc::new(MemoryConnection { store: self.clone(), is_cut: AtomicBool::new(false) })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Kept) -> T) -> T {
        let mut kept = self.0.kept.lock();
        kept.handle_time(self.0.rt.now());
        let result = act(&mut kept);
        self.0.moved.send_replace(kept.seen);
        result
    }
}

/// One MGS's connection to the store, which can be cut.
pub struct MemoryConnection {
    store: MemoryStore,
    is_cut: AtomicBool,
}

impl MemoryConnection {
    /// Cuts the MGS off from the store, or ends that.
    pub fn set_cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Release);
    }

    fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// Time of one message.
    async fn travel(&self) {
        let Shared { rt, delay, .. } = &*self.store.0;
        rt.sleep(delay.mul_f64((rt.random() % 1024) as f64 / 1024.0)).await;
    }

    async fn travel_if_whole(&self) -> Result<(), StoreError> {
        self.travel().await;
        if self.is_cut() {
            self.store.0.rt.sleep(PATIENCE).await;
            return Err(StoreError::Away("it is cut off".to_owned()));
        }
        Ok(())
    }

    async fn travel_when_whole(&self) {
        self.travel().await;
        while self.is_cut() {
            self.store.0.rt.sleep(RETRY).await;
        }
    }
}

impl std::fmt::Debug for MemoryConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryConnection")
    }
}

#[async_trait]
impl ConfigStore for MemoryConnection {
    async fn load(&self) -> Result<Contents, StoreError> {
        self.travel_if_whole().await?;
        let contents = self.store.with(|kept| Contents {
            revision: kept.head,
            seen: kept.seen,
            entries: kept.entries.clone(),
            notices: kept.notices.iter().map(|(name, (notice, _))| (name.clone(), notice.clone())).collect(),
        });
        self.travel_if_whole().await?;
        Ok(contents)
    }

    async fn commit(&self, base: u64, changes: &Changes, _urgent: bool) -> Result<Outcome, StoreError> {
        self.travel_when_whole().await;
        let outcome = self.store.with(|kept| kept.commit(base, changes));
        self.travel_when_whole().await;
        Ok(outcome)
    }

    async fn head(&self) -> Result<u64, StoreError> {
        self.travel_if_whole().await?;
        let head = self.store.with(|kept| kept.head);
        self.travel_if_whole().await?;
        Ok(head)
    }

    async fn news(&self, seen: u64) -> Result<(u64, Vec<News>), StoreError> {
        let mut moved = self.store.0.moved.subscribe();
        let rt = &self.store.0.rt;
        let _ = rt.timeout(PATIENCE, moved.wait_for(|now| *now > seen)).await;
        self.travel_if_whole().await?;
        let (upto, events) = self.store.with(|kept| (kept.seen, kept.after(seen)));
        events.map(|events| (upto, events)).ok_or(StoreError::Forgotten(seen))
    }

    async fn publish(&self, name: &str, notice: Option<&[u8]>, lives: Duration) -> Result<(), StoreError> {
        self.travel_if_whole().await?;
        let ends = self.store.0.rt.now() + lives;
        self.store.with(|kept| {
            match notice {
                Some(notice) => kept.notices.insert(name.to_owned(), (notice.to_vec(), ends)),
                None => kept.notices.remove(name),
            };
            kept.note(News::Notice(name.to_owned(), notice.map(<[u8]>::to_vec)));
        });
        self.travel_if_whole().await
    }
}
