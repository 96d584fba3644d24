//! Requests, replies and bulk over a network that loses, doubles, delays and damages.

use super::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_lnet::LinkOptions;

fn drop_once(name: &str) -> impl Fn(&World) {
    let name = name.to_owned();
    move |w: &World| w.server.node.faults().arm(&name, Fault::once(FaultAction::Drop))
}

#[test]
fn a_call_connects_by_itself_and_takes_two_round_trips() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        assert_eq!(import.state().name(), "NEW");
        assert_eq!(apply(&import, 5).await, Ok(1));
        assert_eq!(rt.now(), Time(4 * 10_000), "connect and request, 10 us each way");
        assert_eq!((import.state().name(), w.applied()), ("FULL", vec![5]));
        assert_eq!(import.connect_data().max_modify_rpcs, 7);
    });
}

#[test]
fn a_lost_request_is_sent_again_after_its_deadline() {
    for lose in ["rpc.request.drop", "rpc.MDS_REINT.drop_request"] {
        run(1, 60, |rt| async move {
            let w = World::new(&rt);
            let import = w.import();
            apply(&import, 1).await.unwrap();
            drop_once(lose)(&w);
            assert_eq!(apply(&import, 2).await, Ok(2));
            assert_eq!(w.applied(), [1, 2]);
            assert!((11..13).contains(&rt.now().since(Time::ZERO).as_secs()), "{:?}", rt.now());
        });
    }
}

#[test]
fn a_lost_reply_does_not_execute_twice() {
    for lose in ["rpc.reply.drop", "rpc.MDS_REINT.drop_reply"] {
        run(1, 60, |rt| async move {
            let w = World::new(&rt);
            let import = w.import();
            apply(&import, 1).await.unwrap();
            drop_once(lose)(&w);
            assert_eq!(apply(&import, 2).await, Ok(2), "the saved reply");
            assert_eq!((w.applied(), w.server.target.executed()), (vec![1, 2], 2));
        });
    }
}

#[test]
fn a_lost_connect_or_its_reply_is_tried_again() {
    for lose in ["rpc.MDS_CONNECT.drop_request", "rpc.MDS_CONNECT.drop_reply"] {
        run(1, 60, |rt| async move {
            let w = World::new(&rt);
            drop_once(lose)(&w);
            assert_eq!(apply(&w.import(), 1).await, Ok(1));
            assert_eq!(w.server.served.exports().len(), 1);
            assert_eq!(w.server.target.executed(), 1);
        });
    }
}

#[test]
fn a_delayed_request_is_waited_for() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        w.server.node.faults().arm("rpc.request.delay", Fault::once(FaultAction::Delay(3 * SECOND)));
        assert_eq!(apply(&import, 2).await, Ok(2));
        assert_eq!(rt.now().since(Time::ZERO).as_secs(), 3);
    });
}

/// Many calls over a network that loses one message in twenty and reorders: every change happens exactly once, in
/// whatever order, and every call gets its own answer.
fn over_a_bad_network(seed: u64) -> u64 {
    let link = LinkOptions {
        jitter: Duration::from_millis(5),
        loss_ppm: 50_000,
        reorder_ppm: 100_000,
        reorder_delay: 20 * SECOND,
        ..LinkOptions::default()
    };
    let scenario = move |rt: Rt| async move {
        let w = World::with(&rt, SimNetOptions { link, seed, ..SimNetOptions::default() });
        let import = w.import();
        let answers = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..120u64)
            .map(|n| {
                let (import, answers) = (import.clone(), answers.clone());
                rt.spawn(async move {
                    let transno = apply(&import, n).await.unwrap();
                    answers.lock().push((n, transno));
                })
            })
            .collect();
        for t in tasks {
            t.await;
        }
        let applied = w.applied();
        assert_eq!(applied.len(), 120, "nothing twice");
        for (n, transno) in answers.lock().iter() {
            assert_eq!(applied[*transno as usize - 1], *n);
        }
    };
    run(seed, 100_000, scenario).1
}

#[test]
fn exactly_once_over_a_bad_network() {
    let traces: Vec<_> = (0..12).map(over_a_bad_network).collect();
    assert_eq!(over_a_bad_network(3), traces[3], "same seed, same history");
    assert!(traces.windows(2).any(|t| t[0] != t[1]));
}

#[test]
fn data_goes_inline_or_in_bulk_and_both_ways() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        for len in [0, 1, 16 << 10, (16 << 10) + 1, 1 << 20, (5 << 20) + 77] {
            assert_eq!(write(&import, pattern(len)).await, Ok(len as u64));
            assert!(w.disk.written.lock().take() == Some(pattern(len)), "{len} bytes written");
            assert!(read(&import, len).await == Ok(pattern(len)), "{len} bytes read");
        }
    });
}

#[test]
fn bulk_survives_loss_both_ways() {
    for seed in 0..6 {
        let link = LinkOptions { loss_ppm: 30_000, ..LinkOptions::default() };
        run(seed, 100_000, |rt| async move {
            let w = World::with(&rt, SimNetOptions { link, seed, ..SimNetOptions::default() });
            let import = w.import();
            for i in 0..15 {
                let len = (3 << 20) + i;
                assert_eq!(write(&import, pattern(len)).await, Ok(len as u64));
                assert!(w.disk.written.lock().take() == Some(pattern(len)));
                assert!(read(&import, len).await == Ok(pattern(len)));
            }
        });
    }
}

#[test]
fn damaged_bulk_is_for_the_target_to_find() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        w.server.node.faults().arm("rpc.bulk.corrupt", Fault::once(FaultAction::Corrupt));
        write(&import, pattern(100_000)).await.unwrap();
        assert!(w.disk.written.lock().take() != Some(pattern(100_000)));
        write(&import, pattern(100_000)).await.unwrap();
        assert!(w.disk.written.lock().take() == Some(pattern(100_000)));
    });
}

#[test]
fn what_the_server_does_not_understand_is_refused() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        let call = |opcode, lane| {
            let import = import.clone();
            async move {
                let options = CallOptions { lane, ..CallOptions::default() };
                import.call::<u64>(opcode, &(), options).await.map(|r| r.body)
            }
        };
        let status = |e| Err(RpcError::Status(e));
        assert_eq!(call(Opcode::SeqQuery, Lane::Request).await, status(Errno::EOPNOTSUPP));
        assert_eq!(call(Opcode::MdsReint, Lane::Request).await, status(Errno::EPROTO), "no body");
        assert_eq!(call(Opcode::MdsReint, Lane::Control).await, status(Errno::EPROTO), "not the lane for it");
        assert_eq!(call(Opcode::ObdPing, Lane::Request).await, status(Errno::EPROTO));
        let body = bytes::Bytes::from(vec![0; 2 << 20]);
        let answer = import.call::<u64>(Opcode::MdsReint, &body, CallOptions::default()).await;
        assert_eq!(answer.map(|r| r.body), status(Errno::E2BIG));
        // A body that is not what the caller expects.
        let answer = import.call::<[u8; 99]>(Opcode::MdsReint, &7u64, CallOptions::default()).await;
        assert!(matches!(answer, Err(RpcError::Wire(_))));
    });
}

#[test]
fn random_bytes_at_the_portals_never_panic() {
    let (malformed, _) = run(1, 600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let mut prng = nacre_base::Prng::new(1);
        let victim = w.client.import(config(2));
        apply(&victim, 1).await.unwrap();
        let victim_cookie = w.server.served.exports().iter().find(|e| *e.client_name() == *"client2").unwrap().cookie;
        // A valid request, damaged at random, gets further than noise.
        let header = nacre_wire::RpcHeader {
            opcode: Opcode::MdsConnect as u32,
            export: victim_cookie,
            connection_count: 1,
            xid: u64::MAX / 2,
            ..Default::default()
        };
        let good = crate::message::encode(nacre_wire::RpcKind::Request, &header, &[1; 60], Payload::new()).to_bytes();
        for i in 0..20_000u32 {
            let bytes = if i % 2 == 0 {
                (0..prng.below(500)).map(|_| prng.next_u64() as u8).collect()
            } else {
                let mut bytes = good.to_vec();
                for _ in 0..prng.range(1, 8) {
                    let at = prng.below(40.min(bytes.len() as u64)) as usize;
                    bytes[at] = prng.next_u64() as u8;
                }
                let opcode = *prng.pick(Opcode::ALL) as u32;
                bytes[8 + 3..8 + 7].copy_from_slice(&opcode.to_le_bytes());
                bytes
            };
            let portal = nacre_lnet::Portal(*prng.pick(&[12, 6, 15, 17, 1, 10]));
            let to = Nid::sim(if prng.one_in(2) { SERVER } else { CLIENT });
            let from = if prng.one_in(2) { &w.client } else { &w.server.node };
            from.lnet().post(to, portal, prng.below(3), Payload::from(bytes)).unwrap();
            if i % 100 == 0 {
                rt.sleep(Duration::from_millis(1)).await;
            }
        }
        rt.sleep(SECOND).await;
        assert!(apply(&import, 2).await.is_ok(), "others are served");
        w.server.node.0.malformed.load(Ordering::Relaxed) + w.client.0.malformed.load(Ordering::Relaxed)
    });
    assert!(malformed > 1000, "{malformed}");
}
