//! One copy of each configuration for all nodes of a process. Every target of a server follows the configuration, which may have hundreds of
//! entries, and a simulation has thousands of clients that follow it; so those who know the same share the memory for it.

use bytes::Bytes;
use nacre_wire::mgs::{Config, ConfigReply, TargetEntry};
use nacre_wire::{Field, Reader, WireError, decode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// A [`ConfigReply`] as it was received, with the same fields. Clients that mount together get the same bytes, so they are decoded once.
#[derive(Clone, Debug, Default)]
pub(crate) struct News {
    pub(crate) since: u64,
    pub(crate) config: Arc<Config>,
    pub(crate) unset: Vec<String>,
}

/// The reply that came last, and its bytes.
static LAST: Mutex<Option<(Bytes, News)>> = Mutex::new(None);

impl Field for News {
    const MIN_SIZE: usize = ConfigReply::MIN_SIZE;

    fn put(&self, out: &mut Vec<u8>) {
        let News { since, config, unset } = self.clone();
        ConfigReply { since, config: Arc::unwrap_or_clone(config), unset }.put(out);
    }

    fn take(from: &mut Reader) -> Result<News, WireError> {
        let bytes = from.take(from.remaining())?;
        let mut last = LAST.lock();
        if let Some((_, news)) = last.as_ref().filter(|(known, _)| *known == bytes) {
            return Ok(news.clone());
        }
        let ConfigReply { since, mut config, unset } = decode(&bytes)?;
        share(&mut config.targets);
        let news = News { since, config: Arc::new(config), unset };
        // A copy, because the bytes may be a part of a large buffer.
        *last = Some((Bytes::copy_from_slice(&bytes), news.clone()));
        Ok(news)
    }
}

/// Entries that are in use, by the names of their targets.
static IN_USE: Mutex<Entries> = Mutex::new(Entries { by_name: BTreeMap::new(), clean_at: CLEAN_AT_FIRST });

/// Number of entries from which on those that are no longer in use are looked for.
const CLEAN_AT_FIRST: usize = 64;

struct Entries {
    by_name: BTreeMap<String, Weak<TargetEntry>>,
    clean_at: usize,
}

/// Puts entries that are in use already in the place of those that are like them.
fn share(entries: &mut [Arc<TargetEntry>]) {
    let mut in_use = IN_USE.lock();
    entries.iter_mut().for_each(|entry| in_use.share(entry));
}

impl Entries {
    fn share(&mut self, entry: &mut Arc<TargetEntry>) {
        match self.by_name.get(&entry.target).and_then(Weak::upgrade) {
            Some(known) if known == *entry => *entry = known,
            _ => self.add(entry),
        }
    }

    /// The latest entry of a name takes the place of others, because those are of an older version.
    fn add(&mut self, entry: &Arc<TargetEntry>) {
        self.by_name.insert(entry.target.clone(), Arc::downgrade(entry));
        if self.by_name.len() >= self.clean_at {
            self.by_name.retain(|_, entry| entry.strong_count() > 0);
            self.clean_at = CLEAN_AT_FIRST.max(2 * self.by_name.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_wire::encode;

    #[test]
    fn a_reply_that_came_before_is_not_decoded_again() {
        let reply = |version| {
            let targets = vec![entry("shared-OST0000", 1), entry("shared-OST0001", 1)];
            let config = Config { version, fsname: "shared".to_owned(), targets, ..Config::default() };
            encode(&ConfigReply { config, ..ConfigReply::default() })
        };
        let [first, same, newer] = [1, 1, 2].map(|version| decode::<News>(&reply(version)).unwrap());
        assert!(Arc::ptr_eq(&first.config, &same.config));
        assert_eq!([first.config.version, newer.config.version], [1, 2]);
        assert!(Arc::ptr_eq(&first.config.targets[1], &newer.config.targets[1]), "entries are shared, too");
        assert_eq!(encode(&newer), reply(2));
    }

    fn entry(name: &str, instance: u64) -> Arc<TargetEntry> {
        Arc::new(TargetEntry { target: name.to_owned(), instance, ..TargetEntry::default() })
    }

    #[test]
    fn entries_that_are_alike_are_one_and_a_newer_one_is_another() {
        let mut entries = Entries { by_name: BTreeMap::new(), clean_at: CLEAN_AT_FIRST };
        let (mut first, mut same, mut newer) =
            (entry("nacre-OST0000", 1), entry("nacre-OST0000", 1), entry("nacre-OST0000", 2));
        [&mut first, &mut same, &mut newer].into_iter().for_each(|entry| entries.share(entry));
        assert!(Arc::ptr_eq(&first, &same) && !Arc::ptr_eq(&first, &newer));
        assert_eq!((first.instance, newer.instance), (1, 2));
    }

    #[test]
    fn names_of_entries_that_nobody_uses_are_forgotten() {
        let mut entries = Entries { by_name: BTreeMap::new(), clean_at: CLEAN_AT_FIRST };
        let mut kept = entry("nacre-MDT0000", 1);
        entries.share(&mut kept);
        for n in 0..10_000 {
            entries.share(&mut entry(&format!("nacre-OST{n:04x}"), 1));
        }
        assert!(entries.by_name.len() < CLEAN_AT_FIRST && entries.by_name.contains_key("nacre-MDT0000"));
    }
}
