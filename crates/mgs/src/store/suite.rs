//! Checks of the promises that every store makes, run against each of them.

use super::{CHANGES_MAX, Changes, ConfigStore, News, Outcome, StoreError};
use nacre_rt::Rt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time for which the checks publish a notice. A store may let it live somewhat longer.
const LIVES: Duration = Duration::from_secs(2);
/// News that takes longer than this is lost.
const NEWS_WITHIN: Duration = Duration::from_secs(10);

fn put(key: &str, value: &str) -> (Vec<u8>, Option<Vec<u8>>) {
    (key.as_bytes().to_vec(), Some(value.as_bytes().to_vec()))
}

/// Checks commits through two connections to one empty store, which may be the same.
pub async fn check_commits(a: &Arc<dyn ConfigStore>, b: &Arc<dyn ConfigStore>) -> Result<(), StoreError> {
    let empty = a.load().await?;
    assert!(empty.entries.is_empty(), "the checks need an empty store");
    let first = Changes::from([put("a", "1"), put("b", "2")]);
    let Outcome::Made(at) = a.commit(empty.revision, &first, false).await? else { panic!("nobody else commits") };
    assert!(at > empty.revision);
    assert_eq!((a.head().await?, b.head().await?), (at, at));
    // A commit that is based on an older state changes nothing, through either connection.
    for store in [a, b] {
        let late = store.commit(empty.revision, &Changes::from([put("a", "late"), put("c", "late")]), false).await?;
        assert_eq!((late, store.head().await?), (Outcome::Conflict, at));
    }
    let changes = Changes::from([put("b", "3"), (b"a".to_vec(), None), (b"missing".to_vec(), None)]);
    let Outcome::Made(then) = b.commit(at, &changes, true).await? else { panic!("nobody else commits") };
    assert!(then > at);
    let found = a.load().await?;
    assert_eq!((found.revision, found.entries), (then, BTreeMap::from([(b"b".to_vec(), b"3".to_vec())])));
    // As many changes as there may be.
    let many: Changes = (0..CHANGES_MAX).map(|n| put(&format!("many/{n:03}"), "x")).collect();
    assert!(matches!(b.commit(then, &many, false).await?, Outcome::Made(_)));
    assert_eq!(a.load().await?.entries.len(), 1 + CHANGES_MAX);
    Ok(())
}

/// Checks that no count is lost between two MGSs that count in one store, each `times`.
pub async fn check_race(a: &Arc<dyn ConfigStore>, b: &Arc<dyn ConfigStore>, times: u64) -> Result<(), StoreError> {
    tokio::try_join!(count(a, times), count(b, times))?;
    assert_eq!(counted(&a.load().await?.entries), 2 * times);
    Ok(())
}

fn counted(entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> u64 {
    let text = entries.get(&b"count"[..]).map(|text| String::from_utf8_lossy(text).into_owned());
    text.map_or(0, |text| text.parse().expect("a number"))
}

async fn count(store: &Arc<dyn ConfigStore>, times: u64) -> Result<(), StoreError> {
    let mut made = 0;
    while made < times {
        let now = store.load().await?;
        let next = (counted(&now.entries) + 1).to_string();
        let outcome = store.commit(now.revision, &Changes::from([put("count", &next)]), false).await?;
        made += u64::from(matches!(outcome, Outcome::Made(_)));
    }
    Ok(())
}

/// Checks that an MGS hears of all that another does, in order, and that notices end by themselves.
pub async fn check_news(rt: &Rt, a: &Arc<dyn ConfigStore>, b: &Arc<dyn ConfigStore>) -> Result<(), StoreError> {
    let before = b.load().await?;
    let mut follower = Follower { rt, store: b, seen: before.seen, heard: Vec::new() };
    let changes = [Changes::from([put("x", "1"), put("y", "1")]), Changes::from([(b"x".to_vec(), None)])];
    let mut at = before.revision;
    let mut expected = Vec::new();
    for changes in changes {
        let Outcome::Made(revision) = a.commit(at, &changes, false).await? else { panic!("nobody else commits") };
        expected.push(News::Commit(revision, changes));
        at = revision;
    }
    a.publish("told", Some(b"this"), Duration::from_secs(60)).await?;
    expected.push(News::Notice("told".to_owned(), Some(b"this".to_vec())));
    follower.hear(3).await?;
    assert_eq!(follower.heard, expected);
    assert_eq!(b.load().await?.notices, BTreeMap::from([("told".to_owned(), b"this".to_vec())]));
    a.publish("told", None, Duration::ZERO).await?;
    a.publish("short", Some(b"lived"), LIVES).await?;
    follower.hear(3 + 3).await?;
    let end = |name: &str| News::Notice(name.to_owned(), None);
    let lived = News::Notice("short".to_owned(), Some(b"lived".to_vec()));
    assert_eq!(follower.heard[3..], [end("told"), lived, end("short")]);
    let after = b.load().await?;
    assert_eq!((after.revision, after.notices.len()), (at, 0));
    Ok(())
}

/// An MGS that hears what others do.
struct Follower<'a> {
    rt: &'a Rt,
    store: &'a Arc<dyn ConfigStore>,
    seen: u64,
    heard: Vec<News>,
}

impl Follower<'_> {
    /// Waits until so many events were heard in all.
    async fn hear(&mut self, count: usize) -> Result<(), StoreError> {
        let deadline = self.rt.now() + NEWS_WITHIN;
        while self.heard.len() < count {
            assert!(self.rt.now() < deadline, "only {:?} was heard", self.heard);
            let (upto, heard) = self.store.news(self.seen).await?;
            assert!(upto >= self.seen && (heard.is_empty() || upto > self.seen));
            self.seen = upto;
            self.heard.extend(heard);
        }
        Ok(())
    }
}
