//! One client: POSIX's guarantees, over stripes.

use super::*;
use nacre_sim::cluster::Server;
use nacre_wire::Opcode;
use nacre_wire::attr::mode;

#[test]
fn a_file_is_made_found_and_removed() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let fid = u.file(ROOT, "a", b"hello").await;
        let attr = u.find(ROOT, "a").await.unwrap();
        assert_eq!((attr.fid, attr.size, attr.nlink, attr.mode & 0o7777), (fid, 5, 1, 0o644));
        u.remove(ROOT, "a").await.unwrap();
        assert_eq!(u.find(ROOT, "a").await.map(drop), Err(Errno::ENOENT));
        assert!(u.is_gone(&c, fid).await);
    });
}

#[test]
fn directories_nest_and_go_only_when_empty() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let a = u.dir(ROOT, "a").await.unwrap();
        let b = u.dir(a, "b").await.unwrap();
        assert_eq!(u.dir(ROOT, "a").await, Err(Errno::EEXIST));
        assert_eq!(u.rmdir(&root(), ROOT, b"a").await, Err(Errno::ENOTEMPTY));
        assert_eq!(u.stat(a).await.unwrap().nlink, 3);
        u.rmdir(&root(), a, b"b").await.unwrap();
        u.rmdir(&root(), ROOT, b"a").await.unwrap();
        assert_eq!(u.dir(b, "c").await.map(drop).unwrap_err(), Errno::ENOENT, "in a removed directory");
    });
}

#[test]
fn hard_links_share_the_file() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let fid = u.file(ROOT, "a", b"1").await;
        assert_eq!(u.link(&root(), fid, ROOT, b"b").await.unwrap().nlink, 2);
        u.remove(ROOT, "a").await.unwrap();
        let left = u.find(ROOT, "b").await.unwrap();
        assert_eq!((left.fid, left.nlink), (fid, 1));
        assert_eq!(u.content(fid).await, b"1");
    });
}

#[test]
fn symbolic_links_say_where_they_point() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let link = u.symlink(&root(), ROOT, b"l", b"over/there").await.unwrap();
        assert_eq!((link.mode & mode::S_IFMT, link.size), (mode::S_IFLNK, 10));
        assert_eq!(&u.readlink(&root(), link.fid).await.unwrap()[..], b"over/there");
        let fid = u.file(ROOT, "f", b"").await;
        assert_eq!(u.readlink(&root(), fid).await, Err(Errno::EINVAL));
    });
}

#[test]
fn rename_replaces_and_refuses_cycles() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let (one, two) = (u.file(ROOT, "one", b"1").await, u.file(ROOT, "two", b"2").await);
        u.move_to(ROOT, "one", ROOT, "two").await.unwrap();
        assert_eq!(u.find(ROOT, "two").await.unwrap().fid, one);
        assert!(u.is_gone(&c, two).await);
        let a = u.dir(ROOT, "a").await.unwrap();
        let b = u.dir(a, "b").await.unwrap();
        assert_eq!(u.move_to(ROOT, "a", b, "c").await, Err(Errno::EINVAL));
        u.move_to(a, "b", ROOT, "b").await.unwrap();
        assert_eq!((u.stat(ROOT).await.unwrap().nlink, u.stat(a).await.unwrap().nlink), (4, 2));
    });
}

#[test]
fn a_directory_of_a_thousand_names_lists_each_once() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let d = u.dir(ROOT, "d").await.unwrap();
        let mut want = Vec::new();
        for n in 0..1000 {
            let name = format!("name-{n:04}");
            u.mknod(&root(), d, name.as_bytes(), mode::S_IFIFO | 0o600, 0, 0).await.unwrap();
            want.push(name);
        }
        assert_eq!(u.names(d).await, want);
    });
}

#[test]
fn stripes_make_one_file() {
    story(4, 1, |c| async move {
        let u = user(&c, 0);
        let file = u.striped_file(ROOT, "f", 0, stripes(-1, false)).await.unwrap();
        let data = pattern(1_000_000, 1);
        assert_eq!(u.put(&file, 12_345, &data).await, Ok(data.len()));
        assert_eq!(u.get(&file, 12_345, data.len()).await, data);
        assert_eq!(u.get(&file, 0, 12_345).await, vec![0; 12_345], "before the first byte are zeros");
        assert_eq!(u.stat(file.fid()).await.unwrap().size, 1_012_345);
        u.fsync(&file, false).await.unwrap();
        for ost in 0..4 {
            assert!(c.executed(Server::Oss(ost), Opcode::OstWrite) > 0, "OST {ost} has no part of it");
        }
        u.release(file).await.unwrap();
    });
}

#[test]
fn an_overstriped_file_has_more_objects_than_osts() {
    story(2, 1, |c| async move {
        let u = user(&c, 0);
        let file = u.striped_file(ROOT, "f", 0, stripes(7, true)).await.unwrap();
        let data = pattern(2_000_000, 2);
        u.put(&file, 0, &data).await.unwrap();
        assert_eq!(u.get(&file, 0, data.len() + 1).await, data);
        u.release(file).await.unwrap();
    });
}

#[test]
fn a_large_write_goes_in_several_rpcs() {
    story(2, 1, |c| async move {
        let u = user(&c, 0);
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        let data = pattern(9 << 20, 3);
        u.put(&file, 0, &data).await.unwrap();
        assert!(u.get(&file, 0, data.len()).await == data);
        u.release(file).await.unwrap();
        assert!(u.content(u.find(ROOT, "f").await.unwrap().fid).await == data);
    });
}

#[test]
fn truncate_cuts_and_grows_with_zeros() {
    story(3, 1, |c| async move {
        let u = user(&c, 0);
        let file = u.striped_file(ROOT, "f", 0, stripes(-1, false)).await.unwrap();
        let data = pattern(400_000, 4);
        u.put(&file, 0, &data).await.unwrap();
        assert_eq!(u.truncate(file.fid(), 70_000).await.unwrap().size, 70_000);
        assert_eq!(u.truncate(file.fid(), 300_000).await.unwrap().size, 300_000);
        let mut want = data[..70_000].to_vec();
        want.resize(300_000, 0);
        assert!(u.get(&file, 0, 500_000).await == want);
        u.release(file).await.unwrap();
    });
}

#[test]
fn opening_to_truncate_empties() {
    story(2, 1, |c| async move {
        let u = user(&c, 0);
        let fid = u.file(ROOT, "f", b"something").await;
        let file = u.new_file(ROOT, "f", O_TRUNC).await.unwrap();
        assert_eq!((file.fid(), u.stat(fid).await.unwrap().size), (fid, 0));
        u.release(file).await.unwrap();
    });
}

#[test]
fn appends_follow_each_other() {
    story(3, 1, |c| async move {
        let u = user(&c, 0);
        let file = u.striped_file(ROOT, "f", O_APPEND, stripes(-1, false)).await.unwrap();
        let mut want = Vec::new();
        for n in 0..20 {
            let part = pattern(10_000 + n, n as u64);
            u.put(&file, 0, &part).await.unwrap();
            want.extend(part);
        }
        assert!(u.get(&file, 0, 1 << 20).await == want);
        u.release(file).await.unwrap();
    });
}

#[test]
fn a_hole_is_punched_and_found() {
    story(2, 1, |c| async move {
        const PUNCH: u32 = 2 | 1;
        let u = user(&c, 0);
        let file = u.striped_file(ROOT, "f", 0, stripes(-1, false)).await.unwrap();
        let mut want = pattern(512 << 10, 5);
        u.put(&file, 0, &want).await.unwrap();
        u.fallocate(&file, PUNCH, 128 << 10, 256 << 10).await.unwrap();
        want[128 << 10..384 << 10].fill(0);
        assert!(u.get(&file, 0, 1 << 20).await == want);
        assert_eq!(u.seek(&file, 0, true).await, Ok(128 << 10));
        assert_eq!(u.seek(&file, 200 << 10, false).await, Ok(384 << 10));
        assert_eq!(u.seek(&file, 1 << 30, false).await, Err(Errno::ENXIO));
        u.release(file).await.unwrap();
    });
}

#[test]
fn extended_attributes_are_kept_listed_and_removed() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let fid = u.file(ROOT, "f", b"").await;
        u.setxattr(&root(), fid, b"user.colour", b"blue", 0).await.unwrap();
        assert_eq!(&u.getxattr(&root(), fid, b"user.colour").await.unwrap()[..], b"blue");
        let listed = u.listxattr(&root(), fid).await.unwrap();
        assert!(listed.split(|b| *b == 0).any(|n| n == b"user.colour"));
        u.removexattr(&root(), fid, b"user.colour").await.unwrap();
        assert_eq!(u.getxattr(&root(), fid, b"user.colour").await, Err(Errno::ENODATA));
    });
}

#[test]
fn an_open_file_outlives_its_name() {
    story(2, 2, |c| async move {
        let u = user(&c, 0);
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"still here").await.unwrap();
        u.remove(ROOT, "f").await.unwrap();
        assert_eq!(u.get(&file, 0, 100).await, b"still here");
        u.put(&file, 10, b" and writable").await.unwrap();
        assert_eq!(u.stat(file.fid()).await.map(|a| (a.nlink, a.size)), Ok((0, 23)));
        let fid = file.fid();
        u.release(file).await.unwrap();
        assert!(user(&c, 1).is_gone(&c, fid).await);
    });
}

#[test]
fn space_of_removed_files_comes_back() {
    story(2, 1, |c| async move {
        let u = user(&c, 0);
        let fid = u.file(ROOT, "f", &pattern(4 << 20, 6)).await;
        u.fsync(&*u.reopen(fid).await, false).await.unwrap();
        let with = u.statfs().await.unwrap();
        u.remove(ROOT, "f").await.unwrap();
        for client in 0..1 {
            user(&c, client).unmount().await;
        }
        let other = User(c.mount_another(77).await.unwrap());
        c.rt().sleep(secs(60)).await;
        let without = other.statfs().await.unwrap();
        let freed = (without.blocks_free - with.blocks_free) * u64::from(with.block_size);
        assert!(freed >= 4 << 20, "{freed} bytes came back");
        other.unmount().await;
    });
}

#[test]
fn others_may_do_only_what_the_mode_says() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let stranger = Credentials { uid: 500, gid: 500, groups: vec![] };
        let fid = u.file(ROOT, "f", b"secret").await;
        u.chmod(fid, 0o600).await.unwrap();
        assert_eq!(u.open(&stranger, fid, 0).await.map(drop).unwrap_err(), Errno::EACCES);
        assert_eq!(u.mkdir(&stranger, ROOT, b"d", 0o755, 0).await.map(drop), Err(Errno::EACCES));
        assert_eq!(
            u.setattr(&stranger, fid, SetAttr { mode: Some(0o777), ..SetAttr::default() }, None).await.map(drop),
            Err(Errno::EPERM)
        );
        u.chmod(fid, 0o604).await.unwrap();
        let file = u.open(&stranger, fid, 0).await.unwrap();
        assert_eq!(u.get(&file, 0, 10).await, b"secret");
        u.release(file).await.unwrap();
    });
}

#[test]
fn names_that_cannot_be_are_refused() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        assert_eq!(u.dir(ROOT, &"x".repeat(256)).await, Err(Errno::ENAMETOOLONG));
        u.dir(ROOT, &"x".repeat(255)).await.unwrap();
        let file = u.file(ROOT, "f", b"").await;
        assert_eq!(u.find(file, "x").await.map(drop), Err(Errno::ENOTDIR));
    });
}
