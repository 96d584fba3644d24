//! Seeds of runs with clients far away, and every seed that found a bug, with its story.

use nacre_sim::distance::run_seed;

const STEPS: u32 = 200;

#[test]
fn clients_far_away_see_the_file_system_that_others_see_and_stay_connected() {
    for seed in 0..12 {
        run_seed(seed, STEPS);
    }
}
