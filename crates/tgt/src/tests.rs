//! A target over its restarts: identity, numbers, what is committed.

use crate::{LockService, TABLES, TARGET, Target, TargetConfig, TargetError};
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::param::Params;
use nacre_base::param::value::Unit;
use nacre_base::{Errno, Faults, Fid, MdtIndex, TargetName, Time, Transno, Uuid};
use nacre_ldlm::{ClientId, LockId};
use nacre_lnet::{Lnet, LnetOptions};
use nacre_osd::Osd;
use nacre_osd::mem::{Crash, MemOptions, MemOsd};
use nacre_ptlrpc::RpcNode;
use nacre_rt::{Rt, Sim};
use nacre_wire::ldlm::{LockKind, inode_bits};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn run<F: Future<Output = ()> + Send + 'static>(scenario: impl FnOnce(Rt) -> F) {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(600), scenario(rt));
}

fn node(rt: &Rt) -> RpcNode {
    let lnet = Lnet::new(rt.clone(), LnetOptions::default(), Faults::new());
    RpcNode::new(rt.clone(), lnet, Faults::new())
}

fn uuid(n: u64) -> Uuid {
    Uuid::from_random(n, n)
}

fn config(index: u32, id: u64) -> TargetConfig {
    let (name, host) = (TargetName::mdt("nacre", MdtIndex(index)), "mds".to_owned());
    TargetConfig { name, uuid: uuid(id), host, params: Params::new(), faults: Faults::new() }
}

async fn open(rt: &Rt, osd: &Arc<MemOsd>) -> Arc<Target> {
    Target::open(&node(rt), osd.clone(), config(0, 1)).await.unwrap()
}

/// Runs an operation that counts. Returns its number.
async fn count(target: &Target) -> Transno {
    let mut operation = target.begin().await.unwrap();
    let old = operation.get(TARGET, b"count").unwrap().map_or(0, |v| v[0]);
    operation.put(TARGET, b"count", &[old + 1]).unwrap();
    operation.finish_local()
}

#[test]
fn every_start_is_a_new_instance_whose_numbers_are_higher() {
    run(|rt| async move {
        let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
        let first = open(&rt, &osd).await;
        let (a, b) = (count(&first).await, count(&first).await);
        assert_eq!((first.instance(), b.0 - a.0), (1, 1));
        // Neither of the two was committed, yet their numbers are not used again.
        osd.crash(Crash::PowerCut);
        let osd = Arc::new(osd.reopen(&rt, TABLES));
        let second = open(&rt, &osd).await;
        assert_eq!(second.instance(), 2);
        assert!(count(&second).await > b);
    });
}

/// The upper half of a number was once the instance, so the 2^32nd operation of a start took the numbers of the next
/// start.
#[test]
fn a_start_may_have_more_than_2_to_the_32_operations() {
    run(|rt| async move {
        let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
        let first = open(&rt, &osd).await;
        for _ in 0..3 {
            let edge = first.last_transno.load(Ordering::Relaxed) | u64::from(u32::MAX);
            first.last_transno.store(edge - 2, Ordering::Relaxed);
            let mut before = Transno(edge - 2);
            for _ in 0..5 {
                let next = count(&first).await;
                assert_eq!(next.0, before.0 + 1);
                before = next;
            }
            first.commit().await.unwrap();
            assert_eq!((first.last_committed(), first.instance()), (before, 1), "no number is taken for a replay's");
        }
        // One more new epoch, which the crash takes away: its numbers are not given again all the same.
        first.last_transno.fetch_or(u64::from(u32::MAX), Ordering::Relaxed);
        let lost = count(&first).await;
        osd.crash(Crash::PowerCut);
        let osd = Arc::new(osd.reopen(&rt, TABLES));
        let second = open(&rt, &osd).await;
        assert_eq!(second.instance(), 2);
        assert!(second.former_transnos() > lost && count(&second).await > lost);
        let version = crate::check::last_version(&*osd.begin().await.unwrap()).unwrap();
        assert!(version > second.last_transno.load(Ordering::Relaxed), "fsck's version is above all");
    });
}

/// The number after the largest was once 0, and the target gave the numbers of its first start again.
#[test]
fn a_target_whose_epoch_or_instance_is_damaged_does_not_start() {
    for key in [&b"instance"[..], crate::epoch::EPOCH] {
        run(move |rt| async move {
            let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
            let mut transaction = osd.begin().await.unwrap();
            transaction.put(TARGET, key, &u64::MAX.to_be_bytes()).unwrap();
            transaction.finish();
            let opened = Target::open(&node(&rt), osd.clone(), config(0, 1)).await;
            assert!(matches!(opened, Err(TargetError::Corrupt(_))));
        });
    }
}

#[test]
fn a_target_made_before_epochs_goes_on_after_its_instances() {
    run(|rt| async move {
        let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
        {
            let mut transaction = osd.begin().await.unwrap();
            transaction.put(TARGET, b"instance", &7u64.to_be_bytes()).unwrap();
            transaction.finish();
        }
        let target = open(&rt, &osd).await;
        assert_eq!((target.instance(), target.former_transnos()), (8, Transno(8 << 32)));
    });
}

/// A panic in the middle of an operation must stop the target; a panic anywhere else must not.
#[test]
fn a_panic_stops_the_target_only_if_it_leaves_something_half_done() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    run(|rt| async move {
        let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
        let target = open(&rt, &osd).await;
        count(&target).await;
        assert!(catch_unwind(|| panic!("elsewhere")).is_err());
        assert!(!target.is_stopped());
        let mut operation = target.begin().await.unwrap();
        let bug = AssertUnwindSafe(move || {
            operation.put(TARGET, b"count", &[99]).unwrap();
            panic!("with the turn in hand");
        });
        assert!(catch_unwind(bug).is_err());
        assert!(target.is_stopped());
        // The operation is undone, and the turn is free.
        let operation = target.begin().await.unwrap();
        assert_eq!(operation.get(TARGET, b"count").unwrap().unwrap()[..], [1]);
    });
}

#[test]
fn a_panic_in_the_lock_table_stops_the_target() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    run(|rt| async move {
        let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
        let target = open(&rt, &osd).await;
        let service = LockService::new(&target, LockKind::Extent);
        let bug = AssertUnwindSafe(|| service.shared.with(|_, _, _| panic!("in the table")));
        assert!(catch_unwind(bug).is_err());
        assert!(target.is_stopped());
    });
}

#[test]
fn an_operation_that_is_dropped_changes_nothing_and_leaves_no_gap() {
    run(|rt| async move {
        let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
        let target = open(&rt, &osd).await;
        let before = count(&target).await;
        {
            let mut operation = target.begin().await.unwrap();
            operation.put(TARGET, b"count", &[99]).unwrap();
        }
        assert_eq!(count(&target).await.0, before.0 + 1);
        let operation = target.begin().await.unwrap();
        assert_eq!(operation.get(TARGET, b"count").unwrap().unwrap()[..], [2]);
    });
}

#[test]
fn last_committed_follows_commits_and_stays_where_the_device_failed() {
    run(|rt| async move {
        let faults = Faults::new();
        let options = MemOptions { faults: faults.clone(), ..MemOptions::default() };
        let osd = Arc::new(MemOsd::new(&rt, TABLES, options));
        let target = open(&rt, &osd).await;
        let first = count(&target).await;
        assert!(target.last_committed() < first);
        rt.sleep(Duration::from_secs(6)).await;
        assert_eq!(target.last_committed(), first, "committed by the interval");

        count(&target).await;
        faults.arm("osd.commit", Fault::once(FaultAction::Fail(Errno::EIO)));
        assert_eq!(target.commit().await, Err(Errno::EIO));
        assert_eq!(target.last_committed(), first);
        assert!(target.begin().await.is_err());
    });
}

#[test]
fn who_is_told_of_a_commit_finds_it_in_last_committed() {
    run(|rt| async move {
        let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
        let target = open(&rt, &osd).await;
        let seen = Arc::new(parking_lot::Mutex::new(None));
        let told = {
            let mut operation = target.begin().await.unwrap();
            let (seen, target) = (seen.clone(), target.clone());
            operation.on_commit(Box::new(move || *seen.lock() = Some(target.last_committed())));
            operation.finish_local()
        };
        target.commit().await.unwrap();
        assert_eq!(*seen.lock(), Some(told));
    });
}

#[test]
fn a_device_of_another_target_is_refused() {
    run(|rt| async move {
        let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
        open(&rt, &osd).await;
        let reopen =
            async |index, id| Target::open(&node(&rt), osd.clone() as Arc<dyn Osd>, config(index, id)).await.map(drop);
        assert!(matches!(reopen(0, 2).await, Err(TargetError::Foreign { .. })));
        assert!(matches!(reopen(1, 1).await, Err(TargetError::Foreign { .. })));
        assert!(reopen(0, 1).await.is_ok());
    });
}

#[test]
fn inode_locks_wait_for_clients_and_end_when_dropped() {
    run(|rt| async move {
        let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
        let target = open(&rt, &osd).await;
        let service = LockService::new(&target, LockKind::Flock);
        let inode = |oid| Fid { seq: 1, oid, ver: 0 };
        let wants = [(inode(1), inode_bits::UPDATE), (inode(2), inode_bits::UPDATE)];
        let lock = |wants: &[(Fid, u64)]| service.try_lock_inodes(wants, LockService::NOBODY);
        drop(lock(&wants).expect("nobody is in the way"));

        let client = ClientId(5);
        let grant = |oid, bits| service.shared.state.lock().namespace.grant_inode(client, inode(oid), bits);
        let cached = grant(2, inode_bits::UPDATE).expect("nobody changes it");
        drop(lock(&[(inode(2), inode_bits::XATTR)]).expect("other bits"));
        drop(service.try_lock_inodes(&wants, client).expect("its own"));
        let given_up = lock(&wants).expect_err("the client's is in the way");
        assert!(rt.timeout(Duration::from_secs(1), given_up.granted(None)).await.is_err());
        let waiting = lock(&wants).expect_err("as before");
        assert!(grant(1, inode_bits::UPDATE).is_none(), "about to change");
        let id = LockId(cached.handle);
        service.shared.with(|state, now, effects| state.namespace.cancel(client, id, now, effects));
        let locked = waiting.granted(None).await.unwrap();
        assert!(grant(1, inode_bits::UPDATE).is_none(), "changing");
        drop(locked);
        service.check_invariants().unwrap();
        assert_eq!(service.counts(), (0, 0));
    });
}

#[test]
fn parameters_carry_lustres_names() {
    run(|rt| async move {
        let osd = Arc::new(MemOsd::new(&rt, TABLES, MemOptions::default()));
        let target = open(&rt, &osd).await;
        target.stats().tally("open", Unit::Usecs).add_time(Duration::from_micros(12));
        let params = target.params();
        assert_eq!(params.get("mdt.nacre-MDT0000.uuid").unwrap()[0].1, "nacre-MDT0000_UUID");
        assert!(params.get("mdt.*.md_stats").unwrap()[0].1.contains("1 samples [usecs] 12 12 12 144"));
        params.set("mdt.*.md_stats", "clear").unwrap();
        assert!(!params.get("mdt.*.md_stats").unwrap()[0].1.contains("open"));
        target.remove_params();
        assert!(params.get("mdt.*").is_err());
    });
}
