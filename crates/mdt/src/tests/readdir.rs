//! Reading directories in pages while they change.

use super::*;
use crate::ops::ahead;
use crate::ops::readpage::{Page, readpage};
use nacre_base::Prng;
use std::collections::{BTreeMap, BTreeSet};

fn page(fs: &mut Fs, fid: Fid, cookie: u64, max_bytes: u32) -> ReadpageReply {
    let page = Page { fid, cookie, max_bytes, with_attr: false, with_lock: false, is_open: true };
    fs.op(&root(), |cx, _| readpage(cx, page)).unwrap()
}

#[test]
fn what_stays_is_seen_exactly_once_whatever_comes_and_goes() {
    for (seed, modulus) in [(1, u64::MAX), (2, u64::MAX), (3, 50), (4, 7)] {
        tables::short_hash::set(modulus);
        let mut prng = Prng::new(seed);
        let mut fs = Fs::new();
        let d = fs.mkdir(ROOT, "d");
        for i in 0..300 {
            fs.mkfile(d, &format!("stays{i}"));
            fs.mkfile(d, &format!("goes{i}"));
        }
        let mut seen = BTreeMap::<String, u32>::new();
        let (mut cookie, mut changes) = (0, 0);
        loop {
            let reply = page(&mut fs, d, cookie, 200);
            for e in &reply.entries {
                *seen.entry(String::from_utf8_lossy(&e.name).into_owned()).or_default() += 1;
                assert!(e.cookie >= cookie && e.cookie <= i64::MAX as u64, "cookies grow and are positive");
                cookie = e.cookie;
            }
            if reply.end {
                break;
            }
            for _ in 0..4 {
                changes += 1;
                let victim = format!("goes{}", prng.below(300));
                let _ = fs.unlink(&root(), d, &victim, false);
                fs.mkfile(d, &format!("comes{changes}"));
            }
        }
        for i in 0..300 {
            assert_eq!(seen.get(&format!("stays{i}")), Some(&1), "seed {seed}");
        }
        assert!(seen.values().all(|n| *n == 1), "nothing twice");
        assert_eq!((seen["."], seen[".."]), (1, 1));
        fs.check();
    }
    tables::short_hash::set(u64::MAX);
}

#[test]
fn names_of_equal_hash_come_together() {
    tables::short_hash::set(1);
    let mut fs = Fs::new();
    for i in 0..50 {
        fs.mkfile(ROOT, &format!("f{i}"));
    }
    let first = page(&mut fs, ROOT, 0, 1);
    assert_eq!((first.entries.len(), first.end), (1, false), "one entry, however small the page");
    let dots = page(&mut fs, ROOT, 1, 1);
    assert_eq!(&dots.entries[0].name[..], b"..");
    let all = page(&mut fs, ROOT, 2, 1);
    assert_eq!((all.entries.len(), all.end), (50, true));
    tables::short_hash::set(u64::MAX);
}

#[test]
fn attributes_come_along_and_pages_keep_their_limit() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    let fids: BTreeSet<Fid> = (0..100).map(|i| fs.mkfile(d, &format!("f{i}"))).collect();
    let ask = |cookie| Page { fid: d, cookie, max_bytes: 4096, with_attr: true, with_lock: false, is_open: false };
    let (mut found, mut cookie, mut pages) = (BTreeSet::new(), 0, 0);
    loop {
        let reply = fs.op(&root(), |cx, _| readpage(cx, ask(cookie))).unwrap();
        assert!(nacre_wire::encode(&reply).len() <= 4096 + 16);
        for e in &reply.entries {
            let attr = &e.attr.as_ref().unwrap().attr;
            assert_eq!((attr.fid, attr.file_type()), (e.fid, e.file_type));
            found.insert(e.fid);
            cookie = e.cookie;
        }
        pages += 1;
        if reply.end {
            break;
        }
    }
    assert!(pages > 2 && fids.is_subset(&found) && found.contains(&ROOT), "{pages} pages");
}

#[test]
fn reading_needs_permission_unless_it_is_open_and_a_removed_directory_is_empty() {
    let mut fs = Fs::new();
    let d = fs.mkdir(ROOT, "d");
    fs.chmod(d, 0o311);
    let ask = |is_open| Page { fid: d, cookie: 0, max_bytes: 4096, with_attr: false, with_lock: false, is_open };
    assert_eq!(fs.op(&user(9), |cx, _| readpage(cx, ask(false))), Err(Errno::EACCES));
    assert!(fs.op(&user(9), |cx, _| readpage(cx, ask(true))).is_ok());
    fs.open(&root(), Open { parent: d, ..Open::default() }).unwrap();
    fs.unlink(&root(), ROOT, "d", true).unwrap();
    assert_eq!(fs.op(&root(), |cx, _| readpage(cx, ask(true))), Err(Errno::ENOENT));
}

/// Long after everything was changed.
const LATER: Timestamp = Timestamp { secs: 1_000_000, nanos: 0 };

/// Names of the directories that come ahead of requests for them, each with its number of entries.
fn ahead(fs: &mut Fs, cred: &Credentials, first: Fid, max_bytes: u32) -> Vec<(Fid, usize, bool)> {
    let pages = fs.op(cred, |cx, _| Ok(ahead::pages(cx, first, max_bytes, LATER))).unwrap();
    let size = nacre_wire::encode(&LookupReply { pages: pages.clone(), ..LookupReply::default() }).len();
    assert!(size <= max_bytes as usize + 1024, "{size} bytes of {max_bytes}");
    pages.iter().map(|p| (p.fid, p.page.entries.len() - 2, p.page.end)).collect()
}

#[test]
fn a_directory_comes_with_those_below_it_as_far_as_there_is_room() {
    let mut fs = Fs::new();
    let top = fs.mkdir(ROOT, "top");
    let fill = |fs: &mut Fs, d, files: u32| {
        (0..files).for_each(|i| {
            fs.mkfile(d, &format!("f{i}"));
        });
    };
    let (mut level, mut levels) = (top, vec![top]);
    for _ in 0..4 {
        fill(&mut fs, level, 20);
        level = fs.mkdir(level, "below");
        levels.push(level);
    }
    let all: Vec<_> = levels.iter().map(|d| (*d, if *d == level { 0 } else { 21 }, true)).collect();
    assert_eq!(ahead(&mut fs, &root(), top, 1 << 18), all, "level by level");
    let some = ahead(&mut fs, &root(), top, 12_000);
    assert_eq!(some, all[..some.len()]);
    assert!((1..4).contains(&some.len()), "{} levels in 12 kB", some.len());
    // A large directory below is left out, and one that was looked up comes in part.
    let large = fs.mkdir(top, "large");
    fill(&mut fs, large, 500);
    assert!(ahead(&mut fs, &root(), top, 1 << 16).iter().all(|(d, _, end)| *d != large && *end));
    let (_, entries, end) = ahead(&mut fs, &root(), large, 1 << 16)[0];
    assert!((50..500).contains(&entries) && !end, "{entries} entries");
    assert!(ahead(&mut fs, &root(), top, 0).is_empty());
}

#[test]
fn nobody_gets_entries_ahead_that_he_may_not_see() {
    let mut fs = Fs::new();
    let top = fs.mkdir(ROOT, "top");
    let [closed, blind, open] = ["closed", "blind", "open"].map(|n| fs.mkdir(top, n));
    for d in [closed, blind, open] {
        fs.mkfile(d, "f");
    }
    fs.chmod(closed, 0o711);
    fs.chmod(blind, 0o744);
    let seen = |fs: &mut Fs, cred: &Credentials| -> BTreeSet<Fid> {
        ahead(fs, cred, top, 1 << 16).into_iter().map(|(fid, ..)| fid).collect()
    };
    assert_eq!(seen(&mut fs, &user(7)), BTreeSet::from([top, open]));
    assert_eq!(seen(&mut fs, &root()), BTreeSet::from([top, open, closed, blind]));
}

#[test]
fn a_directory_that_was_changed_lately_does_not_come_ahead() {
    let mut fs = Fs::new();
    let top = fs.mkdir(ROOT, "top");
    let old = fs.mkdir(top, "old");
    fs.clock += 100;
    let busy = fs.mkdir(top, "busy");
    fs.mkfile(busy, "f");
    let now = fs.now();
    let come = |fs: &mut Fs, now| -> BTreeSet<Fid> {
        let pages = fs.op(&root(), |cx, _| Ok(ahead::pages(cx, top, 1 << 16, now))).unwrap();
        pages.iter().map(|p| p.fid).collect()
    };
    assert_eq!(come(&mut fs, now), BTreeSet::from([top, old]));
    assert_eq!(come(&mut fs, LATER), BTreeSet::from([top, old, busy]));
}
