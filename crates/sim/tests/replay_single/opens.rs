//! Files that are open while their MDT dies, including files that have lost their names.

use super::*;

/// Open handles that are left when nothing is open: `story` would complain about them, too.
fn open_handles(c: &Cluster) -> Vec<String> {
    c.leaks().into_iter().filter(|l| l.contains("open handles")).collect()
}

/// 8
#[test]
fn a_file_made_and_open_can_be_written_read_and_closed() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let file = u.new_file(ROOT, "f", O_EXCL).await.unwrap();
        u.put(&file, 0, b"before ").await.unwrap();
        fail(&c, MDS).await;
        u.put(&file, 7, b"after").await.unwrap();
        assert_eq!(u.get(&file, 0, 20).await, b"before after");
        let fid = file.fid();
        u.release(file).await.unwrap();
        assert_eq!(w.content(fid).await, b"before after");
        assert_eq!(open_handles(&c), [""; 0]);
    });
}

/// 17, 53a: the create and its close are replayed, and no handle stays open
#[test]
fn a_close_before_the_crash_leaves_no_handle_behind() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let file = u.new_file(ROOT, "f", O_EXCL).await.unwrap();
        let fid = file.fid();
        u.release(file).await.unwrap();
        fail(&c, MDS).await;
        assert_eq!(open_handles(&c), [""; 0]);
        w.remove(ROOT, "f").await.unwrap();
        assert!(w.is_gone(&c, fid).await, "nobody has it open");
    });
}

/// 24
#[test]
fn a_file_open_over_a_crash_outlives_a_later_removal() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"data").await.unwrap();
        fail(&c, MDS).await;
        w.remove(ROOT, "f").await.unwrap();
        c.rt().sleep(secs(20)).await;
        assert_eq!(u.get(&file, 0, 10).await, b"data");
        let fid = file.fid();
        u.release(file).await.unwrap();
        assert!(w.is_gone(&c, fid).await);
    });
}

/// State of a removed open file at the barrier, and when it is closed.
#[derive(Clone, Copy)]
struct Removed {
    opened_before: bool,
    removed_before: bool,
    /// True if a new file gets the name.
    name_reused: bool,
    /// True if the handle is closed before the crash.
    closed_before_crash: bool,
}

/// An open file is removed around the barrier: its handle works until the close, then the file is gone.
fn removed_while_open(how: Removed) {
    witnessed(1, move |c, u, w| async move {
        if !how.opened_before {
            c.replay_barrier(MDS).await;
        }
        let file = u.new_file(ROOT, "f", O_EXCL).await.unwrap();
        u.put(&file, 0, b"held").await.unwrap();
        if how.opened_before && !how.removed_before {
            c.replay_barrier(MDS).await;
        }
        u.remove(ROOT, "f").await.unwrap();
        if how.removed_before {
            c.replay_barrier(MDS).await;
        }
        let mut new = None;
        if how.name_reused {
            new = Some(u.file(ROOT, "f", b"new").await);
        }
        let fid = file.fid();
        let mut file = Some(file);
        if how.closed_before_crash {
            u.release(file.take().unwrap()).await.unwrap();
        }
        fail(&c, MDS).await;
        if let Some(file) = file {
            c.rt().sleep(secs(30)).await;
            assert_eq!(u.get(&file, 0, 10).await, b"held");
            assert_eq!(u.put(&file, 4, b" on").await, Ok(3));
            assert_eq!(u.fsync(&file, false).await, Ok(()));
            assert_eq!(u.get(&file, 0, 10).await, b"held on");
            u.release(file).await.unwrap();
        }
        assert!(w.is_gone(&c, fid).await);
        match new {
            Some(new) => assert_eq!(w.content(new).await, b"new"),
            None => assert!(gone(w.find(ROOT, "f").await)),
        }
        assert_eq!(open_handles(&c), [""; 0]);
    });
}

macro_rules! removed_while_open {
    ($($(#[doc = $id:literal])* $name:ident: $opened:literal, $removed:literal, $reused:literal, $closed:literal;)*) => {$(
        $(#[doc = $id])*
        #[test]
        fn $name() {
            removed_while_open(Removed {
                opened_before: $opened,
                removed_before: $removed,
                name_reused: $reused,
                closed_before_crash: $closed,
            });
        }
    )*};
}

removed_while_open! {
    /// 20a
    a_file_opened_and_removed_behind_the_barrier_lives_until_its_close: false, false, false, false;
    /// 16
    a_file_opened_removed_and_closed_behind_the_barrier_is_gone: false, false, false, true;
    /// 21
    a_file_opened_and_removed_behind_the_barrier_does_not_mix_with_its_successor: false, false, true, false;
    /// 16
    a_file_opened_removed_and_closed_behind_the_barrier_leaves_its_successor: false, false, true, true;
    /// 22
    an_open_file_removed_behind_the_barrier_lives_until_its_close: true, false, false, false;
    /// 12
    an_open_file_removed_and_closed_behind_the_barrier_is_gone: true, false, false, true;
    /// 23
    an_open_file_removed_behind_the_barrier_does_not_mix_with_its_successor: true, false, true, false;
    /// 18
    an_open_file_removed_and_closed_behind_the_barrier_leaves_its_successor: true, false, true, true;
    /// 25
    an_orphan_older_than_the_barrier_lives_until_its_close: true, true, false, false;
    /// 12, 14
    an_orphan_older_than_the_barrier_that_was_closed_behind_it_is_gone: true, true, false, true;
    /// 15
    an_orphan_older_than_the_barrier_does_not_mix_with_its_successor: true, true, true, false;
    /// 15
    an_orphan_older_than_the_barrier_that_was_closed_leaves_its_successor: true, true, true, true;
}

/// 26-31: two such files, one closed before the crash
fn two_orphans(opened_before: bool, close_one: bool) {
    witnessed(1, move |c, u, w| async move {
        if !opened_before {
            c.replay_barrier(MDS).await;
        }
        let one = u.new_file(ROOT, "one", O_EXCL).await.unwrap();
        let two = u.new_file(ROOT, "two", O_EXCL).await.unwrap();
        u.put(&two, 0, b"two").await.unwrap();
        if opened_before {
            c.replay_barrier(MDS).await;
        }
        u.remove(ROOT, "one").await.unwrap();
        u.remove(ROOT, "two").await.unwrap();
        let (first, second) = (one.fid(), two.fid());
        let mut one = Some(one);
        if close_one {
            u.release(one.take().unwrap()).await.unwrap();
        }
        fail(&c, MDS).await;
        assert_eq!(w.is_gone(&c, first).await, close_one);
        assert_eq!(u.get(&two, 0, 10).await, b"two");
        if let Some(one) = one {
            u.release(one).await.unwrap();
        }
        u.release(two).await.unwrap();
        assert!(w.is_gone(&c, first).await && w.is_gone(&c, second).await);
    });
}

/// 26
#[test]
fn of_two_new_orphans_the_closed_one_goes_and_the_open_one_stays() {
    two_orphans(false, true);
}

/// 27
#[test]
fn two_new_orphans_live_until_their_closes() {
    two_orphans(false, false);
}

/// 28, 31
#[test]
fn of_two_orphans_the_closed_one_goes_and_the_open_one_stays() {
    two_orphans(true, true);
}

/// 29, 30
#[test]
fn two_orphans_live_until_their_closes() {
    two_orphans(true, false);
}

/// 13
#[test]
fn a_handle_keeps_its_rights_when_the_mode_does_not_allow_it_any_more() {
    witnessed(1, |c, u, w| async move {
        let own = Credentials { uid: 1000, gid: 1000, ..root() };
        u.chmod(ROOT, 0o777).await.unwrap();
        let (attr, file) = u.create(&own, ROOT, b"f", O_CREAT | O_RDWR, 0o644, 0, None).await.unwrap();
        u.chmod(attr.fid, 0).await.unwrap();
        c.replay_barrier(MDS).await;
        fail(&c, MDS).await;
        u.put(&file, 0, b"still mine").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        assert_eq!(u.get(&file, 0, 20).await, b"still mine");
        assert_eq!(u.open(&own, attr.fid, O_RDWR).await.map(drop), Err(Errno::EACCES));
        u.release(file).await.unwrap();
        assert_eq!(w.content(attr.fid).await, b"still mine");
    });
}

/// 19
#[test]
fn an_open_file_that_was_moved_is_written_under_its_new_name() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "a", 0).await.unwrap();
        c.replay_barrier(MDS).await;
        u.put(&file, 0, b"one").await.unwrap();
        u.move_to(ROOT, "a", ROOT, "b").await.unwrap();
        fail(&c, MDS).await;
        u.put(&file, 3, b" two").await.unwrap();
        u.release(file).await.unwrap();
        assert!(gone(w.find(ROOT, "a").await));
        assert_eq!(w.content(w.find(ROOT, "b").await.unwrap().fid).await, b"one two");
    });
}

#[test]
fn a_file_replaced_by_a_rename_is_read_through_its_handle() {
    witnessed(1, |c, u, w| async move {
        let old = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&old, 0, b"old").await.unwrap();
        u.file(ROOT, "g", b"new").await;
        c.replay_barrier(MDS).await;
        u.move_to(ROOT, "g", ROOT, "f").await.unwrap();
        fail(&c, MDS).await;
        c.rt().sleep(secs(20)).await;
        assert_eq!(u.get(&old, 0, 10).await, b"old");
        assert_eq!(w.content(w.find(ROOT, "f").await.unwrap().fid).await, b"new");
        let fid = old.fid();
        u.release(old).await.unwrap();
        assert!(w.is_gone(&c, fid).await);
    });
}

/// 37
#[test]
fn an_open_directory_that_was_removed_is_empty_and_takes_nothing() {
    witnessed(1, |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        let handle = u.open(&root(), d, 0).await.unwrap();
        c.replay_barrier(MDS).await;
        u.rmdir(&root(), ROOT, b"d").await.unwrap();
        fail(&c, MDS).await;
        assert_eq!(u.stat(d).await.unwrap().nlink, 0);
        assert_eq!(u.readdir(&root(), d, 0, false, 4096).await.map(drop), Err(Errno::ENOENT), "as Linux has it");
        assert_eq!(u.new_file(d, "f", 0).await.map(drop), Err(Errno::ENOENT));
        u.release(handle).await.unwrap();
        assert!(w.is_gone(&c, d).await);
    });
}

#[test]
fn five_hundred_open_files_are_open_again() {
    witnessed(2, |c, u, w| async move {
        let mut files = Vec::new();
        for n in 0..500u32 {
            let file = u.new_file(ROOT, &format!("f{n:03}"), O_EXCL).await.unwrap();
            u.put(&file, 0, &n.to_be_bytes()).await.unwrap();
            files.push(file);
        }
        fail(&c, MDS).await;
        for n in 0..500 {
            w.remove(ROOT, &format!("f{n:03}")).await.unwrap();
        }
        c.rt().sleep(secs(20)).await;
        for (n, file) in files.into_iter().enumerate() {
            assert_eq!(u.get(&file, 0, 10).await, (n as u32).to_be_bytes());
            u.release(file).await.unwrap();
        }
        c.rt().sleep(secs(10)).await;
        assert_eq!(open_handles(&c), [""; 0]);
    });
}

/// 45, 46, 53: the reply to a close, or to an open, is lost, and the MDT dies before the request is repeated
fn with_a_lost_answer(opcode: Opcode) {
    witnessed(1, move |c, u, w| async move {
        u.file(ROOT, "before", b"").await;
        c.replay_barrier(MDS).await;
        c.mishap(MDS, opcode, Mishap::LostReply);
        let working = c.rt().spawn({
            let u = u.clone();
            async move { assert!(u.file(ROOT, "f", b"x").await != ROOT) }
        });
        c.rt().sleep(Duration::from_millis(100)).await;
        assert!(!working.is_finished() && c.has_struck(MDS));
        fail(&c, MDS).await;
        working.await;
        assert_eq!(open_handles(&c), [""; 0]);
        assert_eq!(w.content(w.find(ROOT, "f").await.unwrap().fid).await, b"x");
    });
}

/// 45
#[test]
fn a_close_whose_answer_was_lost_with_the_server_is_done() {
    with_a_lost_answer(Opcode::MdsClose);
}

/// 46
#[test]
fn an_open_whose_answer_was_lost_with_the_server_leaves_one_handle() {
    with_a_lost_answer(Opcode::MdsOpen);
}

/// 84a, 32
#[test]
fn the_handle_of_an_evicted_client_can_be_closed() {
    witnessed(1, |c, u, _w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"kept").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        c.evict(MDS, 0).await;
        let fid = file.fid();
        // By now the client knows that it was evicted, and has no handle.
        c.rt().sleep(secs(60)).await;
        assert_eq!(u.release(file).await, Ok(()));
        assert_eq!(u.content(fid).await, b"kept");
        assert_eq!(open_handles(&c), [""; 0]);
    });
}

/// 85a: an MDT that forgot the locks must learn again of files that only locks keep
#[test]
fn a_file_open_under_a_lock_only_outlives_its_removal_after_a_crash() {
    witnessed(1, |c, u, w| async move {
        let fid = u.file(ROOT, "f", b"data").await;
        u.stat(fid).await.unwrap();
        let sent = c.executed(MDS, Opcode::MdsOpen);
        let file = u.open(&root(), fid, 0).await.unwrap();
        assert_eq!(c.executed(MDS, Opcode::MdsOpen), sent, "opened without a request");
        fail(&c, MDS).await;
        w.remove(ROOT, "f").await.unwrap();
        c.rt().sleep(secs(20)).await;
        c.cancel_lru_locks(0, Locks::Osc);
        assert_eq!(u.get(&file, 0, 10).await, b"data");
        u.release(file).await.unwrap();
        assert!(w.is_gone(&c, fid).await);
    });
}

/// Files without names live as long as they are open through a crash of the MDS, disappear with their clients, and stay
/// if they were linked; all of this in one story.
#[test]
fn nameless_files_and_their_first_names_outlive_a_crash() {
    witnessed(1, |c, u, w| async move {
        let old = u.nameless(ROOT).await.unwrap();
        u.put(&old, 0, b"old").await.unwrap();
        c.replay_barrier(MDS).await;
        let kept = u.nameless(ROOT).await.unwrap();
        u.put(&kept, 0, b"kept").await.unwrap();
        let named = u.nameless(ROOT).await.unwrap();
        u.put(&named, 0, b"named").await.unwrap();
        u.link(&root(), named.fid(), ROOT, b"name").await.unwrap();
        u.link(&root(), old.fid(), ROOT, b"old").await.unwrap();
        let closed = u.nameless(ROOT).await.unwrap();
        let gone = closed.fid();
        u.release(closed).await.unwrap();
        fail(&c, MDS).await;
        assert!(w.is_gone(&c, gone).await, "it was closed");
        assert_eq!(u.get(&kept, 0, 10).await, b"kept");
        assert_eq!(w.find(ROOT, "name").await.unwrap().nlink, 1);
        assert_eq!(w.find(ROOT, "old").await.unwrap().fid, old.fid());
        let lost = kept.fid();
        c.kill_client(0);
        c.fail(MDS).await;
        assert!(w.is_gone(&c, lost).await, "its client does not come back");
        assert_eq!(w.find(ROOT, "name").await.unwrap().nlink, 1);
    });
}
