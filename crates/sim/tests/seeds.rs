//! Seeds of random runs: one of each kind of trouble, and every one that found a bug, with its story.

use nacre_sim::conditions::{Answers, Conditions};
use nacre_sim::scenario::{Trouble, run_seed};
use nacre_sim::sharing::{Hazard, run_hazard};

/// Steps of a run: enough for files to be renamed, opened, unlinked and written to in every order.
const STEPS: u32 = 200;

/// Runs a seed twice: the seed alone determines what happens.
fn twice(seed: u64, trouble: Trouble) {
    assert_eq!(Trouble::of_seed(seed), trouble);
    let first = run_seed(seed, STEPS);
    assert_eq!(run_seed(seed, STEPS), first, "two runs of seed {seed} differ");
}

#[test]
fn calm() {
    twice(0, Trouble::Calm);
}

#[test]
fn lossy() {
    twice(1, Trouble::Lossy);
}

#[test]
fn partitions() {
    twice(2, Trouble::Partitions);
}

#[test]
fn restarts() {
    twice(3, Trouble::Restarts);
}

#[test]
fn together() {
    twice(4, Trouble::Together);
}

/// `tokio::sync::watch` wakes its receivers in an order of its own, and `tokio::select!` polls its branches in one: two
/// runs of any seed differed until the executor sorted tasks that are woken together and every `select!` was biased.
#[test]
fn seed_15_was_not_the_same_twice() {
    twice(15, Trouble::Calm);
}

/// A client's disconnect from the MGS was lost, and the MGS never evicted the client: it hears its other clients once a
/// minute, took each such silence for an outage of its own, and gave all clients time to come back, for ever.
#[test]
fn seed_100007_was_never_evicted_by_the_mgs() {
    run_seed(100_007, 2000);
}

/// The first create came before the MDT had heard of the OST that the layout named: EINVAL. A cluster is ready only when
/// the MDT knows every OST.
#[test]
fn seed_10_created_before_the_mdt_knew_the_ost() {
    run_seed(10, STEPS);
}

/// Over a lossy network while servers die. The MDT was told twice of an open that only a lock had kept, because its reply
/// was lost (10106). A glimpse named a lock that was on its way back, and the client did not report what it had written
/// under another one (12318). A recovery that was broken off after its replays began anew, and they were taken for late
/// duplicates and never answered (15142). An open whose reply was lost and whose change was committed got that reply from
/// the restarted MDT, which did not know that the file was open and destroyed it with its last name (44582). A client
/// that gave a lock back did not wait for a flush under another one, but asked again without end (40982).
#[test]
fn what_is_said_twice_while_servers_die_is_answered_twice() {
    for seed in [10_106, 12_318, 12_702, 15_142, 16_602, 40_982, 44_582] {
        nacre_sim::crashes::run_under(Conditions::default(), seed, 400);
    }
}

/// All OSTs were away for longer than 100 s, and a create failed with ENXIO (901306). A new client asked for space while
/// an OST recovered, was refused, and never tried again, so that the OST heard no client and kept a dead client's locks
/// (902504, 904592).
#[test]
fn osts_that_are_away_for_long_are_waited_for_and_found_again() {
    for seed in [901_306, 902_504, 904_592] {
        let conditions = Conditions::of_seed(seed, Some(Answers::Commit)).with_plenty_of_room();
        nacre_sim::crashes::run_under(conditions, seed, 400);
    }
}

/// For 100 s a restarted MDT could not read which OSTs there are, because the MGS was cut off, and concluded that the
/// file system has none.
#[test]
fn an_mdt_that_has_not_heard_of_its_osts_waits_for_the_mgs() {
    nacre_sim::crashes::run_answering(Answers::Device, 2_021_946, 400);
}

/// An OST with little room was restarted. The first client that came back was promised all of it, and data that another
/// client had cached under its earlier promise found no space.
#[test]
fn space_that_was_promised_before_a_restart_stays_promised() {
    for seed in [3_000_034, 3_000_038, 3_000_062, 3_000_122, 3_000_124] {
        nacre_sim::crashes::run_seed(seed, 400);
    }
}

/// A truncation was executed twice, and only the first execution was durable when the OST died; the replay of the second was
/// taken for done, and a write that was based on it was lost.
#[test]
fn a_replay_is_done_only_if_that_very_execution_is_durable() {
    nacre_sim::crashes::run_answering(Answers::Device, 9_903_366, 400);
}

/// Replays that were all answered were sent again over another connection, the first of them was not answered there, and the
/// next start of the MDT, where they were durable, executed them once more.
#[test]
fn what_was_replayed_is_not_replayed_again_over_another_connection() {
    nacre_sim::crashes::run_answering(Answers::Commit, 9_935_702, 400);
}

/// A write without grant was sent again after a restart of its OST, which was nearly full. Nothing was reserved for what was
/// sent again, even if it had never been received; so the write was answered from memory, and the device stopped because there
/// was no space for it.
#[test]
fn a_write_that_is_sent_again_needs_space_like_any_other() {
    nacre_sim::crashes::run_answering(Answers::Memory, 9_807_109, 400);
}

/// A client with cached bytes was cut off from the OST by one cut after the other, for longer than a glimpse waited for its
/// answer. The OST told another client the size that the disk had, and the first client came back with its lock.
#[test]
fn the_size_of_a_file_is_not_told_without_a_holder_that_may_know_a_larger_one() {
    nacre_sim::crashes::run_answering(Answers::Commit, 9_742_148, 400);
}

/// A full MDT refused a rename that POSIX refuses for another reason, because the name's directory had entries. Either
/// error is right, and the checker knew only one.
#[test]
fn a_full_target_may_refuse_what_is_wrong_anyway() {
    nacre_sim::crashes::run_answering(Answers::Memory, 4_000_618, 400);
}

/// A truncation was executed and its reply lost; a write to the same object, executed after it, was answered. The
/// restarted OST refused the write's replay, because the truncation was missing.
#[test]
fn seed_51422_wrote_while_it_truncated() {
    nacre_sim::crashes::run_under(Conditions::default(), 51_422, 400);
}

/// An MDT that had not used any object of an OST before it crashed had further ones created, and those from before the
/// crash stayed.
#[test]
fn objects_made_ahead_for_nobody_do_not_stay() {
    for seed in [208, 283] {
        run_seed(seed, STEPS);
    }
}

/// While one process of a client truncated, and the reply was lost, another process of the same client took the size from
/// its own locks, when other clients had already seen the new one.
#[test]
fn a_size_is_not_older_for_the_client_that_changes_it() {
    for seed in [141, 1671, 1706] {
        run_hazard(Hazard::ALL[seed as usize % 5], seed, 80);
    }
}
