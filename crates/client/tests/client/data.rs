//! File data over stripes: a striped file is a flat file, for every client at once.

use crate::cluster::{Cluster, TestClient, root, run, run_seed, striped};
use nacre_base::{Errno, Fid, Payload, Prng};
use nacre_client::{OpenFile, open_flags};
use nacre_lnet::LinkOptions;
use nacre_osd::mem::MemOptions;
use nacre_wire::attr::{SetAttr, mode};
use std::sync::Arc;
use std::time::Duration;

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// A file, its expected contents, and two clients that have it open.
struct Model {
    clients: [(TestClient, Arc<OpenFile>); 2],
    fid: Fid,
    flat: Vec<u8>,
}

impl Model {
    async fn step(&mut self, prng: &mut Prng, what: &str) {
        let (client, file) = &self.clients[prng.below(2) as usize];
        let (offset, len) = (prng.below(2 << 20), prng.range(1, 400_000));
        let (from, to) = (offset as usize, (offset + len) as usize);
        let (cut_from, cut_to) = (from.min(self.flat.len()), to.min(self.flat.len()));
        match prng.below(8) {
            0..3 => {
                let data: Vec<u8> = (0..len).map(|i| (i ^ offset) as u8 | 1).collect();
                assert_eq!(client.put(file, offset, &data).await, Ok(data.len()), "{what}");
                self.flat.resize(self.flat.len().max(to), 0);
                self.flat[from..to].copy_from_slice(&data);
            }
            3 => {
                let set = SetAttr { size: Some(offset), ..SetAttr::default() };
                let attr = client.setattr(&root(), self.fid, set, Some(file)).await.unwrap();
                self.flat.resize(from, 0);
                assert_eq!(attr.size, offset, "{what}");
            }
            4 => {
                client.fallocate(file, KEEP_SIZE | PUNCH_HOLE, offset, len).await.unwrap();
                self.flat[cut_from..cut_to].fill(0);
            }
            5 => {
                let mode = *prng.pick(&[0, KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE]);
                client.fallocate(file, mode, offset, len).await.unwrap();
                if mode & KEEP_SIZE == 0 {
                    self.flat.resize(self.flat.len().max(to), 0);
                }
                if mode & ZERO_RANGE != 0 {
                    let to = to.min(self.flat.len());
                    self.flat[from.min(to)..to].fill(0);
                }
            }
            _ => {
                let got = client.get(file, offset, len as usize).await;
                assert!(got == self.flat[cut_from..cut_to], "{what}: read of {len} at {offset}");
            }
        }
        assert_eq!(client.stat(self.fid).await.size, self.flat.len() as u64, "{what}");
        self.check_seek(prng, what).await;
    }

    /// Devices may report holes smaller than their blocks as data, but never data as a hole.
    async fn check_seek(&self, prng: &mut Prng, what: &str) {
        let (client, file) = &self.clients[0];
        let offset = prng.below(self.flat.len() as u64 + 2);
        let data = client.seek(file, offset, false).await;
        let hole = client.seek(file, offset, true).await;
        if offset >= self.flat.len() as u64 {
            assert_eq!((data, hole), (Err(Errno::ENXIO), Err(Errno::ENXIO)), "{what}");
            return;
        }
        let rest = &self.flat[offset as usize..];
        if let Some(first) = rest.iter().position(|b| *b != 0) {
            let at = data.unwrap();
            assert!(at >= offset && at <= offset + first as u64, "{what}: data from {offset} at {at}");
        }
        let hole = hole.unwrap();
        assert!(hole >= offset && hole <= self.flat.len() as u64, "{what}");
        if hole < self.flat.len() as u64 {
            assert_eq!(self.flat[hole as usize], 0, "{what}: hole from {offset} at {hole}");
        }
    }
}

#[test]
fn a_striped_file_is_a_flat_file_to_two_clients() {
    for (seed, stripes) in [(1, 1), (2, 2), (3, 4), (4, 9)] {
        run_seed(seed, move |rt| async move {
            let mut cluster = Cluster::start(&rt, 4).await;
            let (a, b) = (cluster.client().await, cluster.client().await);
            let mut prng = Prng::new(seed);
            let (attr, file) = a.make("f", Some(striped(stripes, 65536 << prng.below(2)))).await;
            let other = b.open(&root(), attr.fid, open_flags::O_RDWR).await.unwrap();
            let mut model = Model { clients: [(a, file), (b, other)], fid: attr.fid, flat: Vec::new() };
            for i in 0..50 {
                model.step(&mut prng, &format!("seed {seed}, step {i}")).await;
            }
            let (client, file) = &model.clients[1];
            assert!(client.get(file, 0, model.flat.len() + 1).await == model.flat);
        });
    }
}

/// The same file test while messages are lost, late and out of order: a request that is sent twice is executed once.
#[test]
fn a_striped_file_is_a_flat_file_over_a_bad_network() {
    for seed in 1..4 {
        run_seed(seed, move |rt| async move {
            let mut cluster = Cluster::start(&rt, 3).await;
            let (a, b) = (cluster.client().await, cluster.client().await);
            let (attr, file) = a.make("f", Some(striped(3, 65536))).await;
            let other = b.open(&root(), attr.fid, open_flags::O_RDWR).await.unwrap();
            let jitter = Duration::from_millis(2);
            let reorder_delay = Duration::from_millis(20);
            let links =
                LinkOptions { jitter, loss_ppm: 5000, reorder_ppm: 50_000, reorder_delay, ..LinkOptions::default() };
            cluster.net.set_links(links);
            let mut prng = Prng::new(seed);
            let mut model = Model { clients: [(a, file), (b, other)], fid: attr.fid, flat: Vec::new() };
            for i in 0..40 {
                model.step(&mut prng, &format!("seed {seed}, step {i}")).await;
            }
        });
    }
}

/// A reader that met a short object before the writer was there, and a longer one afterwards, would see zeros that were
/// never in the file.
#[test]
fn a_reader_who_follows_a_writer_sees_no_zeros() {
    for seed in 1..20 {
        run_seed(seed, move |rt| async move {
            let mut cluster = Cluster::start(&rt, 3).await;
            let (a, b) = (cluster.client().await, cluster.client().await);
            let (attr, file) = a.make("log", Some(striped(3, 65536))).await;
            let jitter = Duration::from_micros(300);
            cluster.net.set_links(LinkOptions { jitter, ..LinkOptions::default() });
            const END: u64 = 2_000_000;
            let a2 = a.clone();
            let writer = rt.spawn(async move {
                let mut at = 0;
                while at < END {
                    at += a2.put(&file, at, &[7; 50_000]).await.unwrap() as u64;
                }
            });
            let (file, mut at) = (b.open(&root(), attr.fid, 0).await.unwrap(), 0);
            while at < END {
                let got = b.get(&file, at, 400_000).await;
                let zero = got.iter().position(|byte| *byte != 7);
                assert_eq!(zero, None, "seed {seed}: read of {} at {at}", got.len());
                at += got.len() as u64;
                if got.is_empty() {
                    // A read of cached data does not wait for anything, so virtual time would stand still.
                    rt.sleep(Duration::from_micros(20)).await;
                }
            }
            writer.await;
        });
    }
}

#[test]
fn components_are_striped_each_in_its_own_way() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 4).await;
        let c = cluster.client().await;
        let mut layout = striped(1, 65536);
        layout.components[0].end = 1 << 20;
        layout.components.extend(striped(4, 1 << 20).components);
        let (_, file) = c.make("pfl", Some(layout)).await;
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
        assert_eq!(c.put(&file, 1000, &data).await, Ok(data.len()));
        assert!(c.get(&file, 1000, 4 << 20).await == data);
        assert_eq!(c.stat(file.fid()).await.size, 3_001_000);
        let set = SetAttr { size: Some(500_000), ..SetAttr::default() };
        assert_eq!(c.setattr(&root(), file.fid(), set, None).await.unwrap().size, 500_000);
        assert!(c.get(&file, 1000, 4 << 20).await == data[..499_000]);
    });
}

#[test]
fn large_transfers_are_cut_and_put_together() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let c = cluster.client().await;
        let (attr, file) = c.make("big", Some(striped(2, 1 << 20))).await;
        let data: Vec<u8> = (0..20_000_000u32).map(|i| (i / 3) as u8).collect();
        assert_eq!(c.put(&file, 12_345, &data).await, Ok(data.len()));
        assert!(c.get(&file, 12_345, 30 << 20).await == data);
        assert!(c.get(&file, 0, 12_345).await.iter().all(|b| *b == 0));
        let attr = c.stat(attr.fid).await;
        assert_eq!(attr.size, 12_345 + 20_000_000);
        assert!(attr.blocks * 512 >= 20_000_000);
    });
}

#[test]
fn a_hole_is_not_the_end_of_the_file() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 3).await;
        let c = cluster.client().await;
        let (_, file) = c.make("sparse", Some(striped(3, 65536))).await;
        c.put(&file, 2 * 65536, b"end").await.unwrap();
        let got = c.get(&file, 0, 1 << 20).await;
        assert_eq!(got.len(), 2 * 65536 + 3);
        assert!(got[..2 * 65536].iter().all(|b| *b == 0) && &got[2 * 65536..] == b"end");
        assert!(c.get(&file, 2 * 65536 + 3, 100).await.is_empty());
        assert!(c.get(&file, 1 << 40, 100).await.is_empty());
    });
}

#[test]
fn a_file_made_by_mknod_gets_objects_when_it_needs_them() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let made = c.mknod(&root(), c.root(), b"f", mode::S_IFREG | 0o644, 0, 0).await.unwrap();
        let reader = c.open(&root(), made.fid, 0).await.unwrap();
        assert!(c.get(&reader, 0, 10).await.is_empty());
        assert_eq!(c.seek(&reader, 0, false).await, Err(Errno::ENXIO));
        let writer = c.open(&root(), made.fid, open_flags::O_WRONLY).await.unwrap();
        c.put(&writer, 3, b"data").await.unwrap();
        assert_eq!(c.get(&reader, 0, 10).await, b"\0\0\0data", "the reader that was there before sees it");
        let other = c.mknod(&root(), c.root(), b"g", 0o644, 0, 0).await.unwrap();
        let set = SetAttr { size: Some(1 << 30), ..SetAttr::default() };
        assert_eq!(c.setattr(&root(), other.fid, set, None).await.unwrap().size, 1 << 30);
        assert_eq!(c.stat(other.fid).await.size, 1 << 30);
    });
}

#[test]
fn open_with_truncation_empties_a_file_for_everyone() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 2).await;
        let (a, b) = (cluster.client().await, cluster.client().await);
        let (attr, file) = a.make("f", Some(striped(2, 65536))).await;
        a.put(&file, 0, &[7; 200_000]).await.unwrap();
        let flags = open_flags::O_CREAT | open_flags::O_TRUNC | open_flags::O_WRONLY;
        let (cut, _again) = b.create(&root(), b.root(), b"f", flags, 0o644, 0, None).await.unwrap();
        assert_eq!((cut.fid, cut.size, cut.blocks), (attr.fid, 0, 0));
        assert!(a.get(&file, 0, 10).await.is_empty());
        a.put(&file, 100_000, b"x").await.unwrap();
        assert!(b.get(&b.open_name("f", 0).await.unwrap(), 0, 100_000).await.iter().all(|b| *b == 0));
    });
}

#[test]
fn limits_are_errors_not_surprises() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let (attr, file) = c.make("f", None).await;
        let max = i64::MAX as u64;
        assert_eq!(c.put(&file, max, b"x").await, Err(Errno::EFBIG));
        assert!(c.get(&file, max, 10).await.is_empty());
        assert!(c.get(&file, u64::MAX, 10).await.is_empty());
        let set = SetAttr { size: Some(max + 1), ..SetAttr::default() };
        assert_eq!(c.setattr(&root(), attr.fid, set, None).await.err(), Some(Errno::EFBIG));
        assert_eq!(c.fallocate(&file, 0, 0, 0).await, Err(Errno::EINVAL));
        assert_eq!(c.fallocate(&file, 0, max, 1).await, Err(Errno::EFBIG));
        assert_eq!(c.fallocate(&file, PUNCH_HOLE, 0, 1).await, Err(Errno::EOPNOTSUPP));
        assert_eq!(c.put(&file, 0, b"").await, Ok(0));
        let reader = c.open(&root(), attr.fid, 0).await.unwrap();
        assert_eq!(c.put(&reader, 0, b"x").await, Err(Errno::EBADF));
        let writer = c.open(&root(), attr.fid, open_flags::O_WRONLY).await.unwrap();
        assert_eq!(c.read(&writer, 0, 1).await.err(), Some(Errno::EBADF));
    });
}

#[test]
fn a_full_ost_says_so_and_what_fits_is_kept() {
    run(|rt| async move {
        let storage = MemOptions { capacity_bytes: 256 << 20, ..MemOptions::default() };
        let mut cluster = Cluster::with_storage(&rt, 1, storage).await;
        let c = cluster.client().await;
        let (_, file) = c.make("f", None).await;
        let chunk = Payload::zeroes(8 << 20);
        let mut written = 0;
        let error = loop {
            match c.write(&file, written, chunk.clone()).await {
                Ok(n) => written += n as u64,
                Err(e) => break e,
            }
        };
        assert_eq!(error, Errno::ENOSPC);
        assert!((128 << 20..=256 << 20).contains(&written), "{written}");
        assert_eq!(c.stat(file.fid()).await.size, written);
        c.unlink(&root(), c.root(), b"f").await.unwrap();
    });
}

#[test]
fn a_terabyte_of_hole_costs_nothing() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let c = cluster.client().await;
        let (_, file) = c.make("f", None).await;
        // No step may take time in proportion to the file's size.
        c.put(&file, 1 << 40, b"far").await.unwrap();
        assert_eq!(c.seek(&file, 0, false).await.map(|at| at <= 1 << 40), Ok(true));
        assert_eq!(c.seek(&file, 0, true).await, Ok(0));
        assert_eq!(c.get(&file, 1 << 40, 100).await, b"far");
    });
}

/// Full RPCs went before old bytes, so that a byte stayed on the client for as long as a program wrote elsewhere faster
/// than the OST took it.
#[test]
fn old_bytes_are_written_back_while_a_program_streams() {
    for same_file in [false, true] {
        run(move |rt| async move {
            let mut cluster = Cluster::start(&rt, 1).await;
            let (c, other) = (cluster.client().await, cluster.client().await);
            // The program may be far ahead of the RPCs, of which 16 are under way at once.
            for (name, value) in [("max_pages_per_rpc", "16"), ("max_dirty_mb", "64")] {
                c.node.params().set(&format!("osc.*.{name}"), value).unwrap();
            }
            let (_, streamed) = c.make("f0", None).await;
            let (_, small) = c.make("f1", None).await;
            let (name, file, at) = if same_file { ("f0", &streamed, 1 << 30) } else { ("f1", &small, 0) };
            c.put(&streamed, 0, b"1").await.unwrap();
            c.fsync(&streamed, false).await.unwrap();
            cluster.net.set_links(LinkOptions { latency: Duration::from_millis(100), ..LinkOptions::default() });
            c.put(file, at, b"old").await.unwrap();
            rt.sleep(Duration::from_secs(1)).await;
            let (began, mut offset, mut is_ahead) = (rt.now(), 0, false);
            while rt.now().since(began) < Duration::from_secs(6) {
                if c.dirty() < 8 << 20 {
                    c.write(&streamed, offset, Payload::zeroes(64 << 10)).await.unwrap();
                    offset += 64 << 10;
                } else {
                    is_ahead = true;
                    rt.sleep(Duration::from_millis(10)).await;
                }
            }
            assert!(is_ahead, "the program must be ahead of the RPCs");
            cluster.net.set_links(LinkOptions::default());
            // The servers never hear of the first client again: what it has not written is lost.
            cluster.net.partition([1, 2, 10], [101]);
            let theirs = other.open_name(name, 0).await.unwrap();
            assert_eq!(other.get(&theirs, at, 10).await, b"old", "in the streamed file: {same_file}");
        });
    }
}
