//! Where the MGS keeps the configuration of its file systems: a small interface of a versioned key-value store. Behind it is
//! the MGS's own target ([`mgt`]), a store that several MGSs share, such as etcd, or its twin in memory ([`memory`]).
//!
//! The rules of the configuration (`config`) run over a snapshot and say what changes. The store carries out all changes of a
//! commit or none, and only if nobody has committed since the snapshot.

pub mod memory;
pub(crate) mod mgt;
pub mod suite;

use async_trait::async_trait;
use nacre_osd::OsdError;
use std::collections::BTreeMap;
use std::time::Duration;

/// Changes of one commit, by key; `None` removes the key.
pub type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Most changes of one commit: a store may bound what it does at once, as etcd does (128).
pub const CHANGES_MAX: usize = 100;

/// Everything that a store has, as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Revision of the last commit; 0 if there was none.
    pub revision: u64,
    /// Revision up to which [`ConfigStore::news`] has nothing to add to these contents.
    pub seen: u64,
    /// All keys and values.
    pub entries: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The notices that have not ended.
    pub notices: BTreeMap<String, Vec<u8>>,
}

/// A change that was made by this MGS or another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A commit, with its revision.
    Commit(u64, Changes),
    /// A notice was published under this name, or has ended.
    Notice(String, Option<Vec<u8>>),
}

/// Result of a commit that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All changes were made, at this revision.
    Made(u64),
    /// Nothing was changed, because somebody else has committed since.
    Conflict,
}

/// Reason why a store did not do what it was asked for. A commit has then changed nothing, unless it was the MGS's own storage
/// that failed; a notice may have been published.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The MGS's own storage failed.
    #[error(transparent)]
    Osd(#[from] OsdError),
    /// The store does not answer, or cannot answer for all of its members.
    #[error("the configuration's store does not answer: {0}")]
    Away(String),
    /// The store no longer knows all changes since then: everything must be loaded again.
    #[error("the configuration's store has forgotten what changed since revision {0}")]
    Forgotten(u64),
    /// The store refuses this MGS, or has something else in the place of a configuration.
    #[error("the configuration's store refuses: {0}")]
    Refused(String),
}

/// A store of keys and values that several MGSs may share. Reads are of the newest state that any of them could have read before.
#[async_trait]
pub trait ConfigStore: std::fmt::Debug + Send + Sync + 'static {
    /// Reads everything.
    async fn load(&self) -> Result<Contents, StoreError>;

    /// Makes `changes`, all or none, durably, if the last commit is still the one at revision `base`; there are at most
    /// [`CHANGES_MAX`]. They may use what the store keeps back for an emergency if `urgent` says so. While it is not known
    /// whether the changes were made, the call goes on asking; dropping it leaves that open.
    async fn commit(&self, base: u64, changes: &Changes, urgent: bool) -> Result<Outcome, StoreError>;

    /// Revision of the last commit.
    async fn head(&self) -> Result<u64, StoreError>;

    /// Waits for commits and notices after revision `seen`. Returns them in order, with the revision up to which they are
    /// complete; every few seconds without any, which tells that the store answers.
    async fn news(&self, seen: u64) -> Result<(u64, Vec<News>), StoreError>;

    /// Tells all MGSs something that ends by itself after `lives`, unless it is published again. Nothing depends on it but
    /// time. `None` ends it now.
    async fn publish(&self, name: &str, notice: Option<&[u8]>, lives: Duration) -> Result<(), StoreError>;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::TABLES;
    use memory::MemoryStore;
    use nacre_base::param::Params;
    use nacre_base::{Faults, TargetName, Time, Uuid};
    use nacre_lnet::{SimNet, SimNetOptions};
    use nacre_osd::mem::{MemOptions, MemOsd};
    use nacre_ptlrpc::RpcNode;
    use nacre_rt::{Rt, Sim};
    use nacre_tgt::{Target, TargetConfig};
    use std::sync::Arc;

    /// Runs a test in virtual time.
    pub(crate) fn simulated<Fut: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Rt) -> Fut) {
        let mut sim = Sim::new(3);
        let rt = sim.rt();
        sim.block_on(Time::from_secs(600), test(rt));
    }

    #[test]
    fn the_store_in_memory_is_a_store() {
        simulated(|rt| async move {
            let store = || MemoryStore::new(&rt, Duration::from_millis(20));
            let two = |store: MemoryStore| -> [Arc<dyn ConfigStore>; 2] { [store.connect(), store.connect()] };
            let [a, b] = two(store());
            suite::check_commits(&a, &b).await.unwrap();
            suite::check_race(&a, &b, 50).await.unwrap();
            suite::check_news(&rt, &a, &b).await.unwrap();
        });
    }

    #[test]
    fn the_table_of_a_target_is_a_store() {
        simulated(|rt| async move {
            let net = SimNet::new(rt.clone(), SimNetOptions::default());
            let node = RpcNode::simulated(rt.clone(), &net, None, Faults::new());
            let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
            let (params, faults, host) = (Params::new(), Faults::new(), "h".to_owned());
            let config = TargetConfig { name: TargetName::mgs(), uuid: Uuid([1; 16]), host, params, faults };
            let target = Target::open(&node, osd.clone(), config).await.unwrap();
            let store: Arc<dyn ConfigStore> = Arc::new(mgt::MgtStore::new(target));
            suite::check_commits(&store, &store).await.unwrap();
            suite::check_race(&store, &store, 50).await.unwrap();
            let before = store.load().await.unwrap();
            osd.crash(nacre_osd::mem::Crash::PowerCut);
            let again = Arc::new(osd.reopen(&rt, TABLES));
            let (params, faults, host) = (Params::new(), Faults::new(), "h".to_owned());
            let config = TargetConfig { name: TargetName::mgs(), uuid: Uuid([1; 16]), host, params, faults };
            let target = Target::open(&node, again, config).await.unwrap();
            let after = mgt::MgtStore::new(target).load().await.unwrap();
            assert_eq!(after.entries, before.entries, "commits are durable");
        });
    }

    /// etcd compacts its history, too.
    #[test]
    fn who_is_far_behind_must_load_everything() {
        simulated(|rt| async move {
            let store = MemoryStore::new(&rt, Duration::ZERO).connect();
            let mut at = 0;
            for n in 0..300u64 {
                let changes = Changes::from([(b"n".to_vec(), Some(n.to_le_bytes().to_vec()))]);
                let Outcome::Made(revision) = store.commit(at, &changes, false).await.unwrap() else { panic!() };
                at = revision;
            }
            assert!(matches!(store.news(50).await, Err(StoreError::Forgotten(50))));
            assert_eq!(store.news(299).await.unwrap().1.len(), 1);
        });
    }

    #[test]
    fn a_store_that_is_cut_off_leaves_a_commit_open() {
        simulated(|rt| async move {
            let store = MemoryStore::new(&rt, Duration::ZERO);
            let (a, b) = (store.connect(), store.connect());
            let changes = Changes::from([(b"x".to_vec(), Some(vec![1]))]);
            a.set_cut(true);
            assert!(matches!(a.head().await, Err(StoreError::Away(_))));
            let waited = rt.timeout(Duration::from_secs(5), a.commit(0, &changes, false)).await;
            assert!(waited.is_err(), "it goes on asking");
            assert!(matches!(b.commit(0, &changes, false).await, Ok(Outcome::Made(_))));
            a.set_cut(false);
            assert!(matches!(a.commit(0, &changes, false).await, Ok(Outcome::Conflict)));
        });
    }
}
