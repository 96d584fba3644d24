//! A write takes set-id bits and capabilities from a program: for every mount, before the write goes on, and without
//! unneeded requests.

use crate::cluster::{Cluster, root, run, user};
use crate::metadata_cache::Door;
use nacre_base::Errno;
use nacre_client::open_flags;
use nacre_client::open_flags::KILL_SET_ID;
use std::sync::Arc;
use std::time::Duration;

/// Time after which the MDT no longer withholds locks because of how the files were created.
const SETTLED: Duration = Duration::from_secs(5);

#[test]
fn set_id_bits_are_asked_for_once() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let cred = user(5);
        let fid = a.write_file("f", b"data").await;
        a.chmod_by(&root(), fid, 0o4777).await;
        rt.sleep(SETTLED).await;
        let file = b.open(&cred, fid, open_flags::O_RDWR).await.unwrap();
        b.drop_privileges(&file, true).await.unwrap();
        assert_eq!(a.stat(fid).await.mode & 0o7777, 0o777);
        let rounds = async || {
            let before = cluster.mds_requests();
            for _ in 0..10 {
                b.drop_privileges(&file, true).await.unwrap();
            }
            cluster.mds_requests() - before
        };
        assert_eq!(rounds().await, 0);
        a.chmod_by(&root(), fid, 0o4777).await;
        b.drop_privileges(&file, true).await.unwrap();
        assert_eq!(a.stat(fid).await.mode & 0o7777, 0o777, "the lock was called back");
        // There is no lock on a file without names.
        a.remove("f").await;
        b.drop_privileges(&file, true).await.unwrap();
        assert_eq!(rounds().await, 0);
        b.chmod_by(&root(), fid, 0o4777).await;
        b.drop_privileges(&file, true).await.unwrap();
        assert_eq!(b.stat(fid).await.mode & 0o7777, 0o777, "this mount gave them to it");
        b.release(file).await.unwrap();
    });
}

#[test]
fn the_door_forgets_set_id_bits_before_the_write_goes_on() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let door = Arc::new(Door::default());
        a.set_invalidate(door.clone());
        let fid = a.write_file("f", b"data").await;
        a.chmod_by(&root(), fid, 0o777).await;
        let file = a.open(&user(5), fid, open_flags::O_RDWR).await.unwrap();
        for chmod_by in [&a, &b] {
            chmod_by.chmod_by(&root(), fid, 0o4777).await;
            assert!(a.keeps_attr(&a.stat(fid).await), "the kernel believes the mode");
            door.take();
            a.drop_privileges(&file, true).await.unwrap();
            assert!(door.take().contains(&("attributes", fid)));
            a.drop_privileges(&file, true).await.unwrap();
            assert_eq!(door.take(), [], "nothing was dropped");
        }
        a.release(file).await.unwrap();
    });
}

#[test]
fn a_capability_goes_with_the_next_write_of_whoever_writes() {
    run(|rt| async move {
        const CAPABILITY: &[u8] = b"security.capability";
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let fid = a.write_file("f", b"data").await;
        a.chmod_by(&root(), fid, 0o777).await;
        rt.sleep(SETTLED).await;
        for (by, cred) in [(&a, root()), (&b, root()), (&b, user(5))] {
            let file = by.open(&cred, fid, open_flags::O_RDWR).await.unwrap();
            by.drop_privileges(&file, false).await.unwrap();
            let before = cluster.mds_requests();
            by.drop_privileges(&file, false).await.unwrap();
            assert_eq!(by.getxattr(&cred, fid, CAPABILITY).await, Err(Errno::ENODATA));
            assert_eq!(cluster.mds_requests(), before, "that there is none is known");
            a.setxattr(&root(), fid, CAPABILITY, &[1; 20], 0).await.unwrap();
            for c in [&a, &b] {
                assert_eq!(&c.getxattr(&root(), fid, CAPABILITY).await.unwrap()[..], [1; 20]);
            }
            by.drop_privileges(&file, false).await.unwrap();
            for c in [&a, &b] {
                assert_eq!(c.getxattr(&root(), fid, CAPABILITY).await, Err(Errno::ENODATA));
            }
            by.release(file).await.unwrap();
        }
    });
}

#[test]
fn who_has_a_file_open_for_writing_takes_rights_that_he_may_not_give() {
    run(|rt| async move {
        const CAPABILITY: &[u8] = b"security.capability";
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let fid = a.write_file("f", b"data").await;
        for c in [&a, &b] {
            a.chmod_by(&root(), fid, 0o777).await;
            rt.sleep(SETTLED).await;
            c.stat(fid).await;
            let file = c.open(&user(5), fid, open_flags::O_RDWR).await.unwrap();
            a.chmod_by(&root(), fid, 0o4755).await;
            c.drop_privileges(&file, true).await.unwrap();
            assert_eq!(a.stat(fid).await.mode & 0o7777, 0o755);
            // An older kernel sends this before fallocate(2), without naming the open file.
            a.chmod_by(&root(), fid, 0o4755).await;
            a.setxattr(&root(), fid, CAPABILITY, &[1; 20], 0).await.unwrap();
            c.chmod_by(&user(5), fid, 0o755).await;
            c.removexattr(&user(5), fid, CAPABILITY).await.unwrap();
            assert_eq!(a.stat(fid).await.mode & 0o7777, 0o755);
            assert_eq!(a.getxattr(&root(), fid, CAPABILITY).await, Err(Errno::ENODATA));
            c.release(file).await.unwrap();
            a.chmod_by(&root(), fid, 0o4755).await;
            a.setxattr(&root(), fid, CAPABILITY, &[1; 20], 0).await.unwrap();
            let killed = c.removexattr(&user(5), fid, CAPABILITY).await;
            assert_eq!(killed, Err(Errno::EPERM), "the user has the file open no longer");
            a.removexattr(&root(), fid, CAPABILITY).await.unwrap();
        }
    });
}

#[test]
fn truncating_at_open_takes_set_id_bits_for_the_door_too() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let a = cluster.client().await;
        let door = Arc::new(Door::default());
        a.set_invalidate(door.clone());
        let fid = a.write_file("f", b"data").await;
        for (flags, left) in [(0, 0o4777), (KILL_SET_ID, 0o777)] {
            a.chmod_by(&root(), fid, 0o4777).await;
            a.stat(fid).await;
            door.take();
            let file = a.open(&root(), fid, open_flags::O_RDWR | open_flags::O_TRUNC | flags).await.unwrap();
            assert_eq!(a.stat(fid).await.mode & 0o7777, left);
            assert!(flags == 0 || door.take().contains(&("attributes", fid)), "the kernel keeps the old mode");
            a.release(file).await.unwrap();
        }
    });
}
