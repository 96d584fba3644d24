//! Names and inodes: created, moved and removed.

use super::*;
use nacre_wire::attr::mode;

/// 0a
#[test]
fn with_nothing_to_replay_nothing_is_replayed() {
    witnessed(1, |c, u, w| async move {
        u.file(ROOT, "f", b"old").await;
        c.replay_barrier(MDS).await;
        assert_eq!(fail(&c, MDS).await, 0);
        assert_eq!(w.names(ROOT).await, ["f"]);
    });
}

/// 0c, 1, 2a
#[test]
fn a_file_that_was_made_is_there_under_its_fid() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let fid = u.file(ROOT, "f", b"").await;
        let made = u.stat(fid).await.unwrap();
        assert!(fail(&c, MDS).await > 0);
        let found = w.find(ROOT, "f").await.unwrap();
        assert_eq!((found.fid, found.mode, found.ctime, found.mtime), (fid, made.mode, made.ctime, made.mtime));
    });
}

/// 2b, 9
#[test]
fn a_file_that_replaces_a_removed_one_is_another() {
    witnessed(1, |c, u, w| async move {
        let before = u.file(ROOT, "f", b"old").await;
        c.replay_barrier(MDS).await;
        u.remove(ROOT, "f").await.unwrap();
        let after = u.file(ROOT, "f", b"new").await;
        fail(&c, MDS).await;
        assert_eq!(w.find(ROOT, "f").await.unwrap().fid, after);
        assert_eq!(w.content(after).await, b"new");
        assert!(w.is_gone(&c, before).await);
    });
}

/// 2e
#[test]
fn exclusive_creation_is_still_exclusive() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let file = u.new_file(ROOT, "f", O_EXCL).await.unwrap();
        fail(&c, MDS).await;
        for client in [&u, &w] {
            assert_eq!(client.new_file(ROOT, "f", O_EXCL).await.map(drop), Err(Errno::EEXIST));
        }
        u.put(&file, 0, b"mine").await.unwrap();
        assert_eq!(w.content(file.fid()).await, b"mine");
        u.release(file).await.unwrap();
    });
}

/// 3a-c
#[test]
fn what_failed_fails_no_differently_and_is_not_replayed() {
    witnessed(1, |c, u, w| async move {
        u.file(ROOT, "f", b"").await;
        u.dir(ROOT, "d").await.unwrap();
        c.replay_barrier(MDS).await;
        for _ in 0..3 {
            assert_eq!(u.new_file(ROOT, "f", O_EXCL).await.map(drop), Err(Errno::EEXIST));
            assert_eq!(u.dir(ROOT, "d").await, Err(Errno::EEXIST));
            assert_eq!(u.remove(ROOT, "none").await, Err(Errno::ENOENT));
            assert_eq!(u.rmdir(&root(), ROOT, b"f").await, Err(Errno::ENOTDIR));
        }
        assert_eq!(fail(&c, MDS).await, 0, "failures change nothing");
        assert_eq!(u.new_file(ROOT, "f", O_EXCL).await.map(drop), Err(Errno::EEXIST));
        assert_eq!(w.names(ROOT).await, ["d", "f"]);
    });
}

/// 4a, 5
#[test]
fn two_hundred_files_that_were_made_are_there_with_what_was_written() {
    witnessed(3, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        for n in 0..200 {
            u.file(ROOT, &format!("f{n:03}"), format!("this is {n}").as_bytes()).await;
        }
        assert!(fail(&c, MDS).await >= 200);
        let names = w.names(ROOT).await;
        assert_eq!(names.len(), 200);
        for (n, name) in names.iter().enumerate() {
            let found = w.find(ROOT, name).await.unwrap();
            assert_eq!(w.content(found.fid).await, format!("this is {n}").as_bytes(), "{name}");
        }
    });
}

/// 4b
#[test]
fn ten_files_that_were_removed_stay_removed() {
    witnessed(2, |c, u, w| async move {
        let mut fids = Vec::new();
        for n in 0..10 {
            fids.push(u.file(ROOT, &format!("f{n}"), b"data").await);
        }
        c.replay_barrier(MDS).await;
        for n in 0..10 {
            u.remove(ROOT, &format!("f{n}")).await.unwrap();
        }
        assert!(fail(&c, MDS).await >= 10);
        assert_eq!(w.names(ROOT).await, [""; 0]);
        for fid in fids {
            assert!(w.is_gone(&c, fid).await);
        }
    });
}

/// 6a
#[test]
fn a_directory_comes_back_with_the_file_in_it() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let d = u.dir(ROOT, "d").await.unwrap();
        let f = u.file(d, "f", b"inside").await;
        fail(&c, MDS).await;
        assert_eq!(w.find(ROOT, "d").await.unwrap().fid, d);
        assert_eq!(w.find(d, "f").await.unwrap().fid, f);
        assert_eq!((w.stat(d).await.unwrap().nlink, w.stat(ROOT).await.unwrap().nlink), (2, 3));
        assert_eq!(w.content(f).await, b"inside");
    });
}

/// 6b
#[test]
fn a_directory_that_was_removed_stays_removed() {
    witnessed(1, |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        c.replay_barrier(MDS).await;
        u.rmdir(&root(), ROOT, b"d").await.unwrap();
        fail(&c, MDS).await;
        assert!(gone(w.find(ROOT, "d").await));
        assert_eq!(w.stat(ROOT).await.unwrap().nlink, 2);
        assert_eq!(u.new_file(d, "f", 0).await.map(drop), Err(Errno::ENOENT));
    });
}

/// 7
#[test]
fn a_file_made_in_an_older_directory_is_there() {
    witnessed(1, |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        c.replay_barrier(MDS).await;
        let f = u.file(d, "f", b"x").await;
        let mtime = u.stat(d).await.unwrap().mtime;
        fail(&c, MDS).await;
        assert_eq!(w.find(d, "f").await.unwrap().fid, f);
        assert_eq!(w.stat(d).await.unwrap().mtime, mtime, "the directory's times are as they were");
    });
}

/// 70a in small
#[test]
fn a_tree_of_directories_comes_back_whole() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let mut parent = ROOT;
        for depth in 0..12 {
            parent = u.dir(parent, "d").await.unwrap();
            u.file(parent, "f", &[depth]).await;
        }
        fail(&c, MDS).await;
        let mut at = ROOT;
        for depth in 0..12 {
            at = w.find(at, "d").await.unwrap().fid;
            assert_eq!(w.content(w.find(at, "f").await.unwrap().fid).await, [depth]);
            assert_eq!(w.stat(at).await.unwrap().nlink, if depth == 11 { 2 } else { 3 });
        }
        assert_eq!(at, parent);
    });
}

/// 10
#[test]
fn a_file_that_was_moved_onto_another_has_replaced_it() {
    witnessed(1, |c, u, w| async move {
        let (old, new) = (u.file(ROOT, "old", b"1").await, u.file(ROOT, "new", b"22").await);
        c.replay_barrier(MDS).await;
        u.move_to(ROOT, "old", ROOT, "new").await.unwrap();
        fail(&c, MDS).await;
        assert_eq!(w.names(ROOT).await, ["new"]);
        assert_eq!(w.find(ROOT, "new").await.unwrap().fid, old);
        assert_eq!(w.content(old).await, b"1");
        assert!(w.is_gone(&c, new).await);
    });
}

/// 10
#[test]
fn a_file_that_was_moved_and_removed_is_gone() {
    witnessed(1, |c, u, w| async move {
        let fid = u.file(ROOT, "a", b"1").await;
        c.replay_barrier(MDS).await;
        u.move_to(ROOT, "a", ROOT, "b").await.unwrap();
        u.remove(ROOT, "b").await.unwrap();
        fail(&c, MDS).await;
        assert_eq!(w.names(ROOT).await, [""; 0]);
        assert!(w.is_gone(&c, fid).await);
    });
}

/// 11
#[test]
fn the_old_name_of_a_moved_file_is_given_to_a_new_one() {
    witnessed(1, |c, u, w| async move {
        let old = u.new_file(ROOT, "a", 0).await.unwrap();
        u.put(&old, 0, b"old").await.unwrap();
        u.move_to(ROOT, "a", ROOT, "b").await.unwrap();
        c.replay_barrier(MDS).await;
        let new = u.file(ROOT, "a", b"new").await;
        assert_eq!(u.get(&old, 0, 10).await, b"old");
        fail(&c, MDS).await;
        assert_eq!((w.find(ROOT, "a").await.unwrap().fid, w.find(ROOT, "b").await.unwrap().fid), (new, old.fid()));
        assert_eq!((w.content(new).await, w.content(old.fid()).await), (b"new".to_vec(), b"old".to_vec()));
        u.release(old).await.unwrap();
    });
}

#[test]
fn a_directory_that_was_moved_elsewhere_keeps_what_is_in_it() {
    witnessed(1, |c, u, w| async move {
        let (from, to) = (u.dir(ROOT, "from").await.unwrap(), u.dir(ROOT, "to").await.unwrap());
        let d = u.dir(from, "d").await.unwrap();
        let f = u.file(d, "f", b"in d").await;
        c.replay_barrier(MDS).await;
        u.move_to(from, "d", to, "e").await.unwrap();
        fail(&c, MDS).await;
        assert_eq!((w.names(from).await, w.names(to).await), (vec![], vec!["e".to_owned()]));
        assert_eq!((w.stat(from).await.unwrap().nlink, w.stat(to).await.unwrap().nlink), (2, 3));
        assert_eq!(w.find(d, "f").await.unwrap().fid, f);
        assert_eq!(w.find(d, "..").await.unwrap().fid, to);
        let paths = w.getxattr(&root(), ROOT, format!("lustre.fid2path:{f}").as_bytes()).await.unwrap();
        assert_eq!(&paths[..], b"to/e/f\0");
    });
}

#[test]
fn names_that_were_exchanged_round_a_circle_come_back_so() {
    witnessed(1, |c, u, w| async move {
        let (a, b) = (u.file(ROOT, "a", b"a").await, u.file(ROOT, "b", b"b").await);
        c.replay_barrier(MDS).await;
        for (from, to) in [("a", "tmp"), ("b", "a"), ("tmp", "b")] {
            u.move_to(ROOT, from, ROOT, to).await.unwrap();
        }
        assert_eq!(fail(&c, MDS).await, 3);
        assert_eq!((w.find(ROOT, "a").await.unwrap().fid, w.find(ROOT, "b").await.unwrap().fid), (b, a));
        assert_eq!(w.names(ROOT).await, ["a", "b"]);
    });
}

/// 56
#[test]
fn a_symbolic_link_leads_where_it_did() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let link = u.symlink(&root(), ROOT, b"l", b"over/there").await.unwrap();
        fail(&c, MDS).await;
        let found = w.find(ROOT, "l").await.unwrap();
        assert_eq!((found.fid, found.mode & mode::S_IFMT, found.size), (link.fid, mode::S_IFLNK, 10));
        assert_eq!(&w.readlink(&root(), link.fid).await.unwrap()[..], b"over/there");
    });
}

#[test]
fn a_device_and_a_pipe_keep_their_kinds() {
    witnessed(1, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        u.mknod(&root(), ROOT, b"pipe", mode::S_IFIFO | 0o600, 0, 0).await.unwrap();
        u.mknod(&root(), ROOT, b"device", mode::S_IFCHR | 0o600, 0, 0x0103).await.unwrap();
        assert_eq!(fail(&c, MDS).await, 2);
        assert_eq!(w.find(ROOT, "pipe").await.unwrap().mode, mode::S_IFIFO | 0o600);
        let device = w.find(ROOT, "device").await.unwrap();
        assert_eq!((device.mode, device.rdev), (mode::S_IFCHR | 0o600, 0x0103));
    });
}

#[test]
fn a_hard_link_counts_once() {
    witnessed(1, |c, u, w| async move {
        let fid = u.file(ROOT, "a", b"shared").await;
        c.replay_barrier(MDS).await;
        u.link(&root(), fid, ROOT, b"b").await.unwrap();
        assert_eq!(fail(&c, MDS).await, 1);
        let (a, b) = (w.find(ROOT, "a").await.unwrap(), w.find(ROOT, "b").await.unwrap());
        assert_eq!((a.fid, b.fid, a.nlink), (fid, fid, 2));
        w.remove(ROOT, "a").await.unwrap();
        assert_eq!((w.stat(fid).await.unwrap().nlink, w.content(fid).await), (1, b"shared".to_vec()));
    });
}

#[test]
fn a_file_lives_on_under_its_second_name_when_the_first_was_removed() {
    witnessed(1, |c, u, w| async move {
        let fid = u.file(ROOT, "a", b"shared").await;
        c.replay_barrier(MDS).await;
        u.link(&root(), fid, ROOT, b"b").await.unwrap();
        u.remove(ROOT, "a").await.unwrap();
        fail(&c, MDS).await;
        assert_eq!(w.names(ROOT).await, ["b"]);
        assert_eq!((w.stat(fid).await.unwrap().nlink, w.content(fid).await), (1, b"shared".to_vec()));
    });
}

/// 4, 70 in small: each replay needs the one before
#[test]
fn creates_and_removals_mixed_come_back_in_their_order() {
    witnessed(2, |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        c.replay_barrier(MDS).await;
        for n in 0..50u32 {
            u.file(d, &format!("f{}", n % 7), &n.to_be_bytes()).await;
            if n >= 4 {
                u.remove(d, &format!("f{}", (n - 4) % 7)).await.unwrap();
            }
        }
        assert!(fail(&c, MDS).await >= 96);
        assert_eq!(w.names(d).await, ["f0", "f4", "f5", "f6"]);
        for (name, want) in [("f4", 46u32), ("f5", 47), ("f6", 48), ("f0", 49)] {
            assert_eq!(w.content(w.find(d, name).await.unwrap().fid).await, want.to_be_bytes(), "{name}");
        }
    });
}

/// 33b
#[test]
fn fids_are_given_to_no_second_file_after_a_crash() {
    witnessed(1, |c, u, w| async move {
        let mut fids = std::collections::BTreeSet::new();
        for round in 0..4 {
            c.replay_barrier(MDS).await;
            for n in 0..5 {
                assert!(fids.insert(u.file(ROOT, &format!("u{round}{n}"), b"").await));
                assert!(fids.insert(w.file(ROOT, &format!("w{round}{n}"), b"").await));
            }
            fail(&c, MDS).await;
        }
        let found = w.names(ROOT).await;
        assert_eq!((found.len(), fids.len()), (40, 40));
        for name in found {
            assert!(fids.remove(&w.find(ROOT, &name).await.unwrap().fid), "{name}");
        }
    });
}
