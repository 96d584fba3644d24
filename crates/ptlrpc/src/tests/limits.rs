//! Limits on the work done at once, and on waiting.

use super::*;
use crate::Controller;
use nacre_lnet::CreditsReturn;
use nacre_rt::Task;

fn many(rt: &Rt, count: u64, call: impl Fn(u64) -> Task) -> Vec<Task> {
    let _ = rt;
    (0..count).map(call).collect()
}

async fn all(tasks: Vec<Task>) {
    for t in tasks {
        t.await;
    }
}

fn slow_modify(rt: &Rt, import: &Arc<Import>) -> Task {
    let import = import.clone();
    rt.spawn(async move {
        let options = CallOptions { modify: true, ..CallOptions::default() };
        import.call::<u64>(Opcode::MdsGetattr, &10u64, options).await.unwrap();
    })
}

fn write_task(rt: &Rt, import: &Arc<Import>, high_priority: bool) -> Task {
    let import = import.clone();
    rt.spawn(async move {
        let bulk = Bulk::Send(pattern(100_000));
        let options = CallOptions { lane: Lane::Io, bulk, high_priority, ..CallOptions::default() };
        import.call::<u64>(Opcode::OstWrite, &0u64, options).await.unwrap();
    })
}

#[test]
fn modify_slots_bound_what_is_in_flight() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        all(many(&rt, 100, |_| slow_modify(&rt, &import))).await;
        assert_eq!((w.server.target.executed(), w.server.target.running_max()), (100, 7));
    });
}

#[test]
fn rpcs_in_flight_are_bounded_by_the_parameter() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        w.server.served.congestion_control().set_controller(Controller::Fixed(0));
        let import = w.import();
        all(many(&rt, 100, |_| write_task(&rt, &import, false))).await;
        assert_eq!((w.server.target.executed(), w.server.target.running_max()), (100, 8));
        let params = &w.params;
        assert!(params.set("mdc.*.max_rpcs_in_flight", "513").is_err());
        let shown = || params.get("mdc.*.max_rpcs_in_flight").unwrap().remove(0).1;
        params.set("mdc.*.max_rpcs_in_flight", "12").unwrap();
        assert_eq!(shown(), "12");
        params.set("mdc.*.max_rpcs_in_flight", "0").unwrap();
        all(many(&rt, 100, |_| write_task(&rt, &import, false))).await;
        assert_eq!((shown().as_str(), w.server.target.running_max()), ("8", 8), "the limit of 12 is taken away");
        params.set("mdc.*.max_rpcs_in_flight", "20").unwrap();
        all(many(&rt, 100, |_| write_task(&rt, &import, false))).await;
        assert_eq!(w.server.target.running_max(), 20);
    });
}

#[test]
fn high_priority_is_exempt_from_the_window() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        w.params.set("mdc.*.max_rpcs_in_flight", "1").unwrap();
        all(many(&rt, 20, |_| write_task(&rt, &import, true))).await;
        assert_eq!(w.server.target.running_max(), 20);
    });
}

/// A server takes only as many requests as it has buffers. The others wait in the network and keep their credits; what others
/// wait for goes on.
#[test]
fn a_request_without_a_buffer_waits_with_its_credit() {
    run(1, 60, |rt| async move {
        let options = SimNetOptions { credits_return: CreditsReturn::Taken, ..SimNetOptions::default() };
        let w = World::with(&rt, options);
        w.client.lnet().set_peer_credits(w.client.lnet().nids()[0].network, 32);
        let (import, server) = (w.import(), Params::new());
        w.server.node.list_in(&server);
        server.set("req_buffers_max", "4").unwrap();
        w.params.set("mdc.*.max_rpcs_in_flight", "100").unwrap();
        let slow = |_| {
            let import = import.clone();
            rt.spawn(async move { drop(import.call::<u64>(Opcode::MdsGetattr, &100u64, CallOptions::default()).await) })
        };
        let tasks = many(&rt, 40, slow);
        rt.sleep(Duration::from_millis(50)).await;
        assert_eq!(w.server.target.running_max(), 4);
        let peer = w.client.lnet().peers().remove(0);
        let (out, max) = (i64::from(peer.max_ni_tx_credits) - peer.available_tx_credits, peer.max_ni_tx_credits);
        assert!(out >= 36 && max == 32, "{out} of {max} are out or waited for, of 40 requests");
        // As many as the credits that requests may use: half of all, and their reserve.
        let used = server.values("req_buffers")[0].1.field("request").map(ToString::to_string);
        assert!(used.as_ref().is_some_and(|used| used.contains("waiting: 20")), "{used:?}");
        // Its data is wanted by others: it passes all of them.
        let before = rt.now();
        write_task(&rt, &import, true).await;
        assert!(rt.now() - before < Duration::from_millis(10), "{:?}", rt.now() - before);
        all(tasks).await;
        assert_eq!((w.server.target.executed(), w.server.target.running_max()), (41, 5));
    });
}

#[test]
fn the_servers_window_is_obeyed() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        w.server.served.congestion_control().set_controller(Controller::Fixed(3));
        write(&import, pattern(10)).await.unwrap();
        all(many(&rt, 50, |_| write_task(&rt, &import, false))).await;
        assert_eq!(w.server.target.running_max(), 3);
        w.server.served.congestion_control().set_controller(Controller::Fixed(20));
        write(&import, pattern(10)).await.unwrap();
        all(many(&rt, 50, |_| write_task(&rt, &import, false))).await;
        assert_eq!(w.server.target.running_max(), 20, "more than clients take where it is left to them");
        w.params.set("mdc.*.max_rpcs_in_flight", "4").unwrap();
        w.server.target.running_max.store(0, Ordering::Relaxed);
        all(many(&rt, 50, |_| write_task(&rt, &import, false))).await;
        assert_eq!(w.server.target.running_max(), 4, "an administrator of the client has the last word");
    });
}

#[test]
fn a_lane_runs_so_many_and_queues_the_rest() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        let tasks = many(&rt, 600, |_| {
            let import = import.clone();
            rt.spawn(async move { assert_eq!(wait_ms(&import, 10).await, Ok(10)) })
        });
        rt.sleep(Duration::from_millis(5)).await;
        let counts = w.server.node.lane_counts(Lane::Request);
        assert_eq!((counts.running, counts.queued), (256, 344));
        all(tasks).await;
        assert_eq!((w.server.target.executed(), w.server.target.running_max()), (600, 256));
        assert_eq!(w.server.node.lane_counts(Lane::Request), crate::LaneCounts::default());
    });
}

/// A client that marked all its requests got slots beyond the limit, and went first.
#[test]
fn a_mark_of_high_priority_is_believed_only_where_others_may_wait() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        let tasks = many(&rt, 600, |_| {
            let import = import.clone();
            let options = CallOptions { high_priority: true, ..CallOptions::default() };
            rt.spawn(async move { drop(import.call::<u64>(Opcode::MdsGetattr, &10u64, options).await.unwrap()) })
        });
        all(tasks).await;
        assert_eq!((w.server.target.executed(), w.server.target.running_max()), (600, 256));
    });
}

/// One host could have all exports of a server.
#[test]
fn a_host_has_only_so_many_exports() {
    run(1, 600, |rt| async move {
        let w = World::new(&rt);
        let places = &w.server.node.0.export_places;
        let mut taken: Vec<_> =
            (0..crate::connections::HOST_EXPORTS_MAX).map(|_| places.take(Nid::sim(CLIENT))).collect();
        let import = w.import();
        let refused = {
            let import = import.clone();
            rt.spawn(async move { assert_eq!(apply(&import, 1).await, Ok(2)) })
        };
        rt.sleep(30 * SECOND).await;
        assert!(w.applied().is_empty());
        let other = node(&rt, &w.net, 3).import(config(3));
        assert_eq!(apply(&other, 2).await, Ok(1));
        taken.pop();
        refused.await;
        drop(import);
    });
}

/// Calls a target, in the I/O lane, with a request that takes `ms`.
fn io_wait(rt: &Rt, import: &Arc<Import>, ms: u64) -> Task {
    let import = import.clone();
    rt.spawn(async move {
        let options = CallOptions { lane: Lane::Io, ..CallOptions::default() };
        import.call::<u64>(Opcode::MdsGetattr, &ms, options).await.unwrap();
    })
}

#[test]
fn a_slow_target_takes_no_slot_from_another_of_its_node() {
    run(1, 600, |rt| async move {
        let w = World::new(&rt);
        let other = Arc::new(TestTarget::new(w.server.node.rt(), &Arc::new(Disk::default())));
        let _served = w.server.node.serve("test-OST0001", other);
        let (slow, quick) = (w.import(), w.client.import(ImportConfig { target: "test-OST0001".into(), ..config(1) }));
        let busy: Vec<_> = (3..11)
            .map(|n| {
                let node = node(&rt, &w.net, n);
                let import = node.import(config(n as u8));
                (0..8).map(|_| io_wait(&rt, &import, 30_000)).collect::<Vec<_>>()
            })
            .collect();
        wait_ms(&slow, 1000).await.unwrap();
        assert_eq!(w.server.node.lane_counts(Lane::Io).running, 64);
        let begun = rt.now();
        io_wait(&rt, &quick, 1).await;
        assert!(rt.now().since(begun) < SECOND, "its lane is empty: {:?}", rt.now().since(begun));
        all(busy.into_iter().flatten().collect()).await;
    });
}

/// 64 clients send writes and never serve their data, like clients that are cut off or malicious.
#[test]
fn clients_that_never_serve_their_bulk_do_not_hold_the_server() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let honest = w.import();
        write(&honest, pattern(100_000)).await.unwrap();
        for n in 3..67 {
            let hostile = node(&rt, &w.net, n);
            let import = hostile.import(config(n as u8));
            wait_ms(&import, 0).await.unwrap();
            // The hostile client drops everything that the server sends to it.
            hostile
                .faults()
                .arm("lnet.receive", nacre_base::fault::Fault::always(nacre_base::fault::FaultAction::Drop));
            for _ in 0..20 {
                let import = import.clone();
                drop(rt.spawn(async move {
                    let (bulk, high_priority) = (Bulk::Send(pattern(100_000)), true); // No window holds these back.
                    let options = CallOptions { lane: Lane::Io, bulk, high_priority, ..CallOptions::default() };
                    let _ = import.call::<u64>(Opcode::OstWrite, &0u64, options).await;
                }));
            }
        }
        let mut longest = Duration::ZERO;
        for _ in 0..200 {
            let begun = rt.now();
            write(&honest, pattern(100_000)).await.unwrap();
            longest = longest.max(rt.now().since(begun));
            rt.sleep(Duration::from_millis(300)).await;
        }
        assert!(longest < 3 * SECOND, "an honest write took {longest:?}");
    });
}

#[test]
fn a_client_with_a_long_queue_does_not_delay_another() {
    run(1, 600, |rt| async move {
        let w = World::new(&rt);
        let quick = w.import();
        wait_ms(&quick, 0).await.unwrap();
        let greedy = node(&rt, &w.net, 3).import(config(3));
        let tasks = many(&rt, 4000, |_| {
            let greedy = greedy.clone();
            rt.spawn(async move { wait_ms(&greedy, 100).await.map(drop).unwrap() })
        });
        rt.sleep(Duration::from_millis(50)).await;
        assert!(w.server.node.lane_counts(Lane::Request).queued > 3000);
        let begun = rt.now();
        wait_ms(&quick, 1).await.unwrap();
        assert!(rt.now().since(begun) < Duration::from_millis(300), "its turn is next: {:?}", rt.now().since(begun));
        all(tasks).await;
    });
}

#[test]
fn those_who_wait_for_others_do_not_keep_the_lane() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        let waiters = many(&rt, 1000, |_| {
            let import = import.clone();
            rt.spawn(async move {
                import.call::<u64>(Opcode::LdlmEnqueue, &0u64, CallOptions::default()).await.unwrap();
            })
        });
        rt.sleep(60 * SECOND).await;
        assert_eq!(w.server.target.running_max(), 1000);
        // The request that they wait for comes over the same lane.
        import.call::<u64>(Opcode::LdlmCancel, &0u64, CallOptions::default()).await.unwrap();
        all(waiters).await;
        let text = w.params.get("mdc.*.timeouts").unwrap()[0].1.clone();
        assert!(text.contains("portal 12  : cur   5"), "waiting for others is not the service's time: {text}");
    });
}

#[test]
fn a_request_whose_client_is_gone_is_not_executed() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        let busy = many(&rt, 64, |_| {
            let import = import.clone();
            rt.spawn(async move {
                let options = CallOptions { lane: Lane::Callback, ..CallOptions::default() };
                import.call::<u64>(Opcode::MdsGetattr, &1_000_000u64, options).await.unwrap();
            })
        });
        rt.sleep(SECOND).await;
        let other = node(&rt, &w.net, 3);
        let late = other.import(config(2));
        let other_rt = other.rt().clone();
        drop(other_rt.spawn(async move {
            let options = CallOptions { lane: Lane::Callback, ..CallOptions::default() };
            let _ = late.call::<u64>(Opcode::MdsReint, &5u64, options).await;
        }));
        rt.sleep(SECOND).await;
        assert_eq!(w.server.node.lane_counts(Lane::Callback).queued, 1);
        other.rt().kill();
        w.net.crash(3);
        all(busy).await;
        assert_eq!(w.applied(), [], "late, or its export is gone");
        assert_eq!(w.server.node.lane_counts(Lane::Callback).running, 0);
    });
}

#[test]
fn who_does_not_want_to_wait_is_told_so() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        let call = |ms: u64, options: CallOptions| {
            let import = import.clone();
            async move { import.call::<u64>(Opcode::MdsGetattr, &ms, options).await.map(|r| r.body) }
        };
        let in_time = CallOptions { deadline: Some(2 * SECOND), ..CallOptions::default() };
        assert_eq!(call(1000, in_time.clone()).await, Ok(1000));
        let before = rt.now();
        assert_eq!(call(5000, in_time.clone()).await, Err(RpcError::TimedOut));
        assert_eq!(rt.now().since(before), 2 * SECOND);
        w.net.partition([SERVER], [CLIENT]);
        let no_delay = CallOptions { no_delay: true, ..CallOptions::default() };
        assert_eq!(call(1, no_delay.clone()).await, Err(RpcError::Unreachable));
        let before = rt.now();
        assert_eq!(call(1, no_delay.clone()).await, Err(RpcError::Unreachable));
        assert!(rt.now().since(before) < 6 * SECOND, "one attempt");
        let before = rt.now();
        assert_eq!(call(1, no_delay.clone()).await, Err(RpcError::Unreachable));
        assert_eq!(rt.now(), before, "known by now");
        let nowhere = w.client.import(ImportConfig { nids: [].into(), ..config(2) });
        let answer = nowhere.call::<u64>(Opcode::MdsGetattr, &1u64, no_delay).await.map(|r| r.body);
        assert_eq!(answer, Err(RpcError::Unreachable));
        assert_eq!(call(1, in_time).await, Err(RpcError::TimedOut));
    });
}

/// A mount that called nothing but `statfs`, once while the target was away, used to see the target as away for ever.
#[test]
fn a_target_that_nobody_tries_is_tried_by_who_does_not_want_to_wait() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        let call = || {
            let options = CallOptions { no_delay: true, ..CallOptions::default() };
            let import = import.clone();
            async move { import.call::<u64>(Opcode::MdsGetattr, &1u64, options).await.map(|r| r.body) }
        };
        w.net.partition([SERVER], [CLIENT]);
        assert_eq!(call().await, Err(RpcError::Unreachable));
        // Without a call, and without state at the server, nothing connects.
        rt.sleep(60 * SECOND).await;
        w.net.heal();
        assert_eq!(call().await, Ok(1));
    });
}

#[test]
fn an_abandoned_change_is_finished_and_its_slot_comes_back() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 0).await.unwrap();
        for n in 1..=30 {
            let abandoned = rt.timeout(Duration::from_micros(5), apply(&import, n)).await;
            assert!(abandoned.is_err());
        }
        // A change that was never sent, because the slots are taken, is not executed.
        rt.sleep(SECOND).await;
        let applied = w.applied();
        assert!(applied.len() >= 8, "{applied:?}");
        all(many(&rt, 7, |_| slow_modify(&rt, &import))).await;
        assert!(import.0.state.lock().calls.is_empty());
    });
}

#[test]
fn nothing_is_left_when_all_is_done() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        read(&import, 1 << 20).await.unwrap();
        let abandoned = rt.timeout(Duration::from_micros(5), read(&import, 1 << 20)).await;
        assert!(abandoned.is_err());
        rt.sleep(700 * SECOND).await;
        assert!(import.0.state.lock().calls.is_empty());
        assert_eq!(w.server.served.exports()[0].requests_running(), 0);
        let shared = Arc::downgrade(&import.0);
        drop(import);
        assert!(w.params.get("mdc.*.*").is_err());
        rt.sleep(SECOND).await;
        assert_eq!(shared.strong_count(), 0);
        w.client.shutdown().await;
    });
}

#[test]
fn parameters_read_as_in_lustre() {
    run(1, 3600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let get = |name: &str| w.params.get(name).unwrap()[0].1.clone();
        let state = get("mdc.*.state");
        assert!(state.starts_with("current_state: FULL\nstate_history:\n - [ 1767225600, NEW ]\n"), "{state}");
        let text = get("mdc.*.import");
        for want in [
            "import:\n    name: test-MDT0000-mdc-1\n",
            "    target: test-MDT0000\n",
            "    state: FULL\n",
            "multi_mod_rpcs",
            "current_connection: 1@sim\n",
            "inflight: 0\n",
        ] {
            assert!(text.contains(want), "{want} in {text}");
        }
        assert!(get("mdc.*.stats").contains("mds_reint                 1 samples [usecs]"));
        let served = w.server.node.service_operations("test", &[Opcode::MdsReint]);
        assert_eq!(served.rows.iter().map(|row| &*row.name).collect::<Vec<_>>(), ["req_waittime", "mds_reint"]);
        assert_eq!(w.server.node.service_stats(Opcode::MdsReint).samples, 1);
        let _ = rt;
    });
}
