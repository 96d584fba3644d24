//! What came out of shared files, as a table and as plots.

use super::{Load, Policy, Row, stripes_text};
use nacre_base::plot::{Line, Plot};
use nacre_base::{size, table};

/// The table, and what must be known to read it.
pub fn print(rows: &[Row]) {
    let header = [
        "policy",
        "OST",
        "processes",
        "record",
        "stripes",
        "records",
        "GB/s",
        "of own files",
        "enqueues/record",
        "callbacks/record",
        "RPCs",
        "",
    ];
    let cells = rows.iter().map(|r| {
        vec![
            name(r.load.policy).to_owned(),
            format!("{:?}", r.load.medium).to_lowercase(),
            format!("{} x {}", r.load.clients, r.load.processes),
            size::human(r.load.record),
            r.load.stripes_text(),
            r.load.records.to_string(),
            format!("{:.2}", r.gb_per_s),
            r.percent_of_file_per_process.map_or_else(String::new, |p| format!("{p:.0} %")),
            format!("{:.3}", r.enqueues_per_record),
            format!("{:.3}", r.callbacks_per_record),
            r.rpcs.to_string(),
            r.failure.clone().unwrap_or_default(),
        ]
    });
    print!("{}", table::text(&header, &cells.collect::<Vec<_>>()));
    println!(
        "\nOne OST. Records are those of each process: fewer than in the experiments (64 GB for each client). Writes end with \
         fsync.\nNetworks, the OST's medium and copying into the cache take virtual time, servers' processors and checksums \
         take none:\nrates of small records are upper bounds."
    );
}

fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::FilePerProcess => "file per process",
        Policy::Grown => "shared, grown locks",
        Policy::GrownApart => "shared, grown apart",
        Policy::Default => "shared",
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
    let alone = policy == Policy::FilePerProcess;
    let mut points: Vec<(usize, f64)> =
        mine.map(|r| (stripes.binary_search(&r.load.stripes).unwrap_or(0), r.gb_per_s)).collect();
    if let (true, Some((_, rate))) = (alone, points.first().copied()) {
        // Its files have one stripe, whatever the shared one has.
        points = (0..stripes.len()).map(|i| (i, rate)).collect();
    }
    Line { name: format!("{}, {}", name(policy), size::human(record)), points, dashed: alone }
}
