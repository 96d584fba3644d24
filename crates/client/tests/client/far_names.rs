//! Names at a distance: a lookup brings what is likely to follow, so that programs pay few round trips; otherwise they see no difference.

use crate::cluster::{Cluster, TestClient, root, run, striped};
use nacre_base::{Errno, Fid};
use nacre_client::{RpcCounts, open_flags};
use nacre_lnet::LinkOptions;
use nacre_rt::Rt;
use nacre_wire::attr::{Credentials, SetAttr, mode};
use std::time::Duration;

const ROUND_TRIP: Duration = Duration::from_millis(100);
/// Levels of a tree, and the files and directories of each level.
const LEVELS: usize = 12;
const FILES: usize = 90;
const DIRECTORIES: usize = 10;

/// Puts the servers far away, when everything that was made has been left alone for some time.
async fn set_far(rt: &Rt, cluster: &Cluster) {
    rt.sleep(Duration::from_secs(20)).await;
    cluster.net.set_links(LinkOptions { latency: ROUND_TRIP / 2, ..LinkOptions::default() });
}

/// A tree of which only one directory of each level goes on. Returns its path.
async fn tree(cluster: &mut Cluster) -> Vec<String> {
    let maker = cluster.client().await;
    let mut at = maker.mkdir(&root(), maker.root(), b"tree", 0o755, 0).await.unwrap().fid;
    let mut path = vec!["tree".to_owned()];
    for _ in 0..LEVELS {
        for i in 0..FILES {
            maker.mknod(&root(), at, format!("file{i}").as_bytes(), mode::S_IFREG | 0o644, 0, 0).await.unwrap();
        }
        let mut below = Fid::ZERO;
        for i in 0..DIRECTORIES {
            below = maker.mkdir(&root(), at, format!("directory{i}").as_bytes(), 0o755, 0).await.unwrap().fid;
        }
        at = below;
        path.push(format!("directory{}", DIRECTORIES - 1));
    }
    maker.unmount().await;
    path
}

/// Mounts over the distance, and looks at the root, as the kernel does.
async fn far_client(cluster: &mut Cluster) -> TestClient {
    let client = cluster.client().await;
    client.stat(client.root()).await;
    client
}

/// Looks a path up name by name, as the kernel does. Returns what the last name leads to.
async fn walk(c: &TestClient, path: &[String]) -> Result<Fid, Errno> {
    let mut at = c.root();
    for name in path {
        at = c.lookup(&root(), at, name.as_bytes()).await?.fid;
    }
    Ok(at)
}

/// Number of round trips since `began`.
fn round_trips(rt: &Rt, began: nacre_base::Time) -> f64 {
    rt.now().since(began).as_secs_f64() / ROUND_TRIP.as_secs_f64()
}

#[test]
fn a_deep_path_takes_few_round_trips() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let path = tree(&mut cluster).await;
        set_far(&rt, &cluster).await;
        let c = far_client(&mut cluster).await;
        let began = rt.now();
        let last = walk(&c, &path).await.unwrap();
        let by_name = round_trips(&rt, began);
        assert!(by_name <= 7.0, "{by_name} round trips for {} names", path.len());
        let stats = c.node.params().get("llite.*.statahead_stats").unwrap()[0].1.clone();
        assert!(stats.contains("lookup_used: "), "{stats}");
        // Without entries ahead each name costs one.
        let c = far_client(&mut cluster).await;
        c.node.params().set("llite.*.lookup_ahead_kb", "0").unwrap();
        let began = rt.now();
        walk(&c, &path).await.unwrap();
        assert!(round_trips(&rt, began) >= path.len() as f64);
        // A program that knows the whole path pays one.
        let c = far_client(&mut cluster).await;
        let names: Vec<&[u8]> = path.iter().map(|n| n.as_bytes()).collect();
        let began = rt.now();
        assert_eq!(c.lookup_path(&root(), c.root(), &names).await.unwrap().fid, last);
        let at_once = round_trips(&rt, began);
        assert!(at_once < 1.5, "{at_once} round trips for a whole path");
    });
}

#[test]
fn a_whole_path_ends_where_it_must() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let maker = cluster.client().await;
        let d = maker.mkdir(&root(), maker.root(), b"d", 0o755, 0).await.unwrap().fid;
        let e = maker.mkdir(&root(), d, b"e", 0o755, 0).await.unwrap().fid;
        maker.symlink(&root(), d, b"link", b"e").await.unwrap();
        let flags = open_flags::O_CREAT | open_flags::O_RDWR;
        let (_, file) = maker.create(&root(), e, b"f", flags, 0o644, 0, Some(striped(1, 65536))).await.unwrap();
        maker.put(&file, 99, b"x").await.unwrap();
        maker.release(file).await.unwrap();
        let c = cluster.client().await;
        let look = async |cred: &Credentials, names: &[&str]| {
            let names: Vec<&[u8]> = names.iter().map(|n| n.as_bytes()).collect();
            c.lookup_path(cred, c.root(), &names).await.map(|attr| attr.size)
        };
        for known in [false, true] {
            assert_eq!(look(&root(), &["d", "e", "f"]).await, Ok(100), "known {known}");
            assert_eq!(look(&root(), &["d", "no", "f"]).await, Err(Errno::ENOENT));
            assert_eq!(look(&root(), &["d", "e", "f", "no"]).await, Err(Errno::ENOTDIR));
            assert_eq!(look(&root(), &["d", "link", "f"]).await, Err(Errno::ENOTDIR), "links are not followed");
            assert_eq!(look(&root(), &["d", "e", "..", "e", "f"]).await, Ok(100), "up and down");
        }
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        maker.setattr(&root(), e, set, None).await.unwrap();
        let somebody = Credentials { uid: 7, gid: 7, groups: Vec::new() };
        assert_eq!(look(&somebody, &["d", "e", "f"]).await, Err(Errno::EACCES));
        assert_eq!(look(&root(), &["d", "e", "f"]).await, Ok(100));
        let long: Vec<&str> = std::iter::repeat_n(["d", ".."], 100).flatten().chain(["d", "e", "f"]).collect();
        assert_eq!(look(&root(), &long).await, Ok(100));
    });
}

#[test]
fn a_long_listing_takes_few_round_trips() {
    takes_few_round_trips_to_list(10_000, Maker::Gone);
}

/// The maker has locks on the objects of all files, which it no longer needs.
#[test]
fn a_listing_of_what_somebody_else_has_written_takes_few_round_trips() {
    takes_few_round_trips_to_list(2000, Maker::Idle);
}

/// The client that has made the files of a directory.
#[derive(Clone, Copy, PartialEq)]
enum Maker {
    Gone,
    Idle,
}

fn takes_few_round_trips_to_list(files: u32, maker_is: Maker) {
    run(move |rt| async move {
        let mut cluster = Cluster::start(&rt, 4).await;
        let maker = cluster.client().await;
        let directory = maker.mkdir(&root(), maker.root(), b"many", 0o755, 0).await.unwrap().fid;
        let flags = open_flags::O_CREAT | open_flags::O_RDWR;
        for i in 0..files {
            let layout = Some(striped(1, 65536));
            let made = maker.create(&root(), directory, format!("f{i}").as_bytes(), flags, 0o644, 0, layout).await;
            let file = made.unwrap().1;
            if maker_is == Maker::Idle {
                maker.put(&file, 0, b"some data").await.unwrap();
            }
            maker.release(file).await.unwrap();
        }
        if maker_is == Maker::Gone {
            maker.unmount().await;
        }
        set_far(&rt, &cluster).await;
        let c = far_client(&mut cluster).await;
        c.statfs().await.unwrap();
        let began = rt.now();
        let at = c.lookup(&root(), c.root(), b"many").await.unwrap().fid;
        let (mut cookie, mut seen) = (0, 0);
        loop {
            // As ls(1) does: each entry is looked up as soon as it was listed.
            let page = c.readdir_mdt(&root(), at, cookie, true, u32::MAX).await.unwrap();
            for entry in page.entries.iter().filter(|e| !matches!(&e.name[..], b"." | b"..")) {
                c.lookup(&root(), at, &entry.name).await.unwrap();
                seen += 1;
            }
            cookie = page.entries.last().unwrap().cookie;
            if page.end {
                break;
            }
        }
        assert_eq!(seen, files);
        let taken = round_trips(&rt, began);
        println!("{taken} round trips\n{}", c.node.params().get("llite.*.statahead_stats").unwrap()[0].1);
        assert!(taken <= 20.0, "{taken} round trips");
    });
}

#[test]
fn a_new_file_in_a_known_directory_takes_one_round_trip() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let maker = cluster.client().await;
        maker.mkdir(&root(), maker.root(), b"d", 0o755, 0).await.unwrap();
        maker.unmount().await;
        set_far(&rt, &cluster).await;
        let c = far_client(&mut cluster).await;
        c.statfs().await.unwrap();
        let d = c.lookup(&root(), c.root(), b"d").await.unwrap().fid;
        let make = async |n: u32| {
            let (name, flags) = (format!("n{n}"), open_flags::O_CREAT | open_flags::O_RDWR);
            // The kernel looks a name up before it creates the file.
            assert_eq!(c.lookup(&root(), d, name.as_bytes()).await.err(), Some(Errno::ENOENT));
            let (_, file) = c.create(&root(), d, name.as_bytes(), flags, 0o644, 0, None).await.unwrap();
            file
        };
        make(0).await;
        let began = rt.now();
        for n in 1..=10 {
            make(n).await;
        }
        let taken = round_trips(&rt, began);
        assert!(taken <= 10.5, "{taken} round trips for ten files");
    });
}

#[test]
fn what_came_ahead_is_true() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let (maker, other) = (cluster.client().await, cluster.client().await);
        let d = maker.mkdir(&root(), maker.root(), b"d", 0o755, 0).await.unwrap().fid;
        let e = maker.mkdir(&root(), d, b"e", 0o755, 0).await.unwrap().fid;
        let f = maker.mknod(&root(), e, b"f", mode::S_IFREG | 0o644, 0, 0).await.unwrap().fid;
        maker.unmount().await;
        set_far(&rt, &cluster).await;
        let c = far_client(&mut cluster).await;
        assert_eq!(c.lookup(&root(), c.root(), b"d").await.unwrap().fid, d);
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        other.setattr(&root(), f, set, None).await.unwrap();
        other.mkdir(&root(), e, b"new", 0o755, 0).await.unwrap();
        other.rename(&root(), d, b"e", d, b"moved", 0).await.unwrap();
        assert_eq!(c.lookup(&root(), d, b"e").await.err(), Some(Errno::ENOENT));
        assert_eq!(c.lookup(&root(), d, b"moved").await.unwrap().fid, e);
        assert_eq!(c.lookup(&root(), e, b"f").await.unwrap().mode & 0o777, 0o600);
        assert!(c.lookup(&root(), e, b"new").await.unwrap().is_dir());
        let somebody = Credentials { uid: 7, gid: 7, groups: Vec::new() };
        other.setattr(&root(), e, SetAttr { mode: Some(0o700), ..SetAttr::default() }, None).await.unwrap();
        assert_eq!(c.lookup(&somebody, e, b"f").await.err(), Some(Errno::EACCES));
    });
}

/// Two names of the root that are looked up make a client fetch the root's other entries, with locks.
#[test]
fn nobody_waits_for_a_guess_where_something_changes() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let near = cluster.client().await;
        let mut directories = Vec::new();
        for name in ["far", "busy", "shared"] {
            directories.push(near.mkdir(&root(), near.root(), name.as_bytes(), 0o755, 0).await.unwrap().fid);
        }
        set_far(&rt, &cluster).await;
        for kib in ["0", "512"] {
            let c = far_client(&mut cluster).await;
            c.node.params().set("llite.*.lookup_ahead_kb", kib).unwrap();
            let change = async || {
                let flags = open_flags::O_CREAT | open_flags::O_RDWR;
                let (_, file) = near.create(&root(), directories[1], b"f", flags, 0o644, 0, None).await.unwrap();
                near.release(file).await.unwrap();
                near.unlink(&root(), directories[1], b"f").await.unwrap();
            };
            change().await;
            for name in ["far", "shared"] {
                c.lookup(&root(), c.root(), name.as_bytes()).await.unwrap();
            }
            rt.sleep(Duration::from_secs(1)).await;
            let fetched = c.node.params().get("llite.*.statahead_stats").unwrap()[0].1.clone();
            assert!(fetched.starts_with("statahead total: 1\n"), "{fetched}");
            change().await;
            assert_eq!(RpcCounts::of(&c).callbacks, 0, "with {kib} KiB ahead");
            c.unmount().await;
        }
    });
}
