//! An OSS crashes. In these stories locks move between clients without a commit, which is not the default.

use super::*;
use nacre_client::open_flags::O_RDWR;
use nacre_wire::attr::mode::S_IFREG;

/// Lets locks move between clients without a commit: only then can an OST lose data that others have seen.
async fn never_commits_for_others(s: &Scene) {
    assert_eq!(s.c.set_param(Server::Oss(0), "obdfilter.*.sync_on_lock_cancel", "never"), 1);
}

/// Waits until writes are at the server, and not durable.
async fn is_written_back(s: &Scene) {
    s.c.rt().sleep(secs(3)).await;
}

/// All writers of a shared file but one come back.
#[test]
fn written_side_by_side_does_not_mind_who_is_missing() {
    vbr(|s| async move {
        never_commits_for_others(&s).await;
        let (mine, theirs) = (s.u.reopen(s.x).await, s.missing.reopen(s.x).await);
        for i in 0..8 {
            s.missing.put(&theirs, 100 + i * 20, &[b't'; 10]).await.unwrap();
            s.u.put(&mine, 110 + i * 20, &[b'm'; 10]).await.unwrap();
        }
        is_written_back(&s).await;
        s.crash_oss(0).await;
        let content = user(&s.c, OTHER).content(s.x).await;
        assert_eq!(&content[..OLD.len()], OLD);
        for i in 0..8 {
            assert_eq!(content[110 + i * 20..][..10], [b'm'; 10]);
        }
        assert!(!s.is_told(s.x).await);
        s.u.release(mine).await.unwrap();
    });
}

#[test]
fn written_over_the_missing_clients_is_kept() {
    vbr(|s| async move {
        never_commits_for_others(&s).await;
        let (mine, theirs) = (s.u.reopen(s.x).await, s.missing.reopen(s.x).await);
        s.missing.put(&theirs, 0, b"theirs").await.unwrap();
        s.u.put(&mine, 0, b"mine").await.unwrap();
        is_written_back(&s).await;
        s.crash_oss(0).await;
        assert_eq!(user(&s.c, OTHER).content(s.x).await, b"minecontent");
        assert!(!s.is_told(s.x).await);
        s.u.release(mine).await.unwrap();
    });
}

/// The missing client had emptied the file: later writes must not be mixed with the old content.
#[test]
fn written_after_a_truncation_that_is_missing_is_lost() {
    vbr(|s| async move {
        never_commits_for_others(&s).await;
        let beside = s.u.reopen(s.y).await;
        s.missing.truncate(s.x, 0).await.unwrap();
        let file = s.u.reopen(s.x).await;
        s.u.put(&file, 0, b"new").await.unwrap();
        s.u.put(&beside, 0, b"new").await.unwrap();
        is_written_back(&s).await;
        s.crash_oss(1).await;
        assert_eq!(user(&s.c, OTHER).content(s.x).await, OLD);
        assert_eq!(user(&s.c, OTHER).content(s.y).await, b"new content");
        assert!(s.is_told(s.x).await && !s.is_told(s.y).await);
        s.u.put(&file, 0, b"more").await.unwrap();
        assert_eq!(s.u.fsync(&file, false).await, Ok(()), "the file is good again");
        s.u.release(file).await.unwrap();
        s.u.release(beside).await.unwrap();
    });
}

#[test]
fn cut_off_after_a_truncation_that_is_missing_is_not() {
    vbr(|s| async move {
        never_commits_for_others(&s).await;
        s.missing.truncate(s.x, 0).await.unwrap();
        s.u.truncate(s.x, 5).await.unwrap();
        is_written_back(&s).await;
        s.crash_oss(1).await;
        assert_eq!(user(&s.c, OTHER).content(s.x).await, OLD);
        assert!(s.is_told(s.x).await);
    });
}

/// The survivor's own truncation is replayed before its write.
#[test]
fn written_after_a_truncation_of_ones_own_is_kept() {
    vbr(|s| async move {
        never_commits_for_others(&s).await;
        let theirs = s.missing.reopen(s.x).await;
        s.missing.put(&theirs, 0, b"theirs").await.unwrap();
        s.u.truncate(s.x, 3).await.unwrap();
        let file = s.u.reopen(s.x).await;
        s.u.put(&file, 5, b"new").await.unwrap();
        is_written_back(&s).await;
        s.crash_oss(0).await;
        assert_eq!(user(&s.c, OTHER).content(s.x).await, b"old\0\0new");
        assert!(!s.is_told(s.x).await);
        s.u.release(file).await.unwrap();
    });
}

/// The missing client's write gave a file its first objects. Other clients' writes there are lost with them: a client
/// that keeps the file open is told, and goes on with new objects like all others.
#[test]
fn written_to_objects_that_are_missing_is_lost() {
    vbr(|s| async move {
        let made = s.u.mknod(&root(), s.dir, b"bare", S_IFREG | 0o644, 0, 0).await.unwrap().fid;
        s.all_is_durable().await;
        let beside = s.u.reopen(s.y).await;
        let theirs = s.missing.open(&root(), made, O_RDWR).await.unwrap();
        s.missing.put(&theirs, 0, b"theirs").await.unwrap();
        let mine = s.u.open(&root(), made, O_RDWR).await.unwrap();
        s.u.put(&mine, 10, b"mine").await.unwrap();
        s.u.put(&beside, 0, b"new").await.unwrap();
        s.crash_mds(0).await;
        assert_eq!(s.u.fsync(&mine, false).await, Err(Errno::EIO));
        assert_eq!(s.u.fsync(&mine, false).await, Ok(()), "told once");
        assert_eq!((s.u.content(made).await, user(&s.c, OTHER).content(made).await), (Vec::new(), Vec::new()));
        s.u.put(&mine, 0, b"again").await.unwrap();
        assert_eq!(s.u.fsync(&mine, false).await, Ok(()), "the file is good again");
        assert_eq!(user(&s.c, OTHER).content(made).await, b"again");
        assert!(!s.is_told(s.y).await);
        s.u.release(mine).await.unwrap();
        s.u.release(beside).await.unwrap();
    });
}
