//! Plots as SVG, by hand: a few lines over a few positions, or bars beside one another, with axes that can be read.

use std::fmt::Write;

/// One line of a plot.
#[derive(Debug, Clone)]
pub struct Line {
    /// Name for the legend.
    pub name: String,
    /// Position on the x axis (an index into the labels) and value.
    pub points: Vec<(usize, f64)>,
    /// True for a limit, which is drawn dashed.
    pub dashed: bool,
}

/// One pair of axes.
#[derive(Debug, Clone)]
pub struct Plot {
    /// Title above the axes.
    pub title: String,
    /// Title below the x axis.
    pub x_title: String,
    /// Title beside the y axis.
    pub y_title: String,
    /// Names of positions on the x axis.
    pub x_labels: Vec<String>,
    /// The lines to draw.
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;
/// Height of one entry in the legend.
const LEGEND: f64 = 16.0;
/// Distinguishable for the colour-blind, too, and in grey.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];

/// Plots side by side, two in a row, as one SVG document.
pub fn svg(plots: &[Plot]) -> String {
    let columns = plots.len().clamp(1, 2);
    let rows = plots.len().div_ceil(columns);
    let legend = plots.iter().map(|p| p.lines.len()).max().unwrap_or(0) as f64 * LEGEND + 8.0;
    let (width, height) = (columns as f64 * WIDTH, rows as f64 * (HEIGHT + legend));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (i, plot) in plots.iter().enumerate() {
        let at = ((i % columns) as f64 * WIDTH, (i / columns) as f64 * (HEIGHT + legend));
        let _ = writeln!(out, "<g transform=\"translate({} {})\">", at.0, at.1);
        draw(&mut out, plot);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

/// Values in groups, as horizontal bars.
#[derive(Debug, Clone)]
pub struct Bars {
    /// Title above the bars.
    pub title: String,
    /// Title below the axis of values.
    pub value_title: String,
    /// Name of each bar of a group.
    pub names: Vec<String>,
    /// Label and values of each group, in the order of `names`; NaN has no bar.
    pub groups: Vec<(String, Vec<f64>)>,
}

const BAR: f64 = 9.0;
const BAR_LEFT: f64 = 130.0;
const BARS_WIDTH: f64 = 640.0;

/// Groups of bars below one another, as an SVG document.
pub fn svg_bars(bars: &Bars) -> String {
    let group = bars.names.len() as f64 * BAR + 10.0;
    let bottom = TOP + bars.groups.len() as f64 * group;
    let height = bottom + BOTTOM + bars.names.len() as f64 * LEGEND;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{BARS_WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {BARS_WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let top = round_up(bars.groups.iter().flat_map(|g| &g.1).copied().filter(|v| v.is_finite()).fold(0.0, f64::max));
    let x = |v: f64| BAR_LEFT + (BARS_WIDTH - BAR_LEFT - RIGHT - 30.0) * v / top;
    text(&mut out, BARS_WIDTH / 2.0, 18.0, "middle", &bars.title, " font-weight=\"bold\"");
    for step in 0..=4 {
        let value = top * f64::from(step) / 4.0;
        let at = x(value);
        let _ = writeln!(out, "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>");
        text(&mut out, at, bottom + 14.0, "middle", &short(value), "");
    }
    text(&mut out, x(top / 2.0), bottom + 30.0, "middle", &bars.value_title, "");
    for (n, (label, values)) in bars.groups.iter().enumerate() {
        let begin = TOP + n as f64 * group + 5.0;
        text(&mut out, BAR_LEFT - 8.0, begin + group / 2.0 - 2.0, "end", label, "");
        for (i, value) in values.iter().enumerate().filter(|(_, v)| v.is_finite()) {
            bar(&mut out, begin + i as f64 * BAR, x(*value), COLOURS[i % COLOURS.len()]);
            text(&mut out, x(*value) + 4.0, begin + (i + 1) as f64 * BAR - 1.0, "start", &short(*value), "");
        }
    }
    for (i, name) in bars.names.iter().enumerate() {
        let at = bottom + BOTTOM + i as f64 * LEGEND - 4.0;
        bar(&mut out, at, BAR_LEFT + 24.0, COLOURS[i % COLOURS.len()]);
        text(&mut out, BAR_LEFT + 32.0, at + 8.0, "start", name, "");
    }
    out.push_str("</svg>\n");
    out
}

fn bar(out: &mut String, y: f64, to: f64, colour: &str) {
    let (width, height) = ((to - BAR_LEFT).max(0.5), BAR - 1.0);
    let _ = writeln!(
        out,
        "<rect x=\"{BAR_LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>"
    );
}

fn draw(out: &mut String, plot: &Plot) {
    let highest = plot.lines.iter().flat_map(|l| &l.points).map(|p| p.1).fold(0.0, f64::max);
    let top = round_up(highest);
    let count = plot.x_labels.len().max(1);
    let x = |i: usize| LEFT + (WIDTH - LEFT - RIGHT) * (i as f64 + 0.5) / count as f64;
    let y = |v: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * v / top;
    text(out, WIDTH / 2.0, 18.0, "middle", &plot.title, " font-weight=\"bold\"");
    text(out, WIDTH / 2.0, HEIGHT - 8.0, "middle", &plot.x_title, "");
    let turned = format!(" transform=\"rotate(-90 12 {})\"", HEIGHT / 2.0);
    text(out, 12.0, HEIGHT / 2.0, "middle", &plot.y_title, &turned);
    for step in 0..=4 {
        let value = top * f64::from(step) / 4.0;
        let (at, right) = (y(value), WIDTH - RIGHT);
        let _ = writeln!(out, "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>");
        text(out, LEFT - 6.0, at + 4.0, "end", &short(value), "");
    }
    for (i, label) in plot.x_labels.iter().enumerate() {
        text(out, x(i), HEIGHT - BOTTOM + 15.0, "middle", label, "");
    }
    for (n, line) in plot.lines.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let dash = if line.dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        let points: Vec<String> = line.points.iter().map(|(i, v)| format!("{:.1},{:.1}", x(*i), y(*v))).collect();
        let points = points.join(" ");
        let _ =
            writeln!(out, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>");
        for (i, v) in line.points.iter().filter(|_| !line.dashed) {
            let _ = writeln!(out, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>", x(*i), y(*v));
        }
        let at = HEIGHT + 4.0 + n as f64 * LEGEND;
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            LEFT + 24.0
        );
        text(out, LEFT + 32.0, at + 4.0, "start", &line.name, "");
    }
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, what: &str, more: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{what}</text>");
}

/// The next larger value that is 1, 2 or 5 (or 4 or 8, for the sake of quarters) times a power of ten.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 5.0, 8.0, 10.0].into_iter().map(|m| m * power).find(|v| *v >= value).unwrap_or(10.0 * power)
}

fn short(value: f64) -> String {
    if value >= 10_000.0 {
        format!("{:.0}k", value / 1000.0)
    } else if value >= 10.0 || value == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_lines_labels_and_no_markup_from_texts() {
        let line = Line { name: "a < b".into(), points: vec![(0, 10.0), (1, 40.0)], dashed: false };
        let plot = Plot {
            title: "t".into(),
            x_title: "x".into(),
            y_title: "y".into(),
            x_labels: vec!["1".into(), "2".into()],
            lines: vec![line],
        };
        let out = svg(&[plot.clone(), plot.clone(), plot]);
        assert_eq!(out.matches("<polyline").count(), 3);
        assert_eq!(out.matches("<circle").count(), 6);
        assert!(out.contains("a &lt; b") && out.ends_with("</svg>\n"));
    }

    #[test]
    fn bars_are_as_long_as_their_values_and_missing_where_there_is_none() {
        let bars = Bars {
            title: "t".into(),
            value_title: "seconds".into(),
            names: vec!["a".into(), "b".into()],
            groups: vec![("one".into(), vec![1.0, 4.0]), ("two".into(), vec![f64::NAN, 2.0])],
        };
        let out = svg_bars(&bars);
        // The background, three bars, and two in the legend.
        assert_eq!(out.matches("<rect").count(), 6);
        let widths: Vec<f64> = out.split("width=\"").filter_map(|w| w.split('"').next()?.parse().ok()).collect();
        assert!(widths.contains(&116.0) && widths.contains(&464.0) && widths.contains(&232.0), "{widths:?}");
    }

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!([0.0, 0.9, 3.0, 41.0, 990.0].map(round_up), [1.0, 1.0, 4.0, 50.0, 1000.0]);
    }
}
