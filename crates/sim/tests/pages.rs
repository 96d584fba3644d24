//! Seeds of programs on mapped and read pages of several mounts, and every seed that found a bug, with its story.

use nacre_sim::pages::run_seed;

const STEPS: u32 = 200;

#[test]
fn pages_of_several_mounts_are_one_memory() {
    for seed in 0..60 {
        run_seed(seed, STEPS);
    }
}

/// A page was filled while a program wrote to it by a system call, and another program stored into it before the kernel dropped it:
/// with the store, older bytes came out of the page over those of the write.
#[test]
fn a_store_does_not_undo_a_write_to_the_same_page() {
    for seed in [4, 13, 32] {
        run_seed(seed, STEPS);
    }
}

/// A kernel wrote no page out while the file's size was being changed. The change waited behind another client's request, which waited for
/// such a page: the client was evicted.
#[test]
fn a_change_of_size_does_not_wait_behind_those_who_wait_for_its_client() {
    for seed in [8, 58, 752, 2023, 2051] {
        run_seed(seed, STEPS);
    }
}
