//! A node that speaks to itself.

use super::*;
use crate::{LnetError, LnetOptions};
use nacre_base::{Faults, Time};
use nacre_rt::Sim;
use std::time::Duration;

const MINUTE: Time = Time::from_secs(60);

fn with_node<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Lnet) -> F) {
    let mut sim = Sim::new(1);
    let lnet = Lnet::new(sim.rt(), LnetOptions::default(), Faults::new());
    sim.block_on(MINUTE, test(lnet));
}

#[test]
fn puts_and_bulk_pass_without_a_copy() {
    with_node(async |lnet: Lnet| {
        let mut requests = inbox(&lnet, REQUEST);
        let big = pattern(3 << 20);
        let at = |p: &Payload| p.pieces()[0].as_ptr();

        let small = big.slice(0, 1000);
        lnet.put(Nid::LO, REQUEST, 7, small.clone()).await.unwrap();
        let put = requests.recv().await.unwrap();
        assert_eq!((put.from, put.match_bits, at(&put.payload)), (Nid::LO, 7, at(&small)));

        let _source = lnet.expose_source(&[], 1, big.clone());
        let pulled = lnet.get_bulk(Nid::LO, 1, big.len()).await.unwrap();
        assert_eq!((pulled.pieces().len(), at(&pulled)), (1, at(&big)), "in one piece, as nothing is cut");

        let mut sink = lnet.expose_sink(&[], 2, big.len());
        lnet.put_bulk(Nid::LO, 2, big.clone()).await.unwrap();
        assert_eq!(at(&sink.filled().await), at(&big));
    });
}

#[test]
fn a_handler_never_runs_inside_the_call_that_sends() {
    with_node(async |lnet: Lnet| {
        // The sender holds a lock that the handler takes: a deadlock, were the handler called at once.
        let lock = Arc::new(Mutex::new(0));
        let inner = lock.clone();
        lnet.attach(REQUEST, Arc::new(move |_| *inner.lock() += 1));
        {
            let held = lock.lock();
            lnet.post(Nid::LO, REQUEST, 0, Payload::new()).unwrap();
            assert_eq!(*held, 0);
        }
        lnet.0.rt.sleep(Duration::from_nanos(1)).await;
        assert_eq!(*lock.lock(), 1);
    });
}

#[test]
fn handlers_that_send_to_handlers_do_not_pile_up_on_the_stack() {
    with_node(async |lnet: Lnet| {
        let (this, mut answers) = (lnet.clone(), inbox(&lnet, ANSWER));
        let countdown = move |put: IncomingPut| {
            let next = if put.match_bits == 0 { ANSWER } else { REQUEST };
            this.post(put.from, next, put.match_bits.saturating_sub(1), put.payload).unwrap();
        };
        lnet.attach(REQUEST, Arc::new(countdown));
        lnet.put(Nid::LO, REQUEST, 100_000, Payload::new()).await.unwrap();
        answers.recv().await.unwrap();
        assert_eq!(lnet.stats().recv_count, 100_002);
        assert_eq!(lnet.stats().msgs_alloc, 0);
    });
}

#[test]
fn a_message_for_nobody_is_counted_and_unknown_memory_is_an_error() {
    with_node(async |lnet: Lnet| {
        lnet.put(Nid::LO, REQUEST, 0, Payload::new()).await.unwrap();
        lnet.0.rt.sleep(Duration::from_nanos(1)).await;
        assert_eq!(lnet.stats().drop_count, 1);
        assert_eq!(lnet.get_bulk(Nid::LO, 99, 10).await, Err(LnetError::NoMatch(Nid::LO, 99)));
        assert_eq!(lnet.ping(Nid::LO, Duration::from_secs(1)).await, Ok(vec![Nid::LO]));
        let elsewhere: Nid = "10.0.0.1@tcp".parse().unwrap();
        let refused = lnet.put(elsewhere, REQUEST, 0, Payload::new()).await;
        assert_eq!(refused, Err(LnetError::NoRoute(elsewhere.network)));
    });
}
