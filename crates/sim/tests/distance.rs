//! Seeds of runs with clients far away, and every seed that found a bug, with its story.

use nacre_sim::distance::{run_seed, run_seed_without_disk_caches};

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
        run_seed_without_disk_caches(seed, 400);
    }
}

/// A client no longer waited for the answer to a glimpse, and the OST had granted it a lock with it. Another client waited for that
/// lock, and the first one's next request waited behind that: the client took the unknown lock for the one that this request would
/// bring, gave nothing back, and was evicted.
#[test]
fn a_lock_whose_reply_nobody_took_is_given_back() {
    run_seed_without_disk_caches(999, 400);
}
