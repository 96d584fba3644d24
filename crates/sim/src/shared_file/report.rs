//! Results of shared files: in the experiments' form, beside the paper's figures, and as plots.

use super::{Load, Medium, Policy, Row, constants, stripes_text};
use crate::experiment::{self, Traces};
use nacre_base::size::{self, MIB};
use nacre_base::table;
use nacre_experiment::plot::{Line, Plot};
use nacre_experiment::{Constant, ConstantKind, Experiment, Figure, FigureKind};

/// Number of clients, and of processes of each, in the paper's runs.
const PAPER_WRITERS: (u32, u32) = (48, 16);

/// The experiment, from all rows.
pub fn report(seed: u64, rows: &[Row]) -> Experiment {
    let mut traces = Traces::default();
    rows.iter().for_each(|row| traces.add(row.trace));
    let of_rows = rows.iter().flat_map(figures);
    let figures = of_rows.chain(rows.iter().filter_map(|row| gain(row, rows))).collect();
    experiment::new("shared-file", seed, traces, constants(rows), figures)
}

fn constants(rows: &[Row]) -> Vec<Constant> {
    let mut all = constants::fixed();
    let records = rows.iter().map(|r| r.load.records).max().unwrap_or(0);
    let source = "of each process: fewer than the paper's 64 GB of each client, so that the start weighs more";
    all.push(Constant::new("records", records as f64, "", ConstantKind::Physical, source));
    all
}

fn row_name(load: &Load) -> String {
    let medium = format!("{:?}", load.medium).to_lowercase();
    let (clients, processes, record) = (load.clients, load.processes, size::human(load.record));
    let stripes = if load.policy.is_alone() { String::new() } else { format!(", stripes {}", load.stripes_text()) };
    format!("{medium}, {clients} x {processes}, {record}, {}{stripes}", name(load.policy))
}

fn figures(row: &Row) -> Vec<Figure> {
    let load = &row.load;
    let name = row_name(load);
    let of = |value: f64| row.failure.is_none().then_some(value);
    let mut rate = Figure::own(&name, "rate", "GB/s", of(row.gb_per_s));
    if let Some((kind, paper, tolerance)) = paper(load) {
        rate = rate.beside(kind, paper, tolerance);
    }
    vec![
        rate,
        Figure::own(&name, "of own files", "%", row.percent_of_file_per_process),
        Figure::own(&name, "enqueues", "a record", of(row.enqueues_per_record)),
        Figure::own(&name, "callbacks", "a record", of(row.callbacks_per_record)),
    ]
}

/// The paper's rate for a load: its meaning, GB/s, and the tolerance.
fn paper(load: &Load) -> Option<(FigureKind, f64, f64)> {
    if (load.clients, load.processes) != PAPER_WRITERS {
        return None;
    }
    // One row was fitted, for the rule that the paper describes. All others follow.
    let of_one_stripe = if load.policy == Policy::Grown { FigureKind::Fitted } else { FigureKind::Predicted };
    match (load.medium, load.policy, load.record / MIB, load.stripes) {
        (Medium::Flash, Policy::PaperFilePerProcess, 1 | 16, _) => Some((FigureKind::Input, 11.7, 0.5)),
        (Medium::Disk, Policy::PaperFilePerProcess, 16, _) => Some((FigureKind::Input, 6.0, 0.5)),
        (Medium::Flash, Policy::Grown | Policy::Lustre, 1, 1) => Some((of_one_stripe, 3.0, 0.5)),
        (Medium::Flash, Policy::Grown | Policy::Lustre, 16, 1) => Some((of_one_stripe, 6.0, 0.5)),
        (Medium::Flash, Policy::Grown | Policy::Lustre, 1, 32) => Some((FigureKind::Predicted, 11.25, 0.6)),
        (Medium::Flash, Policy::Grown | Policy::Lustre, 16, 8) => Some((FigureKind::Predicted, 11.25, 0.6)),
        _ => None,
    }
}

/// The gain from more stripes on disks, relative to the row with one. The paper has "at least a doubling" for both
/// records, and half as much more to twice as much for most tests.
fn gain(row: &Row, rows: &[Row]) -> Option<Figure> {
    let load = &row.load;
    let is_papers = (load.clients, load.processes) == PAPER_WRITERS && matches!(load.record / MIB, 1 | 16);
    let grown = matches!(load.policy, Policy::Grown | Policy::Lustre);
    if load.medium != Medium::Disk || load.stripes != 1 || !grown || !is_papers {
        return None;
    }
    let others = rows.iter().filter(|r| Load { stripes: 1, ..r.load } == *load && r.failure.is_none());
    let best = others.map(|r| r.gb_per_s).fold(0.0, f64::max);
    let gained = (row.failure.is_none() && row.gb_per_s > 0.0).then_some(best / row.gb_per_s);
    let figure = Figure::own(&row_name(load), "best of more stripes", "x", gained);
    Some(figure.beside(FigureKind::Predicted, 2.0, 0.5))
}

fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::PaperFilePerProcess => "own files, paper's storage",
        Policy::Grown => "shared, grown locks",
        Policy::Lustre => "shared, Lustre's rule",
        Policy::FilePerProcess => "own files, our storage",
        Policy::Default => "shared, ours",
    }
}

/// One plot for each kind of OST and number of processes: rate over stripes, a line for each policy and record.
pub fn plots(rows: &[Row]) -> Vec<Plot> {
    let rows: Vec<&Row> = rows.iter().filter(|r| r.failure.is_none()).collect();
    let stripes = table::distinct(rows.iter().map(|r| r.load.stripes));
    let groups = table::distinct(rows.iter().map(|r| (r.load.medium, r.load.clients, r.load.processes)));
    let plot = |(medium, clients, processes)| {
        let of_group = |l: &Load| (l.medium, l.clients, l.processes) == (medium, clients, processes);
        let of_group: Vec<&Row> = rows.iter().copied().filter(|r| of_group(&r.load)).collect();
        let kinds = table::distinct(of_group.iter().map(|r| (r.load.record, r.load.policy)));
        let lines = kinds.iter().map(|kind| line(&of_group, *kind, &stripes)).collect();
        Plot {
            title: format!("{medium:?}, {clients} clients of {processes} processes"),
            x_title: "stripes".into(),
            y_title: "GB/s".into(),
            x_labels: stripes.iter().map(|n| stripes_text(*n)).collect(),
            lines,
        }
    };
    groups.into_iter().map(plot).collect()
}

fn line(rows: &[&Row], (record, policy): (u64, Policy), stripes: &[u32]) -> Line {
    let mine = rows.iter().filter(|r| (r.load.record, r.load.policy) == (record, policy));
    let alone = policy.is_alone();
    let mut points: Vec<(usize, f64)> =
        mine.map(|r| (stripes.binary_search(&r.load.stripes).unwrap_or(0), r.gb_per_s)).collect();
    if let (true, Some((_, rate))) = (alone, points.first().copied()) {
        // These files have one stripe, whatever the shared one has.
        points = (0..stripes.len()).map(|i| (i, rate)).collect();
    }
    Line { name: format!("{}, {}", name(policy), size::human(record)), points, dashed: alone }
}
