//! Seeds of runs with clients far away, and every seed that found a bug, with its story.

use nacre_sim::distance::run_seed;

const STEPS: u32 = 200;

#[test]
fn clients_far_away_see_the_file_system_that_others_see_and_stay_connected() {
    for seed in 0..12 {
        run_seed(seed, STEPS);
    }
}

/// The MGS's word that news take half an hour was lost, and the client sent its question again every eleven seconds. It took its routers for
/// dead because of that: one client was evicted, and another one never came to rest.
#[test]
fn a_lost_word_of_how_long_a_reply_takes_is_given_again() {
    for seed in [273, 1583] {
        run_seed(seed, 400);
    }
}
