//! An MGS whose configuration is in a store that other MGSs share. All of them are equal, and each answers for all changes. What
//! belongs to one of them (its clients' connections, their leases, the servers that it hears) is in its memory only. An MGS
//! that does not hear the store ends, so that its clients go to another.

use crate::configuration::Configuration;
use crate::draft::{Draft, Entries};
use crate::store::{ConfigStore, Contents, News, Outcome, StoreError};
use crate::{Mgs, TABLES, config, not_started};
use nacre_base::{Time, Uuid};
use nacre_osd::mem::{MemOptions, MemOsd};
use nacre_ptlrpc::{LEASE, RpcNode};
use nacre_rt::Rt;
use nacre_tgt::{TargetConfig, TargetError};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// An MGS that has not heard the store for so long ends. A new leader of the store is found sooner.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// Pause after a question that the store did not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Prefix of the notices that name clients which a server has evicted.
const EVICTED: &str = "evicted/";

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
        let mgs = Mgs::serve(target, Configuration::new(rt, store.clone()), contents).await?;
        mgs.handle_notices(notices, rt.now());
        drop(rt.spawn(follow(Arc::downgrade(&mgs), rt.clone(), store, seen)));
        Ok(mgs)
    }

    /// Resolves when this MGS must end, because its store has not answered for long, or has ended.
    pub async fn lost(&self) {
        let mut lost = self.lost.subscribe();
        let _ = lost.wait_for(|lost| *lost).await;
    }

    /// Tells the other MGSs which clients a server has evicted, because they may hold their leases there. `number` names the
    /// report among those of this start.
    pub(crate) async fn tell_evicted(&self, number: u64, clients: &[Uuid]) -> Result<(), StoreError> {
        if clients.is_empty() {
            return Ok(());
        }
        let name = format!("{EVICTED}{}.{number}", self.target.instance());
        let notice: Vec<u8> = clients.iter().flat_map(|client| client.0).collect();
        self.configuration.store().publish(&name, Some(&notice), LEASE).await
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
            News::Notice(name, Some(notice)) if name.starts_with(EVICTED) => {
                // Its own are known here, and ends of leases must not be counted twice.
                if !name[EVICTED.len()..].starts_with(&format!("{}.", self.target.instance())) {
                    let (clients, _) = notice.as_chunks();
                    self.handle_evicted(clients.iter().copied().map(Uuid), now);
                }
            }
            News::Notice(..) => {}
        }
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
