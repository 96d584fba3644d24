//! Callbacks, grants and cancels of locks that get lost.

use super::*;

/// A writer with dirty bytes under its lock, and a reader that wants to see them.
async fn dirty(u: &User, w: &User) -> (Arc<OpenFile>, Arc<OpenFile>) {
    let mine = u.new_file(ROOT, "f", 0).await.unwrap();
    u.put(&mine, 0, b"durable").await.unwrap();
    u.fsync(&mine, false).await.unwrap();
    let theirs = w.reopen(mine.fid()).await;
    u.put(&mine, 0, b"written").await.unwrap();
    (mine, theirs)
}

/// The reader gets the writer's bytes, after a while.
fn reads_in_the_end(arrange: impl FnOnce(&Cluster) + Send + 'static, least: Duration, most: Duration) {
    witnessed(1, move |c, u, w| async move {
        let (mine, theirs) = dirty(&u, &w).await;
        arrange(&c);
        let begun = c.rt().now();
        assert_eq!(w.get(&theirs, 0, 10).await, b"written");
        let took = c.rt().now().since(begun);
        assert!(took >= least && took < most, "{took:?}");
        assert!(c.client_node(0).faults().armed().is_empty() && c.has_struck(OSS));
        assert_eq!(c.param(OSS, "ldlm.namespaces.*.lock_timeouts")[0].1, "0", "nobody is evicted");
        assert_eq!(u.fsync(&mine, false).await, Ok(()));
        u.release(mine).await.unwrap();
        w.release(theirs).await.unwrap();
    });
}

/// 10b
#[test]
fn a_lost_callback_is_sent_again() {
    reads_in_the_end(|c| c.callback_mishaps(0, Opcode::LdlmBlCallback, Mishap::LostRequest, 1), secs(5), secs(20));
}

/// 10b
#[test]
fn five_lost_callbacks_are_sent_again_before_patience_ends() {
    reads_in_the_end(|c| c.callback_mishaps(0, Opcode::LdlmBlCallback, Mishap::LostRequest, 5), secs(30), secs(90));
}

/// 10c
#[test]
fn a_callback_whose_answer_is_lost_is_obeyed_at_once() {
    reads_in_the_end(|c| c.callback_mishaps(0, Opcode::LdlmBlCallback, Mishap::LostReply, 1), secs(0), secs(1));
}

/// 10d: the holder refuses
#[test]
fn a_callback_that_fails_at_the_holder_is_sent_again() {
    let refused = Mishap::Refused(Errno::EINVAL);
    reads_in_the_end(move |c| c.callback_mishaps(0, Opcode::LdlmBlCallback, refused, 3), secs(1), secs(20));
}

/// 36
#[test]
fn a_lost_cancel_is_sent_again() {
    reads_in_the_end(|c| c.mishap(OSS, Opcode::LdlmCancel, Mishap::LostRequest), secs(1), secs(60));
}

#[test]
fn a_cancel_whose_answer_is_lost_has_given_the_lock_back() {
    reads_in_the_end(|c| c.mishap(OSS, Opcode::LdlmCancel, Mishap::LostReply), secs(0), secs(1));
}

/// 17: the flush caused by the callback takes long, and counts as progress
#[test]
fn a_flush_that_has_to_be_sent_again_keeps_its_lock() {
    reads_in_the_end(|c| c.mishaps(OSS, Opcode::OstWrite, Mishap::LostRequest, 2), secs(5), secs(90));
}

/// 113, 130a: no callback announces a grant here: the enqueue is answered once it is granted
#[test]
fn a_grant_that_is_lost_is_told_again() {
    reads_in_the_end(|c| c.mishap(OSS, Opcode::LdlmEnqueue, Mishap::LostReply), secs(1), secs(60));
}

#[test]
fn an_enqueue_that_is_lost_is_sent_again() {
    reads_in_the_end(|c| c.mishap(OSS, Opcode::LdlmEnqueue, Mishap::LostRequest), secs(1), secs(60));
}

/// 113
#[test]
fn a_lock_whose_grant_is_lost_is_held_once() {
    witnessed(1, |c, u, w| async move {
        let fid = u.file(ROOT, "f", b"x").await;
        c.cancel_lru_locks(0, Locks::Osc);
        c.rt().sleep(secs(1)).await;
        c.mishaps(OSS, Opcode::LdlmEnqueue, Mishap::LostReply, 3);
        assert_eq!(w.content(fid).await, b"x");
        assert!(c.has_struck(OSS));
        assert_eq!(c.param(OSS, "ldlm.namespaces.*.lock_count")[0].1, "1");
        let file = u.reopen(fid).await;
        u.put(&file, 0, b"y").await.unwrap();
        assert_eq!(w.content(fid).await, b"y", "it could be called back");
        u.release(file).await.unwrap();
    });
}

/// 19b
#[test]
fn a_holder_that_never_hears_is_evicted_and_told_that_its_bytes_are_lost() {
    witnessed(1, |c, u, w| async move {
        let (mine, theirs) = dirty(&u, &w).await;
        c.callback_mishaps(0, Opcode::LdlmBlCallback, Mishap::LostRequest, u32::MAX);
        // It does not write on its own either.
        c.faults(OSS).unwrap().arm("rpc.OST_WRITE.drop_request", Fault::always(FaultAction::Drop));
        let begun = c.rt().now();
        assert_eq!(w.get(&theirs, 0, 10).await, b"durable");
        let took = c.rt().now().since(begun);
        assert!(took > secs(95) && took < secs(130), "{took:?}");
        c.client_node(0).faults().clear();
        c.faults(OSS).unwrap().clear();
        assert_eq!(c.param(OSS, "ldlm.namespaces.*.lock_timeouts")[0].1, "1");
        c.rt().sleep(secs(60)).await;
        assert_eq!(u.fsync(&mine, false).await, Err(Errno::EIO));
        assert_eq!(u.fsync(&mine, false).await, Ok(()), "told once");
        assert_eq!(u.get(&mine, 0, 10).await, b"durable");
        u.put(&mine, 0, b"goes on").await.unwrap();
        assert_eq!(w.get(&theirs, 0, 10).await, b"goes on");
        u.release(mine).await.unwrap();
        w.release(theirs).await.unwrap();
    });
}

/// 19a, at the MDT
#[test]
fn a_holder_of_an_inode_that_never_hears_is_evicted_and_goes_on() {
    witnessed(1, |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        let file = u.new_file(d, "f", 0).await.unwrap();
        u.put(&file, 0, b"data").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        assert_eq!(u.names(d).await, ["f"]);
        c.callback_mishaps(0, Opcode::LdlmBlCallback, Mishap::LostRequest, u32::MAX);
        let begun = c.rt().now();
        w.dir(d, "e").await.unwrap();
        let took = c.rt().now().since(begun);
        assert!(took > secs(95) && took < secs(130), "{took:?}");
        c.client_node(0).faults().clear();
        c.rt().sleep(secs(60)).await;
        assert_eq!(u.names(d).await, ["e", "f"]);
        assert_eq!(u.get(&file, 0, 10).await, b"data");
        assert_eq!(u.release(file).await, Ok(()));
    });
}

/// 10b, at the MDT
#[test]
fn a_lost_callback_about_an_inode_is_sent_again() {
    witnessed(1, |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        assert_eq!((u.names(d).await, w.names(d).await), (vec![], vec![]));
        c.callback_mishaps(0, Opcode::LdlmBlCallback, Mishap::LostRequest, 1);
        let begun = c.rt().now();
        w.dir(d, "e").await.unwrap();
        assert!(c.rt().now().since(begun) < secs(20), "{:?}", c.rt().now().since(begun));
        assert_eq!(u.names(d).await, ["e"]);
        assert!(c.client_node(0).faults().armed().is_empty());
    });
}

/// Glimpses: the holder knows the size, and is asked again.
#[test]
fn a_lost_glimpse_is_sent_again() {
    for mishap in [Mishap::LostRequest, Mishap::LostReply] {
        witnessed(1, move |c, u, w| async move {
            let (mine, theirs) = dirty(&u, &w).await;
            u.put(&mine, 0, &[1; 5000]).await.unwrap();
            c.callback_mishaps(0, Opcode::LdlmGlCallback, mishap, 1);
            let begun = c.rt().now();
            assert_eq!(w.stat(mine.fid()).await.unwrap().size, 5000);
            assert!(c.rt().now().since(begun) < secs(20), "{:?}", c.rt().now().since(begun));
            assert!(c.client_node(0).faults().armed().is_empty());
            u.release(mine).await.unwrap();
            w.release(theirs).await.unwrap();
        });
    }
}

/// 133
#[test]
fn a_file_lock_whose_grant_is_lost_is_its_owners() {
    use nacre_client::FlockKind::{Read, Unlock, Write};
    for mishap in [Mishap::LostRequest, Mishap::LostReply] {
        witnessed(1, move |c, u, w| async move {
            let mine = u.new_file(ROOT, "f", 0).await.unwrap();
            let theirs = w.reopen(mine.fid()).await;
            c.mishaps(MDS, Opcode::LdlmEnqueue, mishap, 2);
            assert_eq!(u.flock(&mine, whole_file(1, Write, false, false)).await, Ok(()));
            assert!(c.has_struck(MDS));
            assert_eq!(w.flock(&theirs, whole_file(2, Read, false, false)).await, Err(Errno::EAGAIN));
            c.mishaps(MDS, Opcode::LdlmEnqueue, mishap, 1);
            assert_eq!(u.flock(&mine, whole_file(1, Unlock, false, false)).await, Ok(()));
            assert_eq!(w.flock(&theirs, whole_file(2, Write, false, false)).await, Ok(()));
            u.release(mine).await.unwrap();
            w.release(theirs).await.unwrap();
        });
    }
}
