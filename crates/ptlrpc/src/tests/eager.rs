//! Data that travels with its request over a distance.

use super::*;
use crate::EAGER_MAX;
use crate::eager::EagerCounts;
use nacre_base::fault::{Fault, FaultAction};
use nacre_lnet::LinkOptions;

const ROUND_TRIP: Duration = Duration::from_millis(100);

/// Client and server this far apart.
fn apart(rt: &Rt, round_trip: Duration, loss_ppm: u32) -> World {
    let link = LinkOptions { latency: round_trip / 2, loss_ppm, ..LinkOptions::default() };
    World::with(rt, SimNetOptions { link, ..SimNetOptions::default() })
}

fn counts(w: &World) -> EagerCounts {
    w.server.node.0.eager().lock().counts()
}

/// A write, and how many round trips it took.
async fn timed(rt: &Rt, import: &Import, len: usize) -> f64 {
    let begun = rt.now();
    assert_eq!(write(import, pattern(len)).await, Ok(len as u64));
    rt.now().since(begun).as_secs_f64() / ROUND_TRIP.as_secs_f64()
}

#[test]
fn a_write_far_away_takes_one_round_trip_and_a_larger_one_two() {
    run(1, 60, |rt| async move {
        let w = apart(&rt, ROUND_TRIP, 0);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let one = timed(&rt, &import, EAGER_MAX).await;
        assert!((1.0..1.5).contains(&one), "{one}");
        assert!(*w.disk.written.lock() == Some(pattern(EAGER_MAX)));
        let two = timed(&rt, &import, EAGER_MAX + 1).await;
        assert!((2.0..2.5).contains(&two), "{two}: more than travels along is asked for");
        let EagerCounts { kept, refused, most } = counts(&w);
        assert_eq!((kept, refused, most), (EAGER_MAX as u64, 0, EAGER_MAX as u64));
        assert_eq!(w.server.node.0.eager().lock().used(), 0, "the memory is given back");
    });
}

#[test]
fn a_near_server_asks_for_data_when_the_request_runs() {
    run(1, 60, |rt| async move {
        let w = apart(&rt, Duration::from_millis(1), 0);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        assert_eq!(write(&import, pattern(EAGER_MAX)).await, Ok(EAGER_MAX as u64));
        assert_eq!(counts(&w), EagerCounts::default());
    });
}

#[test]
fn without_memory_data_is_asked_for() {
    run(1, 60, |rt| async move {
        let w = apart(&rt, ROUND_TRIP, 0);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        timed(&rt, &import, EAGER_MAX).await;
        // The client has a window for several requests now, and has been granted memory that there is no longer.
        w.server.node.0.eager().lock().set_max(4 << 20);
        let [a, b, c, d] = std::array::from_fn(|_| timed(&rt, &import, EAGER_MAX));
        let took = tokio::join!(a, b, c, d);
        assert!(took.1 < 1.5 && took.2 > 1.9, "{took:?}");
        let EagerCounts { kept, refused, .. } = counts(&w);
        let of_memory = (kept / EAGER_MAX as u64, refused / EAGER_MAX as u64);
        assert_eq!(of_memory, (3, 2), "a client alone may have half of the memory");
        assert_eq!(write(&import, pattern(EAGER_MAX)).await, Ok(EAGER_MAX as u64));
        assert_eq!(counts(&w).refused, refused, "the replies have told what is granted now");
    });
}

/// The data would fit, but not behind so long a body.
#[test]
fn a_message_that_would_be_too_long_is_not_made() {
    run(1, 60, |rt| async move {
        let w = apart(&rt, ROUND_TRIP, 0);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        let options = CallOptions { lane: Lane::Io, bulk: Bulk::Send(pattern(EAGER_MAX)), ..CallOptions::default() };
        let body = bytes::Bytes::from(vec![7; 100 << 10]);
        assert_eq!(import.call::<u64>(Opcode::OstWrite, &body, options).await.unwrap().body, EAGER_MAX as u64);
        assert_eq!(counts(&w), EagerCounts::default());
    });
}

#[test]
fn data_of_a_request_that_is_sent_again_is_asked_for() {
    run(1, 100, |rt| async move {
        let w = apart(&rt, ROUND_TRIP, 0);
        let import = w.import();
        apply(&import, 1).await.unwrap();
        w.server.node.faults().arm("rpc.OST_WRITE.drop_request", Fault::once(FaultAction::Drop));
        assert_eq!(write(&import, pattern(EAGER_MAX)).await, Ok(EAGER_MAX as u64));
        assert_eq!(counts(&w), EagerCounts::default(), "the first copy was lost, and the second had no data");
        assert!(*w.disk.written.lock() == Some(pattern(EAGER_MAX)));
    });
}

#[test]
fn nothing_is_lost_or_kept_for_ever_over_a_bad_way() {
    for seed in 0..6 {
        run(seed, 100_000, |rt| async move {
            let w = apart(&rt, ROUND_TRIP, 30_000);
            let import = w.import();
            for n in 0..8 {
                apply(&import, n).await.unwrap();
            }
            for i in 0..20 {
                let len = EAGER_MAX - i;
                assert_eq!(write(&import, pattern(len)).await, Ok(len as u64));
                assert!(*w.disk.written.lock() == Some(pattern(len)), "{i}");
            }
            assert!(counts(&w).kept > 0, "some data travelled along");
            assert_eq!(w.server.node.0.eager().lock().used(), 0);
        });
    }
}
