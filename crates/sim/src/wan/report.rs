//! Results of the long distance: in the experiments' form, beside the slides' figures, and as plots.

use super::{Host, Job, Outcome, Path, Way, constants, formula};
use crate::experiment::{self, Traces};
use nacre_base::table;
use nacre_experiment::plot::{Line, Plot};
use nacre_experiment::{Experiment, Figure, FigureKind};
use nacre_lnet::CongestionControl;

/// A measurement and its result.
type Run = (Job, Result<Outcome, String>);

/// Rates of one path, in bits a second.
#[derive(Debug, Clone, Copy)]
struct Row {
    path: Path,
    /// The best of plain TCP, and its connections.
    tcp: Option<(f64, u32)>,
    lustre: Option<f64>,
    nacre: Option<f64>,
}

/// The experiment, from all measurements.
pub fn report(seed: u64, runs: &[Run]) -> Experiment {
    let mut traces = Traces::default();
    runs.iter().filter_map(|(_, outcome)| outcome.as_ref().ok()).for_each(|outcome| traces.add(outcome.trace));
    let rows = rows(runs);
    let of_rows = rows.iter().flat_map(figures);
    let figures = of_rows.chain(shapes(&rows)).chain(differences(&rows)).collect();
    experiment::new("wan", seed, traces, constants::fixed(), figures)
}

fn rows(runs: &[Run]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (job, outcome) in runs {
        let at = rows.iter().position(|row| row.path == job.path).unwrap_or_else(|| {
            rows.push(Row { path: job.path, tcp: None, lustre: None, nacre: None });
            rows.len() - 1
        });
        let (row, bits) = (&mut rows[at], outcome.as_ref().ok().map(|outcome| outcome.bits));
        match (job.way, bits) {
            (Way::Tcp(streams), Some(bits)) if row.tcp.is_none_or(|(best, _)| best < bits) => {
                row.tcp = Some((bits, streams));
            }
            (Way::Tcp(_), _) => {}
            (Way::Lustre, bits) => row.lustre = bits,
            (Way::Nacre, bits) => row.nacre = bits,
        }
    }
    rows
}

fn host_name(host: Host) -> &'static str {
    match host {
        Host::Bohr => "bohr",
        Host::Tait => "tait",
    }
}

fn control_name(control: CongestionControl) -> &'static str {
    match control {
        CongestionControl::Cubic => "CUBIC",
        CongestionControl::HTcp => "H-TCP",
    }
}

fn row_name(path: &Path) -> String {
    format!("{}, {}, {} ms", host_name(path.host), control_name(path.control), path.round_trip_ms)
}

/// Percentage of one rate of another, if both were measured.
fn share(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    Some(100.0 * part? / whole?)
}

/// Lustre's rate in the slides, which give whole Gb/s, where they give it in words.
fn paper(path: &Path) -> Option<(FigureKind, f64)> {
    match (path.host, path.round_trip_ms) {
        (Host::Bohr, 0.1) => Some((FigureKind::Fitted, 6.0)),
        (Host::Tait, 0.1) => Some((FigureKind::Fitted, 5.0)),
        (Host::Bohr, 11.6) => Some((FigureKind::Predicted, 5.0)),
        (Host::Tait, 11.6) => Some((FigureKind::Predicted, 3.0)),
        _ => None,
    }
}

fn figures(row: &Row) -> Vec<Figure> {
    let name = row_name(&row.path);
    let tcp = row.tcp.map(|(bits, _)| bits);
    let gigabits = |figure: &str, bits: Option<f64>| Figure::own(&name, figure, "Gb/s", bits.map(|bits| bits / 1e9));
    let percent = |figure: &str, share: Option<f64>| Figure::own(&name, figure, "%", share);
    let mut lustre = gigabits("Lustre", row.lustre);
    if let Some((kind, paper)) = paper(&row.path) {
        lustre = lustre.beside(kind, paper, 0.5);
    }
    vec![
        lustre,
        gigabits("min(host, B/T)", Some(formula(&row.path))),
        percent("Lustre of it", share(row.lustre, Some(formula(&row.path)))),
        gigabits("TCP", tcp),
        Figure::own(&name, "its connections", "", row.tcp.map(|(_, streams)| f64::from(streams))),
        percent("Lustre of TCP", share(row.lustre, tcp)),
        gigabits("Nacre", row.nacre),
        percent("Nacre of TCP", share(row.nacre, tcp)),
    ]
}

/// True if the rate falls ever less steeply as the round trip grows.
fn is_convex(points: &[(f64, f64)]) -> bool {
    let slope = |pair: &[(f64, f64)]| (pair[1].1 - pair[0].1) / (pair[1].0 - pair[0].0);
    points.windows(3).all(|three| slope(&three[..2]) <= slope(&three[1..]))
}

/// Shapes of Lustre's profiles where a distance bounds them: beyond 0.1 ms.
fn shapes(rows: &[Row]) -> Vec<Figure> {
    let profiles = table::distinct(rows.iter().map(|row| (row.path.host, row.path.control)));
    let figure = |(host, control)| {
        let of = rows.iter().filter(|row| (row.path.host, row.path.control) == (host, control));
        let points: Option<Vec<(f64, f64)>> = of
            .filter(|row| row.path.round_trip_ms > 1.0)
            .map(|row| Some((row.path.round_trip_ms, row.lustre?)))
            .collect();
        let points = points.filter(|points| points.len() >= 3)?;
        let name = format!("{}, {}", host_name(host), control_name(control));
        let convex = Figure::own(&name, "convex profile", "", Some(f64::from(u8::from(is_convex(&points)))));
        Some(convex.beside(FigureKind::Predicted, 1.0, 0.0))
    };
    profiles.into_iter().filter_map(figure).collect()
}

/// H-TCP's rates in percent of CUBIC's, on each path.
fn differences(rows: &[Row]) -> Vec<Figure> {
    let with = |row: &Row, control| {
        let path = Path { control, ..row.path };
        rows.iter().find(|row| row.path == path)
    };
    let cubic = rows.iter().filter(|row| row.path.control == CongestionControl::Cubic);
    let pair = |row: &Row| {
        let other = with(row, CongestionControl::HTcp)?;
        let name = format!("{}, {} ms", host_name(row.path.host), row.path.round_trip_ms);
        let figure = |what: &str, share| Figure::own(&name, what, "%", share);
        let tcp = |row: &Row| row.tcp.map(|(bits, _)| bits);
        let lustre = figure("H-TCP of CUBIC: Lustre", share(other.lustre, row.lustre));
        Some([
            lustre.beside(FigureKind::Predicted, 100.0, 5.0),
            figure("H-TCP of CUBIC: TCP", share(tcp(other), tcp(row))),
        ])
    };
    cubic.filter_map(pair).flatten().collect()
}

/// One plot for each host and congestion control: rates over the round trip.
pub fn plots(runs: &[Run]) -> Vec<Plot> {
    let rows = rows(runs);
    let profiles = table::distinct(rows.iter().map(|row| (row.path.host, row.path.control)));
    let plot = |(host, control)| {
        let of: Vec<&Row> = rows.iter().filter(|row| (row.path.host, row.path.control) == (host, control)).collect();
        let line = |name: &str, dashed, bits: &dyn Fn(&Row) -> Option<f64>| Line {
            name: name.to_owned(),
            points: of.iter().enumerate().filter_map(|(n, row)| Some((n, bits(row)? / 1e9))).collect(),
            dashed,
        };
        Plot {
            title: format!("{}, {}", host_name(host), control_name(control)),
            x_title: "round trip, ms".to_owned(),
            y_title: "Gb/s".to_owned(),
            x_labels: of.iter().map(|row| row.path.round_trip_ms.to_string()).collect(),
            lines: vec![
                line("Lustre's credits", false, &|row| row.lustre),
                line("min(host, B/T)", true, &|row| Some(formula(&row.path))),
                line("Nacre", false, &|row| row.nacre),
                line("plain TCP", true, &|row| row.tcp.map(|(bits, _)| bits)),
            ],
        }
    };
    profiles.into_iter().map(plot).collect()
}
