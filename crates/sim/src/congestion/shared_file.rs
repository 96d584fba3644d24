//! The paper's experiment with several OSSs: one file, striped over 32 OSTs, of which each client writes a part of its own and syncs it.
//! Rates are those of all OSTs together, latencies those of all requests to any of them.

use super::{Control, DISPATCH, Latencies, RECORD, oss, watched, write_file};
use crate::cluster::Cluster;
use futures_util::future::try_join_all;
use nacre_client::RpcCounts;
use nacre_client::open_flags::{O_CREAT, O_EXCL, O_RDWR};
use nacre_experiment::{Constant, ConstantKind, Figure, FigureKind};
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use std::sync::Arc;

/// How large the experiment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// Clients.
    pub(super) clients: u32,
    /// OSTs, each with an OSS of its own.
    pub(super) osts: u32,
    /// Records of 1 MiB that each client writes to each OST.
    pub(super) records: u64,
    /// The clients begin within so many seconds.
    pub(super) dispatch: u32,
}

impl Size {
    /// "A shared file is striped over 32 OSSs; total client number is 1024; I/O per client is 512M, to each OST is 16M."
    pub(super) const PAPER: Size = Size { clients: 1024, osts: 32, records: 16, dispatch: DISPATCH };

    /// Records of each client.
    fn records_of_client(self) -> u64 {
        self.records * u64::from(self.osts)
    }

    fn bytes(self) -> u64 {
        u64::from(self.clients) * self.records_of_client() * RECORD
    }
}

/// Result of one measurement.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Measured {
    /// 10^9 bytes a second, from the first write until everything is synced.
    gb_per_s: f64,
    /// The longest queue of an OST, in requests.
    longest_queue: f64,
    /// How long all requests took from their arrival to their reply.
    latencies: Latencies,
    /// The longest request beyond the stated bound, in the time that an OST needs for a request of each client: 1 by equation 5.
    excess: Option<f64>,
    /// Locks that were called back, for each that a client needs: one on each object.
    callbacks: f64,
    /// Requests that timed out.
    timeouts: u64,
}

/// Takes one measurement. Returns the hash of all events, too. Panics if the simulation hangs.
pub(super) fn measure(seed: u64, control: Control, size: Size) -> Result<(Measured, u64), String> {
    let builder = super::builder(seed, control, size.clients).oss(size.osts);
    super::run_row(seed, builder, move |cluster| async move { work(&cluster, control, size).await })
}

async fn work(cluster: &Arc<Cluster>, control: Control, size: Size) -> Result<Measured, String> {
    super::prepare(cluster, control)?;
    let root = Credentials::root();
    let (first, flags) = (cluster.client(0), O_CREAT | O_EXCL | O_RDWR);
    let made = first.create(&root, first.root(), b"shared", flags, 0o600, 0, Some(layout(size))).await;
    let (attr, created) = made.map_err(|e| format!("create: {e}"))?;
    let open = |client: usize| cluster.client(client).open(&root, attr.fid, O_RDWR);
    let files = try_join_all((0..cluster.client_count()).map(open)).await.map_err(|e| format!("open: {e}"))?;
    let begun = cluster.rt().now();
    let each = files.iter().zip(0..).map(|(file, client)| {
        let from = client as u64 * size.records_of_client();
        write_file(cluster, client, file, size.dispatch, from..from + size.records_of_client())
    });
    let (written, samples) = watched(cluster, try_join_all(each)).await;
    written?;
    let seconds = cluster.rt().now().since(begun).as_secs_f64();
    first.release(created).await.map_err(|e| format!("close: {e}"))?;
    assert_eq!(samples.len(), oss(cluster).count(), "each OST is watched");
    let samples = samples.concat();
    let latencies = super::latencies(&samples, 0);
    // What an OST needs for a request of each client at its average rate.
    let round = f64::from(size.osts) * seconds / size.records_of_client() as f64;
    let excess = match control {
        Control::Cc(bound) => Some((latencies.longest - f64::from(bound)) / round),
        Control::Fix(_) | Control::Nacre(_) => None,
    };
    let counts: RpcCounts = (0..cluster.client_count()).map(|client| RpcCounts::of(cluster.client(client))).sum();
    Ok(Measured {
        gb_per_s: size.bytes() as f64 / 1e9 / seconds,
        longest_queue: samples.iter().map(|sample| sample.under_way).fold(0.0, f64::max),
        latencies,
        excess,
        callbacks: counts.callbacks as f64 / (f64::from(size.clients) * f64::from(size.osts)),
        timeouts: super::all_timeouts(cluster),
    })
}

/// One stripe on each OST; a record is a stripe's part of a row.
fn layout(size: Size) -> LayoutSpec {
    let component = ComponentSpec {
        end: u64::MAX,
        stripe_offset: 0,
        stripe_size: RECORD as u32,
        stripe_count: size.osts as i32,
        ..ComponentSpec::default()
    };
    LayoutSpec { components: vec![component] }
}

/// The paper's rate with a controller, in GB/s.
fn paper_rate(control: Control) -> Option<f64> {
    match control {
        Control::Fix(8) => Some(5.16),
        Control::Cc(60) => Some(5.66),
        _ => None,
    }
}

/// The figures of a row. "They both don't trigger any timeouts", says the paper of its two.
pub(super) fn figures(row: &str, control: Control, measured: Option<&Measured>) -> Vec<Figure> {
    let own =
        |figure: &str, unit: &str, value: fn(&Measured) -> f64| Figure::own(row, figure, unit, measured.map(value));
    let paper = |figure: Figure, value: Option<f64>, tolerance: f64| match value {
        Some(value) => figure.beside(FigureKind::Predicted, value, tolerance),
        None => figure,
    };
    let rate = paper_rate(control);
    let mut figures = vec![
        paper(own(RATE, "GB/s", |m| m.gb_per_s), rate, rate.unwrap_or(0.0) / 10.0),
        own("longest queue of an OST", "requests", |m| m.longest_queue),
        own("latency", "s", |m| m.latencies.mean),
        own("longest of all OSTs", "s", |m| m.latencies.longest),
        own("callbacks for each lock", "", |m| m.callbacks),
        paper(own("timeouts", "", |m| m.timeouts as f64), rate.map(|_| 0.0), 0.0),
    ];
    if matches!(control, Control::Cc(_)) {
        let holds = measured.and_then(|m| m.excess).map(|excess| f64::from(u8::from(excess <= 1.0)));
        figures.push(Figure::own(row, "within equation 5", "", holds).beside(FigureKind::Predicted, 1.0, 0.0));
    }
    figures
}

/// Name of the figure by which rows are compared.
const RATE: &str = "rate of all OSTs";

/// How much faster the published algorithm is than the static windows, if both were measured.
pub(super) fn gain(figures: &[Figure]) -> Option<Figure> {
    let of = |paper: f64| figures.iter().find(|f| f.figure == RATE && f.paper == Some(paper));
    let (fixed, cc) = (of(5.16)?, of(5.66)?);
    let gain = cc.ours.zip(fixed.ours).map(|(cc, fixed)| 100.0 * (cc / fixed - 1.0));
    Some(Figure::own(&cc.row, "faster than FIX(8)", "%", gain).beside(FigureKind::Predicted, 10.0, 10.0))
}

/// The constants of these rows.
pub(super) fn constants(dispatch: u32) -> Vec<Constant> {
    let Size { clients, osts, records, .. } = Size::PAPER;
    let source = "section IV: \"total client number is 1024; I/O per client is 512M, to each OST is 16M\"";
    let own = |name: &str, value: f64, unit: &str, kind, source: &str| Constant::new(name, value, unit, kind, source);
    vec![
        own("shared file: clients", f64::from(clients), "", ConstantKind::Paper, source),
        own("shared file: OSTs", f64::from(osts), "", ConstantKind::Paper, "the same: \"striped over 32 OSSs\""),
        own("shared file: a client's data on each OST", records as f64, "MiB", ConstantKind::Paper, "the same"),
        own("shared file: bytes of a stripe", 1.0, "MiB", ConstantKind::Physical, "Lustre's default, and a request"),
        own(
            "shared file: begin of all",
            f64::from(dispatch),
            "s",
            ConstantKind::Physical,
            "assumed: within this time; 512 GiB at the paper's rates take 97 to 107 s, so that the processes cannot have begun 510 ms apart",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Size = Size { clients: 16, osts: 4, records: 16, dispatch: 1 };

    #[test]
    fn the_osts_of_a_shared_file_work_at_the_same_time_and_long_windows_are_faster() {
        let [crumbs, turns] = [1, 16].map(|rpcs| measure(1, Control::Fix(rpcs), SMALL).unwrap().0);
        // Data under a lock that is called back is in no window.
        assert!(crumbs.longest_queue <= 16.0 && turns.longest_queue <= 256.0, "{crumbs:?} {turns:?}");
        assert!(turns.longest_queue > crumbs.longest_queue && turns.gb_per_s > crumbs.gb_per_s, "{crumbs:?} {turns:?}");
        assert!(turns.gb_per_s > 2.0 * 0.192, "more than two OSTs can: {turns:?}");
        assert_eq!((crumbs.timeouts, turns.timeouts), (0, 0));
    }

    #[test]
    fn figures_of_the_paper_stand_beside_ours_and_a_failed_row_misses_them() {
        let of = |control, rate| {
            let measured = Measured { gb_per_s: rate, ..Measured::default() };
            figures(&format!("{control})"), control, Some(&measured))
        };
        let rows = [of(Control::Fix(8), 5.0), of(Control::Cc(60), 5.5), of(Control::Nacre(0), 5.5)].concat();
        let gain = gain(&rows).unwrap();
        assert!((gain.ours.unwrap() - 10.0).abs() < 0.1 && !gain.misses(), "{gain:?}");
        assert_eq!(rows.iter().filter(|f| f.figure == RATE && f.misses()).count(), 0);
        assert!(figures("", Control::Fix(8), None)[0].misses());
    }
}
