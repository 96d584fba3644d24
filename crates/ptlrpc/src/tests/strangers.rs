//! Attempts of a node that knows the names, and even the cookies, of others.

use super::*;
use crate::message::{PROBE_MATCH_BITS, REPLY_PORTAL, encode, request_portal};
use nacre_wire::header::{RpcHeader, RpcKind};

const STRANGER: u32 = 9;

/// A request once needed nothing but the cookie of an export: a node that had seen or computed it acted as that client,
/// from anywhere.
#[test]
fn a_request_over_the_export_of_another_node_is_refused() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let cookie = w.server.served.exports()[0].cookie;
        let forge = |from: &RpcNode, n: u64| {
            for connection_count in 0..4 {
                let header = RpcHeader {
                    lane: Lane::Request as u8,
                    opcode: Opcode::MdsReint as u32,
                    xid: u64::MAX - 10 * n - u64::from(connection_count),
                    export: cookie,
                    connection_count,
                    timeout_ms: 10_000,
                    ..RpcHeader::default()
                };
                let message = encode(RpcKind::Request, &header, &nacre_wire::encode(&n), Payload::new());
                from.0.core.lnet.post(Nid::sim(SERVER), request_portal(Lane::Request), 77, message).unwrap();
            }
        };
        let stranger = node(&rt, &w.net, STRANGER);
        forge(&stranger, 66);
        rt.sleep(SECOND).await;
        assert_eq!(w.applied(), [1]);
        // The same bytes from the client's own node are a request of that client.
        forge(&w.client, 2);
        rt.sleep(SECOND).await;
        assert_eq!(w.applied(), [1, 2]);
        assert_eq!(apply(&import, 3).await, Ok(3), "the client has noticed nothing");
    });
}

/// A client's UUID once sufficed to connect in its place, which closed its export. If the client had never named an
/// earlier export, even the export itself passed to the newcomer.
#[test]
fn a_name_alone_does_not_take_the_place_of_a_client_that_answers() {
    run(1, 600, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let cookie = w.server.served.exports()[0].cookie;
        let stranger = node(&rt, &w.net, STRANGER);
        let hostile = stranger.import(config(1));
        let refused = rt.timeout(10 * SECOND, apply(&hostile, 66)).await;
        assert!(refused.is_err(), "{refused:?}");
        let export = &w.server.served.exports()[0];
        assert_eq!((export.cookie, export.nid(), w.applied()), (cookie, Nid::sim(CLIENT), vec![1]));
        assert_eq!(apply(&import, 2).await, Ok(2));
        // Once the client's node is dead, its place is free, as for a client that was moved.
        w.client.rt().kill();
        w.net.crash(CLIENT);
        assert_eq!(apply(&hostile, 3).await, Ok(3));
        assert_eq!(w.server.served.exports()[0].nid(), Nid::sim(STRANGER));
    });
}

/// The reply to a probe was recognised by its xid alone, and xids count up: a stranger answered for a client that it was
/// not there, and took its place.
#[test]
fn a_probe_is_answered_by_the_client_s_own_node_alone() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let cookie = w.server.served.exports()[0].cookie;
        let stranger = node(&rt, &w.net, STRANGER);
        let forge = |xid| {
            let status = -Errno::ENODEV.0;
            let header = RpcHeader { opcode: Opcode::ObdPing as u32, xid, status, ..RpcHeader::default() };
            let reply = encode(RpcKind::Reply, &header, &[], Payload::new());
            stranger.0.core.lnet.post(Nid::sim(SERVER), REPLY_PORTAL, PROBE_MATCH_BITS, reply).unwrap();
        };
        let hostile = stranger.import(config(1));
        let next = w.server.node.0.core.next_xid();
        let forges = async {
            let mut probed = 0;
            for _ in 0..4000 {
                (next..next + 4).for_each(forge);
                // Even a stranger that knows the xid of the probe must come from the client's node.
                let known: Vec<u64> = w.server.node.0.probes().lock().keys().copied().collect();
                probed += known.len();
                known.into_iter().for_each(forge);
                // Oftener than a probe takes from the server to the client and back.
                rt.sleep(Duration::from_micros(10)).await;
            }
            probed
        };
        let (refused, probed) = tokio::join!(rt.timeout(5 * SECOND, apply(&hostile, 66)), forges);
        assert!(refused.is_err(), "{refused:?}");
        assert!(probed > 0, "the client was probed while the stranger sent its replies");
        let export = &w.server.served.exports()[0];
        assert_eq!((export.cookie, export.nid(), w.applied()), (cookie, Nid::sim(CLIENT), vec![1]));
    });
}

/// Inline data of any size, up to a whole message, once waited in the queues of a lane.
#[test]
fn a_request_with_too_much_inline_data_is_refused_before_it_is_queued() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let cookie = w.server.served.exports()[0].cookie;
        for (n, len, applied) in [(2, crate::INLINE_MAX + 1, vec![1]), (3, crate::INLINE_MAX, vec![1, 3])] {
            for connection_count in 0..4 {
                let header = RpcHeader {
                    lane: Lane::Request as u8,
                    opcode: Opcode::MdsReint as u32,
                    flags: nacre_wire::header::flags::INLINE,
                    xid: u64::MAX - 100 + 10 * n + u64::from(connection_count),
                    export: cookie,
                    connection_count,
                    timeout_ms: 10_000,
                    ..RpcHeader::default()
                };
                let data = Payload::from(vec![0; len]);
                let message = encode(RpcKind::Request, &header, &nacre_wire::encode(&n), data);
                w.client.0.core.lnet.post(Nid::sim(SERVER), request_portal(Lane::Request), 77, message).unwrap();
            }
            rt.sleep(SECOND).await;
            assert_eq!(w.applied(), applied);
        }
    });
}

/// A node that guessed the numbers of an import and a request could once answer in the server's place.
#[test]
fn an_answer_counts_only_from_where_the_server_is() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let xid = w.client.0.core.next_xid();
        let stranger = node(&rt, &w.net, STRANGER);
        let forge = async |from: &RpcNode| {
            for xid in xid..xid + 4 {
                let header = RpcHeader { opcode: Opcode::MdsReint as u32, xid, ..RpcHeader::default() };
                let answer = encode(RpcKind::Reply, &header, &nacre_wire::encode(&66u64), Payload::new());
                for import in 0..4 {
                    from.0.core.lnet.post(Nid::sim(CLIENT), REPLY_PORTAL, import, answer.clone()).unwrap();
                }
            }
        };
        // The forged message is one hop away, the server's reply two.
        let (answer, ()) = tokio::join!(apply(&import, 2), forge(&stranger));
        assert_eq!((answer, w.applied()), (Ok(2), vec![1, 2]));
    });
}

/// Match bits are xids, which count up. A node that guessed one could once take the data of a write, or replace the
/// data that a server sends.
#[test]
fn bulk_goes_to_and_comes_from_the_server_alone() {
    run(1, 60, |rt| async move {
        let w = World::new(&rt);
        let import = w.import();
        let (len, client) = (100_000, Nid::sim(CLIENT));
        apply(&import, 1).await.unwrap();
        let lnet = node(&rt, &w.net, STRANGER).0.core.lnet.clone();
        let xid = w.client.0.core.next_xid();
        let takes = async {
            let mut taken = 0;
            for _ in 0..20 {
                for xid in xid..xid + 4 {
                    taken += usize::from(lnet.get_bulk(client, xid, len).await.is_ok());
                }
            }
            taken
        };
        let (written, taken) = tokio::join!(write(&import, pattern(len)), takes);
        assert_eq!((written, taken), (Ok(len as u64), 0));

        let xid = w.client.0.core.next_xid();
        let gives = async {
            let false_data = Payload::from(vec![6; len]);
            for xid in xid..xid + 4 {
                lnet.put_bulk(client, xid, false_data.clone()).await.unwrap();
            }
        };
        // The forged message is one hop away, the server's reply two.
        let (data, ()) = tokio::join!(read(&import, len), gives);
        assert!(data == Ok(pattern(len)), "what the server sent");
    });
}
