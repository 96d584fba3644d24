//! What came out of ways to commit, as tables and as a plot.

use super::{ApplicationRow, Mode, Row, Storage};
use nacre_base::plot::{Line, Plot};
use nacre_base::table;

/// The tables, and what must be known to read them. `raw` is the rate of the arrays alone, in bytes a second, with so many
/// requests at a time.
pub fn print(raw: &[(u32, f64)], rows: &[Row], app: &[ApplicationRow]) {
    let header = ["OST", "answers", "RPCs in flight", "MB/s", "of raw", "paper", "commits", "small requests"];
    let bare = raw.iter().map(|(in_flight, rate)| {
        let empty = String::new;
        let rate = format!("{:.0}", rate / 1e6);
        vec!["raw".to_owned(), empty(), in_flight.to_string(), rate, "100.0 %".to_owned(), empty(), empty(), empty()]
    });
    let measured = rows.iter().map(|r| {
        vec![
            name(r.load.storage).to_owned(),
            answers(r.load.mode).to_owned(),
            r.load.rpcs_in_flight.to_string(),
            format!("{:.0}", r.mb_per_s),
            format!("{:.1} %", r.percent_of_raw),
            paper(r.load.storage, r.load.mode).to_owned(),
            r.commits.to_string(),
            format!("{:.1} %", r.percent_small),
        ]
    });
    print!("{}", table::text(&header, &bare.chain(measured).collect::<Vec<_>>()));
    println!("\nAn application that writes checkpoints:\n");
    let header = ["OST", "answers", "run s", "I/O s", "I/O share", "I/O MB/s", "run time", "commits", "small requests"];
    let base = app.iter().find(|r| r.mode == Mode::Sync).map(|r| r.run_seconds);
    let cells = app.iter().map(|r| {
        vec![
            name(r.storage).to_owned(),
            answers(r.mode).to_owned(),
            format!("{:.1}", r.run_seconds),
            format!("{:.1}", r.io_seconds),
            format!("{:.0} %", 100.0 * r.io_seconds / r.run_seconds),
            format!("{:.0}", r.mb_per_s),
            base.map_or_else(String::new, |base| format!("{:+.1} %", 100.0 * (r.run_seconds / base - 1.0))),
            r.commits.to_string(),
            format!("{:.1} %", r.percent_small),
        ]
    });
    print!("{}", table::text(&header, &cells.collect::<Vec<_>>()));
    println!(
        "\nSmall requests are those of less than 128 KiB that controllers saw, journals' too. In the paper, of an application:\n\
         64 % with the synchronous journal and 26.5 % with the asynchronous one; I/O 70 % and 36 % of the run, which took\n\
         49.5 % less. A seek and the cost of writing pages where they belong are chosen for the first two figures of the paper."
    );
}

fn name(storage: Storage) -> &'static str {
    match storage {
        Storage::Ext3 => "ext3",
        Storage::Nacre => "nacre",
    }
}

fn answers(mode: Mode) -> &'static str {
    match mode {
        Mode::Sync => "after the commit",
        Mode::External => "after the commit, journal elsewhere",
        Mode::Async => "before the commit",
        Mode::Memory => "from memory",
    }
}

fn paper(storage: Storage, mode: Mode) -> &'static str {
    match (storage, mode) {
        (Storage::Ext3, Mode::Sync) => "24.9 %",
        (Storage::Ext3, Mode::External) => "58.7 %",
        (Storage::Ext3, Mode::Async) => "93 %",
        _ => "",
    }
}

/// The share of the raw rate over RPCs in flight, a line for each way.
pub fn plots(rows: &[Row]) -> Vec<Plot> {
    let in_flight = table::distinct(rows.iter().map(|r| r.load.rpcs_in_flight));
    let ways = table::distinct(rows.iter().map(|r| (r.load.storage, r.load.mode)));
    let line = |way: &(Storage, Mode)| Line {
        name: format!("{}, {}", name(way.0), answers(way.1)),
        points: rows
            .iter()
            .filter(|r| (r.load.storage, r.load.mode) == *way)
            .map(|r| (in_flight.binary_search(&r.load.rpcs_in_flight).unwrap_or(0), r.percent_of_raw))
            .collect(),
        dashed: way.0 == Storage::Ext3,
    };
    vec![Plot {
        title: "writes, of the arrays' raw rate".into(),
        x_title: "RPCs in flight to each OST".into(),
        y_title: "%".into(),
        x_labels: in_flight.iter().map(u32::to_string).collect(),
        lines: ways.iter().map(line).collect(),
    }]
}
