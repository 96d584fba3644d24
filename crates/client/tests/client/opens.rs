//! Opens that cost no request, and open files that outlive their names all the same.

use crate::cluster::{Cluster, LINGERS, TestClient, root, run, run_seed, user};
use nacre_base::{Errno, Fid, Timestamp};
use nacre_client::{OpenFile, open_flags};
use nacre_lnet::{LinkOptions, SimNetOptions};
use nacre_rt::Rt;
use nacre_wire::Opcode;
use nacre_wire::attr::{Attr, Credentials, SetAttr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Time after which the MDT no longer withholds locks because of how the files were created.
const SETTLED: Duration = Duration::from_secs(5);

impl Cluster {
    fn served(&self, opcode: Opcode) -> u64 {
        self.mds.node.rpc().service_stats(opcode).samples
    }

    /// Data requests that the OSSs have served.
    fn oss_requests(&self) -> u64 {
        use Opcode as O;
        let other = [O::ObdPing, O::OstConnect, O::OstDisconnect, O::OstCreate, O::OstStatfs, O::OstDestroy];
        let served = |node: &nacre_ptlrpc::RpcNode| -> u64 {
            O::ALL.iter().filter(|o| !other.contains(o)).map(|o| node.service_stats(*o).samples).sum()
        };
        self.oss.iter().map(|oss| served(oss.node.rpc())).sum()
    }
}

impl TestClient {
    /// Makes a file of the root directory with some content.
    pub(crate) async fn write_file(&self, name: &str, data: &[u8]) -> Fid {
        let (attr, file) = self.make(name, None).await;
        self.put(&file, 0, data).await.unwrap();
        self.fsync(&file, false).await.unwrap();
        self.release(file).await.unwrap();
        attr.fid
    }

    /// Opens a file that is known here, without a request.
    async fn open_here(&self, cluster: &Cluster, name: &str, flags: u32) -> Arc<OpenFile> {
        self.look_up(name).await;
        let before = cluster.served(Opcode::MdsOpen);
        let file = self.open_name(name, flags).await.unwrap();
        assert_eq!(cluster.served(Opcode::MdsOpen), before, "{name} was not opened from memory");
        file
    }

    async fn look_up(&self, name: &str) -> Attr {
        // Fetches the permissions of the root directory.
        self.stat(self.root()).await;
        self.lookup(&root(), self.root(), name.as_bytes()).await.unwrap()
    }

    pub(crate) async fn remove(&self, name: &str) {
        self.unlink(&root(), self.root(), name.as_bytes()).await.unwrap();
    }

    async fn move_to(&self, from: &str, to: &str) {
        self.rename(&root(), self.root(), from.as_bytes(), self.root(), to.as_bytes(), 0).await.unwrap();
    }

    pub(crate) async fn chmod_by(&self, cred: &Credentials, fid: Fid, mode: u32) {
        self.setattr(cred, fid, SetAttr { mode: Some(mode), ..SetAttr::default() }, None).await.unwrap();
    }

    /// Checks that the servers still have all of an open file without names.
    async fn check_nameless(&self, rt: &Rt, file: &OpenFile, data: &[u8]) {
        rt.sleep(LINGERS).await;
        self.drop_caches(rt).await;
        assert_eq!(self.get(file, 0, 100).await, data);
        assert_eq!(self.stat(file.fid()).await.nlink, 0);
    }

    /// Closes a file without names, and checks that it is gone then.
    async fn close_nameless(&self, rt: &Rt, file: Arc<OpenFile>) {
        let fid = file.fid();
        self.release(file).await.unwrap();
        rt.sleep(LINGERS).await;
        assert_eq!(self.getattr(&root(), fid).await, Err(Errno::ESTALE));
    }
}

#[test]
fn what_is_cached_is_opened_without_a_request() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let dir = a.mkdir(&root(), a.root(), b"dir", 0o755, 0).await.unwrap().fid;
        for n in 0..10 {
            a.write_file(&format!("f{n}"), b"data").await;
        }
        rt.sleep(SETTLED).await;
        let pass = async |c: &TestClient| {
            for n in 0..10 {
                let file = c.open_name(&format!("f{n}"), 0).await.unwrap();
                assert_eq!(c.get(&file, 0, 10).await, b"data");
                c.flush(&file).await.unwrap();
                c.release(file).await.unwrap();
            }
            let listed = c.open(&root(), dir, open_flags::O_DIRECTORY).await.unwrap();
            assert_eq!(c.readdir(&root(), dir, 0, false, 1 << 16).await.unwrap().entries.len(), 2);
            c.release(listed).await.unwrap();
        };
        for c in [&b, &a] {
            c.look_up("dir").await;
            pass(c).await;
            rt.sleep(SETTLED).await;
            pass(c).await;
            let before = (cluster.mds_requests(), cluster.oss_requests());
            pass(c).await;
            assert_eq!((cluster.mds_requests(), cluster.oss_requests()), before);
        }
        assert!(a.open_name("f0", open_flags::O_DIRECTORY).await.is_err());
        assert!(a.open(&root(), dir, open_flags::O_RDWR).await.is_err());
    });
}

#[test]
fn what_got_and_lost_names_is_opened_without_a_request() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let fid = a.write_file("own", b"data").await;
        let check = async |cluster: &Cluster, name: &str| {
            let before = cluster.mds_requests();
            let attr = a.look_up(name).await;
            let file = a.open_name(name, open_flags::O_RDWR).await.unwrap();
            a.release(file).await.unwrap();
            assert_eq!(cluster.mds_requests(), before, "{name} was asked for");
            attr
        };
        a.look_up("own").await;
        rt.sleep(SETTLED).await;
        a.link(&root(), fid, a.root(), b"lock").await.unwrap();
        a.remove("own").await;
        let attr = check(&cluster, "lock").await;
        assert_eq!((attr.nlink, &attr), (1, &b.stat(fid).await), "as the MDT has it");
        rt.sleep(SETTLED).await;
        a.look_up("lock").await;
        a.move_to("lock", "table").await;
        let attr = check(&cluster, "table").await;
        assert_eq!(attr, b.stat(fid).await);
        b.remove("table").await;
        assert_eq!(a.open_name("table", 0).await.err(), Some(Errno::ENOENT));
    });
}

#[test]
fn a_file_opened_from_memory_outlives_its_unlink_by_another_client() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let fid = a.write_file("f", b"still here").await;
        rt.sleep(SETTLED).await;
        let first = b.open_here(&cluster, "f", 0).await;
        let second = b.open_here(&cluster, "f", open_flags::O_RDWR).await;
        let before = cluster.served(Opcode::MdsOpen);
        a.remove("f").await;
        assert_eq!(cluster.served(Opcode::MdsOpen), before + 1, "one for both");
        b.check_nameless(&rt, &first, b"still here").await;
        b.release(first).await.unwrap();
        b.check_nameless(&rt, &second, b"still here").await;
        assert_eq!(b.put(&second, 10, b"!").await, Ok(1));
        b.fsync(&second, false).await.unwrap();
        assert_eq!(a.getattr(&root(), fid).await.unwrap().nlink, 0);
        b.close_nameless(&rt, second).await;
    });
}

#[test]
fn a_file_opened_from_memory_outlives_being_replaced() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        a.write_file("f", b"old").await;
        a.write_file("g", b"new").await;
        rt.sleep(SETTLED).await;
        let old = b.open_here(&cluster, "f", 0).await;
        a.move_to("g", "f").await;
        b.check_nameless(&rt, &old, b"old").await;
        let new = b.open_name("f", 0).await.unwrap();
        assert_eq!(b.get(&new, 0, 10).await, b"new");
        b.close_nameless(&rt, old).await;
        // Its own client removes the name, too.
        a.write_file("h", b"newest").await;
        b.look_up("h").await;
        rt.sleep(SETTLED).await;
        b.release(new).await.unwrap();
        let new = b.open_here(&cluster, "f", 0).await;
        b.move_to("h", "f").await;
        b.check_nameless(&rt, &new, b"new").await;
        b.close_nameless(&rt, new).await;
    });
}

#[test]
fn a_file_opened_from_memory_outlives_its_own_clients_unlink() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        a.write_file("f", b"data").await;
        rt.sleep(SETTLED).await;
        let file = b.open_here(&cluster, "f", 0).await;
        b.remove("f").await;
        b.check_nameless(&rt, &file, b"data").await;
        b.close_nameless(&rt, file).await;

        // By a name that the client does not know.
        let fid = a.write_file("f", b"more").await;
        rt.sleep(SETTLED).await;
        let file = b.open_here(&cluster, "f", 0).await;
        a.link(&root(), fid, a.root(), b"g").await.unwrap();
        b.remove("f").await;
        b.remove("g").await;
        b.check_nameless(&rt, &file, b"more").await;
        b.close_nameless(&rt, file).await;
    });
}

#[test]
fn a_directory_opened_from_memory_outlives_its_removal() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let dir = a.mkdir(&root(), a.root(), b"d", 0o755, 0).await.unwrap().fid;
        rt.sleep(SETTLED).await;
        let open = b.open_here(&cluster, "d", open_flags::O_DIRECTORY).await;
        a.rmdir(&root(), a.root(), b"d").await.unwrap();
        rt.sleep(LINGERS).await;
        assert_eq!(b.stat(dir).await.nlink, 0);
        b.close_nameless(&rt, open).await;
    });
}

#[test]
fn a_lock_that_is_given_back_for_room_takes_no_open_file_away() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        a.write_file("f", b"data").await;
        rt.sleep(SETTLED).await;
        let file = b.open_here(&cluster, "f", 0).await;
        b.node.params().set("ldlm.namespaces.*-mdc-*.lru_size", "clear").unwrap();
        rt.sleep(Duration::from_secs(1)).await;
        a.remove("f").await;
        b.check_nameless(&rt, &file, b"data").await;
        b.close_nameless(&rt, file).await;
    });
}

/// Programs open and close files that another client removes and replaces all the time, over a network that reorders
/// messages. An open file exists until it is closed.
fn race(seed: u64) {
    run_seed(seed, move |rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let clients = [cluster.client().await, cluster.client().await, cluster.client().await];
        let link = LinkOptions {
            jitter: Duration::from_micros(300),
            reorder_ppm: 200_000,
            reorder_delay: Duration::from_millis(2),
            ..SimNetOptions::default().link
        };
        for n in 0..3 {
            clients[0].write_file(&format!("f{n}"), b"data").await;
        }
        cluster.net.set_links(link);
        let opened = Arc::new(AtomicU32::new(0));
        let opener = |client: TestClient, rt: Rt, opened: Arc<AtomicU32>| async move {
            for round in 0..60 {
                let name = format!("f{}", rt.random() % 3);
                rt.sleep(Duration::from_micros(rt.random() % 3000)).await;
                let Ok(file) = client.open_name(&name, 0).await else { continue };
                opened.fetch_add(1, Ordering::Relaxed);
                if round % 10 == 0 {
                    rt.sleep(LINGERS).await;
                }
                client.node.params().set("ldlm.namespaces.*-osc-*.lru_size", "clear").unwrap();
                assert_eq!(client.get(&file, 0, 10).await, b"data", "seed {seed}: {name}");
                client.release(file).await.unwrap();
            }
        };
        let remover = |client: TestClient, rt: Rt| async move {
            for round in 0..60 {
                let name = format!("f{}", rt.random() % 3);
                client.write_file("new", b"data").await;
                if rt.random().is_multiple_of(2) {
                    let _ = client.unlink(&root(), client.root(), name.as_bytes()).await;
                }
                client.move_to("new", &name).await;
                rt.sleep(Duration::from_micros(rt.random() % if round % 5 == 0 { 3_000_000 } else { 5000 })).await;
            }
        };
        let [a, b, c] = clients.clone();
        let tasks = [a.clone(), b, c].map(|client| rt.spawn(opener(client, rt.clone(), opened.clone())));
        let removing = rt.spawn(remover(a, rt.clone()));
        for task in tasks {
            task.await;
        }
        removing.await;
        let opened = opened.load(Ordering::Relaxed);
        assert!(opened > 50, "seed {seed}: only {opened} files were opened");
    });
}

#[test]
fn opens_may_race_with_unlinks_and_renames() {
    (1..=20).for_each(race);
}

#[test]
fn an_eviction_leaves_a_file_opened_from_memory_like_any_other() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        a.write_file("f", b"data").await;
        a.write_file("g", b"more").await;
        rt.sleep(SETTLED).await;
        let (f, g) = (b.open_here(&cluster, "f", 0).await, b.open_here(&cluster, "g", 0).await);
        cluster.cut_off(&b);
        // Waits for the lock until its holder is evicted.
        a.remove("f").await;
        cluster.net.heal();
        rt.sleep(LINGERS).await;
        b.drop_caches(&rt).await;
        assert_eq!(b.getattr(&root(), f.fid()).await, Err(Errno::ESTALE));
        assert_eq!(b.get(&g, 0, 10).await, b"more");
        // From then on the MDT knows that the file is open.
        a.remove("g").await;
        b.check_nameless(&rt, &g, b"more").await;
        b.release(f).await.unwrap();
        b.close_nameless(&rt, g).await;
    });
}

#[test]
fn a_file_opened_from_memory_is_open_after_a_restart_of_the_mds() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        a.write_file("f", b"data").await;
        rt.sleep(SETTLED).await;
        let file = b.open_here(&cluster, "f", 0).await;
        cluster.restart_mds().await;
        b.stat(b.root()).await;
        rt.sleep(SETTLED).await;
        a.remove("f").await;
        b.check_nameless(&rt, &file, b"data").await;
        b.close_nameless(&rt, file).await;
    });
}

#[test]
fn permissions_are_those_of_the_mdt() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let fid = a.write_file("f", b"data").await;
        let (owner, other) = (user(5), user(6));
        a.setattr(&root(), fid, SetAttr { uid: Some(5), gid: Some(5), ..SetAttr::default() }, None).await.unwrap();
        for mode in [0o644, 0o600, 0o060, 0o755, 0o311, 0o000] {
            a.chmod_by(&root(), fid, mode).await;
            for cred in [&root(), &owner, &other] {
                for flags in [0, open_flags::O_WRONLY, open_flags::O_RDWR, open_flags::FMODE_EXEC] {
                    let open = async |c: &TestClient| {
                        let file = c.open(cred, fid, flags).await?;
                        c.release(file).await
                    };
                    // The first open asks the MDT; the others do not, if the answer can be known.
                    a.node.params().set("ldlm.namespaces.*-mdc-*.lru_size", "clear").unwrap();
                    rt.sleep(Duration::from_millis(100)).await;
                    let truth = open(&a).await;
                    for _ in 0..2 {
                        b.stat(fid).await;
                        assert_eq!(open(&b).await, truth, "mode {mode:o}, uid {}, flags {flags:o}", cred.uid);
                    }
                }
            }
        }
    });
}

#[test]
fn an_open_file_is_writable_whatever_becomes_of_its_mode() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let cred = user(5);
        let dir = a.mkdir(&root(), a.root(), b"dir", 0o777, 0).await.unwrap().fid;
        a.chmod_by(&root(), dir, 0o777).await;
        let flags = open_flags::O_CREAT | open_flags::O_RDWR;
        let (attr, file) = a.create(&cred, dir, b"f", flags, 0o644, 0, None).await.unwrap();
        a.put(&file, 0, b"0123456789").await.unwrap();
        a.release(file).await.unwrap();
        rt.sleep(SETTLED).await;
        for changer in [&a, &b] {
            let set_mode = SetAttr { mode: Some(0o644), ..SetAttr::default() };
            changer.setattr(&cred, attr.fid, set_mode, None).await.unwrap();
            b.getattr(&cred, attr.fid).await.unwrap();
            let before = cluster.served(Opcode::MdsOpen);
            let file = b.open(&cred, attr.fid, open_flags::O_RDWR).await.unwrap();
            assert_eq!(cluster.served(Opcode::MdsOpen), before);
            changer.chmod_by(&cred, attr.fid, 0o400).await;
            let cut = SetAttr { size: Some(4), ..SetAttr::default() };
            assert_eq!(b.setattr(&cred, attr.fid, cut.clone(), None).await.map(drop), Err(Errno::EACCES));
            assert_eq!(b.setattr(&cred, attr.fid, cut, Some(&file)).await.unwrap().size, 4);
            b.release(file).await.unwrap();
        }
        // A program that has a directory open may list it.
        rt.sleep(SETTLED).await;
        let own = a.mkdir(&cred, dir, b"own", 0o755, 0).await.unwrap().fid;
        b.getattr(&cred, own).await.unwrap();
        let open = b.open(&cred, own, open_flags::O_DIRECTORY).await.unwrap();
        b.chmod_by(&cred, own, 0).await;
        assert_eq!(b.readdir(&cred, own, 0, false, 1 << 16).await.unwrap().entries.len(), 2);
        b.release(open).await.unwrap();
    });
}

#[test]
fn what_a_file_opened_from_memory_changed_is_told_at_its_close() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let fid = a.write_file("f", b"data").await;
        rt.sleep(SETTLED).await;
        let file = b.open_here(&cluster, "f", open_flags::O_RDWR).await;
        b.put(&file, 0, &[1; 5000]).await.unwrap();
        rt.sleep(SETTLED).await;
        b.get(&file, 0, 10).await;
        b.release(file).await.unwrap();
        // The MDT's own view of the attributes, which readdir shows.
        let page = a.readdir_mdt(&root(), a.root(), 0, true, 1 << 16).await.unwrap();
        let attr = page.entries.iter().find_map(|e| e.attr.as_ref().filter(|attr| attr.attr.fid == fid)).unwrap();
        assert_eq!(attr.attr.size, 5000);
        assert!(attr.attr.atime > attr.attr.mtime);
    });
}

#[test]
fn locks_of_what_was_removed_are_given_back_together() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let a = cluster.client().await;
        let dir = a.mkdir(&root(), a.root(), b"dir", 0o755, 0).await.unwrap().fid;
        let flags = open_flags::O_CREAT | open_flags::O_RDWR;
        let mut fids = Vec::new();
        for n in 0..200 {
            let name = format!("f{n}");
            let (attr, file) = a.create(&root(), dir, name.as_bytes(), flags, 0o644, 0, None).await.unwrap();
            a.release(file).await.unwrap();
            fids.push(attr.fid);
        }
        let before = cluster.mds_requests();
        for n in 0..200 {
            a.unlink(&root(), dir, format!("f{n}").as_bytes()).await.unwrap();
        }
        rt.sleep(LINGERS).await;
        let count = a.node.params().get("ldlm.namespaces.*-mdc-*.lock_count").unwrap();
        assert!(count[0].1.parse::<u32>().unwrap() < 70, "{count:?}");
        assert!(cluster.mds_requests() - before <= 205);
        for fid in fids {
            assert_eq!(a.getattr(&root(), fid).await, Err(Errno::ESTALE));
        }
    });
}

#[test]
fn an_archive_is_unpacked_with_few_requests() {
    run(|rt| async move {
        const FILES: u64 = 100;
        let mut cluster = Cluster::start(&rt, 4).await;
        let a = cluster.client().await;
        let dir = a.mkdir(&root(), a.root(), b"dir", 0o755, 0).await.unwrap().fid;
        rt.sleep(SETTLED).await;
        let before = (cluster.mds_requests(), cluster.oss_requests());
        let flags = open_flags::O_CREAT | open_flags::O_EXCL | open_flags::O_WRONLY;
        let old = Timestamp { secs: 1_000_000_000, nanos: 5 };
        for n in 0..FILES {
            // As tar does for the superuser.
            let name = format!("f{n}");
            assert_eq!(a.lookup(&root(), dir, name.as_bytes()).await.map(drop), Err(Errno::ENOENT));
            let (attr, file) = a.create(&root(), dir, name.as_bytes(), flags, 0o600, 0, None).await.unwrap();
            a.put(&file, 0, &[1; 3000]).await.unwrap();
            let now = SetAttr { times_are_now: true, atime: Some(old), ..SetAttr::default() };
            let set = SetAttr { times_are_now: false, mtime: Some(old), ..now };
            a.setattr(&root(), attr.fid, set, Some(&file)).await.unwrap();
            let owner = SetAttr { uid: Some(7), gid: Some(7), ..SetAttr::default() };
            a.setattr(&root(), attr.fid, owner, Some(&file)).await.unwrap();
            a.chmod_by(&root(), attr.fid, 0o644).await;
            a.flush(&file).await.unwrap();
            a.release(file).await.unwrap();
            assert_eq!(a.stat(attr.fid).await.mtime, old);
        }
        rt.sleep(SETTLED).await;
        let sent = (cluster.mds_requests() - before.0, cluster.oss_requests() - before.1);
        println!("{} metadata and {} data requests for {FILES} files", sent.0, sent.1);
        assert!(sent.0 <= 5 * FILES + 5, "{} metadata requests: create, three changes of attributes, close", sent.0);
        assert!(sent.1 <= 2 * FILES + 5, "{} data requests: a lock, a write", sent.1);
        let b = cluster.client().await;
        for n in 0..FILES {
            let attr = b.lookup(&root(), dir, format!("f{n}").as_bytes()).await.unwrap();
            assert_eq!((attr.mtime, attr.size, attr.uid, attr.mode & 0o777), (old, 3000, 7, 0o644));
        }
    });
}
