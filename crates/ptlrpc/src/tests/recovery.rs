//! Connections through partitions, restarts, evictions and silence.

use super::*;
use nacre_base::fault::{Fault, FaultAction};

fn history(import: &Import) -> Vec<&'static str> {
    import.0.state.lock().machine.history().map(|(_, s)| s.name()).collect()
}

#[test]
fn a_partition_is_outlived() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        w.net.partition([SERVER], [CLIENT]);
        let later = {
            let import = import.clone();
            let answer = Arc::new(Mutex::new(None));
            let slot = answer.clone();
            (rt.spawn(async move { *slot.lock() = Some(apply(&import, 2).await) }), answer)
        };
        rt.sleep(400 * SECOND).await;
        assert_eq!((import.state().name(), *later.1.lock()), ("CONNECTING", None));
        w.net.heal();
        later.0.await;
        assert_eq!(*later.1.lock(), Some(Ok(2)));
        assert!(rt.now() < Time::from_secs(400 + 75), "reconnects within a minute of healing: {:?}", rt.now());
        assert_eq!(history(&import).last_chunk(), Some(&["CONNECTING", "RECOVER", "FULL"]));
        assert_eq!(w.server.served.exports().len(), 1, "the same export");
        assert_eq!(import.generation(), 0);
    });
}

#[test]
fn a_request_that_runs_when_the_connection_is_lost_runs_once_and_is_answered_over_the_new_one() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let call = {
            let import = import.clone();
            rt.spawn(async move { assert_eq!(wait_ms(&import, 100_000).await, Ok(100_000)) })
        };
        rt.sleep(SECOND).await;
        w.net.partition([SERVER], [CLIENT]);
        rt.sleep(30 * SECOND).await;
        w.net.heal();
        call.await;
        assert!(rt.now().since(Time::from_secs(100)) < 2 * SECOND, "{:?}", rt.now());
        assert_eq!(w.server.target.executed(), 2);
    });
}

#[test]
fn a_restarted_server_executes_what_was_not_done_and_nothing_twice() {
    for seed in 0..10 {
        run(seed, 3600, |rt| async move {
            let mut w = World::new(&rt);
            let import = w.import();
            apply(&import, 0).await.unwrap();
            // Half of the calls are executed, but their replies are lost with the server.
            let always = |name: &str| {
                let fault = Fault { action: FaultAction::Drop, skip: 0, times: u32::MAX };
                w.server.node.faults().arm(name, fault);
            };
            always(if seed % 2 == 0 { "rpc.MDS_REINT.drop_reply" } else { "rpc.MDS_REINT.drop_request" });
            let tasks: Vec<_> = (1..=20u64)
                .map(|n| {
                    let import = import.clone();
                    rt.spawn(async move { assert!(apply(&import, n).await.is_ok()) })
                })
                .collect();
            rt.sleep(SECOND).await;
            w.crash_server();
            rt.sleep(20 * SECOND).await;
            w.restart_server();
            for t in tasks {
                t.await;
            }
            let mut applied = w.applied();
            applied.sort_unstable();
            assert_eq!(applied, (0..=20).collect::<Vec<_>>());
            assert_eq!((import.generation(), import.state().name()), (0, "FULL"));
        });
    }
}

/// A client made change 1, and its server has restarted without the client noticing.
async fn restarted(rt: &Rt) -> (World, Arc<Import>) {
    let mut w = World::new(rt);
    let import = w.import();
    apply(&import, 1).await.unwrap();
    w.crash_server();
    w.restart_server();
    (w, import)
}

#[test]
fn a_restart_notice_saves_the_waiting() {
    run(1, 3600, |rt| async move {
        let (_w, import) = restarted(&rt).await;
        import.notify_restart(1);
        assert_eq!(import.state().name(), "FULL", "no news");
        import.notify_restart(2);
        rt.sleep(SECOND).await;
        assert_eq!((import.state().name(), import.connect_data().instance), ("FULL", 2));
    });
}

#[test]
fn a_connect_that_is_given_up_at_a_restart_notice_does_not_hold_up_the_next_one() {
    run(1, 3600, |rt| async move {
        let (w, import) = restarted(&rt).await;
        *w.disk.connect_takes.lock() = SECOND;
        let caller = import.clone();
        let call = rt.spawn(async move { assert_eq!(apply(&caller, 2).await, Ok(2)) });
        let before = rt.now();
        rt.sleep(SECOND / 2).await;
        assert_eq!(import.state().name(), "CONNECTING");
        import.notify_restart(2);
        call.await;
        let took = rt.now().since(before);
        assert!(took > SECOND * 2 && took < SECOND * 2 + SECOND / 10, "the server is at each for a second: {took:?}");
        assert_eq!((w.server.served.exports().len(), import.generation()), (1, 0));
    });
}

#[test]
fn without_a_notice_the_new_server_itself_tells() {
    run(1, 3600, |rt| async move {
        let (_w, import) = restarted(&rt).await;
        let before = rt.now();
        assert_eq!(apply(&import, 2).await, Ok(2));
        assert!(rt.now().since(before) < SECOND, "ENOTCONN, connect, resend");
    });
}

#[test]
fn a_target_that_moves_is_found() {
    run(1, 3600, |rt| async move {
        let mut w = World::new(&rt);
        let import = w.client.import(ImportConfig { nids: [Nid::sim(SERVER), Nid::sim(9)].into(), ..config(1) });
        apply(&import, 1).await.unwrap();
        w.crash_server();
        w.server = Server::start(&rt, &w.net, 9, &w.disk);
        assert_eq!(apply(&import, 2).await, Ok(2));
        w.crash_server();
        w.net.crash(9);
        w.server.node.rt().kill();
        w.server = Server::start(&rt, &w.net, 10, &w.disk);
        import.set_nids(vec![Nid::sim(10)]);
        assert_eq!(apply(&import, 3).await, Ok(3));
        assert_eq!(w.applied(), [1, 2, 3]);
    });
}

#[test]
fn what_was_asked_of_a_target_that_another_node_has_taken_is_asked_there() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.client.import(ImportConfig { nids: [Nid::sim(SERVER), Nid::sim(9)].into(), ..config(1) });
        apply(&import, 1).await.unwrap();
        let begun = rt.now();
        let another_takes_it = async {
            rt.sleep(SECOND).await;
            let other = Server::start(&rt, &w.net, 9, &w.disk);
            w.server.target.taken.store(true, Ordering::Relaxed);
            assert_eq!(apply(&import, 2).await, Ok(2), "told at once, and without an error");
            other
        };
        let (under_way, other) = tokio::join!(wait_ms(&import, 5000), another_takes_it);
        assert_eq!((under_way, rt.now().since(begun).as_secs()), (Ok(5000), 6), "asked again there");
        assert_eq!((w.server.served.exports().len(), other.served.exports().len()), (0, 1));
        // A new client finds it there, too.
        let late = w.client.import(ImportConfig { nids: [Nid::sim(SERVER), Nid::sim(9)].into(), ..config(2) });
        assert_eq!(apply(&late, 3).await, Ok(3));
        assert_eq!(w.applied(), [1, 2, 3]);
    });
}

#[test]
fn a_place_without_the_target_is_passed_over() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let _elsewhere = node(&rt, &w.net, 9);
        let import = w.client.import(ImportConfig { nids: [Nid::sim(9), Nid::sim(SERVER)].into(), ..config(1) });
        assert_eq!(apply(&import, 1).await, Ok(1));
        assert!(rt.now() < Time::from_secs(1), "ENODEV is told at once");
    });
}

#[test]
fn a_slow_server_is_waited_for_without_a_timeout() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        let calls: Vec<_> = (0..50)
            .map(|_| {
                let import = import.clone();
                rt.spawn(async move { assert_eq!(wait_ms(&import, 300_000).await, Ok(300_000)) })
            })
            .collect();
        for c in calls {
            c.await;
        }
        assert_eq!((w.server.target.executed(), w.server.target.running_max()), (50, 50));
        assert_eq!(history(&import), ["NEW", "CONNECTING", "FULL"]);
        assert_eq!(import.0.state.lock().timeouts, 0);
        // The estimate has learnt: the next request may take long without early replies.
        let text = w.params.get("mdc.*.timeouts").unwrap()[0].1.clone();
        assert!(text.contains("portal 12  : cur 300"), "{text}");
    });
}

#[test]
fn an_evicted_client_fails_what_was_in_flight_and_starts_anew() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let evictions = Arc::new(AtomicUsize::new(0));
        let count = evictions.clone();
        import.on_evicted(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let call = {
            let import = import.clone();
            rt.spawn(async move { assert_eq!(enqueue(&import).await, Err(RpcError::Evicted)) })
        };
        rt.sleep(SECOND).await;
        assert!(w.server.served.evict(Uuid([1; 16])).await);
        assert!(!w.server.served.evict(Uuid([1; 16])).await);
        assert_eq!(w.server.target.disconnects.load(Ordering::Relaxed), 1);
        // A request that waits at the server fails at once.
        call.await;
        assert_eq!(RpcError::Evicted.errno(), Errno::EIO);
        assert_eq!((evictions.load(Ordering::Relaxed), import.generation()), (1, 1));
        assert_eq!(apply(&import, 2).await, Ok(2));
        assert!(history(&import).contains(&"EVICTED"));
        // An idle client finds out by its next request, which fails.
        assert!(w.server.served.evict(Uuid([1; 16])).await);
        assert_eq!(apply(&import, 3).await, Err(RpcError::Evicted));
        assert_eq!(apply(&import, 4).await, Ok(3));
        assert_eq!((w.applied(), import.generation()), (vec![1, 2, 4], 2));
    });
}

/// Whoever evicted an export just before it came into the tables could not take it out: it stayed there closed, and the
/// next connect of its client found its place taken. Found by cutting the power of real servers, where threads run at once.
#[test]
fn an_export_that_was_evicted_before_it_is_in_the_tables_does_not_stay_there() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let (node, export) = (&w.server.node.0, w.server.served.exports()[0].clone());
        node.evict(export.clone()).await;
        node.add_export(&export.entry, &export);
        assert_eq!(w.server.served.exports().len(), 0);
        assert!(apply(&import, 2).await.is_err(), "the client hears of its eviction");
        assert_eq!(apply(&import, 3).await, Ok(2));
    });
}

/// The target forgot the client while it handled the reconnect, which then gave the client new state there (a grant) and
/// named the dead export in its reply.
#[test]
fn a_client_that_is_evicted_while_it_reconnects_gets_a_new_export() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        *w.disk.connect_takes.lock() = 2 * SECOND;
        import.notify_restart(99);
        rt.sleep(SECOND).await;
        assert!(w.server.served.evict(Uuid([1; 16])).await);
        assert_eq!(apply(&import, 2).await, Ok(2));
        let exports: Vec<_> = w.server.served.exports().iter().map(|e| e.cookie).collect();
        let clients: Vec<_> = w.server.target.clients.lock().iter().copied().collect();
        assert_eq!((exports.len(), &exports, import.generation()), (1, &clients, 1));
    });
}

async fn enqueue(import: &Import) -> Result<u64, RpcError> {
    Ok(import.call::<u64>(Opcode::LdlmEnqueue, &0u64, CallOptions::default()).await?.body)
}

#[test]
fn a_dead_client_is_evicted_and_a_silent_living_one_is_not() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let speaker = w.client.import(config(1));
        let silent = {
            let node = node(&rt, &w.net, 3);
            (node.import(config(2)), node)
        };
        let dead = {
            let node = node(&rt, &w.net, 4);
            (node.import(config(3)), node)
        };
        apply(&silent.0, 1).await.unwrap();
        apply(&dead.0, 2).await.unwrap();
        dead.1.rt().kill();
        w.net.crash(4);
        for _ in 0..40 {
            apply(&speaker, 3).await.unwrap();
            rt.sleep(10 * SECOND).await;
        }
        let names: Vec<_> = w.server.served.exports().iter().map(|e| e.client_name().to_owned()).collect();
        assert!(names.contains(&"client2".into()) && !names.contains(&"client3".into()), "{names:?}");
        assert_eq!(w.server.target.disconnects.load(Ordering::Relaxed), 1);
        apply(&silent.0, 4).await.unwrap();
        assert_eq!(silent.0.generation(), 0);
    });
}

#[test]
fn a_client_that_died_is_evicted_although_another_process_has_its_nid() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let speaker = w.import();
        let first_life = node(&rt, &w.net, 3);
        let import = first_life.import(config(2));
        apply(&import, 1).await.unwrap();
        first_life.rt().kill();
        w.net.crash(3);
        let second_life = node(&rt, &w.net, 3);
        let import = second_life.import(config(3));
        for _ in 0..30 {
            apply(&speaker, 2).await.unwrap();
            apply(&import, 3).await.unwrap();
            rt.sleep(10 * SECOND).await;
        }
        let names: Vec<_> = w.server.served.exports().iter().map(|e| e.client_name().to_owned()).collect();
        assert!(names.len() == 2 && !names.contains(&"client2".into()), "{names:?}");
    });
}

#[test]
fn nobody_is_evicted_when_the_server_is_cut_off() {
    run(1, 7200, |rt| async move {
        let w = World::new(&rt);
        let second = node(&rt, &w.net, 3);
        let imports = [w.import(), second.import(config(2))];
        for import in &imports {
            apply(import, 1).await.unwrap();
        }
        w.net.partition([SERVER], [CLIENT, 3]);
        rt.sleep(1000 * SECOND).await;
        w.net.heal();
        for _ in 0..30 {
            apply(&imports[0], 2).await.unwrap();
            rt.sleep(10 * SECOND).await;
        }
        apply(&imports[1], 3).await.unwrap();
        assert_eq!(imports.map(|i| i.generation()), [0, 0]);
    });
}

#[test]
fn keep_alive_pings_an_idle_import_only() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let export = w.server.served.exports()[0].clone();
        rt.sleep(100 * SECOND).await;
        assert!(rt.now().since(export.last_heard()) >= 100 * SECOND, "no pings by themselves");
        import.set_keep_alive(true);
        rt.sleep(100 * SECOND).await;
        assert!(rt.now().since(export.last_heard()) <= 26 * SECOND);
        // The pings also find out that the server is dead.
        w.crash_server();
        rt.sleep(60 * SECOND).await;
        assert_ne!(import.state().name(), "FULL");
    });
}

#[test]
fn one_ping_speaks_for_all_imports_at_a_server() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        w.client.list_in(&w.params);
        let other = "test-MDT0001";
        let target = Arc::new(TestTarget::new(w.server.node.rt(), &Arc::default()));
        let served = w.server.node.serve(other, target);
        let imports = [w.import(), w.client.import(ImportConfig { target: other.into(), ..config(1) })];
        for import in &imports {
            apply(import, 1).await.unwrap();
        }
        let set = |value: &str| assert_eq!(w.params.set("liveness", value).map(|names| names.len()), Ok(1));
        for (value, messages) in [("ping", 8), ("ping-per-server", 4), ("ping-holding", 0)] {
            set(value);
            let before = w.client.lnet().stats().send_count;
            rt.sleep(110 * SECOND).await;
            assert_eq!(w.client.lnet().stats().send_count - before, messages, "{value}");
            let heard = [w.server.served.exports(), served.exports()].map(|exports| exports[0].last_heard());
            assert_eq!(heard.iter().all(|at| rt.now().since(*at) < 26 * SECOND), messages > 0, "{value}");
        }
        set("ping");
        let suppress = |value: &str| w.params.set("suppress_pings", value).map(drop);
        suppress("1").unwrap();
        let before = w.client.lnet().stats().send_count;
        rt.sleep(110 * SECOND).await;
        assert_eq!(w.client.lnet().stats().send_count, before, "suppressed");
        suppress("0").unwrap();
        rt.sleep(30 * SECOND).await;
        assert_eq!(w.client.lnet().stats().send_count - before, 2, "they begin again");
        assert!(suppress("2").is_err() && w.params.set("ping_interval", "76").is_err());
        set("ping-per-server");
        w.crash_server();
        rt.sleep(60 * SECOND).await;
        assert!(imports.iter().all(|import| import.state().name() != "FULL"), "both hear that the server is dead");
    });
}

/// Otherwise its call would wait for the request's timeout, with whatever locks it holds.
#[test]
fn an_idle_import_hears_from_its_next_request_that_the_server_is_dead() {
    run(1, 3600, |rt| async move {
        let mut w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        w.crash_server();
        w.net.refuse(SERVER);
        let call = {
            let import = import.clone();
            rt.spawn(async move { assert_eq!(apply(&import, 2).await, Ok(2)) })
        };
        rt.sleep(Duration::from_millis(100)).await;
        assert!(import.is_unreachable(), "the state is {}", import.state().name());
        w.restart_server();
        import.notify_restart(2);
        call.await;
        assert_eq!(w.applied(), [1, 2]);
    });
}

#[test]
fn disconnect_tells_the_server_and_closes() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let waiting = {
            let import = import.clone();
            rt.spawn(async move { assert!(enqueue(&import).await.is_err()) })
        };
        rt.sleep(SECOND).await;
        import.disconnect().await;
        waiting.await;
        assert_eq!(w.server.target.disconnects.load(Ordering::Relaxed), 1);
        assert!(w.server.served.exports().is_empty());
        assert_eq!(apply(&import, 2).await, Err(RpcError::Closed));
        assert_eq!(import.state().name(), "CLOSED");
        // An import that never connected has nothing to say.
        let other = w.client.import(config(2));
        other.disconnect().await;
        // An import whose server is gone does not wait for it for long.
        let third = w.client.import(config(3));
        apply(&third, 3).await.unwrap();
        w.crash_server();
        let before = rt.now();
        third.disconnect().await;
        assert!(rt.now().since(before) <= 6 * SECOND);
    });
}

#[test]
fn a_client_that_lost_its_memory_gets_a_fresh_export() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let before = w.server.served.exports()[0].cookie;
        drop(import);
        let import = w.import();
        apply(&import, 2).await.unwrap();
        let exports = w.server.served.exports();
        assert!(exports.len() == 1 && exports[0].cookie != before);
        assert_eq!(w.server.target.disconnects.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_stopped_target_is_waited_for_and_keeps_its_clients_records() {
    run(1, 3600, |rt| async move {
        let mut w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        w.server.served.stop().await;
        assert_eq!(w.server.target.disconnects.load(Ordering::Relaxed), 0);
        let call = {
            let import = import.clone();
            rt.spawn(async move { assert_eq!(apply(&import, 2).await, Ok(2)) })
        };
        rt.sleep(30 * SECOND).await;
        assert_eq!(w.applied(), [1]);
        let target = Arc::new(TestTarget::new(w.server.node.rt(), &w.disk));
        w.server.served = w.server.node.serve(TARGET, target);
        call.await;
        assert_eq!(import.generation(), 0);
    });
}

#[test]
fn a_feature_that_was_not_asked_for_breaks_the_negotiation() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        w.server.target.pushy_flags.store(connect_flags::GRANT, Ordering::Relaxed);
        assert_eq!(apply(&w.import(), 1).await, Err(RpcError::Refused(Errno::EPROTO)));
        assert_eq!(w.applied(), []);
        let _ = rt;
    });
}

#[test]
fn late_duplicates_of_connects_and_requests_do_no_harm() {
    // Reordered by up to a minute, every message is also late for its own connection.
    let link = nacre_lnet::LinkOptions {
        reorder_ppm: 300_000,
        reorder_delay: 60 * SECOND,
        ..nacre_lnet::LinkOptions::default()
    };
    for seed in 0..10 {
        run(seed, 100_000, |rt| async move {
            let w = World::with(&rt, SimNetOptions { link, seed, ..SimNetOptions::default() });
            let import = w.import();
            for n in 0..60 {
                assert_eq!(apply(&import, n).await, Ok(n + 1));
            }
            assert_eq!(import.generation(), 0, "never evicted: {:?}", history(&import));
            assert_eq!(w.applied(), (0..60).collect::<Vec<_>>());
        });
    }
}
