//! Going through a directory costs a round trip for a hundred entries, not for each one; otherwise programs see no
//! difference.

use crate::cluster::{Cluster, TestClient, root, run, striped};
use nacre_base::{Errno, Fid, Prng};
use nacre_client::{RpcCounts, open_flags};
use nacre_lnet::LinkOptions;
use nacre_rt::Rt;
use nacre_wire::Opcode;
use nacre_wire::attr::{Attr, SetAttr};
use std::time::Duration;

/// Requests that the servers have received.
#[derive(Debug, Clone, Copy)]
struct Requests {
    mds: u64,
    /// Glimpses of one object each, and glimpses of many at once.
    enqueues: u64,
    glimpses: u64,
}

impl Requests {
    fn of(cluster: &Cluster) -> Requests {
        let oss = |opcode| cluster.oss.iter().map(|s| s.node.rpc().service_stats(opcode).samples).sum();
        let (enqueues, glimpses) = (oss(Opcode::LdlmEnqueue), oss(Opcode::OstGlimpse));
        Requests { mds: cluster.mds_requests(), enqueues, glimpses }
    }

    fn since(self, before: Requests) -> Requests {
        Requests {
            mds: self.mds - before.mds,
            enqueues: self.enqueues - before.enqueues,
            glimpses: self.glimpses - before.glimpses,
        }
    }

    fn sum(self) -> u64 {
        self.mds + self.enqueues + self.glimpses
    }
}

fn name(i: usize) -> String {
    format!("file-{i:04}")
}

/// Size by which a test recognises a file.
fn size(i: usize) -> u64 {
    i as u64 * 7 + 1
}

/// A directory of files over all OSTs, created by a client that is gone.
async fn directory(cluster: &mut Cluster, files: usize, stripes: i32) -> Fid {
    let maker = cluster.client().await;
    let directory = maker.mkdir(&root(), maker.root(), b"dir", 0o755, 0).await.unwrap().fid;
    for i in 0..files {
        let flags = open_flags::O_CREAT | open_flags::O_RDWR;
        let layout = Some(striped(stripes, 65536));
        let made = maker.create(&root(), directory, name(i).as_bytes(), flags, 0o644, 0, layout).await;
        let (_, file) = made.unwrap();
        maker.put(&file, size(i) - 1, b"x").await.unwrap();
        maker.release(file).await.unwrap();
    }
    maker.unmount().await;
    directory
}

fn set_round_trip(cluster: &Cluster, time: Duration) {
    let link = LinkOptions { latency: time / 2, ..LinkOptions::default() };
    cluster.net.set_links(link);
}

async fn cold_client(cluster: &mut Cluster, rt: &Rt, statahead_max: u32) -> TestClient {
    let client = cluster.client().await;
    client.node.params().set("llite.*.statahead_max", &statahead_max.to_string()).unwrap();
    // Connects the client to all targets, and fetches the root's attributes.
    client.statfs().await.unwrap();
    client.stat(client.root()).await;
    rt.sleep(Duration::from_secs(1)).await;
    client
}

impl TestClient {
    /// All names of a directory, in order.
    async fn names(&self, directory: Fid, with_attr: bool) -> Vec<String> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let page = self.readdir_mdt(&root(), directory, cookie, with_attr, 1 << 18).await.unwrap();
            names.extend(page.entries.iter().map(|e| String::from_utf8(e.name.to_vec()).unwrap()));
            cookie = page.entries.last().unwrap().cookie;
            if page.end {
                names.retain(|n| n != "." && n != "..");
                return names;
            }
        }
    }

    async fn look_in(&self, directory: Fid, name: &str) -> Result<Attr, Errno> {
        self.lookup(&root(), directory, name.as_bytes()).await
    }

    async fn check_size(&self, directory: Fid, name: &str) {
        let number = name.strip_prefix("file-").unwrap().parse().unwrap();
        assert_eq!(self.look_in(directory, name).await.unwrap().size, size(number), "{name}");
    }

    fn stats(&self) -> String {
        self.node.params().get("llite.*.statahead_stats").unwrap()[0].1.clone()
    }
}

/// Lists with or without attributes and stats every entry, as `ls -l` does. Returns the time it took and the requests
/// sent.
async fn list(rt: &Rt, cluster: &Cluster, c: &TestClient, directory: Fid, with_attr: bool) -> (Duration, Requests) {
    // A program that lists a directory has looked it up before.
    c.stat(directory).await;
    let (began, before) = (rt.now(), Requests::of(cluster));
    for name in c.names(directory, with_attr).await {
        c.check_size(directory, &name).await;
    }
    (rt.now().since(began), Requests::of(cluster).since(before))
}

#[test]
fn a_listing_with_stats_takes_few_round_trips() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 4).await;
        let directory = directory(&mut cluster, 2000, 4).await;
        for round_trip in [1, 50].map(Duration::from_millis) {
            for with_attr in [true, false] {
                set_round_trip(&cluster, Duration::from_micros(100));
                let slow = cold_client(&mut cluster, &rt, 0).await;
                let fast = cold_client(&mut cluster, &rt, 128).await;
                set_round_trip(&cluster, round_trip);
                let (serial, asked_serially) = list(&rt, &cluster, &slow, directory, with_attr).await;
                let (taken, asked) = list(&rt, &cluster, &fast, directory, with_attr).await;
                println!("{round_trip:?}, attributes {with_attr}: {serial:?} {asked_serially:?}, {taken:?} {asked:?}");
                println!("{}", fast.stats().replace('\n', ", "));
                assert!(serial >= 2000 * round_trip);
                assert!(taken < serial / 20, "{taken:?} of {serial:?}");
                assert!(asked.sum() * 20 < asked_serially.sum(), "{asked:?} of {asked_serially:?}");
                slow.unmount().await;
                fast.unmount().await;
            }
        }
    });
}

#[test]
fn a_writer_is_left_alone_and_its_size_is_right() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 4).await;
        let directory = directory(&mut cluster, 100, 4).await;
        let (writer, reader) = (cluster.client().await, cold_client(&mut cluster, &rt, 128).await);
        let mut files = Vec::new();
        for i in 0..10 {
            let fid = writer.look_in(directory, &name(i * 7)).await.unwrap().fid;
            let file = writer.open(&root(), fid, open_flags::O_RDWR).await.unwrap();
            writer.put(&file, 100_000 + i as u64, b"not written back").await.unwrap();
            files.push((i * 7, file));
        }
        // The writer has not had its locks unused for so long that it would give them back to a client that asks for the
        // size.
        let before = Requests::of(&cluster);
        for name in reader.names(directory, true).await {
            let number: usize = name[5..].parse().unwrap();
            let expected =
                if number < 70 && number.is_multiple_of(7) { 100_016 + number as u64 / 7 } else { size(number) };
            assert_eq!(reader.look_in(directory, &name).await.unwrap().size, expected, "{name}");
        }
        assert_eq!(RpcCounts::of(&writer).callbacks, 0);
        // Two of four stripes were written, and each of these costs an enqueue.
        let asked = Requests::of(&cluster).since(before);
        assert!(asked.enqueues <= 20, "{asked:?}");
    });
}

#[test]
fn what_others_change_meanwhile_is_told_as_it_is() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let directory = directory(&mut cluster, 300, 2).await;
        let (other, c) = (cluster.client().await, cold_client(&mut cluster, &rt, 128).await);
        let names = c.names(directory, true).await;
        for (i, name) in names.iter().enumerate() {
            match i % 10 {
                // All entries have been fetched by now, or are being fetched.
                3 => {
                    let file = &names[(i + 5).min(299)];
                    if let Ok(attr) = other.look_in(directory, file).await {
                        let set = SetAttr { size: Some(99), ..SetAttr::default() };
                        other.setattr(&root(), attr.fid, set, None).await.unwrap();
                    }
                    other.unlink(&root(), directory, names[i + 6].as_bytes()).await.unwrap();
                    let mode = nacre_wire::attr::mode::S_IFREG | 0o600;
                    other.mknod(&root(), directory, format!("{name}-new").as_bytes(), mode, 0, 0).await.unwrap();
                }
                4 => {
                    let new = c.look_in(directory, &format!("{}-new", names[i - 1])).await.unwrap();
                    assert_eq!((new.size, new.mode & 0o777), (0, 0o600));
                    c.check_size(directory, name).await;
                }
                8 => assert_eq!(c.look_in(directory, name).await.unwrap().size, 99, "{name}"),
                9 => assert_eq!(c.look_in(directory, name).await.err(), Some(Errno::ENOENT), "{name}"),
                _ => c.check_size(directory, name).await,
            }
        }
    });
}

#[test]
fn names_in_another_order_come_by_many_too_and_few_of_many_waste_little() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let directory = directory(&mut cluster, 1000, 1).await;
        // Goes through the names of a directory that was never listed.
        let c = cold_client(&mut cluster, &rt, 128).await;
        let before = Requests::of(&cluster);
        for i in 0..1000 {
            c.check_size(directory, &name(i)).await;
        }
        let asked = Requests::of(&cluster).since(before);
        println!("all by name: {asked:?}\n{}", c.stats());
        assert!(asked.sum() < 600, "{asked:?}");
        c.unmount().await;

        // Stats a few entries at random.
        let mut prng = Prng::new(5);
        let some: Vec<usize> = (0..60).map(|_| prng.below(1000) as usize).collect();
        let mut asked = Vec::new();
        for max in [0, 128] {
            let c = cold_client(&mut cluster, &rt, max).await;
            let before = Requests::of(&cluster);
            for i in &some {
                c.check_size(directory, &name(*i)).await;
            }
            asked.push(Requests::of(&cluster).since(before));
            c.unmount().await;
        }
        println!("60 of 1000: {asked:?}");
        assert!(asked[1].sum() <= asked[0].sum() + asked[0].sum() / 4, "{asked:?}");
    });
}

#[test]
fn it_can_be_turned_off_and_tells_what_it_did() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let directory = directory(&mut cluster, 50, 2).await;
        let c = cold_client(&mut cluster, &rt, 128).await;
        c.node.params().set("llite.*.statahead_agl", "0").unwrap();
        let (_, asked) = list(&rt, &cluster, &c, directory, true).await;
        assert_eq!((asked.glimpses, asked.enqueues), (0, 100));
        c.node.params().set("llite.*.statahead_agl", "1").unwrap();
        c.drop_caches(&rt).await;
        c.node.params().set("llite.*.statahead_stats", "clear").unwrap();
        let (_, asked) = list(&rt, &cluster, &c, directory, true).await;
        assert!(asked.enqueues <= 6 && asked.glimpses > 0, "{asked:?}");
        assert!(c.stats().starts_with("statahead total: 1\nstatahead wrong: 0\nagl total: 4"), "{}", c.stats());
        // Everything is cached, so no request is sent.
        let (_, asked) = list(&rt, &cluster, &c, directory, true).await;
        assert_eq!(asked.sum(), 0);

        assert!(c.node.params().set("llite.*.statahead_max", "9000").is_err());
        c.node.params().set("llite.*.statahead_max", "0").unwrap();
        c.drop_caches(&rt).await;
        let (_, asked) = list(&rt, &cluster, &c, directory, true).await;
        assert_eq!((asked.glimpses, asked.enqueues), (0, 100));
    });
}
