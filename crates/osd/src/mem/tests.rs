//! The conformance suite in virtual time, and tests that only the simulated device allows: crashes, faults, delays.

use super::*;
use crate::conformance::{A, TABLES, entries, fid};
use nacre_base::fault::Fault;
use nacre_rt::Sim;
use std::future::Future;

const HOUR: Time = Time::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

fn sim<T: Send + 'static, F: Future<Output = T> + Send + 'static>(seed: u64, f: impl FnOnce(Rt) -> F) -> T {
    let mut sim = Sim::new(seed);
    let rt = sim.rt();
    sim.block_on(HOUR, f(rt))
}

/// Runs one test of the suite on free and on slow disks, with several schedules.
fn run<F: Future<Output = ()> + Send + 'static>(test: impl Fn(Arc<dyn Osd>, Rt) -> F) {
    for (seed, model) in [(1, DiskModel::FREE), (2, DiskModel::FREE), (3, DiskModel::NVME), (4, DiskModel::HDD)] {
        sim(seed, |rt| test(Arc::new(MemOsd::new(&rt, TABLES, MemOptions { model, ..MemOptions::default() })), rt));
    }
}

crate::conformance::conformance_tests!(run);

/// Operation `n` of a sequence that can be recognised: it sets a counter and one record, and writes one object.
async fn operation(osd: &MemOsd, n: u64, acknowledged: &Arc<Mutex<u64>>) -> Result<(), OsdError> {
    osd.write(fid(n as u32), 0, n.to_le_bytes().repeat(128).into()).await?;
    let mut t = osd.begin().await?;
    t.put(A, b"count", &n.to_le_bytes())?;
    t.put(A, &n.to_be_bytes(), b"record")?;
    if n.is_multiple_of(5) {
        t.delete(A, &(n - 3).to_be_bytes())?;
    }
    let acknowledged = acknowledged.clone();
    t.on_commit(Box::new(move || *acknowledged.lock() = n));
    t.finish();
    Ok(())
}

/// Panics unless the device holds exactly operations `1..=n` for some `n`; returns it.
async fn check_prefix(osd: &MemOsd) -> u64 {
    let t = osd.begin().await.unwrap();
    let n = t.get(A, b"count").unwrap().map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()));
    let found: Vec<_> = entries(&*t, A).into_iter().map(|(k, _)| k).filter(|k| k != b"count").collect();
    let kept = |i: &u64| !((i + 3).is_multiple_of(5) && i + 3 <= n);
    let expected: Vec<_> = (1..=n).filter(kept).map(|i| i.to_be_bytes().to_vec()).collect();
    assert_eq!(found, expected, "not the state after {n} operations");
    drop(t);
    for i in 1..=n {
        let data = osd.read(fid(i as u32), 0, 4096).await.unwrap().to_bytes();
        assert!(data[..] == i.to_le_bytes().repeat(128), "record {i} is durable, its data is not");
    }
    n
}

#[test]
fn a_crash_of_any_kind_leaves_a_prefix_with_all_that_was_acknowledged() {
    let mut beyond = 0;
    for seed in 0..300 {
        beyond += sim(seed, |rt| async move {
            let crash = match seed % 3 {
                0 => Crash::Process,
                1 => Crash::PowerCut,
                _ => Crash::PowerCutTorn { seed },
            };
            let model = if seed % 2 == 0 { DiskModel::HDD } else { DiskModel::NVME };
            let options = MemOptions { model, commit_interval: SECOND / 5, ..MemOptions::default() };
            let mut osd = Arc::new(MemOsd::new(&rt, TABLES, options));
            let (mut done, mut beyond) = (0, 0);
            for _ in 0..3 {
                let acknowledged = Arc::new(Mutex::new(done));
                let node = rt.child("node");
                let (osd2, acknowledged2) = (osd.clone(), acknowledged.clone());
                node.spawn(async move {
                    let mut n = done;
                    while operation(&osd2, n + 1, &acknowledged2).await.is_ok() {
                        n += 1;
                        if n.is_multiple_of(10) && osd2.commit().await.is_err() {
                            return;
                        }
                    }
                });
                rt.sleep(Duration::from_micros(rt.random() % 1_000_000 / if seed % 2 == 0 { 1 } else { 50 })).await;
                osd.crash(crash);
                osd = Arc::new(osd.reopen(&rt, TABLES));
                done = check_prefix(&osd).await;
                assert!(done >= *acknowledged.lock(), "{done} survived, {} promised", acknowledged.lock());
                beyond += usize::from(done > *acknowledged.lock());
            }
            beyond
        });
    }
    assert!(beyond > 5, "a commit that was durable but not acknowledged happened only {beyond} times");
}

#[test]
fn a_process_crash_keeps_data_and_a_power_cut_does_not() {
    sim(0, |rt| async move {
        for (crash, survivors) in [(Crash::Process, 3), (Crash::PowerCut, 2)] {
            let osd = MemOsd::new(&rt, TABLES, MemOptions::default());
            osd.write(fid(1), 0, vec![1; 10].into()).await.unwrap();
            osd.commit().await.unwrap();
            osd.write(fid(2), 0, vec![2; 10].into()).await.unwrap();
            osd.sync_object(fid(2)).await.unwrap();
            osd.write(fid(3), 0, vec![3; 10].into()).await.unwrap();
            osd.crash(crash);
            assert_eq!(osd.stat(fid(1)).await, Err(OsdError::Closed));
            let osd = osd.reopen(&rt, TABLES);
            assert_eq!(osd.list_objects().await.unwrap().len(), survivors);
            assert_eq!(osd.statfs().await.unwrap().free_bytes, (1 << 44) - 10 * survivors as u64);
        }
    });
}

#[test]
fn a_guard_that_outlives_the_crash_does_no_harm() {
    sim(0, |rt| async move {
        let osd = MemOsd::new(&rt, TABLES, MemOptions::default());
        let mut stale = osd.begin().await.unwrap();
        stale.put(A, b"k", b"lost").unwrap();
        osd.crash(Crash::Process);
        let again = osd.reopen(&rt, TABLES);
        let mut t = again.begin().await.unwrap();
        t.put(A, b"k", b"new").unwrap();
        t.finish();
        assert_eq!(stale.put(A, b"k", b"worse"), Err(OsdError::Closed));
        drop(stale);
        assert_eq!(again.begin().await.unwrap().get(A, b"k").unwrap().unwrap(), "new");
    });
}

#[test]
fn a_failed_commit_poisons_and_reopening_finds_the_last_good_state() {
    sim(0, |rt| async move {
        let faults = Faults::new();
        let osd = MemOsd::new(&rt, TABLES, MemOptions { faults: faults.clone(), ..MemOptions::default() });
        let acknowledged = Arc::new(Mutex::new(0));
        operation(&osd, 1, &acknowledged).await.unwrap();
        osd.commit().await.unwrap();
        operation(&osd, 2, &acknowledged).await.unwrap();
        faults.arm("osd.commit", Fault::once(FaultAction::Fail(Errno::EIO)));
        assert_eq!(osd.commit().await, Err(OsdError::Poisoned));
        assert!(osd.is_poisoned());
        assert!(matches!(osd.begin().await, Err(OsdError::Poisoned)));
        assert_eq!(osd.commit().await, Err(OsdError::Poisoned));
        assert_eq!(osd.write(fid(9), 0, vec![1].into()).await, Err(OsdError::Poisoned));
        assert_eq!(*acknowledged.lock(), 1);
        let osd = osd.reopen(&rt, TABLES);
        assert_eq!(check_prefix(&osd).await, 1);
    });
}

#[test]
fn faults_strike_single_requests() {
    sim(0, |rt| async move {
        let faults = Faults::new();
        let osd = MemOsd::new(&rt, TABLES, MemOptions { faults: faults.clone(), ..MemOptions::default() });
        let data = Payload::from(vec![7; 100]);
        faults.arm("osd.write", Fault::once(FaultAction::Fail(Errno::ENOSPC)));
        assert_eq!(osd.write(fid(1), 0, data.clone()).await.unwrap_err().errno(), Errno::ENOSPC);
        osd.write(fid(1), 0, data.clone()).await.unwrap();
        faults.arm("osd.read", Fault::once(FaultAction::Corrupt));
        assert!(osd.read(fid(1), 0, 100).await.unwrap() != data);
        faults.arm("osd.read", Fault::once(FaultAction::Delay(SECOND)));
        assert!(osd.read(fid(1), 0, 100).await.unwrap() == data);
        assert_eq!(rt.now(), Time::ZERO + SECOND);
        faults.arm("osd.write", Fault::once(FaultAction::Drop));
        osd.write(fid(1), 0, vec![8; 100].into()).await.unwrap();
        assert!(osd.read(fid(1), 0, 100).await.unwrap() == data);
        faults.arm("osd.write", Fault::once(FaultAction::Crash));
        assert_eq!(osd.write(fid(1), 0, data).await, Err(OsdError::Closed));
    });
}

#[test]
fn a_full_device_refuses_writes_and_goes_on() {
    sim(0, |rt| async move {
        let osd = MemOsd::new(&rt, TABLES, MemOptions { capacity_bytes: 1000, ..MemOptions::default() });
        osd.write(fid(1), 0, vec![1; 900].into()).await.unwrap();
        assert_eq!(osd.write(fid(1), 800, vec![2; 300].into()).await.unwrap_err().errno(), Errno::ENOSPC);
        assert_eq!(osd.read(fid(1), 0, 2000).await.unwrap().to_bytes(), vec![1; 900]);
        osd.write(fid(1), 0, vec![3; 900].into()).await.unwrap();
        osd.truncate(fid(1), 0).await.unwrap();
        osd.write(fid(1), 0, vec![4; 1000].into()).await.unwrap();
    });
}

#[test]
fn an_idle_device_sets_no_timers_and_a_busy_one_commits_in_time() {
    let mut sim = Sim::new(0);
    let rt = sim.rt();
    let osd = sim.block_on(HOUR, async move {
        let osd = MemOsd::new(&rt, TABLES, MemOptions::default());
        let acknowledged = Arc::new(Mutex::new(0));
        for n in 1..=1000 {
            operation(&osd, n, &acknowledged).await.unwrap();
            rt.sleep(Duration::from_millis(50)).await;
        }
        let commits = osd.stats().commits_count;
        assert!((9..=10).contains(&commits), "{commits} commits in 50 s, each 5 s after the first change");
        rt.sleep(6 * SECOND).await;
        assert_eq!(*acknowledged.lock(), 1000);
        osd
    });
    let polls = sim.stats().polls;
    sim.run_until(HOUR);
    assert!(sim.stats().polls - polls < 5, "an idle device was polled {} times", sim.stats().polls - polls);
    drop(osd);
}

#[test]
fn sparse_synthetic_data_costs_nothing() {
    sim(0, |rt| async move {
        let osd = MemOsd::new(&rt, TABLES, MemOptions::default());
        let tib = 1 << 40;
        osd.write(fid(1), tib, Payload::zeroes(1 << 20)).await.unwrap();
        osd.write(fid(1), 0, Payload::zeroes(1 << 20)).await.unwrap();
        let stat = osd.stat(fid(1)).await.unwrap().unwrap();
        assert_eq!(stat, ObjectStat { size: tib + (1 << 20), blocks: 4096 });
        assert_eq!(osd.read(fid(1), tib / 2, 1 << 20).await.unwrap().len(), 1 << 20);
        assert_eq!(osd.seek(fid(1), 1 << 20, Seek::Data).await.unwrap(), Some(tib));
    });
}
