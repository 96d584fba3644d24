//! Results of the rows: in the experiments' form, beside the paper's figures, and as plots.

use super::constants::{self, GROUP, INTERVAL, SAMPLE, TARGETS};
use super::{DEFAULTS, LEAD, OURS, Outcome, Pinging, REPEATED, Row, Setup, TUNED, Topology, Tuning};
use crate::experiment::{self, Traces};
use nacre_experiment::plot::{Line, Plot};
use nacre_experiment::{Constant, ConstantKind, Experiment, Figure, FigureKind};

/// The experiment, from the outcomes of all topologies and the hashes of their runs.
pub fn report(setup: &Setup, outcomes: &[Outcome], traces: &[u64]) -> Experiment {
    let mut all = Traces::default();
    traces.iter().for_each(|trace| all.add(*trace));
    let mut figures: Vec<Figure> = outcomes.iter().flat_map(|outcome| figures(setup, outcome, outcomes)).collect();
    figures.extend(growth_figures(outcomes));
    experiment::new("ping-storm", setup.seed, all, constants(setup), figures)
}

fn constants(setup: &Setup) -> Vec<Constant> {
    use ConstantKind::{Paper, Physical};
    let mut all = constants::fixed();
    let size = setup.size;
    let per_oss = f64::from(size.clients) * f64::from(TARGETS);
    let per_router = per_oss * f64::from(size.oss) / f64::from(size.routers);
    let more = [
        ("clients", f64::from(size.clients), "", Paper, "section II"),
        (
            "OSSs",
            f64::from(size.oss),
            "",
            Physical,
            "168, of the paper's \"hundreds of OSTs\"; or 18, so that each of 6 groups has 3",
        ),
        ("routers", f64::from(size.routers), "", Paper, "section II: 75,000 pings a router, which makes 4 of a group"),
        ("pings of an OSS in an interval", per_oss, "", Physical, "follows from the sizes"),
        ("pings of a router in an interval", per_router, "", Physical, "follows from the sizes"),
        (
            "small buffers by default",
            f64::from(DEFAULTS.small_buffers),
            "",
            Paper,
            "section VI.B: massively undersized",
        ),
        ("credits by default", f64::from(DEFAULTS.credits), "", Paper, "section IV.B: the default of eight"),
        ("credits after tuning", f64::from(TUNED.credits), "", Paper, "section VI.A"),
        ("small buffers after tuning", f64::from(TUNED.small_buffers), "", Paper, "section VI.B"),
        (
            "pings of an import where mounts are repeated",
            REPEATED,
            "",
            Paper,
            "section VI.C: 45 million; the same imports ping more often, which stands for the repeated mounts",
        ),
        ("intervals measured", f64::from(setup.intervals), "", Physical, "the command's arguments"),
    ];
    all.extend(more.map(|(name, value, unit, kind, source)| Constant::new(name, value, unit, kind, source)));
    all
}

fn name(row: &Row) -> String {
    let topology = match row.topology {
        Topology::Flat => "flat",
        Topology::FineGrained => "fine-grained",
    };
    let pinging = match row.pinging {
        Pinging::Never => "no pings",
        Pinging::Aligned => "aligned pings",
        Pinging::AlignedMore(_) => "aligned pings, 2.7 times",
        Pinging::Spread => "spread pings",
        Pinging::Idle => "pings by idle time",
        Pinging::PerServer => "a ping for each server",
        Pinging::Lease => "leases",
    };
    let lanes = if row.tuning.lanes { ", lanes" } else { "" };
    format!("{topology}, {} credits, {} buffers{lanes}, {pinging}", row.tuning.credits, row.tuning.small_buffers)
}

/// The same site without pings.
fn base<'a>(row: &Row, outcomes: &'a [Outcome]) -> Option<&'a Outcome> {
    outcomes.iter().find(|o| o.row == Row { pinging: Pinging::Never, ..*row })
}

fn bytes(outcome: &Outcome) -> f64 {
    outcome.samples.last().zip(outcome.samples.first()).map_or(0.0, |(last, first)| (last - first) as f64)
}

/// Share of the bytes that are missing beside the same site without pings.
fn dead_time(outcome: &Outcome, outcomes: &[Outcome]) -> Option<f64> {
    base(&outcome.row, outcomes).map(|base| 100.0 * (1.0 - bytes(outcome) / bytes(base)))
}

/// Seconds of each interval in which less than a tenth of the usual was written.
fn still(setup: &Setup, outcome: &Outcome, outcomes: &[Outcome]) -> Option<f64> {
    let base = base(&outcome.row, outcomes)?;
    let usual = bytes(base) / (base.samples.len() - 1).max(1) as f64;
    let still = outcome.samples.windows(2).filter(|pair| ((pair[1] - pair[0]) as f64) < usual / 10.0).count();
    Some(still as f64 * SAMPLE.as_secs_f64() / f64::from(setup.intervals))
}

fn figures(setup: &Setup, outcome: &Outcome, outcomes: &[Outcome]) -> Vec<Figure> {
    let (row, name) = (outcome.row, name(&outcome.row));
    if row.clients != setup.size.clients {
        return Vec::new();
    }
    let own = |figure: &str, unit: &str, value: f64| Figure::own(&name, figure, unit, Some(value));
    let mut all =
        vec![own("written", "GB/s", bytes(outcome) / (f64::from(setup.intervals) * INTERVAL.as_secs_f64()) / 1e9)];
    if row.pinging == Pinging::Never {
        all.push(own("a write at its OSS", "ms", outcome.io_wait_us / 1e3));
        all.push(own("messages", "million", outcome.messages as f64 / 1e6));
        return all;
    }
    let still = Figure::own(&name, "stands still in an interval", "s", still(setup, outcome, outcomes));
    all.extend([beside_the_paper(&row, Figure::own(&name, "dead_time", "%", dead_time(outcome, outcomes))), still]);
    let credits = own("lowest o2ib credits", "", outcome.o2ib_low as f64);
    let credits = match is(&row, TUNED, Pinging::AlignedMore(REPEATED - 1.0)) {
        // Figure 4 and the text: oversubscribed by thousands, up to ten thousand.
        true => credits.beside(FigureKind::Predicted, -5500.0, 4500.0),
        false => credits,
    };
    all.push(credits);
    all.extend([
        own("lowest small buffers", "", outcome.buffers_low as f64),
        own("lowest router credits of a client", "", outcome.client_credits_low as f64),
        own("pings", "million", outcome.pings as f64 / 1e6),
        own("messages", "million", outcome.messages as f64 / 1e6),
        Figure::own(&name, "of those with pings", "%", of_pings(outcome, outcomes)),
        own("a write at its OSS", "ms", outcome.io_wait_us / 1e3),
    ]);
    let io_wait = base(&row, outcomes).map(|base| 100.0 * outcome.io_wait_us / base.io_wait_us);
    let io_wait = Figure::own(&name, "of that without pings", "%", io_wait);
    // The paper: the wait time of ost_io is constant.
    all.push(if row.tuning == OURS { io_wait } else { io_wait.beside(FigureKind::Predicted, 100.0, 25.0) });
    all.extend([
        own("barriers that are late", "%", 100.0 * outcome.barriers.late),
        own("a barrier is late by", "us", outcome.barriers.mean_us),
        own("the latest", "us", outcome.barriers.worst_us),
    ]);
    all
}

fn is(row: &Row, tuning: Tuning, pinging: Pinging) -> bool {
    (row.topology, row.tuning, row.pinging) == (Topology::FineGrained, tuning, pinging)
}

/// The dead time beside the paper's: one number, and words that stand for ranges.
fn beside_the_paper(row: &Row, dead: Figure) -> Figure {
    let aligned = row.pinging == Pinging::Aligned;
    match () {
        () if is(row, DEFAULTS, Pinging::Aligned) => dead.beside(FigureKind::Fitted, 10.0, 1.0),
        // Section V: it is rarely a problem in flat networks. Section VI.C: tuning reduces it.
        () if row.topology == Topology::Flat && aligned => dead.beside(FigureKind::Predicted, 0.0, 2.5),
        () if is(row, TUNED, Pinging::Aligned) => dead.beside(FigureKind::Predicted, 0.0, 2.5),
        // Section VI.C and figure 8: drastically reduced, but still present.
        () if is(row, TUNED, Pinging::AlignedMore(REPEATED - 1.0)) => dead.beside(FigureKind::Predicted, 1.25, 1.2),
        // Section VII: without pings there is none. Our own bar is 0.1 %.
        () if is(row, OURS, Pinging::Lease) => dead.beside(FigureKind::Predicted, 0.0, 0.1),
        () => dead,
    }
}

/// Messages as a share of those of aligned pings in the same network.
fn of_pings(outcome: &Outcome, outcomes: &[Outcome]) -> Option<f64> {
    let pings = outcomes.iter().find(|o| o.row == Row { pinging: Pinging::Aligned, ..outcome.row })?;
    Some(100.0 * outcome.messages as f64 / pings.messages as f64)
}

/// Clients and messages of all rows with leases, the fewest clients first.
fn growth(outcomes: &[Outcome]) -> Vec<(u32, u64)> {
    let leases = outcomes.iter().filter(|o| o.row.pinging == Pinging::Lease);
    let mut points: Vec<_> = leases.map(|o| (o.row.clients, o.messages)).collect();
    points.sort_unstable();
    points
}

/// Slope of messages over clients, both logarithmic: 1 if each client adds as many, 2 if each adds more the more there are.
fn slope(points: &[(u32, u64)]) -> Option<f64> {
    let logarithms = points.iter().map(|(x, y)| (f64::from(*x).ln(), (*y as f64).ln()));
    let (xs, ys): (Vec<f64>, Vec<f64>) = logarithms.unzip();
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let (x, y) = (mean(&xs), mean(&ys));
    let spread: f64 = xs.iter().map(|at| (at - x).powi(2)).sum();
    let slope = xs.iter().zip(&ys).map(|(at, of)| (at - x) * (of - y)).sum::<f64>() / spread;
    (points.len() > 1).then_some(slope)
}

fn growth_figures(outcomes: &[Outcome]) -> Vec<Figure> {
    let points = growth(outcomes);
    if points.len() < 2 {
        return Vec::new();
    }
    let row = |clients: u32| format!("leases, {clients} clients");
    let each = points.iter().map(|(clients, messages)| {
        Figure::own(
            &row(*clients),
            "messages in an interval, of a client",
            "",
            Some(*messages as f64 / f64::from(*clients)),
        )
    });
    let slope = Figure::own("leases, all numbers of clients", "slope of messages over clients", "", slope(&points));
    each.chain([slope]).collect()
}

/// The rate over the time of an interval: one plot for each topology.
pub fn plots(setup: &Setup, outcomes: &[Outcome]) -> Vec<Plot> {
    let plot = |topology: Topology| {
        let rows = outcomes.iter().filter(|o| {
            o.row.topology == topology && o.row.pinging != Pinging::Never && o.row.clients == setup.size.clients
        });
        let count = (INTERVAL.as_secs_f64() / SAMPLE.as_secs_f64()) as usize;
        // The flood, and as long before and after it.
        let shown = ((2.0 * LEAD.as_secs_f64()) / SAMPLE.as_secs_f64()) as usize;
        let line = |outcome: &Outcome| Line {
            name: name(&outcome.row),
            points: outcome
                .samples
                .windows(2)
                .take(shown.min(count))
                .enumerate()
                .map(|(i, pair)| (i, (pair[1] - pair[0]) as f64 / SAMPLE.as_secs_f64() / 1e9))
                .collect(),
            dashed: false,
        };
        let second = (1.0 / SAMPLE.as_secs_f64()) as usize;
        let label = |i: usize| if i.is_multiple_of(5 * second) { format!("{}", i / second) } else { String::new() };
        Plot {
            title: format!("{} OSSs, {GROUP} to a group, {topology:?}", setup.size.oss),
            x_title: "seconds; pings begin at 10".into(),
            y_title: "GB/s".into(),
            x_labels: (0..shown).map(label).collect(),
            lines: rows.map(line).collect(),
        }
    };
    let mut all: Vec<Plot> = [Topology::Flat, Topology::FineGrained].map(plot).into();
    let points = growth(outcomes);
    if let Some(slope) = slope(&points) {
        let line = Line {
            name: format!("leases: slope {slope:.2}"),
            points: points.iter().enumerate().map(|(i, (_, messages))| (i, *messages as f64 / 1e6)).collect(),
            dashed: false,
        };
        all.push(Plot {
            title: format!("Messages of {} targets", setup.size.oss * TARGETS),
            x_title: "clients".into(),
            y_title: "million in an interval".into(),
            x_labels: points.iter().map(|(clients, _)| clients.to_string()).collect(),
            lines: vec![line],
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_is_the_power_of_the_growth() {
        assert_eq!(slope(&[(10, 30)]), None);
        let near = |points: &[(u32, u64)], want: f64| (slope(points).unwrap() - want).abs() < 1e-9;
        assert!(near(&[(10, 30), (100, 300), (1000, 3000)], 1.0));
        assert!(near(&[(10, 100), (100, 10_000)], 2.0));
    }
}
