//! Results of congestion control: in the experiments' form, beside the paper's figures, and as plots over time.

use super::{Control, Load, Outcome, Sample, constants};
use crate::experiment::{self, Traces};
use nacre_experiment::plot::{Line, Plot};
use nacre_experiment::{Constant, ConstantKind, Experiment, Figure, FigureKind};

/// Bytes that the paper's clients write together.
const PAPER_BYTES: u64 = 512 << 30;

/// The experiment, from its loads and their outcomes.
pub fn report(seed: u64, runs: &[(Load, Result<Outcome, String>)]) -> Experiment {
    let mut traces = Traces::default();
    runs.iter().filter_map(|(_, outcome)| outcome.as_ref().ok()).for_each(|outcome| traces.add(outcome.trace));
    let of_rows = runs.iter().flat_map(|(load, outcome)| figures(load, outcome.as_ref().ok()));
    let figures = of_rows.chain(gains(runs)).collect();
    let mut constants = constants::fixed();
    for (load, _) in runs.iter().filter(|(load, _)| load.bytes != PAPER_BYTES) {
        let (name, gib) = (format!("{load}: all data"), (load.bytes >> 30) as f64);
        let source = "less than the paper's 512 GiB: the latency at rest is reached early";
        constants.push(Constant::new(&name, gib, "GiB", ConstantKind::Physical, source));
    }
    experiment::new("congestion-control", seed, traces, constants, figures)
}

/// A figure of the paper: its meaning, value and tolerance.
type Paper = Option<(FigureKind, f64, f64)>;

const fn fitted(value: f64) -> Paper {
    Some((FigureKind::Fitted, value, 0.08 * value))
}

const fn predicted(value: f64) -> Paper {
    Some((FigureKind::Predicted, value, 0.1 * value))
}

fn beside(figure: Figure, paper: Paper) -> Figure {
    paper.map_or(figure.clone(), |(kind, value, tolerance)| figure.beside(kind, value, tolerance))
}

/// The paper's rate of a load, in MB/s: figures 4 and 5 and table I.
fn paper_rate(load: &Load) -> Paper {
    match (load.control, load.clients) {
        (Control::Fix(1), 1) => fitted(178.0),
        (Control::Fix(64), 1) => fitted(187.0),
        (Control::Fix(1), 512) => fitted(103.0),
        (Control::Fix(1), 1024) => fitted(105.0),
        (Control::Fix(32), 512) => fitted(177.0),
        (Control::Fix(32), 1024) => fitted(192.0),
        (Control::Fix(8), 1024) => predicted(156.13),
        (Control::Cc(60), 1024) => predicted(170.13),
        _ => None,
    }
}

fn figures(load: &Load, outcome: Option<&Outcome>) -> Vec<Figure> {
    let name = load.to_string();
    let of = |value: fn(&Outcome) -> f64| outcome.map(value);
    let own = |figure: &str, unit: &str, value: fn(&Outcome) -> f64| Figure::own(&name, figure, unit, of(value));
    let (mut queue, mut whole) = (None, None);
    let (mut mean, mut deviation, mut longest) = (None, None, None);
    match (load.control, load.clients) {
        // "More than 32,000": all windows together are 32,768.
        (Control::Fix(32), 1024) => {
            (queue, whole) = (Some((FigureKind::Predicted, 32_384.0, 384.0)), predicted(145.0));
        }
        (Control::Fix(8), 1024) => (mean, deviation, longest) = (predicted(55.8), Some(1.9), predicted(59.0)),
        (Control::Cc(60), 1024) => (mean, deviation, longest) = (predicted(58.3), Some(3.25), predicted(66.0)),
        _ => {}
    }
    let mut figures = vec![
        beside(own("rate", "MB/s", |o| o.mb_per_s), paper_rate(load)),
        beside(own("longest queue", "requests", Outcome::longest_queue), queue),
        beside(own("latency, whole run", "s", |o| o.latencies().mean), whole),
        own("at rest from", "s", |o| o.at_rest().phase.0),
        own("at rest until", "s", |o| o.at_rest().phase.1),
        beside(own("latency at rest", "s", |o| o.at_rest().mean), mean),
        own("its deviation", "s", |o| o.at_rest().deviation).with_paper(deviation),
        beside(own("longest at rest", "s", |o| o.at_rest().longest), longest),
        own("timeouts", "", |o| o.timeouts as f64),
    ];
    if let Control::Cc(bound) = load.control {
        // Equation 5: the excess is at most C / IOPS, 1 in these units.
        let excess = outcome.map(|o| {
            let rate = o.samples.iter().map(|s| s.answered).sum::<f64>() / o.samples.len().max(1) as f64;
            (o.at_rest().longest - f64::from(bound)) / (f64::from(load.clients) / rate)
        });
        let excess = Figure::own(&name, "longest beyond the bound, of C / IOPS", "", excess);
        let holds = excess.ours.is_some_and(|excess| excess <= 1.0);
        let kept = Figure::own(&name, "within equation 5", "", outcome.map(|_| f64::from(u8::from(holds))));
        figures.extend([excess, kept.beside(FigureKind::Predicted, 1.0, 0.0)]);
    }
    figures
}

/// What CC(60,1024) has over static windows.
fn gains(runs: &[(Load, Result<Outcome, String>)]) -> Vec<Figure> {
    let rate = |control| {
        let row = |(load, _): &&(Load, _)| load.control == control && load.clients == 1024 && load.bytes == PAPER_BYTES;
        runs.iter().find(row).and_then(|(_, outcome)| outcome.as_ref().ok()).map(|outcome| outcome.mb_per_s)
    };
    let Some(ours) = rate(Control::Cc(60)) else { return Vec::new() };
    let over = |(rpcs, paper)| {
        let gain = rate(Control::Fix(rpcs)).map(|fixed| 100.0 * (ours / fixed - 1.0));
        let figure = Figure::own("CC(60,1024)", &format!("faster than FIX({rpcs})"), "%", gain);
        figure.beside(FigureKind::Predicted, paper, 10.0)
    };
    [(8, 9.0), (4, 15.0), (1, 62.0)].map(over).to_vec()
}

/// A curve: its title, its unit, and its value in a second.
type Curve = (&'static str, &'static str, fn(&Sample) -> f64);

/// Points of a line.
const POINTS: usize = 24;

/// Plots of the OST over time: the five of the paper's figure 6.
pub fn plots(runs: &[(Load, Result<Outcome, String>)]) -> Vec<Plot> {
    let drawn: Vec<(&Load, &Outcome)> = runs
        .iter()
        .filter(|(load, _)| load.clients == 1024 && matches!(load.control, Control::Fix(8) | Control::Cc(60)))
        .filter_map(|(load, outcome)| Some((load, outcome.as_ref().ok()?)))
        .collect();
    let seconds = drawn.iter().map(|(_, outcome)| outcome.samples.len()).max().unwrap_or(0);
    let step = seconds.div_ceil(POINTS).max(1);
    let curves: [Curve; 5] = [
        ("queue at the OST", "requests", |s| s.under_way),
        ("latency", "s", |s| s.latency),
        ("requests that the OST finishes", "a second", |s| s.per_second),
        ("clients that take part", "clients", |s| s.clients),
        ("window of a client", "requests", |s| s.window),
    ];
    let plot = |(title, unit, value): Curve| Plot {
        title: title.to_owned(),
        x_title: "minutes".to_owned(),
        y_title: unit.to_owned(),
        x_labels: (0..seconds.div_ceil(step)).map(|n| ((n * step) / 60).to_string()).collect(),
        lines: drawn
            .iter()
            .map(|(load, outcome)| Line {
                name: load.to_string(),
                points: outcome.samples.iter().step_by(step).map(value).enumerate().collect(),
                dashed: matches!(load.control, Control::Fix(_)),
            })
            .collect(),
    };
    curves.map(plot).to_vec()
}
