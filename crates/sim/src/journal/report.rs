//! Results of the ways to commit: in the experiments' form, beside the paper's figures, and as a plot.

use super::{Application, ApplicationRow, Job, Load, Mode, Outcome, PAPER_RPCS, Row, Setup, Storage, constants};
use crate::experiment::{self, Traces};
use nacre_base::table;
use nacre_experiment::plot::{Line, Plot};
use nacre_experiment::{Constant, ConstantKind, Experiment, Figure, FigureKind};

/// The experiment, from its jobs and their outcomes.
pub fn report(setup: &Setup, runs: &[(Job, Result<Outcome, String>)]) -> Experiment {
    let mut traces = Traces::default();
    for outcome in runs.iter().filter_map(|(_, outcome)| outcome.as_ref().ok()) {
        let (Outcome::Stream(_, trace) | Outcome::Application(_, trace)) = outcome;
        traces.add(*trace);
    }
    let mut figures = Vec::new();
    for (job, _) in runs {
        match job {
            Job::Stream(load) => figures.extend(stream(setup, runs, load)),
            Job::Application(app, storage, mode) => figures.extend(application(runs, app, (*storage, *mode))),
        }
    }
    experiment::new("journal", setup.seed, traces, constants(setup), figures)
}

/// The constants, including those of the command's arguments.
fn constants(setup: &Setup) -> Vec<Constant> {
    use ConstantKind::{Paper, Physical};
    let app = setup.application;
    let mut all = constants::fixed();
    let from_arguments = [
        ("OSTs, and clients", f64::from(setup.osts), "", Paper, "section 4: 28 OSTs of one couplet"),
        ("RPCs in flight beside the paper", f64::from(PAPER_RPCS), "", Physical, "Lustre's default"),
        ("application: processes", f64::from(app.processes), "", Paper, "section 6: 1,344 cores"),
        ("application: checkpoints", f64::from(app.checkpoints), "", Physical, "assumed"),
        ("application: part of a process", app.bytes as f64 / 1048576.0, "MiB", Physical, "assumed"),
        ("application: time between checkpoints", app.compute, "x raw", Paper, constants::COMPUTE_SOURCE),
    ];
    all.extend(from_arguments.map(|(name, value, unit, kind, source)| Constant::new(name, value, unit, kind, source)));
    all
}

fn stream_row<'a>(runs: &'a [(Job, Result<Outcome, String>)], wanted: &Load) -> Option<&'a Row> {
    runs.iter().find_map(|run| match run {
        (Job::Stream(load), Ok(Outcome::Stream(row, _))) if load == wanted => Some(row),
        _ => None,
    })
}

/// Mode of ext3 with which a mode of Nacre is compared: the same, or for answers from memory the earliest answer that
/// ext3 has.
fn counterpart(mode: Mode) -> Mode {
    if mode == Mode::Memory { Mode::Async } else { mode }
}

fn stream(setup: &Setup, runs: &[(Job, Result<Outcome, String>)], load: &Load) -> Vec<Figure> {
    let mib = load.bytes >> 20;
    let name = format!("{}, {mib} MiB, {} in flight", way(load.storage, load.mode), load.rpcs_in_flight);
    let row = stream_row(runs, load);
    let of_ext3 = stream_row(runs, &Load { storage: Storage::Ext3, mode: counterpart(load.mode), ..*load });
    let ahead = row.zip(of_ext3).map(|(row, ext3)| row.percent_with_rest - ext3.percent_with_rest);
    let share = Figure::own(&name, "of raw", "%", row.map(|r| r.percent_of_raw));
    let is_papers = load.rpcs_in_flight == PAPER_RPCS && load.storage == Storage::Ext3;
    let share = match load.mode {
        _ if !is_papers => share,
        Mode::Sync if load.bytes == setup.bytes => share.beside(FigureKind::Fitted, 24.9, 1.0),
        Mode::External if load.bytes == setup.bytes => share.beside(FigureKind::Predicted, 58.7, 5.0),
        Mode::Async => share.beside(FigureKind::Predicted, 93.0, 3.0),
        _ => share,
    };
    vec![
        Figure::own(&name, "rate", "MB/s", row.map(|r| r.mb_per_s)),
        share,
        Figure::own(&name, "of raw, nothing left to write", "%", row.map(|r| r.percent_with_rest)),
        Figure::own(&name, "ahead of ext3", "points", ahead),
        Figure::own(&name, "small requests", "%", row.map(|r| r.percent_small)),
        Figure::own(&name, "commits", "", row.map(|r| r.commits as f64)),
    ]
}

fn application_row(runs: &[(Job, Result<Outcome, String>)], wanted: (Storage, Mode)) -> Option<&ApplicationRow> {
    runs.iter().find_map(|run| match run {
        (Job::Application(_, storage, mode), Ok(Outcome::Application(row, _))) if (*storage, *mode) == wanted => {
            Some(row)
        }
        _ => None,
    })
}

fn application(runs: &[(Job, Result<Outcome, String>)], app: &Application, on: (Storage, Mode)) -> Vec<Figure> {
    let name = format!("{} processes on {}", app.processes, way(on.0, on.1));
    let row = application_row(runs, on);
    let base = application_row(runs, (Storage::Ext3, Mode::Sync));
    let change = |f: fn(&ApplicationRow) -> f64| row.zip(base).map(|(row, base)| 100.0 * (f(row) / f(base) - 1.0));
    let bandwidth = Figure::own(&name, "I/O bandwidth", "% more", change(|r| r.mb_per_s));
    let run_time = Figure::own(&name, "run time", "% more", change(|r| r.run_seconds));
    let share = Figure::own(&name, "I/O share", "%", row.map(|r| 100.0 * r.io_seconds / r.run_seconds));
    let small = Figure::own(&name, "small requests", "%", row.map(|r| r.percent_small));
    let (bandwidth, run_time, share, small) = match on {
        (Storage::Ext3, Mode::Sync) => (
            bandwidth,
            run_time,
            share.beside(FigureKind::Input, 100.0 * constants::PAPER_IO_SHARE, 5.0),
            small.beside(FigureKind::Predicted, 64.0, 8.0),
        ),
        (Storage::Ext3, Mode::Async) => (
            bandwidth.beside(FigureKind::Predicted, 56.3, 10.0),
            run_time.beside(FigureKind::Predicted, -49.5, 10.0),
            share.beside(FigureKind::Predicted, 36.0, 10.0),
            small.beside(FigureKind::Predicted, 26.5, 8.0),
        ),
        _ => (bandwidth, run_time, share, small),
    };
    vec![
        Figure::own(&name, "run", "s", row.map(|r| r.run_seconds)),
        Figure::own(&name, "I/O", "s", row.map(|r| r.io_seconds)),
        share,
        bandwidth,
        run_time,
        small,
        Figure::own(&name, "commits", "", row.map(|r| r.commits as f64)),
    ]
}

fn way(storage: Storage, mode: Mode) -> String {
    let storage = match storage {
        Storage::Ext3 => "ext3",
        Storage::Nacre => "nacre",
        Storage::NacreNoJournal => "nacre without a journal",
    };
    let mode = match mode {
        Mode::Sync => "after the commit",
        Mode::External => "after the commit, journal elsewhere",
        Mode::Async => "before the commit",
        Mode::Memory => "from memory",
    };
    format!("{storage}, {mode}")
}

/// Plots the share of the raw rate over RPCs in flight, a line for each way.
pub fn plots(setup: &Setup, runs: &[(Job, Result<Outcome, String>)]) -> Vec<Plot> {
    let rows: Vec<(&Load, &Row)> = runs
        .iter()
        .filter_map(|run| match run {
            (Job::Stream(load), Ok(Outcome::Stream(row, _))) if load.bytes == setup.bytes => Some((load, row)),
            _ => None,
        })
        .collect();
    let in_flight = table::distinct(rows.iter().map(|(load, _)| load.rpcs_in_flight));
    let ways = table::distinct(rows.iter().map(|(load, _)| (load.storage, load.mode)));
    let line = |on: &(Storage, Mode)| Line {
        name: way(on.0, on.1),
        points: rows
            .iter()
            .filter(|(load, _)| (load.storage, load.mode) == *on)
            .map(|(load, row)| (in_flight.binary_search(&load.rpcs_in_flight).unwrap_or(0), row.percent_of_raw))
            .collect(),
        dashed: on.0 == Storage::Ext3,
    };
    vec![Plot {
        title: "writes, of the arrays' raw rate".into(),
        x_title: "RPCs in flight to each OST".into(),
        y_title: "%".into(),
        x_labels: in_flight.iter().map(u32::to_string).collect(),
        lines: ways.iter().map(line).collect(),
    }]
}
