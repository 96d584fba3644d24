//! The results: each row live and simulated, in the experiments' form.

use super::plan::{Calibration, LEASE, Measured, PING, Plan, SAMPLE, SLOW_PING, Simulated};
use crate::failure::{Outcome, ensure};
use nacre_experiment::{Constant, ConstantKind, Experiment, Figure, FigureKind};

/// How far the simulated dead time of pings may be from the live one, in percent of it.
const TOLERANCE: f64 = 20.0;
/// Dead time that cannot be told from none, in percent.
const NOTHING: f64 = 1.0;

/// The experiment.
pub(super) fn report(plan: &Plan, calibration: &Calibration, rows: &[Measured], simulated: &Simulated) -> Experiment {
    let figures = rows.iter().flat_map(|row| figures(plan, row, rows, simulated)).collect();
    Experiment::live("storm", constants(calibration, simulated), figures)
}

/// Fails if the live storm and the simulated one do not agree.
pub(crate) fn judge(experiment: &Experiment) -> Outcome {
    let misses: Vec<String> = experiment
        .misses()
        .map(|f| {
            format!("{}, {}: {}", f.row, f.figure, f.ours.map_or("none".to_owned(), |ours| format!("{ours:.1} %")))
        })
        .collect();
    ensure!(misses.is_empty(), "the live storm and the simulated one do not agree: {}", misses.join("; "));
    Ok(())
}

fn bytes(row: &Measured) -> f64 {
    row.samples.iter().sum::<u64>() as f64
}

/// The longest time without the end of a write, in seconds.
fn pause(row: &Measured) -> f64 {
    let pauses = row.samples.split(|bytes| *bytes > 0).map(<[u64]>::len);
    pauses.max().unwrap_or(0) as f64 * SAMPLE.as_secs_f64()
}

fn figures(plan: &Plan, row: &Measured, rows: &[Measured], simulated: &Simulated) -> Vec<Figure> {
    let name = row.row.name;
    let secs = plan.interval().as_secs_f64() * f64::from(plan.intervals);
    let own = |figure: &str, unit: &str, ours| Figure::own(name, figure, unit, ours);
    let base = rows.iter().find(|base| (base.row.liveness, base.row.slow) == ("none", row.row.slow));
    let dead = base.map(|base| 100.0 * (1.0 - bytes(row) / bytes(base)));
    let sim = |figure: &str| simulated.get(&row.row.slow)?.ours(row.row.simulated, figure);
    let mut all = vec![
        own("written", "MB/s", Some(bytes(row) / secs / 1e6)),
        own("written, simulated", "MB/s", sim("written")),
        own("longest pause", "s", Some(pause(row))),
        own("longest pause, simulated", "s", sim("longest pause")),
    ];
    if row.row.liveness == "none" {
        return all;
    }
    let answering = row.answering.as_secs_f64() / f64::from(plan.intervals);
    let dead_times = [own("dead_time", "%", dead), own("dead_time, simulated", "%", sim("dead_time"))];
    match row.row {
        LEASE => all.extend(dead_times.map(|figure| figure.beside(FigureKind::Predicted, 0.0, NOTHING))),
        PING | SLOW_PING => {
            all.extend(dead_times);
            let ratio = dead.zip(sim("dead_time")).map(|(live, simulated)| 100.0 * simulated / live);
            all.push(own("simulated, of live", "%", ratio).beside(FigureKind::Predicted, 100.0, TOLERANCE));
        }
        _ => all.extend(dead_times),
    }
    all.extend([
        own("pings answered", "", Some(row.pings as f64)),
        own("pings answered, simulated", "", sim("pings answered")),
        own("answered within", "s", Some(answering)),
        own("answered within, simulated", "s", sim("pings are answered for")),
    ]);
    all
}

/// The simulation's inputs, and what was measured before the rows.
fn constants(calibration: &Calibration, simulated: &Simulated) -> Vec<Constant> {
    let measured = |name: &str, value: f64, unit: &str, source: &str| {
        Constant::new(name, value, unit, ConstantKind::Physical, source)
    };
    let tbf = "counted by the link's tbf during a flood without a writer";
    // The last has those of slow servers, if they were measured: the others are equal.
    let mut all = simulated.values().last().map_or_else(Vec::new, |experiment| experiment.constants.clone());
    all.extend([
        measured("a ping on the link to an OSS", calibration.wire.0, "B", tbf),
        measured("its reply on the link", calibration.wire.1, "B", tbf),
        measured(
            "a flood on links without limits",
            calibration.unshaped.as_secs_f64(),
            "s",
            "measured without a writer: what CPUs take",
        ),
        measured(
            "round trip of a credit of an OSS",
            calibration.round_trip.as_secs_f64() * 1e3,
            "ms",
            "credits of all routers for all OSSs, times that flood, for each ping. The simulation has no CPUs, so its OSSs hold \
             each message for so long",
        ),
        measured("a flood on the links", calibration.shaped.as_secs_f64(), "s", "measured without a writer"),
    ]);
    all
}
