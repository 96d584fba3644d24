//! One of two clients is missing when the server is back.

use super::*;

/// Client 0 works and is gone for good; client 1 recovers alone, after the server has waited in vain.
async fn recover_without_the_first(c: &Cluster) {
    c.kill_client(0);
    c.crash(MDS, Crash::Process);
    c.restart(MDS).await.unwrap();
    c.set_param(MDS, "mdt.*.recovery_time_soft", "60");
    let begun = c.rt().now();
    c.until_connected(1, MDS).await;
    c.until_recovered(MDS).await;
    let waited = c.rt().now().since(begun);
    assert!(waited > secs(55) && waited < secs(90), "{waited:?}");
    assert_eq!((c.recovered(MDS).completed, c.recovered(MDS).known), (1, 2));
}

/// 0a, 14a, 15a
#[test]
fn what_does_not_depend_on_the_missing_client_is_replayed() {
    witnessed(1, |c, a, b| async move {
        let (da, db) = (a.dir(ROOT, "a").await.unwrap(), b.dir(ROOT, "b").await.unwrap());
        c.replay_barrier(MDS).await;
        for n in 0..10 {
            a.dir(da, &format!("a{n}")).await.unwrap();
            b.dir(db, &format!("b{n}")).await.unwrap();
        }
        recover_without_the_first(&c).await;
        assert_eq!((b.names(da).await.len(), b.names(db).await.len()), (0, 10));
        assert_eq!((b.stat(da).await.unwrap().nlink, b.stat(db).await.unwrap().nlink), (2, 12));
    });
}

/// 0b
#[test]
fn a_client_that_dies_while_others_wait_for_its_replay_is_waited_for_and_evicted() {
    witnessed(1, |c, a, b| async move {
        c.replay_barrier(MDS).await;
        a.dir(ROOT, "a").await.unwrap();
        b.dir(ROOT, "b").await.unwrap();
        c.net().partition([c.client_numbers()[0]], [2]);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.set_param(MDS, "mdt.*.recovery_time_soft", "60");
        c.rt().sleep(secs(20)).await;
        assert_eq!(
            (c.recovery_status(MDS, "connected_clients"), c.recovery_status(MDS, "queued_requests")),
            ("1/2".into(), "1".into())
        );
        c.kill_client(0);
        c.until_recovered(MDS).await;
        assert_eq!(b.names(ROOT).await, ["b"]);
    });
}

/// 14b: a change lacks the change it was based on, and its client is told
#[test]
fn what_depends_on_the_missing_client_is_lost_and_told_by_fsync() {
    witnessed(1, |c, a, b| async move {
        let kept = b.dir(ROOT, "kept").await.unwrap();
        c.replay_barrier(MDS).await;
        let d = a.dir(ROOT, "d").await.unwrap();
        let lost = b.dir(d, "lost").await.unwrap();
        let open = b.open(&root(), lost, 0).await.unwrap();
        b.dir(kept, "also").await.unwrap();
        recover_without_the_first(&c).await;
        assert_eq!(b.names(ROOT).await, ["kept"]);
        assert_eq!(b.names(kept).await, ["also"]);
        assert_eq!(b.fsyncdir(&open).await, Err(Errno::EIO));
        b.release(open).await.unwrap();
    });
}

/// 14, 26: an orphan of the missing client goes with it
#[test]
fn an_open_file_without_a_name_goes_with_the_missing_client() {
    witnessed(1, |c, a, b| async move {
        let file = a.new_file(ROOT, "f", 0).await.unwrap();
        a.put(&file, 0, &[1; 1 << 20]).await.unwrap();
        a.fsync(&file, false).await.unwrap();
        b.remove(ROOT, "f").await.unwrap();
        c.rt().sleep(secs(10)).await;
        let full = available(&b).await;
        let fid = file.fid();
        recover_without_the_first(&c).await;
        assert!(b.is_gone(&c, fid).await);
        c.rt().sleep(secs(90)).await;
        assert!(available(&b).await - full >= 1 << 20);
    });
}

#[test]
fn a_file_both_had_open_stays_with_the_one_who_is_there() {
    witnessed(1, |c, a, b| async move {
        let mine = a.new_file(ROOT, "f", 0).await.unwrap();
        a.put(&mine, 0, b"shared").await.unwrap();
        a.fsync(&mine, false).await.unwrap();
        let theirs = b.reopen(mine.fid()).await;
        b.remove(ROOT, "f").await.unwrap();
        c.rt().sleep(secs(10)).await;
        recover_without_the_first(&c).await;
        c.rt().sleep(secs(20)).await;
        assert_eq!(b.get(&theirs, 0, 10).await, b"shared");
        let fid = theirs.fid();
        b.release(theirs).await.unwrap();
        assert!(b.is_gone(&c, fid).await);
    });
}

#[test]
fn file_locks_of_the_missing_client_are_free() {
    witnessed(1, |c, a, b| async move {
        let mine = a.new_file(ROOT, "f", 0).await.unwrap();
        let theirs = b.reopen(mine.fid()).await;
        a.flock(&mine, whole_file(1, Write, false, false)).await.unwrap();
        c.rt().sleep(secs(10)).await;
        assert_eq!(b.flock(&theirs, whole_file(2, Read, false, false)).await, Err(Errno::EAGAIN));
        recover_without_the_first(&c).await;
        assert_eq!(b.flock(&theirs, whole_file(2, Write, false, false)).await, Ok(()));
        b.release(theirs).await.unwrap();
    });
}

/// 20: the second recovery does not wait for the client evicted in the first
#[test]
fn who_was_missing_once_is_not_waited_for_again() {
    witnessed(1, |c, _a, b| async move {
        b.dir(ROOT, "d").await.unwrap();
        c.rt().sleep(secs(10)).await;
        recover_without_the_first(&c).await;
        let recovered = c.fail(MDS).await;
        assert!(recovered.pause < PAUSE_MAX && recovered.known == 1, "{recovered:?}");
        assert_eq!(b.names(ROOT).await, ["d"]);
    });
}

/// 18, 21b: a client that comes back too late is admitted as a new one
#[test]
fn who_comes_too_late_has_lost_its_changes_and_no_others() {
    witnessed(1, |c, a, b| async move {
        c.replay_barrier(MDS).await;
        let mine = a.dir(ROOT, "mine").await.unwrap();
        b.dir(ROOT, "theirs").await.unwrap();
        let open = a.open(&root(), mine, 0).await.unwrap();
        c.net().partition([c.client_numbers()[0]], [2]);
        c.crash(MDS, Crash::Process);
        c.restart(MDS).await.unwrap();
        c.set_param(MDS, "mdt.*.recovery_time_soft", "30");
        c.until_recovered(MDS).await;
        c.net().heal();
        c.rt().sleep(secs(60)).await;
        assert_eq!((a.names(ROOT).await, b.names(ROOT).await), (vec!["theirs".to_owned()], vec!["theirs".to_owned()]));
        assert_eq!(a.fsyncdir(&open).await, Err(Errno::EIO));
        a.release(open).await.unwrap();
        a.dir(ROOT, "mine").await.unwrap();
        assert_eq!(b.names(ROOT).await, ["mine", "theirs"]);
    });
}

/// At an OST: data that the missing client had written and the OST lost is gone.
#[test]
fn an_ost_that_waited_in_vain_has_what_the_other_wrote() {
    witnessed(1, |c, a, b| async move {
        let (mine, theirs) = (a.new_file(ROOT, "a", 0).await.unwrap(), b.new_file(ROOT, "b", 0).await.unwrap());
        a.put(&mine, 0, b"committed").await.unwrap();
        a.fsync(&mine, false).await.unwrap();
        c.replay_barrier(OSS).await;
        a.put(&mine, 0, b"not saved").await.unwrap();
        b.put(&theirs, 0, b"saved").await.unwrap();
        c.rt().sleep(secs(5)).await;
        c.kill_client(0);
        c.crash(OSS, Crash::PowerCut);
        c.restart(OSS).await.unwrap();
        c.set_param(OSS, "obdfilter.*.recovery_time_soft", "60");
        c.until_recovered(OSS).await;
        assert_eq!(c.recovered(OSS).known - c.recovered(OSS).completed, 1);
        assert_eq!(b.fsync(&theirs, false).await, Ok(()));
        assert_eq!(
            (b.content(theirs.fid()).await, b.content(mine.fid()).await),
            (b"saved".to_vec(), b"committed".to_vec())
        );
        b.release(theirs).await.unwrap();
    });
}

/// An OST had acknowledged data, lost it, and did not wait for its client: the next fsync must not vouch for it.
#[test]
fn bytes_answered_and_lost_by_an_ost_that_waited_in_vain_are_told_by_fsync_once() {
    witnessed(1, |c, a, b| async move {
        let file = a.new_file(ROOT, "f", 0).await.unwrap();
        a.put(&file, 0, b"durable").await.unwrap();
        a.fsync(&file, false).await.unwrap();
        c.replay_barrier(OSS).await;
        a.put(&file, 0, b"ghostly").await.unwrap();
        c.rt().sleep(secs(5)).await;
        assert_eq!(c.unstable_pages(0), 1, "written back and answered");
        c.net().partition([c.client_numbers()[0]], [10]);
        c.crash(OSS, Crash::PowerCut);
        c.restart(OSS).await.unwrap();
        c.set_param(OSS, "obdfilter.*.recovery_time_soft", "30");
        c.until_recovered(OSS).await;
        c.net().heal();
        c.rt().sleep(secs(60)).await;
        assert_eq!(c.unstable_pages(0), 0);
        assert_eq!(a.fsync(&file, false).await, Err(Errno::EIO));
        assert_eq!(a.fsync(&file, false).await, Ok(()));
        assert_eq!(
            (a.get(&file, 0, 10).await, b.content(file.fid()).await),
            (b"durable".to_vec(), b"durable".to_vec())
        );
        a.release(file).await.unwrap();
    });
}
