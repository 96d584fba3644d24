//! Names and inodes as POSIX describes them, through the whole stack.

use crate::cluster::{Cluster, LINGERS, TestClient, root, run, striped, user};
use nacre_base::{Errno, Nid, Timestamp};
use nacre_client::{Client, MountConfig, MountError, open_flags};
use nacre_wire::attr::{SetAttr, mode};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn names_are_made_found_moved_and_removed() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let cred = root();
        let dir = a.mkdir(&cred, a.root(), b"dir", 0o755, 0o022).await.unwrap();
        assert!(dir.is_dir() && dir.mode & 0o7777 == 0o755);
        let (file, open) = a.create(&cred, dir.fid, b"f", open_flags::O_CREAT | 1, 0o666, 0o022, None).await.unwrap();
        assert_eq!(file.mode, mode::S_IFREG | 0o644);
        a.release(open).await.unwrap();

        // The other client sees the new file at once.
        assert_eq!(b.lookup(&cred, dir.fid, b"f").await.unwrap().fid, file.fid);
        assert_eq!(b.link(&cred, file.fid, dir.fid, b"g").await.unwrap().nlink, 2);
        let link = b.symlink(&cred, dir.fid, b"s", b"../far/away").await.unwrap();
        assert_eq!(&a.readlink(&cred, link.fid).await.unwrap()[..], b"../far/away");
        assert_eq!(a.readlink(&cred, file.fid).await, Err(Errno::EINVAL));
        let fifo = a.mknod(&cred, dir.fid, b"p", mode::S_IFIFO | 0o600, 0, 0).await.unwrap();
        assert_eq!(fifo.mode, mode::S_IFIFO | 0o600);
        let device = a.mknod(&cred, dir.fid, b"d", mode::S_IFBLK | 0o600, 0, 0x801).await.unwrap();
        assert_eq!((device.file_type(), device.rdev), (mode::S_IFBLK, 0x801));

        a.rename(&cred, dir.fid, b"g", a.root(), b"h", 0).await.unwrap();
        assert_eq!(b.lookup(&cred, dir.fid, b"g").await, Err(Errno::ENOENT));
        assert_eq!(b.lookup(&cred, b.root(), b"h").await.unwrap().fid, file.fid);
        assert_eq!(a.rename(&cred, dir.fid, b"f", a.root(), b"h", 1).await, Err(Errno::EEXIST));
        assert_eq!(a.rmdir(&cred, a.root(), b"dir").await, Err(Errno::ENOTEMPTY));
        assert_eq!(a.unlink(&cred, a.root(), b"dir").await, Err(Errno::EISDIR));
        for name in [&b"f"[..], b"s", b"p", b"d"] {
            b.unlink(&cred, dir.fid, name).await.unwrap();
        }
        a.rmdir(&cred, a.root(), b"dir").await.unwrap();
        a.unlink(&cred, a.root(), b"h").await.unwrap();
        rt.sleep(LINGERS).await;
        assert_eq!(a.getattr(&cred, file.fid).await, Err(Errno::ESTALE));
    });
}

#[test]
fn impossible_names_and_opens_are_refused() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let (cred, top) = (root(), c.root());
        let create =
            |name: &'static [u8], flags| c.create(&cred, top, name, open_flags::O_CREAT | flags, 0o600, 0, None);
        assert_eq!(create(b"", 2).await.err(), Some(Errno::ENOENT));
        assert_eq!(create(&[b'x'; 256], 2).await.err(), Some(Errno::ENAMETOOLONG));
        assert!(create(&[b'x'; 255], 2).await.is_ok());
        assert!(create(b"f", 2).await.is_ok());
        assert_eq!(create(b"f", 2 | open_flags::O_EXCL).await.err(), Some(Errno::EEXIST));
        let dir = c.mkdir(&cred, top, b"d", 0o700, 0).await.unwrap();
        assert_eq!(c.open(&cred, dir.fid, open_flags::O_WRONLY).await.err(), Some(Errno::EISDIR));
        assert_eq!(c.open(&user(5), dir.fid, 0).await.err(), Some(Errno::EACCES));
        let open = c.open(&cred, dir.fid, open_flags::O_DIRECTORY).await.unwrap();
        assert_eq!(c.read(&open, 0, 10).await.err(), Some(Errno::EISDIR));
        c.fsyncdir(&open).await.unwrap();
        c.release(open).await.unwrap();
    });
}

#[test]
fn permissions_are_those_of_the_asking_user() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let (owner, other) = (user(1000), user(2000));
        c.setattr(&root(), c.root(), SetAttr { mode: Some(0o777), ..SetAttr::default() }, None).await.unwrap();
        let flags = open_flags::O_CREAT | open_flags::O_RDWR;
        let (attr, file) = c.create(&owner, c.root(), b"mine", flags, 0o600, 0, None).await.unwrap();
        assert_eq!((attr.uid, attr.gid), (1000, 1000));
        assert_eq!(c.open(&other, attr.fid, 0).await.err(), Some(Errno::EACCES));
        let chmod = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        assert_eq!(c.setattr(&other, attr.fid, chmod.clone(), None).await.err(), Some(Errno::EPERM));
        assert_eq!(c.setattr(&owner, attr.fid, chmod, None).await.unwrap().mode & 0o777, 0o644);
        let truncate = SetAttr { size: Some(3), ..SetAttr::default() };
        assert_eq!(c.setattr(&other, attr.fid, truncate.clone(), None).await.err(), Some(Errno::EACCES));
        // A file that is open for writing may be truncated whatever its mode is by now.
        c.setattr(&owner, attr.fid, SetAttr { mode: Some(0), ..SetAttr::default() }, None).await.unwrap();
        assert_eq!(c.setattr(&owner, attr.fid, truncate, Some(&file)).await.unwrap().size, 3);
        let chown = SetAttr { uid: Some(2000), ..SetAttr::default() };
        assert_eq!(c.setattr(&owner, attr.fid, chown.clone(), None).await.err(), Some(Errno::EPERM));
        assert_eq!(c.setattr(&root(), attr.fid, chown, None).await.unwrap().uid, 2000);
    });
}

async fn list(c: &TestClient, with_attr: bool, max_bytes: u32) -> Vec<(String, Option<u64>)> {
    let (mut cookie, mut all) = (0, Vec::new());
    loop {
        let page = c.readdir(&root(), c.root(), cookie, with_attr, max_bytes).await.unwrap();
        for e in page.entries {
            cookie = e.cookie;
            all.push((String::from_utf8(e.name.to_vec()).unwrap(), e.attr.map(|a| a.attr.size)));
        }
        if page.end {
            return all;
        }
    }
}

#[test]
fn a_directory_is_read_in_pages_and_with_true_sizes() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let c = cluster.client().await;
        let mut want = BTreeSet::from([".".to_owned(), "..".to_owned()]);
        for i in 0..300usize {
            let name = format!("file{i}");
            let (_, file) = c.make(&name, Some(striped(2, 65536))).await;
            if i % 10 == 0 {
                c.put(&file, 65530, &vec![1; i + 10]).await.unwrap();
            }
            c.release(file).await.unwrap();
            want.insert(name);
        }
        let plain = list(&c, false, 2000).await;
        let names: BTreeSet<_> = plain.iter().map(|(n, _)| n.clone()).collect();
        assert_eq!((names, plain.len()), (want, 302));
        for (name, size) in list(&c, true, 64 << 10).await {
            let Some(i) = name.strip_prefix("file").and_then(|n| n.parse::<u64>().ok()) else { continue };
            assert_eq!(size, Some(if i % 10 == 0 { 65530 + i + 10 } else { 0 }), "{name}");
        }
    });
}

#[test]
fn times_follow_writes_and_settings() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let pause = || rt.sleep(Duration::from_secs(10));
        let (made, file) = a.make("f", Some(striped(2, 65536))).await;
        pause().await;
        a.put(&file, 0, &[1; 100_000]).await.unwrap();
        let written = b.stat(made.fid).await;
        assert!(written.mtime > made.mtime && written.mtime == written.ctime);
        assert_eq!((written.size, written.btime), (100_000, made.btime));
        pause().await;
        let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let changed = b.setattr(&root(), made.fid, chmod, None).await.unwrap();
        assert_eq!(changed.mtime, written.mtime, "a chmod is no write");
        assert!(changed.ctime > written.ctime);

        // Set the mtime into the past, as tar does; it stays there.
        pause().await;
        let past = Timestamp { secs: 1_000_000_000, nanos: 5 };
        let utimes = |t| SetAttr { mtime: Some(t), atime: Some(t), ..SetAttr::default() };
        let set = a.setattr(&root(), made.fid, utimes(past), None).await.unwrap();
        assert_eq!((set.mtime, set.atime), (past, past));
        a.release(file).await.unwrap();
        assert_eq!(b.stat(made.fid).await.mtime, past);
        pause().await;
        b.link(&root(), made.fid, b.root(), b"g").await.unwrap();
        assert_eq!(b.stat(made.fid).await.mtime, past, "a new name is no write");

        // Set the mtime into the future; a write brings it back.
        let future = Timestamp { secs: 4_000_000_000, nanos: 0 };
        assert_eq!(b.setattr(&root(), made.fid, utimes(future), None).await.unwrap().mtime, future);
        pause().await;
        let file = b.open_name("f", open_flags::O_WRONLY).await.unwrap();
        b.put(&file, 5, b"x").await.unwrap();
        let now = a.stat(made.fid).await;
        assert!(now.mtime > changed.mtime && now.mtime < future);
        // A truncation also changes data.
        pause().await;
        let cut = b.setattr(&root(), made.fid, SetAttr { size: Some(1), ..SetAttr::default() }, None).await.unwrap();
        assert!(cut.mtime > now.mtime && cut.size == 1);
        assert_eq!(a.stat(made.fid).await.mtime, cut.mtime);
    });
}

#[test]
fn statfs_counts_the_space_of_all_osts() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 3).await;
        let c = cluster.client().await;
        let space = c.statfs().await.unwrap();
        let bytes = space.blocks as u128 * u128::from(space.block_size);
        assert!(bytes > 2 * (1 << 44) && bytes <= 3 * (1 << 44), "three devices of 16 TiB: {bytes}");
        assert!(space.files > 0 && space.name_max == 255);
    });
}

#[test]
fn mounting_says_what_is_wrong() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let node = cluster.bare_node();
        let config = |fsname: &str, mgs| MountConfig {
            fsname: fsname.to_owned(),
            mgs: vec![Nid::sim(mgs)],
            timeout: Duration::from_secs(20),
            ..MountConfig::default()
        };
        static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let said = || std::mem::take(&mut *SAID.lock());
        let mount = |c: MountConfig| {
            Client::mount(
                node.rpc(),
                MountConfig {
                    on_wait: |text| SAID.lock().push(text.to_owned()),
                    params: Some(node.params().clone()),
                    ..c
                },
            )
        };
        assert_eq!(mount(config("a b", 1)).await.err(), Some(MountError::BadName("a b".to_owned())));
        let begun = rt.now();
        assert_eq!(mount(config("other", 1)).await.err(), Some(MountError::NoFileSystem("other".to_owned())));
        assert!(rt.now().since(begun) < Duration::from_secs(1), "the MGS answers: there is nothing to wait for");
        assert_eq!(said(), Vec::<String>::new());
        assert_eq!(mount(config("nacre", 77)).await.err(), Some(MountError::MgsUnreachable("77@sim".to_owned())));
        assert_eq!(
            said(),
            ["waiting for the MGS at 77@sim, 19 s at most", "waiting for the MGS at 77@sim, 9 s at most"]
        );
        assert_eq!(node.params().list("llite.*"), vec![]);
    });
}

#[test]
fn unmounting_leaves_nothing_behind() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let c = cluster.client().await;
        assert!(c.node.params().get("llite.nacre-*.uuid").is_ok());
        assert_eq!(c.node.params().get("lov.*.numobd").unwrap()[0].1, "2");
        let (attr, _file) = c.make("f", None).await;
        c.unmount().await;
        assert_eq!(c.getattr(&root(), attr.fid).await.err(), Some(Errno::ESHUTDOWN));
        let left: Vec<_> =
            c.node.params().list("*.*.*").into_iter().filter(|(n, _)| n.contains(c.instance())).collect();
        assert_eq!(left, vec![]);
    });
}
