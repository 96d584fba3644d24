//! One slow OST among many: each client has a process for each OST, which writes a file there without end. What do the others deliver when the
//! disk of one becomes slower, and how long do requests take at that one? The windows of a client are one for each OST, so that the others
//! need not suffer. (A file that is striped over all OSTs is written at the speed of the slowest: its program waits, whatever windows are.)

use super::{Control, Latencies, RECORD, Sample, keep_writing, oss, settled_after, watched};
use crate::cluster::{Cluster, Server};
use nacre_base::OstIndex;
use nacre_client::open_flags::{O_CREAT, O_EXCL, O_RDWR};
use nacre_experiment::{Constant, ConstantKind, Figure};
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How large the story is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    clients: u32,
    osts: u32,
    /// Seconds until the load has come to rest.
    before: usize,
    /// Seconds that are measured, before and after the disk becomes slower.
    measured: usize,
    /// Seconds after that which are not measured as rest.
    grace: usize,
}

impl Size {
    /// The size of the rows.
    pub(super) const CHOSEN: Size = Size { clients: 32, osts: 32, before: 20, measured: 30, grace: 70 };
}

/// How much slower the disk becomes.
const SLOWER: u32 = 10;

/// Result of one measurement.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Measured {
    /// 10^6 bytes a second of an OST, before its neighbour became slow: the mean of all but that one.
    others_before: f64,
    /// The same afterwards, and that of the OST among them that delivers least.
    others_after: f64,
    least_after: f64,
    /// How long requests took at the others, at rest afterwards.
    others: Latencies,
    /// 10^6 bytes a second of the slow OST, and how long requests took there, at rest.
    slow_mb_per_s: f64,
    slow: Latencies,
    /// Seconds from the change until no request took longer than the bound at the slow one; none without a bound.
    settled_after: Option<f64>,
    timeouts: u64,
}

/// Takes one measurement. Returns the hash of all events, too. Panics if the simulation hangs.
pub(super) fn measure(seed: u64, control: Control, size: Size) -> Result<(Measured, u64), String> {
    let builder = super::builder(seed, control, size.clients).oss(size.osts);
    super::run_row(seed, builder, move |cluster| async move { work(&cluster, control, size).await })
}

async fn work(cluster: &Arc<Cluster>, control: Control, size: Size) -> Result<Measured, String> {
    super::prepare(cluster, control)?;
    let stop = Arc::new(AtomicBool::new(false));
    for client in 0..cluster.client_count() {
        start(cluster, client, &stop).await?;
    }
    let slow_one = cluster.running_storage(Server::Oss(0));
    super::sleep_to_second(cluster).await;
    let seconds = |n: usize| cluster.rt().sleep(Duration::from_secs(n as u64));
    seconds(size.before).await;
    let ((), before) = watched(cluster, seconds(size.measured)).await;
    slow_one.set_slower(SLOWER);
    let ((), after) = watched(cluster, seconds(size.grace + size.measured)).await;
    slow_one.set_slower(1);
    let timeouts = super::all_timeouts(cluster);
    stop.store(true, Ordering::Relaxed);
    let measured = summary(&before, &after, control, size);
    Ok(Measured { timeouts, ..measured })
}

/// Starts a client's processes, one for each OST.
async fn start(cluster: &Arc<Cluster>, client: usize, stop: &Arc<AtomicBool>) -> Result<(), String> {
    let (mounted, flags) = (cluster.client(client), O_CREAT | O_EXCL | O_RDWR);
    for ost in (0..oss(cluster).count() as u32).map(OstIndex) {
        let component = ComponentSpec {
            end: u64::MAX,
            stripe_offset: -1,
            stripe_size: RECORD as u32,
            stripe_count: 1,
            osts: vec![ost],
            ..ComponentSpec::default()
        };
        let (name, layout) = (format!("file-{client}-{}", ost.0), LayoutSpec { components: vec![component] });
        let (root, name) = (Credentials::root(), name.as_bytes());
        let made = mounted.create(&root, mounted.root(), name, flags, 0o600, 0, Some(layout)).await;
        let (_, file) = made.map_err(|e| format!("create: {e}"))?;
        keep_writing(cluster, client, file, stop);
    }
    Ok(())
}

/// The figures, from each OST's samples before and after the first of them became slow.
fn summary(before: &[Vec<Sample>], after: &[Vec<Sample>], control: Control, size: Size) -> Measured {
    assert!(before.len() > 1 && before.len() == after.len(), "{} OSTs, then {}", before.len(), after.len());
    let rest = after[0].len().saturating_sub(size.measured)..after[0].len();
    let others_after: Vec<f64> = after[1..].iter().map(|samples| mb_per_s(samples, rest.clone())).collect();
    let others: Vec<Sample> = after[1..].iter().flat_map(|samples| samples[rest.clone()].to_vec()).collect();
    let slow = &after[0];
    let slow_mb_per_s = mb_per_s(slow, rest.clone());
    let bound = control.bound(size.clients as usize, slow_mb_per_s * 1e6 / RECORD as f64);
    Measured {
        others_before: mean(before[1..].iter().map(|samples| mb_per_s(samples, 0..samples.len()))),
        others_after: mean(others_after.iter().copied()),
        least_after: others_after.iter().copied().fold(f64::INFINITY, f64::min),
        others: super::latencies(&others, 0),
        slow_mb_per_s,
        slow: super::latencies(&slow[rest.clone()], rest.start),
        settled_after: control.is_bounded().then(|| settled_after(slow, bound)),
        timeouts: 0,
    }
}

fn mb_per_s(samples: &[Sample], seconds: Range<usize>) -> f64 {
    mean(samples[seconds].iter().map(|sample| sample.answered)) * RECORD as f64 / 1e6
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

/// The figures of a row.
pub(super) fn figures(row: &str, control: Control, measured: Option<&Measured>) -> Vec<Figure> {
    let own = |figure: &str, unit: &str, value: fn(&Measured) -> Option<f64>| {
        Figure::own(row, figure, unit, measured.and_then(value))
    };
    let mut figures = vec![
        own("each of the others before", "MB/s", |m| Some(m.others_before)),
        own("each of the others", "MB/s", |m| Some(m.others_after)),
        own("the least of them", "MB/s", |m| Some(m.least_after)),
        own("latency at the others", "s", |m| Some(m.others.mean)),
        own("longest at the others", "s", |m| Some(m.others.longest)),
        own("the slow one", "MB/s", |m| Some(m.slow_mb_per_s)),
        own("latency at the slow one", "s", |m| Some(m.slow.mean)),
        own("longest at the slow one", "s", |m| Some(m.slow.longest)),
        own("timeouts", "", |m| Some(m.timeouts as f64)),
    ];
    if control.is_bounded() {
        figures.push(own("within the bound after the step", "s", |m| m.settled_after));
    }
    figures
}

/// The constants of these rows.
pub(super) fn constants() -> Vec<Constant> {
    let Size { clients, osts, before, measured, grace } = Size::CHOSEN;
    let own = |name: &str, value: f64, unit: &str, source: &str| {
        Constant::new(&format!("slow OST: {name}"), value, unit, ConstantKind::Physical, source)
    };
    vec![
        own("OSTs", f64::from(osts), "", "as the paper's shared file has"),
        own("clients, each with a process for each OST", f64::from(clients), "", "chosen"),
        own("the disk of one becomes", f64::from(SLOWER), "times slower", "chosen"),
        own("time before the measurement", before as f64, "s", "chosen"),
        own("measured time, before and after", measured as f64, "s", "chosen"),
        own(
            "time after the step that is not measured as rest",
            grace as f64,
            "s",
            "chosen: FIX(32) lets requests wait 57 s",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_others_do_not_suffer_from_one_slow_ost() {
        let small = Size { clients: 4, osts: 3, before: 5, measured: 4, grace: 12 };
        for control in [Control::Fix(16), Control::Nacre(2)] {
            let measured = measure(1, control, small).unwrap().0;
            assert!(measured.others_before > 120.0, "{control:?}: {measured:?}");
            assert!(measured.least_after > 0.95 * measured.others_before, "{control:?}: {measured:?}");
            assert!(measured.slow_mb_per_s < 0.2 * measured.others_after, "{control:?}: {measured:?}");
            assert!(measured.others.longest < measured.slow.mean, "{control:?}: {measured:?}");
            assert_eq!(measured.timeouts, 0);
        }
    }
}
