//! Clients that are evicted: what they lose, what they are told, and how they go on.

use super::*;

/// 24a
#[test]
fn bytes_that_an_eviction_took_are_told_by_the_next_fsync_once() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"durable").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        u.put(&file, 0, b"dropped").await.unwrap();
        c.evict(OSS, 0).await;
        assert_eq!(u.fsync(&file, false).await, Err(Errno::EIO));
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        assert_eq!(
            (u.get(&file, 0, 10).await, w.content(file.fid()).await),
            (b"durable".to_vec(), b"durable".to_vec())
        );
        u.put(&file, 0, b"goes on").await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        assert_eq!(w.content(file.fid()).await, b"goes on");
        u.release(file).await.unwrap();
    });
}

/// 24b
#[test]
fn bytes_that_an_eviction_took_are_told_by_the_close() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"dropped").await.unwrap();
        c.evict(OSS, 0).await;
        c.rt().sleep(secs(60)).await;
        assert_eq!(u.flush(&file).await, Err(Errno::EIO));
        assert_eq!(u.release(file).await, Ok(()));
        assert_eq!(w.find(ROOT, "f").await.unwrap().size, 0);
    });
}

/// 24b: no other client is told
#[test]
fn a_file_that_was_not_dirty_has_nothing_to_tell() {
    witnessed(1, |c, u, _w| async move {
        let (clean, dirty) = (u.new_file(ROOT, "clean", 0).await.unwrap(), u.new_file(ROOT, "dirty", 0).await.unwrap());
        u.put(&clean, 0, b"durable").await.unwrap();
        u.fsync(&clean, false).await.unwrap();
        u.put(&dirty, 0, b"dropped").await.unwrap();
        c.evict(OSS, 0).await;
        assert_eq!((u.fsync(&clean, false).await, u.fsync(&dirty, false).await), (Ok(()), Err(Errno::EIO)));
        assert_eq!(u.get(&clean, 0, 10).await, b"durable");
        u.release(clean).await.unwrap();
        u.release(dirty).await.unwrap();
    });
}

/// 18a, 18b, 131: cached data was under a lock that is lost
#[test]
fn an_evicted_client_reads_what_others_wrote_since() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"old").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        assert_eq!(u.get(&file, 0, 10).await, b"old");
        c.evict(OSS, 0).await;
        let theirs = w.reopen(file.fid()).await;
        w.put(&theirs, 0, b"new").await.unwrap();
        w.fsync(&theirs, false).await.unwrap();
        // Not at once, because the client cannot know; but by its next message to the server.
        c.rt().sleep(secs(60)).await;
        assert_eq!(u.get(&file, 0, 10).await, b"new");
        u.release(file).await.unwrap();
        w.release(theirs).await.unwrap();
    });
}

/// 18c
#[test]
fn an_evicted_client_whose_connects_are_lost_comes_back_all_the_same() {
    for mishap in [Mishap::LostRequest, Mishap::LostReply] {
        witnessed(1, move |c, u, w| async move {
            let file = u.new_file(ROOT, "f", 0).await.unwrap();
            c.evict(OSS, 0).await;
            c.mishaps(OSS, Opcode::OstConnect, mishap, 4);
            let begun = c.rt().now();
            u.put(&file, 0, b"after").await.unwrap();
            assert_eq!(u.fsync(&file, false).await, Ok(()));
            assert!(c.rt().now().since(begun) < secs(100) && c.has_struck(OSS));
            assert_eq!(w.content(file.fid()).await, b"after");
            assert_eq!(c.exports(OSS), 3, "the MDT and two clients");
            u.release(file).await.unwrap();
        });
    }
}

/// 66, 65: evicted while its enqueue waits
#[test]
fn a_client_evicted_while_it_waits_for_a_lock_gets_it_in_the_end() {
    witnessed(1, |c, u, w| async move {
        let theirs = w.new_file(ROOT, "f", 0).await.unwrap();
        w.put(&theirs, 0, b"theirs").await.unwrap();
        let mine = u.reopen(theirs.fid()).await;
        c.callback_mishaps(1, Opcode::LdlmBlCallback, Mishap::LostRequest, 3);
        let reading = c.rt().spawn({
            let (u, mine) = (u.clone(), mine.clone());
            async move {
                let got = u.read(&mine, 0, 10).await.map(|p| p.to_bytes().to_vec());
                assert!(got == Ok(b"theirs".to_vec()) || got == Err(Errno::EIO), "{got:?}");
            }
        });
        c.rt().sleep(secs(2)).await;
        assert!(!reading.is_finished());
        c.evict(OSS, 0).await;
        let begun = c.rt().now();
        reading.await;
        assert!(c.rt().now().since(begun) < secs(90), "{:?}", c.rt().now().since(begun));
        assert_eq!(u.get(&mine, 0, 10).await, b"theirs");
        u.release(mine).await.unwrap();
        w.release(theirs).await.unwrap();
    });
}

/// 21: files open at an MDT that evicted the client
#[test]
fn files_open_at_an_eviction_are_read_and_closed_and_new_ones_opened() {
    witnessed(2, |c, u, w| async move {
        let mut files = Vec::new();
        for n in 0..20u8 {
            let file = u.new_file(ROOT, &format!("f{n}"), 0).await.unwrap();
            u.put(&file, 0, &[n; 100]).await.unwrap();
            u.fsync(&file, false).await.unwrap();
            files.push(file);
        }
        c.evict(MDS, 0).await;
        c.rt().sleep(secs(60)).await;
        for (n, file) in files.into_iter().enumerate() {
            assert_eq!(u.get(&file, 0, 1000).await, [n as u8; 100]);
            u.put(&file, 100, &[n as u8; 100]).await.unwrap();
            assert_eq!(u.fsync(&file, false).await, Ok(()));
            assert_eq!(u.release(file).await, Ok(()));
        }
        u.file(ROOT, "new", b"x").await;
        assert_eq!(w.names(ROOT).await.len(), 21);
        assert_eq!(w.content(w.find(ROOT, "f7").await.unwrap().fid).await, [7; 200]);
    });
}

/// 58: evicted with requests in flight
#[test]
fn changes_in_flight_at_an_eviction_are_made_or_fail_and_never_half() {
    witnessed(1, |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        c.mishaps(MDS, Opcode::MdsReint, Mishap::Late(secs(2)), 8);
        let made = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..8)
            .map(|n| {
                let (u, made) = (u.clone(), made.clone());
                c.rt().spawn(async move {
                    match u.dir(d, &format!("d{n}")).await {
                        Ok(_) => made.lock().push(format!("d{n}")),
                        Err(e) => assert_eq!(e, Errno::EIO),
                    }
                })
            })
            .collect();
        c.rt().sleep(secs(1)).await;
        c.evict(MDS, 0).await;
        for task in tasks {
            task.await;
        }
        c.rt().sleep(secs(10)).await;
        let names = w.names(d).await;
        assert!(made.lock().iter().all(|name| names.contains(name)), "{names:?} has not all of {:?}", made.lock());
        assert_eq!(w.stat(d).await.unwrap().nlink as usize, 2 + names.len());
        assert_eq!(u.names(d).await, names);
    });
}

/// 156
#[test]
fn the_grant_of_an_evicted_client_is_free_again() {
    witnessed(1, |c, u, w| async move {
        let granted = || c.param(OSS, "obdfilter.*.tot_granted")[0].1.parse::<u64>().unwrap();
        let before = granted();
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, &[1; 100_000]).await.unwrap();
        c.rt().sleep(secs(10)).await;
        assert!(granted() > before, "{}", granted());
        // Otherwise it would come back at once.
        c.net().partition([c.client_numbers()[0]], [10]);
        c.evict(OSS, 0).await;
        assert!(granted() <= before, "{} after {before}", granted());
        c.net().heal();
        c.rt().sleep(secs(60)).await;
        u.put(&file, 0, &[2; 100_000]).await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        u.release(file).await.unwrap();
        assert_eq!(w.find(ROOT, "f").await.unwrap().size, 100_000);
    });
}

/// 26a, 26b, 107
#[test]
fn exports_of_dead_clients_go_and_those_of_living_ones_stay() {
    story(1, 3, |c| async move {
        for n in 0..3 {
            user(&c, n).file(ROOT, &format!("f{n}"), b"x").await;
        }
        assert_eq!((c.exports(MDS), c.exports(OSS)), (3, 4));
        c.kill_client(0);
        c.kill_client(1);
        let living = user(&c, 2);
        for _ in 0..30 {
            living.statfs().await.unwrap();
            c.rt().sleep(secs(10)).await;
        }
        assert_eq!((c.exports(MDS), c.exports(OSS)), (1, 2));
        assert_eq!(living.names(ROOT).await, ["f0", "f1", "f2"]);
    });
}

/// A client was on the OST's disk until some time after its eviction. If the OST lost power meanwhile, the client came back as
/// if nothing had happened, with locks that others had been given since and data that was older than theirs.
#[test]
fn an_eviction_is_durable_before_others_get_the_locks() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"before").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        u.put(&file, 0, b"older").await.unwrap();
        c.net().partition([c.client_numbers()[0]], c.server_numbers());
        c.evict(OSS, 0).await;
        let theirs = w.open(&root(), file.fid(), O_RDWR).await.unwrap();
        w.put(&theirs, 0, b"newer").await.unwrap();
        c.crash(OSS, Crash::PowerCut);
        c.net().heal();
        c.restart(OSS).await.unwrap();
        w.fsync(&theirs, false).await.unwrap();
        c.rt().sleep(secs(60)).await;
        assert_eq!(u.fsync(&file, false).await, Err(Errno::EIO), "the evicted client is told that its data is lost");
        assert_eq!((w.content(file.fid()).await, u.content(file.fid()).await), (b"newere".into(), b"newere".into()));
        for (user, file) in [(&u, file), (&w, theirs)] {
            user.release(file).await.unwrap();
        }
    });
}

/// A recovery that was aborted ended although a replay of an evicted client was still running: the OST took new requests, and
/// the replay changed the object after them.
#[test]
fn a_recovery_is_over_when_no_replay_of_an_evicted_client_runs() {
    witnessed(1, |c, u, w| async move {
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        c.replay_barrier(OSS).await;
        u.put(&file, 0, b"replayed").await.unwrap();
        let _ = c.rt().timeout(secs(1), u.fsync(&file, false)).await;
        c.crash(OSS, Crash::PowerCut);
        c.restart(OSS).await.unwrap();
        let slow = Fault::once(FaultAction::Delay(secs(60)));
        c.faults(OSS).unwrap().arm("ost.write.before_data", slow);
        c.rt().sleep(secs(20)).await;
        for _ in 0..2 {
            assert_eq!(c.set_param(OSS, "obdfilter.*.abort_recovery", "1"), 1);
        }
        let begun = c.rt().now();
        w.content(file.fid()).await;
        let waited = c.rt().now().since(begun);
        assert!(waited > secs(35), "the replay runs for 40 more seconds, and the OST serves others after {waited:?}");
        u.fsync(&file, false).await.unwrap_err();
        u.release(file).await.unwrap();
    });
}

/// 200: a client whose pings get lost for a minute
#[test]
fn a_few_lost_pings_evict_nobody() {
    witnessed(1, |c, u, w| async move {
        c.client_node(0).params().set("liveness", "ping-holding").unwrap();
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.remove(ROOT, "f").await.unwrap();
        for server in [MDS, OSS] {
            c.mishaps(server, Opcode::ObdPing, Mishap::LostRequest, 4);
        }
        for _ in 0..60 {
            w.statfs().await.unwrap();
            c.rt().sleep(secs(10)).await;
        }
        assert!(c.has_struck(MDS));
        u.put(&file, 0, b"still mine").await.unwrap();
        assert_eq!((u.get(&file, 0, 20).await, c.exports(MDS)), (b"still mine".to_vec(), 2));
        u.release(file).await.unwrap();
    });
}

/// `lctl set_param *.evict_client=nid:...`
#[test]
fn a_whole_node_is_thrown_out_by_its_nid() {
    witnessed(1, |c, u, w| async move {
        let beside = User(c.mount_beside(0).await.unwrap());
        let nid = c.client_node(0).lnet().nids()[0];
        assert_eq!(c.exports(MDS), 3);
        assert_eq!(c.set_param(MDS, "mdt.*.evict_client", "nid:192.0.2.1@tcp"), 0, "nobody is there");
        assert_eq!(c.set_param(MDS, "mdt.*.evict_client", &format!("nid:{nid}")), 1);
        c.rt().sleep(Duration::from_millis(1)).await;
        assert_eq!(c.exports(MDS), 1);
        for client in [&u, &beside] {
            client.statfs().await.unwrap();
        }
        u.dir(ROOT, "u").await.unwrap();
        beside.dir(ROOT, "beside").await.unwrap();
        assert_eq!(w.names(ROOT).await, ["beside", "u"]);
        beside.unmount().await;
    });
}
