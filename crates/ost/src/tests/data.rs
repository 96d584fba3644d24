//! Reads, writes, holes, sizes, times.

use super::cluster::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Fid, Timestamp};
use nacre_osd::mem::DiskModel;
use nacre_wire::Opcode;
use nacre_wire::ost::{Fallocate, Seek, SeekReply, Setattr, WriteReply};

#[test]
fn small_and_large_writes_read_back_short_only_at_the_end() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        assert_eq!(client.getattr(fid).await, Ok(Default::default()), "never written: all zero");

        let reply = client.write(fid, 10, b"hello").await.unwrap();
        assert_eq!((reply.attr.size, reply.attr.mtime.secs), (15, 2_000_000_000));
        assert_eq!(client.read(fid, 0, 100).await.unwrap(), b"\0\0\0\0\0\0\0\0\0\0hello");

        let large: Vec<u8> = (0..1_000_003u32).map(|n| (n % 251) as u8).collect();
        client.write(fid, 4096, &large).await.unwrap();
        assert_eq!(client.read(fid, 4096, 2 << 20).await.unwrap(), large);
        assert_eq!(client.read(fid, 2 << 20, 10).await.unwrap(), b"");
        assert!(client.getattr(fid).await.unwrap().blocks >= 1_000_003 / 512);
    });
}

#[test]
fn several_extents_travel_in_one_rpc() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        let extents = [(0, 3), (100, 4), (200, 5)];
        client.send_write(&write_of(fid, &extents), b"aaabbbbccccc").await.unwrap();
        let (lens, data) = client.read_extents(fid, &[(99, 6), (198, 10), (300, 1)]).await.unwrap();
        assert_eq!((lens, &data[..]), (vec![6, 7, 0], &b"\0bbbb\0\0\0ccccc"[..]));
        assert_eq!(client.send_write(&write_of(fid, &[(5, 2), (6, 2)]), b"xxxx").await, Err(Errno::EINVAL));
        assert_eq!(client.send_write(&write_of(fid, &[(5, 3)]), b"xx").await, Err(Errno::EPROTO));
    });
}

#[test]
fn what_does_not_exist_cannot_be_written() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = Fid { seq: SEQ, oid: 99, ver: 0 };
        assert_eq!(client.write(fid, 0, b"x").await, Err(Errno::ENOENT));
        assert_eq!(client.read(fid, 0, 1).await, Err(Errno::ENOENT));
        assert_eq!(client.getattr(fid).await, Err(Errno::ENOENT));
        assert_eq!(client.destroy(fid).await, Ok(()));
    });
}

#[test]
fn damaged_data_is_never_stored() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        client.write(fid, 0, b"good").await.unwrap();
        cluster.faults.arm("ost.checksum", Fault::once(FaultAction::Corrupt));
        assert_eq!(client.write(fid, 0, b"evil, and longer").await, Err(Errno::EBADMSG));
        assert_eq!(client.read(fid, 0, 100).await.unwrap(), b"good");
        client.write(fid, 0, b"sent again").await.unwrap();
        assert_eq!(client.read(fid, 0, 100).await.unwrap(), b"sent again");
    });
}

#[test]
fn each_write_is_seen_whole_or_not_at_all() {
    run(|rt| async move {
        // On a slow disk, without the range lock, the one request of a reader would come between the three of a writer.
        let cluster = Cluster::with_disk(&rt, DiskModel::HDD).await;
        let first = cluster.client(0);
        let fid = first.object().await;
        const EXTENTS: [(u64, usize); 3] = [(0, 1000), (5000, 1000), (9000, 1000)];
        first.send_write(&write_of(fid, &EXTENTS), &[b'z'; 3000]).await.unwrap();
        let mut writers = Vec::new();
        let mut readers = Vec::new();
        for n in 0..6u64 {
            let client = cluster.client(1 + n);
            writers.push(client.start(move |c| async move {
                for _ in 0..5 {
                    c.send_write(&write_of(fid, &EXTENTS), &[b'a' + n as u8; 3000]).await.unwrap();
                }
            }));
            readers.push(client.start(move |c| async move {
                let mut seen = Vec::new();
                for _ in 0..8 {
                    let data = c.read(fid, 0, 10_000).await.unwrap();
                    let written = EXTENTS.map(|(at, len)| &data[at as usize..at as usize + len]).concat();
                    assert!(written.iter().all(|b| *b == written[0]), "torn: {} and {}", written[0], written[2999]);
                    seen.push(written[0]);
                }
                seen
            }));
        }
        for writer in writers {
            writer.wait().await;
        }
        let mut seen = Vec::new();
        for reader in readers {
            seen.extend(reader.wait().await);
        }
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 2, "readers ran among the writers: {seen:?}");
    });
}

#[test]
fn truncations_and_holes() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        client.write(fid, 0, &[7; 20_000]).await.unwrap();
        client.punch(fid, 4096, 8192).await.unwrap();
        assert_eq!(client.size(fid).await, 20_000);
        let data = client.read(fid, 0, 20_000).await.unwrap();
        assert!(data[..4096].iter().all(|b| *b == 7) && data[4096..8192].iter().all(|b| *b == 0));

        client.truncate(fid, 10_000).await;
        client.truncate(fid, 12_000).await;
        let data = client.read(fid, 9_999, 100_000).await.unwrap();
        assert_eq!((data.len(), data[0]), (2_001, 7));
        assert!(data[1..].iter().all(|b| *b == 0), "what was cut off must not shine through");
        assert_eq!(client.punch(fid, 9, 9).await, Err(Errno::EINVAL));
        assert_eq!(client.punch(fid, 1 << 63, u64::MAX).await, Err(Errno::EFBIG));
    });
}

#[test]
fn seek_finds_data_and_holes_up_to_the_recorded_size() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        client.write(fid, 1 << 20, &[1; 4096]).await.unwrap();
        client.truncate(fid, 3 << 20).await;
        for (offset, hole, expected) in [
            (0, false, Some(1 << 20)),
            (0, true, Some(0)),
            (1 << 20, true, Some((1 << 20) + 4096)),
            (2 << 20, false, None),
            (2 << 20, true, Some(2 << 20)),
            (3 << 20, true, None),
            (u64::MAX, false, None),
        ] {
            let reply: SeekReply = client.call(Opcode::OstSeek, &Seek { fid, offset, hole, lock: 0 }).await.unwrap();
            assert_eq!(reply.offset, expected, "{offset} hole {hole}");
        }
    });
}

#[test]
fn fallocate_modes() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        client.write(fid, 0, &[1; 1000]).await.unwrap();
        let fallocate =
            |start, end, mode| Fallocate { fid, start, end, mode, layout_version: 1, ..Fallocate::default() };
        let ask = async |f| client.modify::<WriteReply>(Opcode::OstFallocate, &f).await.map(|r| r.attr.size);
        assert_eq!(ask(fallocate(0, 8192, 1)).await, Ok(1000));
        assert_eq!(ask(fallocate(0, 8192, 0)).await, Ok(8192));
        assert_eq!(ask(fallocate(500, 600, 0x10)).await, Ok(8192));
        assert_eq!(ask(fallocate(0, 10, 0x11)).await, Ok(8192));
        assert_eq!(ask(fallocate(0, 10, 0x20)).await, Err(Errno::EOPNOTSUPP));
        assert_eq!(ask(fallocate(10, 10, 0)).await, Err(Errno::EINVAL));
        let data = client.read(fid, 0, 8192).await.unwrap();
        let ones = data.iter().filter(|b| **b == 1).count();
        assert_eq!((ones, data[9], data[10], data[499], data[500], data[600]), (890, 0, 1, 1, 0, 1));
    });
}

#[test]
fn an_older_layout_and_overtaken_times_are_refused() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        let at = |layout_version, secs| {
            let mut write = write_of(fid, &[(0, 1)]);
            (write.layout_version, write.now) = (layout_version, Timestamp { secs, nanos: 0 });
            write
        };
        client.send_write(&at(3, 100), b"a").await.unwrap();
        assert_eq!(client.send_write(&at(2, 101), b"b").await, Err(Errno::ESTALE));
        assert_eq!(client.punch(fid, 0, u64::MAX).await, Err(Errno::ESTALE));
        assert_eq!(client.read(fid, 0, 9).await.unwrap(), b"a");

        let times = Setattr {
            fid,
            mtime: Some(Timestamp { secs: 5, nanos: 0 }),
            now: Timestamp { secs: 200, nanos: 0 },
            ..Setattr::default()
        };
        client.modify::<WriteReply>(Opcode::OstSetattr, &times).await.unwrap();
        let late = client.send_write(&at(3, 150), b"c").await.unwrap();
        assert_eq!((late.attr.mtime.secs, late.attr.ctime.secs), (5, 200), "sent before the utimes");
        let newer = client.send_write(&at(3, 201), b"d").await.unwrap();
        assert_eq!(newer.attr.mtime.secs, 201);
    });
}

#[test]
fn parameters_are_lustres() {
    run(|rt| async move {
        let cluster = Cluster::start(&rt).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        client.write(fid, 0, &[0; 4096]).await.unwrap();
        let params = &cluster.server.params;
        let get = |n: &str| params.get(&format!("obdfilter.nacre-OST0000.{n}")).unwrap()[0].1.clone();
        assert_eq!(get("num_exports"), "1");
        assert_eq!(get("instance"), "1");
        assert_eq!(get("uuid"), "nacre-OST0000_UUID");
        assert_eq!((get("brw_size"), get("sync_journal"), get("degraded")), ("4".into(), "0".into(), "0".into()));
        let kbytes = |n| get(n).parse::<u64>().unwrap();
        assert!(kbytes("kbytestotal") > kbytes("kbytesavail"), "4096 bytes are in use");
        assert_eq!((get("reply_from_memory_mb"), get("sync_on_lock_cancel")), ("0".into(), "blocking".into()));
        assert!(get("stats").contains("\nwrite_bytes                         1 samples [bytes] 4096 4096 4096"));

        params.set("obdfilter.*.readonly", "1").unwrap();
        assert_eq!(client.write(fid, 0, b"x").await, Err(Errno::EROFS));
        params.set("obdfilter.*.readonly", "0").unwrap();
        params.set("obdfilter.*.no_create", "1").unwrap();
        assert_eq!(client.create(1).await, Err(Errno::ENOSPC));
        client.write(fid, 0, b"x").await.unwrap();

        cluster.server.ost.stop().await;
        assert!(params.get("obdfilter.*").is_err(), "nothing is left of a stopped target");
    });
}

#[test]
fn brw_stats_show_requests_as_they_came_and_as_the_disk_saw_them() {
    run(|rt| async move {
        let cluster = Cluster::with_disk(&rt, DiskModel::NVME).await;
        let client = cluster.client(1);
        let fid = client.object().await;
        client.write(fid, 0, &vec![1; 1 << 20]).await.unwrap();
        client.send_write(&write_of(fid, &[(2 << 20, 4096), (3 << 20, 4096)]), &[1; 8192]).await.unwrap();
        client.read(fid, 0, 1 << 20).await.unwrap();
        let params = &cluster.server.params;
        let get = || params.get("obdfilter.*.brw_stats").unwrap()[0].1.clone();
        let text = get();
        for line in [
            "                           read      |     write",
            "pages per bulk r/w     rpcs  % cum % |  rpcs        % cum %",
            "2:\t\t         0   0   0   |          1  50  50",
            "256:\t\t         1 100 100   |          1  50 100",
            "discontiguous pages    rpcs  % cum % |  rpcs        % cum %",
            "1:\t\t         0   0 100   |          1  50 100",
            "disk I/Os in flight    ios   % cum % |  ios         % cum %",
            "I/O time (1/1000s)     ios   % cum % |  ios         % cum %",
            "disk I/O size          ios   % cum % |  ios         % cum %",
            "1M:\t\t         1 100 100   |          1 100 100",
        ] {
            assert!(text.lines().any(|l| l == line), "{line:?} is not in {text}");
        }
        client.sync().await;
        let commits = params.get("osd-nacre.nacre-OST0000.commit_stats").unwrap()[0].1.clone();
        assert!(commits.contains("\ncommit time (1/1000s) count  % cum %\n1:\t\t"), "{commits}");
        let disk = params.get("osd-nacre.*.brw_stats").unwrap()[0].1.clone();
        assert!(disk.contains("disk I/O size") && !disk.contains("pages per bulk"), "{disk}");

        params.set("obdfilter.*.brw_stats", "0").unwrap();
        assert!(!get().contains("1M:"), "{}", get());
    });
}
