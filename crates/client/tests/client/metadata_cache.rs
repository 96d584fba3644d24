//! A client answers from its cache, but never with something that another client has changed.

use crate::cluster::{Cluster, TestClient, root, run, user};
use nacre_base::{Errno, Fid, Timestamp};
use nacre_client::{Invalidate, open_flags};
use nacre_wire::attr::{Attr, SetAttr, mode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

const CRED_MODE: u32 = mode::S_IFIFO | 0o600;

impl TestClient {
    async fn fifo(&self, parent: Fid, name: &str) -> Attr {
        self.mknod(&root(), parent, name.as_bytes(), CRED_MODE, 0, 0).await.unwrap()
    }

    async fn look(&self, parent: Fid, name: &str) -> Result<Attr, Errno> {
        self.lookup(&root(), parent, name.as_bytes()).await
    }

    async fn list(&self, dir: Fid, with_attr: bool) -> Vec<String> {
        let page = self.readdir(&root(), dir, 0, with_attr, 1 << 18).await.unwrap();
        assert!(page.end);
        let names = page.entries.iter().map(|e| String::from_utf8(e.name.to_vec()).unwrap());
        let mut names: Vec<String> = names.filter(|n| n != "." && n != "..").collect();
        names.sort();
        names
    }

    async fn chmod(&self, fid: Fid, mode: u32) -> Attr {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.setattr(&root(), fid, set, None).await.unwrap()
    }
}

#[test]
fn a_tree_that_was_read_is_answered_from_memory() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let dir = a.mkdir(&root(), a.root(), b"dir", 0o755, 0).await.unwrap().fid;
        for i in 0..20 {
            a.fifo(dir, &format!("f{i}")).await;
        }
        let link = a.symlink(&root(), dir, b"link", b"over/there").await.unwrap().fid;
        rt.sleep(Duration::from_secs(5)).await;
        let look = async |c: &TestClient| {
            assert_eq!(c.look(c.root(), "dir").await.unwrap().fid, dir);
            assert_eq!(c.list(dir, true).await.len(), 21);
            for i in 0..20 {
                let attr = c.look(dir, &format!("f{i}")).await.unwrap();
                assert_eq!(c.stat(attr.fid).await, attr);
                assert_eq!(c.getxattr(&root(), attr.fid, b"security.capability").await, Err(Errno::ENODATA));
            }
            assert_eq!(c.look(dir, "absent").await, Err(Errno::ENOENT));
            assert_eq!(&c.readlink(&root(), link).await.unwrap()[..], b"over/there");
            assert_eq!(c.access(&root(), dir, 7).await, Ok(()));
        };
        for c in [&b, &a] {
            c.stat(c.root()).await;
            look(c).await;
            look(c).await;
            let before = cluster.mds_requests();
            look(c).await;
            assert_eq!(cluster.mds_requests(), before);
        }
    });
}

#[test]
fn names_made_in_an_own_new_directory_need_no_lookup() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let a = cluster.client().await;
        let dir = a.mkdir(&root(), a.root(), b"dir", 0o755, 0).await.unwrap().fid;
        let before = cluster.mds_requests();
        for i in 0..10 {
            assert_eq!(a.look(dir, &format!("f{i}")).await, Err(Errno::ENOENT));
            a.fifo(dir, &format!("f{i}")).await;
            assert!(a.look(dir, &format!("f{i}")).await.is_ok());
        }
        assert_eq!(cluster.mds_requests(), before + 10);
    });
}

#[test]
fn every_change_by_another_client_is_seen_by_the_next_call() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let dir = a.mkdir(&root(), a.root(), b"dir", 0o755, 0).await.unwrap().fid;
        let f = a.fifo(dir, "f").await.fid;
        let top = a.root();
        rt.sleep(Duration::from_secs(5)).await;
        for round in 0..3 {
            for c in [&a, &b] {
                c.list(dir, true).await;
                assert_eq!(c.look(dir, "new").await, Err(Errno::ENOENT));
                c.look(top, "dir").await.unwrap();
                c.look(dir, "f").await.unwrap();
            }
            b.fifo(dir, "new").await;
            assert!(a.look(dir, "new").await.is_ok());
            assert_eq!(a.list(dir, false).await, ["f", "new"]);
            b.unlink(&root(), dir, b"new").await.unwrap();
            assert_eq!(a.look(dir, "new").await, Err(Errno::ENOENT));
            assert_eq!(a.list(dir, false).await, ["f"]);

            assert_eq!(a.stat(f).await.mode & 0o777, b.stat(f).await.mode & 0o777);
            b.chmod(f, 0o640 + round).await;
            assert_eq!(a.look(dir, "f").await.unwrap().mode & 0o777, 0o640 + round);
            b.link(&root(), f, dir, b"g").await.unwrap();
            assert_eq!(a.stat(f).await.nlink, 2);
            b.rename(&root(), dir, b"f", top, b"moved", 0).await.unwrap();
            assert_eq!(a.look(dir, "f").await, Err(Errno::ENOENT));
            assert_eq!(a.look(top, "moved").await.unwrap().fid, f);
            b.unlink(&root(), dir, b"g").await.unwrap();
            assert_eq!(a.look(top, "moved").await.unwrap().nlink, 1);
            a.rename(&root(), top, b"moved", dir, b"f", 0).await.unwrap();
            assert_eq!(b.look(top, "moved").await, Err(Errno::ENOENT));
            assert_eq!(b.look(dir, "f").await.unwrap().fid, f);

            a.setxattr(&root(), f, b"security.x", &[round as u8], 0).await.unwrap();
            for c in [&a, &b, &a, &b] {
                assert_eq!(&c.getxattr(&root(), f, b"security.x").await.unwrap()[..], [round as u8]);
            }
            let later = Timestamp { secs: 5 + i64::from(round), nanos: 0 };
            a.setattr(&root(), dir, SetAttr { mtime: Some(later), ..SetAttr::default() }, None).await.unwrap();
            assert_eq!(b.stat(dir).await.mtime, later);
            rt.sleep(Duration::from_secs(5)).await;
        }
    });
}

#[test]
fn permissions_are_checked_in_memory_as_at_the_mdt() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let dir = a.mkdir(&root(), a.root(), b"dir", 0o755, 0).await.unwrap().fid;
        a.fifo(dir, "f").await;
        let look = async || b.lookup(&user(5), dir, b"f").await.map(drop);
        for _ in 0..3 {
            assert_eq!(look().await, Ok(()));
            assert_eq!(b.access(&user(5), dir, 2).await, Err(Errno::EACCES));
        }
        a.chmod(dir, 0o700).await;
        for _ in 0..3 {
            assert_eq!(look().await, Err(Errno::EACCES));
            assert_eq!(b.readdir(&user(5), dir, 0, false, 9999).await.err(), Some(Errno::EACCES));
        }
        // An access control list that gives user 5 access: version 2; owner, user 5, group, mask, others.
        let entry =
            |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
        let none = u32::MAX;
        let entries =
            [entry(1, 7, none), entry(2, 5, 5), entry(4, 0, none), entry(16, 5, none), entry(32, 0, none)].concat();
        let list = [&2u32.to_le_bytes()[..], &entries].concat();
        a.setxattr(&root(), dir, b"system.posix_acl_access", &list, 0).await.unwrap();
        for _ in 0..3 {
            assert_eq!(look().await, Ok(()));
            assert_eq!(b.lookup(&user(6), dir, b"f").await.err(), Some(Errno::EACCES));
        }
        a.chmod(dir, 0o700).await;
        assert_eq!(look().await, Err(Errno::EACCES), "the mask is off");
    });
}

#[test]
fn what_a_file_shows_after_own_and_others_writes_and_closes() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", None).await;
        a.put(&file, 0, &[1; 1000]).await.unwrap();
        assert_eq!((a.stat(attr.fid).await.size, b.stat(attr.fid).await.size), (1000, 1000));
        a.release(file).await.unwrap();
        assert_eq!((a.stat(attr.fid).await.size, b.stat(attr.fid).await.size), (1000, 1000));
        let set = SetAttr { size: Some(10), ..SetAttr::default() };
        b.setattr(&root(), attr.fid, set, None).await.unwrap();
        assert_eq!((a.stat(attr.fid).await.size, b.stat(attr.fid).await.size), (10, 10));
        let file = a.open_name("f", open_flags::O_RDWR).await.unwrap();
        rt.sleep(Duration::from_secs(2)).await;
        a.get(&file, 0, 10).await;
        a.release(file).await.unwrap();
        let (at_a, at_b) = (a.stat(attr.fid).await, b.stat(attr.fid).await);
        assert_eq!(at_a, at_b);
        assert!(at_a.atime > attr.atime);
        let file = b.open_name("f", open_flags::O_WRONLY | open_flags::O_TRUNC).await.unwrap();
        assert_eq!((a.stat(attr.fid).await.size, b.stat(attr.fid).await.size), (0, 0));
        b.release(file).await.unwrap();
    });
}

#[test]
fn after_an_eviction_and_after_a_restart_nothing_old_is_believed() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let dir = a.mkdir(&root(), a.root(), b"dir", 0o755, 0).await.unwrap().fid;
        let f = a.fifo(dir, "f").await.fid;
        b.stat(b.root()).await;
        for round in 0..2 {
            b.look(b.root(), "dir").await.unwrap();
            b.list(dir, true).await;
            assert_eq!(b.look(dir, "g").await, Err(Errno::ENOENT));
            let before = cluster.mds_requests();
            b.stat(f).await;
            b.look(dir, "f").await.unwrap();
            assert_eq!(cluster.mds_requests(), before, "it was in memory");
            if round == 0 {
                // The client does not give its locks back.
                cluster.cut_off(&b);
            } else {
                a.sync().await.unwrap();
                cluster.restart_mds().await;
            }
            a.chmod(f, 0o611 + round).await;
            a.rename(&root(), dir, b"f", dir, b"g", 0).await.unwrap();
            cluster.net.heal();
            // A client learns of its eviction by its next request or ping.
            rt.sleep(Duration::from_secs(60)).await;
            assert_eq!(b.stat(f).await.mode & 0o777, 0o611 + round);
            assert_eq!(b.look(dir, "f").await, Err(Errno::ENOENT));
            assert_eq!(b.list(dir, false).await, ["g"]);
            a.rename(&root(), dir, b"g", dir, b"f", 0).await.unwrap();
            assert_eq!(b.look(dir, "f").await.unwrap().fid, f);
            rt.sleep(Duration::from_secs(5)).await;
        }
    });
}

#[test]
fn the_cache_is_bounded_and_can_be_cleared() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let a = cluster.client().await;
        let params = a.node.params().clone();
        let get = |name: &str| {
            let found = params.get(&format!("ldlm.namespaces.*-mdc-*.{name}")).unwrap();
            found[0].1.parse::<u64>().unwrap()
        };
        params.set("ldlm.namespaces.*-mdc-*.lru_size", "10").unwrap();
        let mut fids = Vec::new();
        for i in 0..30 {
            fids.push(a.fifo(a.root(), &format!("f{i}")).await.fid);
            rt.sleep(Duration::from_secs(1)).await;
        }
        rt.sleep(Duration::from_secs(1)).await;
        assert!((5..=10).contains(&get("lock_count")), "{}", get("lock_count"));
        for fid in &fids {
            a.stat(*fid).await;
        }
        params.set("ldlm.namespaces.*-mdc-*.lru_size", "clear").unwrap();
        rt.sleep(Duration::from_secs(1)).await;
        assert_eq!((get("lock_count"), get("resource_count")), (0, 0));
        let before = cluster.mds_requests();
        a.stat(fids[29]).await;
        assert_eq!(cluster.mds_requests(), before + 1);
    });
}

/// A door that caches everything, and notes what it is told to forget.
#[derive(Default)]
pub(crate) struct Door(Mutex<Vec<(&'static str, Fid)>>);

impl Door {
    pub(crate) fn take(&self) -> Vec<(&'static str, Fid)> {
        std::mem::take(&mut *self.0.lock())
    }
}

#[async_trait::async_trait]
impl Invalidate for Door {
    async fn data(&self, _: Fid, _: u64, _: u64) {}
    async fn attributes(&self, file: Fid) {
        self.0.lock().push(("attributes", file));
    }
    async fn entries(&self, directory: Fid) {
        self.0.lock().push(("entries", directory));
    }
    async fn list(&self, directory: Fid) {
        self.0.lock().push(("list", directory));
    }
}

#[test]
fn a_door_keeps_a_list_until_it_is_told() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let door = Arc::new(Door::default());
        b.set_invalidate(door.clone());
        let told = || door.take();
        let dir = a.mkdir(&root(), a.root(), b"dir", 0o755, 0).await.unwrap().fid;
        a.fifo(dir, "f").await;
        rt.sleep(Duration::from_secs(5)).await;
        assert_eq!(b.keeps_list(dir), 0, "nothing is known of it");
        b.stat(dir).await;
        let under = b.keeps_list(dir);
        assert!(under != 0 && b.keeps_list(dir) == under);
        b.fifo(dir, "own").await;
        assert_eq!((b.keeps_list(dir), told()), (under, vec![]), "who changes it itself need not be told");
        a.fifo(dir, "g").await;
        assert_eq!(told(), [("list", dir)]);
        a.fifo(dir, "h").await;
        assert_eq!(told(), [], "once is enough");
        b.stat(dir).await;
        assert_eq!(b.keeps_list(dir), 0, "a directory that others have just changed is not locked for who looks at it");
        rt.sleep(Duration::from_secs(5)).await;
        b.stat(dir).await;
        assert!(![0, under].contains(&b.keeps_list(dir)), "what was listed before is not what is listed now");
    });
}

#[test]
fn a_door_is_told_before_anything_that_it_keeps_changes() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let door = Arc::new(Door::default());
        b.set_invalidate(door.clone());
        let dir = a.mkdir(&root(), a.root(), b"dir", 0o755, 0).await.unwrap().fid;
        let f = a.fifo(dir, "f").await.fid;
        rt.sleep(Duration::from_secs(5)).await;
        b.stat(dir).await;
        let attr = b.look(dir, "f").await.unwrap();
        assert_eq!(b.look(dir, "g").await, Err(Errno::ENOENT));
        assert!(b.keeps_attr(&attr) && b.keeps_name(dir, b"f", Some(f)) && b.keeps_name(dir, b"g", None));
        assert!(!b.keeps_name(dir, b"f", None) && !b.keeps_attr(&Attr { version: 1, ..attr.clone() }));
        let told = || door.take();
        a.chmod(f, 0o644).await;
        assert_eq!(told(), [("attributes", f), ("entries", f)]);
        assert!(!b.keeps_attr(&attr));
        a.fifo(dir, "g").await;
        assert_eq!(told(), [("entries", dir)]);
        let attr = b.stat(f).await;
        assert!(b.keeps_attr(&attr));
        // The door is not told of its own change.
        b.chmod(f, 0o600).await;
        assert_eq!(told(), []);
        assert!(!b.keeps_attr(&attr));
    });
}
