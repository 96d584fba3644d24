//! Progressive layouts: a component gets its objects when any client first writes to it, and every client sees one file.

use crate::cluster::{Cluster, TestClient, root, run, run_seed};
use nacre_base::{Errno, Prng};
use nacre_client::{OpenFile, open_flags};
use nacre_rt::Rt;
use nacre_wire::attr::SetAttr;
use nacre_wire::layout::{ComponentSpec, Layout, LayoutSpec, STRIPE_COUNT_AUTO, component_flags};
use std::sync::Arc;

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

/// One stripe up to 256 KiB, two up to 1 MiB, then as many as `rest` says.
fn progressive(rest: i32) -> LayoutSpec {
    let component = |end, stripe_count, overstripe| ComponentSpec {
        end,
        stripe_size: 65536,
        stripe_count,
        overstripe,
        stripe_offset: -1,
        ..ComponentSpec::default()
    };
    let last = component(u64::MAX, rest, rest > 2);
    LayoutSpec { components: vec![component(256 * K, 1, false), component(M, 2, false), last] }
}

async fn layout(client: &TestClient, file: &OpenFile) -> Layout {
    let value = client.getxattr(&root(), file.fid(), b"lustre.lov").await.unwrap();
    nacre_wire::lov_ea::decode_layout(&value).unwrap().0
}

/// Number of objects of each component; a component without objects has 0.
async fn objects(client: &TestClient, file: &OpenFile) -> Vec<usize> {
    let layout = layout(client, file).await;
    let init = |c: &nacre_wire::layout::Component| c.flags & component_flags::INIT != 0;
    assert!(layout.components.iter().all(|c| init(c) != c.stripes.is_empty() && init(c) != c.wanted.is_some()));
    layout.components.iter().map(|c| c.stripes.len()).collect()
}

async fn truncate(client: &TestClient, file: &OpenFile, size: u64) -> u64 {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    client.setattr(&root(), file.fid(), set, Some(file)).await.unwrap().size
}

/// Two clients, and a file that both have open.
async fn shared(rt: &Rt, spec: LayoutSpec, flags: u32) -> (Cluster, [(TestClient, Arc<OpenFile>); 2]) {
    let mut cluster = Cluster::start(rt, 4).await;
    let (a, b) = (cluster.client().await, cluster.client().await);
    a.make("f", Some(spec)).await;
    let (fa, fb) = (a.open_name("f", flags).await.unwrap(), b.open_name("f", flags).await.unwrap());
    (cluster, [(a, fa), (b, fb)])
}

#[test]
fn components_get_objects_when_they_are_written_to() {
    run(|rt| async move {
        let (_cluster, [(a, fa), (b, fb)]) = shared(&rt, progressive(8), open_flags::O_RDWR).await;
        assert_eq!((objects(&a, &fa).await, layout(&a, &fa).await.generation), (vec![1, 0, 0], 3));
        a.put(&fa, 0, &[1; 1000]).await.unwrap();
        assert_eq!(b.get(&fb, 0, 4 << 20).await.len(), 1000);
        assert_eq!(objects(&b, &fb).await, [1, 0, 0], "to read makes none");
        // A write into the last component, which leaves the middle one a hole.
        b.put(&fb, 2 * M, b"end").await.unwrap();
        assert_eq!((objects(&a, &fa).await, layout(&a, &fa).await.generation), (vec![1, 0, 8], 4));
        assert_eq!(a.stat(fa.fid()).await.size, 2 * M + 3);
        let all = a.get(&fa, 0, 4 << 20).await;
        assert_eq!(all.len() as u64, 2 * M + 3);
        assert!(all[..1000].iter().all(|b| *b == 1) && all[1000..2 << 20].iter().all(|b| *b == 0));
        assert_eq!(&all[2 << 20..], b"end");
        assert_eq!(a.seek(&fa, 256 * K, false).await, Ok(2 * M), "no data before");
        // A write across the border of the two remaining components.
        a.put(&fa, 256 * K - 10, &[7; 20]).await.unwrap();
        assert_eq!(objects(&b, &fb).await, [1, 2, 8]);
        assert_eq!(b.get(&fb, 256 * K - 11, 22).await, [&[0][..], &[7; 20], &[0]].concat());
        let last = &layout(&a, &fa).await.components[2];
        assert!(last.is_overstriped(), "8 stripes on 4 OSTs");
    });
}

#[test]
fn a_size_in_a_component_without_objects_gives_it_some() {
    run(|rt| async move {
        let (_cluster, [(a, fa), (b, fb)]) = shared(&rt, progressive(1), open_flags::O_RDWR).await;
        a.put(&fa, 0, &[1; 1000]).await.unwrap();
        assert_eq!(truncate(&b, &fb, 300 * K).await, 300 * K);
        assert_eq!((objects(&a, &fa).await, a.stat(fa.fid()).await.size), (vec![1, 2, 0], 300 * K));
        assert_eq!(a.get(&fa, 0, M as usize).await.len() as u64, 300 * K);
        // A truncated component keeps its objects.
        assert_eq!(truncate(&a, &fa, 10).await, 10);
        assert_eq!((objects(&b, &fb).await, b.stat(fb.fid()).await.size), (vec![1, 2, 0], 10));
        assert_eq!(truncate(&a, &fa, 5 * M).await, 5 * M);
        assert_eq!(b.get(&fb, 0, 8 << 20).await, [&[1; 10][..], &vec![0; (5 * M - 10) as usize]].concat());
        b.fallocate(&fb, 0, 6 * M, 4096).await.unwrap();
        assert_eq!(a.stat(fa.fid()).await.size, 6 * M + 4096);
    });
}

#[test]
fn whoever_comes_first_makes_the_objects_and_all_use_them() {
    for seed in 0..5 {
        run_seed(seed, |rt| async move {
            let mut cluster = Cluster::start(&rt, 4).await;
            let first = cluster.client().await;
            let (_, file) = first.make("f", Some(progressive(-1))).await;
            let mut writers = Vec::new();
            for n in 0..8u64 {
                let client = cluster.client().await;
                let file = client.open_name("f", open_flags::O_RDWR).await.unwrap();
                let (sender, receiver) = tokio::sync::oneshot::channel();
                let task = rt.spawn(async move {
                    for i in 0..4 {
                        let at = (i * 8 + n) * 100_000;
                        assert_eq!(client.put(&file, at, &[n as u8 + 1; 100_000]).await, Ok(100_000), "{n}");
                    }
                    let _ = sender.send(client.fsync(&file, false).await);
                    client.release(file).await.unwrap();
                });
                writers.push((task, receiver));
            }
            for (_task, done) in writers {
                assert_eq!(done.await.unwrap(), Ok(()));
            }
            assert_eq!((objects(&first, &file).await, layout(&first, &file).await.generation), (vec![1, 2, 4], 5));
            let all = first.get(&file, 0, 4_000_000).await;
            assert_eq!(all.len(), 3_200_000);
            let wrong = all.chunks(100_000).enumerate().find(|(i, c)| c.iter().any(|b| *b != (i % 8) as u8 + 1));
            assert_eq!(wrong.map(|w| w.0), None);
        });
    }
}

/// Dirty data in the cache of one client stays valid when another client has objects created elsewhere in the file, and
/// writes to the first objects by the new layout.
#[test]
fn what_was_cached_by_the_older_layout_is_not_lost() {
    run(|rt| async move {
        let (_cluster, [(a, fa), (b, fb)]) = shared(&rt, progressive(1), open_flags::O_RDWR).await;
        a.put(&fa, 0, &[1; 1000]).await.unwrap();
        b.put(&fb, 500 * K, &[2; 1000]).await.unwrap();
        b.put(&fb, 100 * K, &[2; 1000]).await.unwrap();
        a.put(&fa, 1000, &[1; 1000]).await.unwrap();
        b.fsync(&fb, false).await.unwrap();
        assert_eq!(a.fsync(&fa, false).await, Ok(()));
        assert_eq!(b.get(&fb, 0, 2000).await, [1; 2000]);
    });
}

#[test]
fn appends_find_the_end_wherever_it_is() {
    for seed in 0..5 {
        run_seed(seed, |rt| async move {
            let flags = open_flags::O_RDWR | open_flags::O_APPEND;
            let (mut cluster, clients) = shared(&rt, progressive(2), flags).await;
            let (reader, fid) = (cluster.client().await, clients[0].1.fid());
            let mut tasks = Vec::new();
            for (n, (client, file)) in clients.into_iter().enumerate() {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                let task = rt.spawn(async move {
                    for _ in 0..30 {
                        assert_eq!(client.put(&file, 0, &[n as u8 + 1; 40_000]).await, Ok(40_000));
                    }
                    client.fsync(&file, false).await.unwrap();
                    let _ = sender.send(());
                });
                tasks.push((task, receiver));
            }
            for (_task, done) in tasks {
                done.await.unwrap();
            }
            let file = reader.open(&root(), fid, 0).await.unwrap();
            let all = reader.get(&file, 0, 4_000_000).await;
            assert_eq!(all.len(), 60 * 40_000);
            for (n, record) in all.chunks(40_000).enumerate() {
                assert!(record[0] > 0 && record.iter().all(|b| *b == record[0]), "record {n}");
            }
        });
    }
}

/// A sparse file ends in a later component, of which the appender does not know yet.
#[test]
fn an_append_does_not_believe_an_older_layout() {
    run(|rt| async move {
        let (_cluster, [(a, _), (b, fb)]) = shared(&rt, progressive(1), open_flags::O_RDWR).await;
        let appender = a.open_name("f", open_flags::O_RDWR | open_flags::O_APPEND).await.unwrap();
        a.put(&appender, 0, b"begin").await.unwrap();
        b.put(&fb, 2 * M, b"far").await.unwrap();
        a.put(&appender, 0, b"end").await.unwrap();
        assert_eq!(b.get(&fb, 2 * M, 100).await, b"farend");
        // Now only the size shows that there is another layout.
        truncate(&b, &fb, 300 * K).await;
        a.put(&appender, 0, b"again").await.unwrap();
        assert_eq!(b.get(&fb, 300 * K, 100).await, b"again");
    });
}

#[test]
fn two_clients_see_one_file() {
    for seed in 0..6 {
        run_seed(seed, move |rt| async move {
            let mut prng = Prng::new(seed);
            for round in 0..6 {
                let rest = *prng.pick(&[1, 3, 8, -1]);
                let spec = progressive(rest);
                let (_cluster, clients) = shared(&rt.child("run"), spec, open_flags::O_RDWR).await;
                let mut flat: Vec<u8> = Vec::new();
                for step in 0..25 {
                    let what = format!("seed {seed} round {round} step {step}");
                    let (client, file) = &clients[prng.below(2) as usize];
                    let (offset, len) = (prng.below(2 * M) as usize, prng.range(1, 400_000) as usize);
                    match prng.below(5) {
                        0 | 1 => {
                            let byte = prng.range(1, 255) as u8;
                            assert_eq!(client.put(file, offset as u64, &vec![byte; len]).await, Ok(len), "{what}");
                            flat.resize(flat.len().max(offset + len), 0);
                            flat[offset..offset + len].fill(byte);
                        }
                        2 => {
                            assert_eq!(truncate(client, file, offset as u64).await, offset as u64, "{what}");
                            flat.resize(offset, 0);
                        }
                        3 => assert_eq!(client.stat(file.fid()).await.size, flat.len() as u64, "{what}"),
                        _ => {
                            let (from, to) = (offset.min(flat.len()), (offset + len).min(flat.len()));
                            assert!(client.get(file, offset as u64, len).await == flat[from..to], "{what}");
                        }
                    }
                }
                rt.sleep(std::time::Duration::from_secs(1)).await;
            }
        });
    }
}

#[test]
fn an_automatic_layout_follows_the_writers() {
    run(|rt| async move {
        let mut spec = LayoutSpec::plain();
        (spec.components[0].stripe_count, spec.components[0].overstripe) = (STRIPE_COUNT_AUTO, true);
        let mut cluster = Cluster::start(&rt, 2).await;
        let alone = cluster.client().await;
        let (_, file) = alone.make("alone", Some(spec.clone())).await;
        assert_eq!(objects(&alone, &file).await, [1, 0, 0]);
        alone.put(&file, 64 * M - 1, b"over").await.unwrap();
        assert_eq!(objects(&alone, &file).await, [1, 2, 0], "one writer: no more than there are OSTs");
        let (_, file) = alone.make("many", Some(spec)).await;
        let mut open = Vec::new();
        for _ in 0..4 {
            let client = cluster.client().await;
            let file = client.open_name("many", open_flags::O_RDWR).await.unwrap();
            open.push((client, file));
        }
        let (client, shared) = &open[3];
        client.put(shared, 100 * M, b"x").await.unwrap();
        assert_eq!(objects(&alone, &file).await, [1, 6, 0], "five writers: a stripe each, in whole rounds");
        assert_eq!(client.put(shared, i64::MAX as u64, b"x").await, Err(Errno::EFBIG));
    });
}
