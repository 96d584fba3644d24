//! Seeds of runs in which clients, servers, routers and the MGS die, are cut off or are slow, and every seed that found a bug,
//! with its story.

use nacre_sim::liveness::run_seed;

const STEPS: u32 = 400;

#[test]
fn nobody_is_evicted_who_could_answer_and_nobody_waits_for_the_dead() {
    for seed in 0..10 {
        run_seed(seed, STEPS);
    }
}

#[test]
fn two_runs_of_a_seed_are_one() {
    assert_eq!(run_seed(11, STEPS), run_seed(11, STEPS));
}

/// All routers lost power while the MDS had nothing to send to clients. It found that its routes were dead by the probes of silent
/// clients, and evicted the clients for it.
#[test]
fn a_server_that_finds_its_routes_dead_by_its_probes_evicts_nobody() {
    for seed in [1085, 1059] {
        run_seed(seed, STEPS);
    }
}

/// The MDS was cut off, and its routes came back while it was asking silent clients whether they live. Most of its questions had
/// gone nowhere, and it evicted clients for not answering them.
#[test]
fn questions_that_had_no_way_are_not_held_against_a_client() {
    for seed in [903, 1453] {
        run_seed(seed, STEPS);
    }
}

/// A server sent its callbacks to a client by the one router that did not reach it, over and over, because the other had brought
/// nothing since it was used for a message that needs no answer.
#[test]
fn callbacks_go_by_another_router_until_one_reaches_the_client() {
    run_seed(232, STEPS);
}

/// One router was dead for eight minutes and came back, and then the other died. Clients asked the first one a minute later.
#[test]
fn routers_that_were_dead_are_asked_again_when_the_last_one_dies() {
    run_seed(1336, STEPS);
}

/// A client was pinging a gateway at the moment in which all was said to be at rest, and the ping counted as left over.
#[test]
fn a_ping_of_a_gateway_is_no_work_that_was_left_over() {
    for seed in [370, 398] {
        run_seed(seed, STEPS);
    }
}
