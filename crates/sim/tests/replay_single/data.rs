//! Bytes, over a crash of the MDS, of the OSS, and of both.

use super::*;

/// 70f
fn written<F>(
    flags: u32,
    fails: &'static [Server],
    write: impl FnOnce(User, Arc<OpenFile>) -> F + Send + 'static,
    want: Vec<u8>,
) where
    F: Future<Output = ()> + Send + 'static,
{
    witnessed(2, move |c, u, w| async move {
        let file = u.striped_file(ROOT, "f", flags, stripes(2, false)).await.unwrap();
        u.put(&file, 0, b"0123456789").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        for server in fails {
            c.replay_barrier(*server).await;
        }
        write(u.clone(), file.clone()).await;
        for recovered in c.fail_together(fails, Duration::ZERO).await {
            assert!(recovered.pause < PAUSE_MAX && recovered.completed == recovered.known, "{recovered:?}");
        }
        assert!(w.content(file.fid()).await == want);
        assert_eq!(w.stat(file.fid()).await.unwrap().size, want.len() as u64);
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        u.release(file).await.unwrap();
    });
}

const MDS_ONLY: &[Server] = &[MDS];
const OSS_ONLY: &[Server] = &[OSS, Server::Oss(1)];
const ALL: &[Server] = &[MDS, OSS, Server::Oss(1)];

/// More than one stripe of each of the two objects; the long write begins at 5.
fn long() -> Vec<u8> {
    [b"01234", &pattern(200_000, 1)[..]].concat()
}

macro_rules! written {
    ($($name:ident: $flags:expr, $fails:expr, $write:expr, $want:expr;)*) => {$(
        #[test]
        fn $name() {
            written($flags, $fails, $write, $want);
        }
    )*};
}

written! {
    what_was_written_into_the_cache_is_there_after_the_mds_died: 0, MDS_ONLY,
        |u, f| async move { assert_eq!(u.put(&f, 5, &pattern(200_000, 1)).await, Ok(200_000)) }, long();
    what_was_written_into_the_cache_is_there_after_both_oss_died: 0, OSS_ONLY,
        |u, f| async move { assert_eq!(u.put(&f, 5, &pattern(200_000, 1)).await, Ok(200_000)) }, long();
    what_was_written_into_the_cache_is_there_after_all_died: 0, ALL,
        |u, f| async move { assert_eq!(u.put(&f, 5, &pattern(200_000, 1)).await, Ok(200_000)) }, long();
    what_was_appended_is_at_the_end_after_all_died: O_APPEND, ALL,
        |u, f| async move {
            for part in pattern(30_000, 7).chunks(1000) {
                assert_eq!(u.put(&f, 0, part).await, Ok(1000));
            }
        },
        [&b"0123456789"[..], &pattern(30_000, 7)].concat();
    what_was_truncated_is_as_short_after_all_died: 0, ALL,
        |u, f| async move { assert_eq!(u.truncate(f.fid(), 3).await.unwrap().size, 3) }, b"012".to_vec();
    what_was_truncated_and_grown_has_zeros_after_all_died: 0, ALL,
        |u, f| async move {
            u.truncate(f.fid(), 3).await.unwrap();
            assert_eq!(u.truncate(f.fid(), 100_000).await.unwrap().size, 100_000);
        },
        [&b"012"[..], &[0; 99_997]].concat();
    what_was_allocated_is_as_long_after_all_died: 0, ALL,
        |u, f| async move { u.fallocate(&f, 0, 0, 300_000).await.unwrap() },
        [&b"0123456789"[..], &[0; 299_990]].concat();
    a_hole_that_was_punched_is_one_after_all_died: 0, ALL,
        |u, f| async move { u.fallocate(&f, 3, 2, 5).await.unwrap() },
        b"01\0\0\0\0\x00789".to_vec();
    what_was_truncated_and_written_over_is_in_that_order_after_all_died: 0, ALL,
        |u, f| async move {
            for round in 0..5u8 {
                u.put(&f, 0, &[b'a' + round; 150_000]).await.unwrap();
                u.fallocate(&f, 3, 1000, 1000).await.unwrap();
                u.truncate(f.fid(), 2500).await.unwrap();
            }
        },
        [&[b'e'; 1000][..], &[0; 1000], &[b'e'; 500]].concat();
    what_was_written_and_moved_is_there_after_the_mds_died: 0, MDS_ONLY,
        |u, f| async move {
            u.put(&f, 5, &pattern(200_000, 1)).await.unwrap();
            u.move_to(ROOT, "f", ROOT, "g").await.unwrap();
        },
        long();
}

/// 70f
#[test]
fn what_was_written_around_the_cache_is_written_again() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", O_DIRECT).await.unwrap();
        let data = pattern(256 << 10, 5);
        c.replay_barrier(OSS).await;
        assert_eq!(u.put(&file, 0, &data).await, Ok(256 << 10));
        assert_eq!(c.unstable_pages(0), 64);
        assert_eq!(fail(&c, OSS).await, 1);
        assert!(w.content(file.fid()).await == data);
        u.release(file).await.unwrap();
    });
}

/// A client with many OSTs must not keep for each of them as much as it may keep for one.
#[test]
fn what_osts_may_yet_lose_is_bounded_over_all_of_them() {
    witnessed(1, |c, u, _| async move {
        c.client_node(0).params().set("llite.*.max_cached_mb", "16").unwrap();
        let file = u.striped_file(ROOT, "f", O_DIRECT, stripes(2, false)).await.unwrap();
        let (mut most, data) = (0, pattern(4 << 20, 9));
        for n in 0..24 {
            u.put(&file, n << 22, &data).await.unwrap();
            most = most.max(c.unstable_pages(0));
        }
        assert!(
            (4096..=8192 + 1024).contains(&most),
            "{most} pages, with 16 MiB to be asked for and 32 MiB to be waited for"
        );
        u.release(file).await.unwrap();
    });
}

/// 87a
#[test]
fn what_an_ost_answered_and_lost_is_written_again() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        let data = pattern(8 << 20, 6);
        c.replay_barrier(OSS).await;
        u.put(&file, 0, &data).await.unwrap();
        c.rt().sleep(secs(30)).await;
        assert_eq!(c.unstable_pages(0), 2048, "all is answered, nothing durable");
        assert!(fail(&c, OSS).await >= 2);
        assert!(w.content(file.fid()).await == data);
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        c.rt().sleep(secs(10)).await;
        assert_eq!(c.unstable_pages(0), 0);
        u.release(file).await.unwrap();
    });
}

/// 87b: replayed data is the acknowledged data, and later data is written later
#[test]
fn bytes_changed_after_their_first_write_are_the_new_ones() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        c.replay_barrier(OSS).await;
        for round in 0..4u8 {
            u.put(&file, 0, &[round; 100_000]).await.unwrap();
            c.rt().sleep(secs(5)).await;
        }
        u.put(&file, 50_000, &[9; 100]).await.unwrap();
        fail(&c, OSS).await;
        let content = w.content(file.fid()).await;
        assert!(
            content[..50_000] == [3; 50_000] && content[50_000..50_100] == [9; 100] && content[50_100..] == [3; 49_900]
        );
        u.release(file).await.unwrap();
    });
}

/// An fsync once returned when the flush under way had ended, though the program had changed those bytes since that flush took
/// them: they were still in the client's cache, and lost with it.
#[test]
fn bytes_changed_while_they_are_on_their_way_are_there_after_fsync() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, &[1; 100_000]).await.unwrap();
        c.mishap(OSS, Opcode::OstWrite, Mishap::Late(secs(3)));
        let (first, opened) = (u.clone(), file.clone());
        let syncing = c.rt().spawn(async move { first.fsync(&opened, false).await.unwrap() });
        c.rt().sleep(secs(1)).await;
        u.put(&file, 50_000, &[2; 100]).await.unwrap();
        // The next write is lost on its way, and has to be sent again before fsync may return.
        c.mishap(OSS, Opcode::OstWrite, Mishap::LostRequest);
        c.rt().sleep(secs(1)).await;
        u.fsync(&file, false).await.unwrap();
        syncing.await;
        c.kill_client(0);
        let content = w.content(file.fid()).await;
        assert!(content[50_000..50_100] == [2; 100], "what fsync acknowledged is lost");
        assert!(content[..50_000] == [1; 50_000] && content[50_100..] == [1; 49_900]);
    });
}

/// 20c
#[test]
fn what_was_written_before_an_eviction_by_the_mds_is_there() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"truncated").await.unwrap();
        c.evict(MDS, 0).await;
        c.rt().sleep(secs(60)).await;
        assert_eq!(u.get(&file, 0, 20).await, b"truncated");
        assert_eq!(w.content(file.fid()).await, b"truncated");
        u.release(file).await.unwrap();
    });
}

/// 42, 52b: fsync waits for the server, and its data is durable
#[test]
fn an_fsync_begun_while_the_server_is_away_ends_when_it_is_durable() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"first").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        u.put(&file, 0, b"again").await.unwrap();
        c.crash(OSS, nacre_osd::mem::Crash::Process);
        let syncing = c.rt().spawn({
            let (u, file) = (u.clone(), file.clone());
            async move { assert_eq!(u.fsync(&file, false).await, Ok(())) }
        });
        c.rt().sleep(secs(60)).await;
        assert!(!syncing.is_finished());
        c.restart(OSS).await.unwrap();
        syncing.await;
        // There is nothing left that the client could replay.
        assert_eq!(c.unstable_pages(0), 0);
        c.kill_client(0);
        c.fail(OSS).await;
        assert_eq!(w.content(file.fid()).await, b"again");
    });
}

/// An idle client learns of commits on its own.
#[test]
fn an_idle_client_hears_of_the_commit_within_seconds() {
    witnessed(1, |c, u, _w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, &[1; 1 << 20]).await.unwrap();
        c.rt().sleep(secs(3)).await;
        assert_eq!(c.unstable_pages(0), 256, "written back, not committed");
        c.rt().sleep(secs(5 + 7)).await;
        assert_eq!(c.unstable_pages(0), 0);
        assert_eq!(fail(&c, OSS).await, 0, "nothing is kept for a replay");
        assert!(u.get(&file, 0, 1 << 20).await == [1; 1 << 20]);
        u.release(file).await.unwrap();
    });
}

/// Like Lustre's OSTs before asynchronous journal commits.
#[test]
fn with_sync_journal_nothing_is_left_to_replay() {
    witnessed(1, |c, u, w| async move {
        c.set_param(OSS, "obdfilter.*.sync_journal", "1");
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        let data = pattern(3 << 20, 8);
        u.put(&file, 0, &data).await.unwrap();
        c.cancel_lru_locks(0, Locks::Osc);
        c.rt().sleep(secs(2)).await;
        assert_eq!(c.unstable_pages(0), 0);
        assert_eq!(fail(&c, OSS).await, 0);
        assert!(w.content(file.fid()).await == data);
        u.release(file).await.unwrap();
    });
}

#[test]
fn what_was_answered_from_memory_is_written_again() {
    witnessed(1, |c, u, w| async move {
        c.set_param(OSS, "obdfilter.*.reply_from_memory_mb", "64");
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        c.replay_barrier(OSS).await;
        let data = pattern(3 << 20, 8);
        u.put(&file, 0, &data).await.unwrap();
        c.rt().sleep(secs(5)).await;
        assert!(c.unstable_pages(0) > 0);
        assert!(fail(&c, OSS).await > 0);
        assert!(w.content(file.fid()).await == data);
        u.release(file).await.unwrap();
    });
}

/// `sync_on_lock_cancel=blocking`: data that another client has seen is durable, even if the writer and the server die.
#[test]
fn what_another_client_read_survives_the_writer_and_the_server() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"seen").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        u.put(&file, 0, b"SEEN").await.unwrap();
        let theirs = w.reopen(file.fid()).await;
        assert_eq!(w.get(&theirs, 0, 10).await, b"SEEN");
        c.kill_client(0);
        c.crash(OSS, nacre_osd::mem::Crash::PowerCut);
        c.restart(OSS).await.unwrap();
        c.cancel_lru_locks(1, Locks::Osc);
        assert_eq!(w.get(&theirs, 0, 10).await, b"SEEN");
        w.release(theirs).await.unwrap();
    });
}

/// 85b: a lock given up before the crash is not replayed, and the data under it is not lost
#[test]
fn unused_locks_given_up_before_the_crash_are_not_brought_back() {
    witnessed(1, |c, u, w| async move {
        let fid = u.file(ROOT, "f", b"data").await;
        assert_eq!(u.content(fid).await, b"data");
        c.cancel_lru_locks(0, Locks::Osc);
        c.cancel_lru_locks(0, Locks::Mdc);
        c.rt().sleep(secs(1)).await;
        c.replay_barrier(OSS).await;
        let recovered = c.fail(OSS).await;
        assert!(recovered.pause < PAUSE_MAX);
        assert_eq!(c.param(OSS, "ldlm.namespaces.*.lock_count")[0].1, "0");
        assert_eq!(w.content(fid).await, b"data");
    });
}

/// 85b: locks in use are replayed, and no other client gets in their way
#[test]
fn locks_over_dirty_bytes_are_brought_back() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"on disk").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        u.put(&file, 0, b"dirty!!").await.unwrap();
        fail(&c, OSS).await;
        assert_eq!(c.param(OSS, "ldlm.namespaces.*.lock_count")[0].1, "1");
        assert_eq!(w.content(file.fid()).await, b"dirty!!", "it was called back");
        u.release(file).await.unwrap();
    });
}
