//! The engine alone: what it fetches for which requests.

use super::*;
use nacre_base::Prng;

const AT: Fid = Fid { seq: 1, oid: 1, ver: 0 };

fn fid(i: usize) -> Fid {
    Fid { seq: 2, oid: i as u32, ver: 0 }
}

fn entry(i: usize) -> DirEntry {
    let name = Bytes::from(if i % 100 == 50 { format!(".n{i}") } else { format!("n{i}") });
    DirEntry { name, fid: fid(i), cookie: i as u64 + 10, ..DirEntry::default() }
}

fn page(range: std::ops::Range<usize>) -> Vec<DirEntry> {
    range.map(entry).collect()
}

fn now() -> Time {
    Time::from_secs(5)
}

/// An engine that knows a whole directory.
fn listed(max: usize, entries: usize) -> Engine {
    let mut engine = Engine::new(max);
    assert_eq!(engine.handle_page((AT, false), 0, &page(0..entries), true, now()), None);
    engine
}

impl Engine {
    fn look(&mut self, i: usize) -> Seen {
        self.handle_lookup(AT, &entry(i).name, now())
    }

    /// Looks an entry up, and fetches at once. Returns the numbers of the fetched entries.
    fn look_fetching(&mut self, i: usize) -> Vec<u32> {
        let ahead = self.look(i).ahead;
        ahead.iter().for_each(|ahead| self.handle_fetched(ahead));
        ahead.map_or_else(Vec::new, |ahead| ahead.fids.iter().map(|fid| fid.oid).collect())
    }

    fn check(&self) {
        let known: usize = self.directories.values().map(|d| d.entries.len()).sum();
        assert_eq!(known, self.entries);
        assert!(self.directories.len() <= DIRECTORIES_MAX && known <= ENTRIES_MAX);
        for (fid, (at, index)) in &self.places {
            assert_eq!(self.directories[at].entries[*index].fid, *fid);
        }
        for d in self.directories.values() {
            assert!(d.names.iter().all(|(name, index)| d.entries[*index].name == *name));
            assert!(d.entries.is_sorted_by_key(|e| e.cookie) && d.scanned_to <= d.entries.len());
        }
    }
}

#[test]
fn the_steps_of_a_fetch_do_not_contradict_each_other() {
    FETCH_STEPS.assert_sound();
    assert_eq!(FETCH_STEPS.find(Fetch::UnderWay, FetchEvent::Forget), None, "the request still comes back");
}

#[test]
#[should_panic(expected = "Begin in state UnderWay")]
fn an_entry_is_not_requested_twice_at_once() {
    let mut engine = listed(64, 100);
    let entry = &mut engine.directories.get_mut(&AT).unwrap().entries[0];
    entry.step(FetchEvent::Begin);
    entry.step(FetchEvent::Begin);
}

#[test]
#[should_panic(expected = "entries of all directories, and as they were counted")]
fn entries_that_are_counted_and_not_there_are_a_defect() {
    let mut engine = listed(64, 100);
    engine.entries += 1;
    engine.handle_page((AT, false), 0, &page(0..200), true, now());
}

#[test]
#[should_panic(expected = "the one that has its place there")]
fn an_inode_in_the_place_of_another_is_a_defect() {
    let mut engine = listed(64, 100);
    engine.places.insert(fid(7), (AT, 8));
    engine.handle_getattr(fid(7), now());
}

/// A directory with one name twice, one inode under two names, and cookies in disorder.
#[test]
fn a_strange_page_of_a_server_is_no_defect() {
    for seed in 0..200 {
        let mut prng = Prng::new(seed);
        let mut engine = Engine::new(64);
        for _ in 0..40 {
            let at = Fid { oid: prng.below(3) as u32, ..AT };
            let mut strange = || {
                let (name, inode, cookie) = (prng.below(20), prng.below(20) as usize, prng.below(40));
                DirEntry { name: format!("n{name}").into(), fid: fid(inode), cookie, ..DirEntry::default() }
            };
            let page: Vec<_> = (0..10).map(|_| strange()).collect();
            let after = if prng.one_in(3) { 0 } else { prng.below(40) };
            let mut aheads = vec![engine.handle_page((at, false), after, &page, prng.one_in(4), now())];
            aheads.push(engine.handle_lookup(at, format!("n{}", prng.below(20)).as_bytes(), now()).ahead);
            aheads.push(engine.handle_getattr(fid(prng.below(20) as usize), now()).ahead);
            aheads.push(engine.handle_miss(at, now()));
            for mut ahead in aheads.into_iter().flatten() {
                engine.handle_own_page(&mut ahead, prng.below(40), &page, prng.one_in(4));
                engine.handle_fetched(&ahead);
            }
        }
    }
}

#[test]
fn in_order_the_window_grows_to_the_largest_and_stays_ahead() {
    let mut engine = listed(64, 1000);
    let mut fetched = Vec::new();
    let mut sizes = Vec::new();
    for i in 0..1000 {
        let ahead = engine.look_fetching(i);
        if !ahead.is_empty() {
            sizes.push(ahead.len());
        }
        fetched.extend(ahead);
        engine.check();
    }
    // Hidden entries are fetched once one has been asked for.
    let expected: Vec<u32> = (2..1000).filter(|i| *i != 50).collect();
    assert_eq!(fetched, expected);
    // Number 50 is hidden.
    assert_eq!(sizes[..4], [8, 12, 24, 47]);
    assert!(sizes[5..sizes.len() - 1].iter().all(|n| (31..=33).contains(n)), "{sizes:?}");
    let Counts { total, wrong, list_total, hit_total, miss_total, .. } = engine.counts();
    assert_eq!((total, wrong, list_total, hit_total, miss_total), (1, 0, 997, 997, 0));
}

#[test]
fn what_is_under_way_is_said_until_it_is_there() {
    let mut engine = listed(64, 100);
    engine.look(0);
    let ahead = engine.look(1).ahead.unwrap();
    assert_eq!((ahead.count, ahead.after, ahead.to), (8, entry(1).cookie, Some(entry(9).cookie)));
    let seen = engine.look(2);
    assert_eq!((seen.under_way, engine.is_under_way(fid(9))), (Some(fid(2)), true));
    assert_eq!(engine.handle_getattr(fid(3), now()).under_way, Some(fid(3)));
    engine.handle_fetched(&ahead);
    assert_eq!((engine.look(4).under_way, engine.is_under_way(fid(9))), (None, false));
}

#[test]
fn some_may_be_left_out_and_several_may_ask_at_once() {
    let mut engine = listed(64, 1000);
    let mut ahead = 0;
    for i in (0..300).step_by(5) {
        ahead += engine.look_fetching(i).len();
        // Another program goes through the end of the directory.
        ahead += engine.look_fetching(600 + i).len();
    }
    assert!(ahead > 500, "{ahead}");
    assert_eq!(engine.counts().wrong, 0);
    // Going back and forth by a few entries still counts as in order.
    let mut engine = listed(64, 1000);
    [0, 2, 1, 4, 3, 6, 5, 8, 7].into_iter().for_each(|i| drop(engine.look_fetching(i)));
    assert!(engine.handle_getattr(fid(9), now()).unexpected.is_none());
    assert_eq!(engine.counts().total, 1);
}

#[test]
fn going_on_to_the_next_page_goes_on_at_once() {
    let mut engine = Engine::new(64);
    engine.handle_page((AT, false), 0, &page(0..20), false, now());
    (0..20).for_each(|i| drop(engine.look_fetching(i)));
    let ahead = engine.handle_page((AT, false), entry(19).cookie, &page(20..500), false, now()).unwrap();
    assert_eq!((ahead.fids[0], ahead.after), (fid(20), entry(19).cookie));
    engine.check();
}

#[test]
fn a_listing_begun_anew_fetches_anew_and_changes_are_taken_over() {
    let mut engine = listed(64, 100);
    (0..100).for_each(|i| drop(engine.look_fetching(i)));
    engine.handle_page((AT, false), 0, &page(0..100), true, now());
    engine.look_fetching(0);
    assert_eq!(engine.look_fetching(1).len(), 8);
    // Going through again without a listing begins when the first entry is asked for again.
    (2..100).for_each(|i| drop(engine.look_fetching(i)));
    engine.look_fetching(0);
    assert_eq!(engine.look_fetching(1).len(), 8);
    // Entry 10 is gone.
    let new = [page(0..10), page(11..60)].concat();
    engine.handle_page((AT, false), 0, &new, true, now());
    engine.check();
    assert_eq!(engine.handle_getattr(fid(10), now()), Seen::default());
    assert_eq!(engine.directories[&AT].entries.len(), 59);
}

#[test]
fn misses_all_over_fetch_some_each_and_no_more_than_a_bound_for_nothing() {
    let mut engine = listed(128, 100_000);
    let mut prng = Prng::new(3);
    let (mut fetched, mut fetches) = (0, 0);
    for n in 1..2000 {
        let i = prng.below(100_000) as usize;
        if engine.look(i).unexpected.is_none() {
            continue;
        }
        if let Some(ahead) = engine.handle_miss(AT, now()) {
            engine.handle_fetched(&ahead);
            fetched += ahead.count;
            fetches += 1;
        }
        assert!(fetched <= CHUNK_MIN + PER_MISS * n, "{fetched} after {n}");
    }
    assert!(fetched < PROOF + 128 && fetches < 24, "{fetched} in {fetches}");
    engine.check();
}

#[test]
fn a_directory_that_nobody_listed_is_read_when_names_in_it_are_asked_for() {
    let mut engine = Engine::new(64);
    assert_eq!(engine.look(7), Seen { unexpected: Some(AT), ..Seen::default() });
    assert_eq!(engine.handle_miss(AT, now()), None);
    let mut ahead = engine.handle_miss(AT, now()).unwrap();
    assert_eq!((ahead.count, ahead.after, ahead.to), (32, 0, None));
    (0..9).for_each(|_| assert_eq!(engine.handle_miss(AT, now()), None, "one at a time"));
    engine.handle_own_page(&mut ahead, 0, &page(0..40), false);
    assert_eq!((ahead.fids.len(), engine.look(30).under_way), (40, Some(fid(30))));
    engine.handle_fetched(&ahead);
    let next = engine.handle_miss(AT, now()).unwrap();
    assert_eq!((next.after, next.to), (entry(39).cookie, None));
    engine.check();
}

#[test]
fn it_is_off_and_forgets() {
    let mut engine = listed(0, 100);
    assert_eq!((engine.look(3), engine.entries), (Seen::default(), 0));
    engine.set_max(16);
    let later = now() + MAX_AGE * 2;
    for i in 0..1000 {
        let at = Fid { oid: i, ..AT };
        engine.handle_page((at, false), 0, &page(i as usize..i as usize + 500), true, now());
    }
    engine.check();
    engine.handle_page((AT, false), 0, &page(0..3), true, later);
    assert_eq!((engine.directories.len(), engine.entries), (1, 3));
    engine.check();
}

#[test]
fn whatever_is_listed_and_asked_for_nothing_stays_under_way_and_the_books_are_right() {
    let mut prng = Prng::new(11);
    let mut engine = Engine::new(32);
    let mut under_way = Vec::new();
    for _ in 0..20_000 {
        let at = Fid { oid: prng.below(4) as u32, ..AT };
        let i = prng.below(300) as usize;
        let new = match prng.below(8) {
            0 => {
                let from = if prng.below(2) == 0 { 0 } else { i };
                let page: Vec<_> = page(from..i + 30).into_iter().filter(|_| prng.below(30) > 0).collect();
                let after = if from == 0 { 0 } else { entry(from - 1).cookie };
                engine.handle_page((at, false), after, &page, prng.below(5) == 0, now())
            }
            1 => engine.handle_miss(at, now()),
            2 => engine.handle_getattr(fid(i), now()).ahead,
            _ => engine.handle_lookup(at, &entry(i).name, now()).ahead,
        };
        under_way.extend(new);
        if !under_way.is_empty() && prng.below(4) == 0 {
            let mut ahead: Ahead = under_way.swap_remove(prng.below(under_way.len() as u64) as usize);
            let (after, from) = (ahead.after, ahead.after.saturating_sub(9) as usize);
            let page = page(from..from + ahead.count);
            engine.handle_own_page(&mut ahead, after, &page, false);
            engine.handle_fetched(&ahead);
        }
        engine.check();
    }
    under_way.iter().for_each(|ahead| engine.handle_fetched(ahead));
    assert!((0..400).all(|i| !engine.is_under_way(fid(i))));
}

#[test]
fn windows_of_a_directory_far_away_begin_large_and_an_administrator_bounds_them() {
    let first = |is_far: bool, set: Option<usize>| {
        let mut engine = Engine::new(128);
        set.into_iter().for_each(|max| engine.set_max(max));
        engine.handle_page((AT, is_far), 0, &page(0..20_000), true, now());
        let fetched: Vec<usize> = (0..20_000).map(|i| engine.look_fetching(i).len()).filter(|n| *n > 0).collect();
        (fetched[0], fetched.iter().max().copied().unwrap())
    };
    let (near, far, bounded) = (first(false, None), first(true, None), first(true, Some(64)));
    // Half of a window is still there when the next one is fetched, and hidden entries are left out.
    assert!(near.0 == WINDOW_MIN && (64..=128).contains(&near.1), "{near:?}");
    assert!((FAR_WINDOW - 32..=FAR_WINDOW).contains(&far.0) && (FAR_MAX / 2..=FAR_MAX).contains(&far.1), "{far:?}");
    assert!((55..=64).contains(&bounded.0) && bounded.1 <= 64, "{bounded:?}");
}
