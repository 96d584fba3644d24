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
