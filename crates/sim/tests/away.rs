//! Seeds of runs with an OST that is away: one of each course, and every one that found a bug, with its story.

use nacre_sim::away::run_seed;

const STEPS: u32 = 150;

/// Every course is among these.
#[test]
fn an_ost_that_is_away_stops_only_what_needs_it() {
    for seed in 0..12 {
        run_seed(seed, STEPS);
    }
}

#[test]
fn two_runs_of_a_seed_are_one() {
    assert_eq!(run_seed(6, STEPS), run_seed(6, STEPS));
}

/// An OSS that was stopped in order had told the MDS so, and the simulated network lost the message when the OSS ended:
/// new files got objects there for 10 s.
#[test]
fn what_a_node_said_before_it_was_stopped_in_order_arrives() {
    run_seed(7001739, STEPS);
}

/// A client with an idle import to the killed OST began a call, and nobody told the import that its request could not be sent:
/// the call kept the lock of a living OST until the request's timeout, and others waited for that lock.
#[test]
fn a_request_that_could_not_be_sent_is_not_waited_for() {
    run_seed(9201682, STEPS);
}
