//! Congestive collapse: clients that give up a request after a fixed time and send it again as a new one, while the first still waits in the
//! OST's queue. "RPCs have already timed out (repeatedly) and retries had been sent by the time the RPC request got to the front of the queue",
//! says the paper, and "they would also timeout, preventing any real forward progress".
//!
//! Nacre's clients do not do that: the OST tells them in time that a request takes longer, and a request that they send again joins the one
//! that waits. So the clients that give up are written here. Each follows the paper's algorithm 1 over an import of its own; RPCs, windows,
//! schedulers, the OST and its disk are the production code as in all other rows. A request whose client has given up costs the OST no time
//! of its disk, unless its data was fetched before: as in Lustre, where a client withdraws the data with the request.

use super::{Control, FILE_BYTES, RECORD, Sample, ZEROES, create, keep_writing, sleep_to_second};
use crate::cluster::{Cluster, Server};
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use nacre_base::{Payload, TargetKind, Uuid};
use nacre_client::connect_data_for;
use nacre_experiment::{Constant, ConstantKind, Figure, FigureKind};
use nacre_ptlrpc::{Bulk, CallOptions, Import, ImportConfig, MAX_RPCS_IN_FLIGHT, RpcError};
use nacre_rt::Rt;
use nacre_wire::attr::Credentials;
use nacre_wire::ost::{GrantReport, Niobuf, Write, WriteReply, niobuf_flags};
use nacre_wire::{Lane, Opcode, RpcHeader, lov_ea};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Clients that write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Senders {
    /// Give up a request that is not answered in time, and send it again as a new one.
    GivingUp,
    /// Nacre's own. They wait as long at first, and longer if the OST says so.
    Nacre,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    senders: Senders,
    clients: u32,
    /// Time between the begins of two clients.
    apart: Duration,
    /// How long a client waits for a reply, in seconds.
    patience_secs: u32,
    /// Seconds from the begin of the first client until the measurement.
    before: u32,
    /// Seconds that are measured.
    measured: u32,
}

/// Seconds that the paper's clients wait under control: 1.5 times the bound of 60 s, and 5 s for the network.
const PATIENCE_SECS: u32 = 95;
/// Seconds until all have begun, and twice the longest time for which FIX(32) lets requests wait.
const BEFORE: u32 = 900;
const MEASURED: u32 = 300;
/// Data that a client has ready beside its requests: as much as the clients of other rows hold.
const BACKLOG_BYTES: u64 = 128 << 20;

impl Load {
    /// The load of a row.
    pub(super) fn of(senders: Senders) -> Load {
        let apart = Duration::from_millis(super::constants::APART_MS.into());
        Load { senders, clients: 1024, apart, patience_secs: PATIENCE_SECS, before: BEFORE, measured: MEASURED }
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.patience_secs.into())
    }
}

/// Result of one measurement: of the measured time, if nothing else is said.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Measured {
    /// 10^6 bytes a second whose replies clients waited for.
    goodput_mb_per_s: f64,
    /// 10^6 bytes a second that the OST wrote.
    written_mb_per_s: f64,
    /// Requests that timed out, in the whole run.
    timeouts: u64,
    /// Requests sent again as new ones, in the whole run.
    resends: u64,
    /// The longest queue of the whole run, in requests, with those whose clients had given up.
    longest_queue: f64,
    /// How long the OST's answers took, also those for which nobody waited: the mean and the longest, in seconds.
    latency: f64,
    longest: f64,
}

/// Takes one measurement. Returns the hash of all events, too. Panics if the simulation hangs.
pub(super) fn measure(seed: u64, control: Control, load: Load) -> Result<(Measured, u64), String> {
    let builder = super::builder(seed, control, load.clients);
    super::run_row(seed, builder, move |cluster| async move { work(cluster, control, load).await })
}

/// What the clients count, all together.
#[derive(Debug, Default)]
struct Tally {
    answered: AtomicU64,
    timeouts: AtomicU64,
    resends: AtomicU64,
}

async fn work(cluster: Arc<Cluster>, control: Control, load: Load) -> Result<Measured, String> {
    super::prepare(&cluster, control)?;
    let (tally, stop) = (Arc::new(Tally::default()), Arc::new(AtomicBool::new(false)));
    sleep_to_second(&cluster).await;
    let begun = cluster.rt().now();
    for client in 0..cluster.client_count() {
        start(&cluster, control, load, client, (&tally, &stop)).await?;
        let next = begun + load.apart * (client as u32 + 1);
        cluster.rt().sleep(next.since(cluster.rt().now())).await;
    }
    sleep_to_second(&cluster).await;
    let ramp = cluster.rt().now().since(begun).as_secs() as u32;
    let (mut longest_queue, mut samples) = (0.0_f64, Vec::new());
    let mut good = 0;
    for second in 0..load.before.saturating_sub(ramp) + load.measured {
        let is_measured = second >= load.before.saturating_sub(ramp);
        if is_measured && samples.is_empty() {
            good = tally.answered.load(Ordering::Relaxed);
        }
        cluster.rt().sleep(Duration::from_secs(1)).await;
        let sample = super::sample(&cluster, Server::Oss(0));
        longest_queue = longest_queue.max(sample.under_way);
        if is_measured {
            samples.push(sample);
        }
    }
    stop.store(true, Ordering::Relaxed);
    let good = tally.answered.load(Ordering::Relaxed) - good;
    let measured = summary(&samples, longest_queue, load, &tally, good, super::all_timeouts(&cluster));
    // The programs have time to notice that it is over.
    cluster.rt().sleep(4 * load.patience()).await;
    Ok(measured)
}

fn summary(
    samples: &[Sample],
    longest_queue: f64,
    load: Load,
    tally: &Tally,
    good: u64,
    import_timeouts: u64,
) -> Measured {
    let rate = |requests: f64| requests * RECORD as f64 / 1e6 / f64::from(load.measured);
    let written_mb_per_s = rate(samples.iter().map(|sample| sample.answered).sum());
    let latencies = super::latencies(samples, 0);
    Measured {
        goodput_mb_per_s: match load.senders {
            Senders::GivingUp => rate(good as f64),
            // They take every answer.
            Senders::Nacre => written_mb_per_s,
        },
        written_mb_per_s,
        timeouts: tally.timeouts.load(Ordering::Relaxed) + import_timeouts,
        resends: tally.resends.load(Ordering::Relaxed),
        longest_queue,
        latency: latencies.mean,
        longest: latencies.longest,
    }
}

/// Lets a client write from now on.
async fn start(
    cluster: &Arc<Cluster>,
    control: Control,
    load: Load,
    client: usize,
    (tally, stop): (&Arc<Tally>, &Arc<AtomicBool>),
) -> Result<(), String> {
    let (mounted, rt) = (cluster.client(client), cluster.client_rt(client).clone());
    let file = create(mounted, &format!("file-{client}"), 0).await?;
    // The OST hears from both kinds of clients that they wait for so long.
    let set = cluster.client_node(client).params().set("at_min", &at_min_secs(load.patience_secs).to_string());
    set.map_err(|e| format!("at_min: {e}"))?;
    if load.senders == Senders::Nacre {
        keep_writing(cluster, client, file, stop);
        return Ok(());
    }
    let value = mounted.getxattr(&Credentials::root(), file.fid(), b"lustre.lov").await;
    let (layout, _) =
        lov_ea::decode_layout(&value.map_err(|e| format!("the layout: {e}"))?).map_err(|e| e.to_string())?;
    let stripe = layout.components.first().and_then(|component| component.stripes.first());
    let object = stripe.ok_or("the file has no object")?.object;
    let sender = Sender {
        rt: rt.clone(),
        import: import(cluster, client, &rt),
        write: Write { fid: object, parent: file.fid(), layout_version: layout.generation, ..Write::default() },
        first_credits: match control {
            Control::Fix(rpcs) => rpcs as usize,
            // "The RCC for each import is initialized as RCCmin", which is 1.
            Control::Cc(_) | Control::Nacre(_) => 1,
        },
        patience: load.patience(),
        tally: tally.clone(),
    };
    let stop = stop.clone();
    drop(rt.spawn(async move {
        // The file stays open.
        let _file = file;
        sender.write_until(&stop).await;
    }));
    Ok(())
}

/// The shortest estimate of an OST's time with which a client waits so many seconds: it adds a quarter and 5 s.
fn at_min_secs(patience_secs: u32) -> u32 {
    patience_secs.saturating_sub(5) * 4 / 5
}

/// An import of a client that gives up, on the client's node.
fn import(cluster: &Cluster, client: usize, rt: &Rt) -> Arc<Import> {
    let (oss, node) = (Server::Oss(0), cluster.client_node(client));
    let target = cluster.target_name(oss);
    node.rpc().import(ImportConfig {
        client: Uuid::from_random(rt.random(), rt.random()),
        client_name: format!("{}-gives-up", cluster.client_name(client)).into(),
        label: format!("{target}-osc-gives-up").into(),
        target: target.into(),
        nids: [cluster.net().nid(cluster.number(oss))].into(),
        kind: TargetKind::Ost,
        data: connect_data_for(TargetKind::Ost).clone(),
    })
}

/// A client that gives up.
struct Sender {
    rt: Rt,
    import: Arc<Import>,
    /// A write to its object, without an extent.
    write: Write,
    /// Requests under way before the first reply.
    first_credits: usize,
    patience: Duration,
    tally: Arc<Tally>,
}

impl Sender {
    /// The paper's algorithm 1: sends as long as it has credits, and takes the number of credits from each reply. A request that was given
    /// up goes again before others.
    async fn write_until(&self, stop: &AtomicBool) {
        let (mut credits, mut next, mut again) = (self.first_credits, 0, VecDeque::new());
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < credits && !stop.load(Ordering::Relaxed) {
                let record = again.pop_front().unwrap_or_else(|| {
                    next += 1;
                    next - 1
                });
                under_way.push(self.write_record(record));
            }
            match under_way.next().await {
                Some(Ok(granted)) => credits = granted,
                Some(Err(record)) => {
                    self.tally.resends.fetch_add(1, Ordering::Relaxed);
                    again.push_back(record);
                }
                None => return,
            }
        }
    }

    /// Writes a record. Returns the credits that the reply grants; or the record, if there was no reply in time.
    async fn write_record(&self, record: u64) -> Result<usize, u64> {
        let niobuf = Niobuf { offset: record * RECORD % FILE_BYTES, len: RECORD as u32, flags: niobuf_flags::ASYNC };
        let body = Write { extents: vec![niobuf], grant: GrantReport::default(), ..self.write.clone() };
        let options = CallOptions {
            lane: Lane::Io,
            bulk: Bulk::Send(Payload::from(Bytes::from_static(&ZEROES))),
            replay: true,
            deadline: Some(self.patience),
            // A writer always has more.
            backlog: BACKLOG_BYTES,
            ..CallOptions::default()
        };
        loop {
            match self.import.call::<WriteReply>(Opcode::OstWrite, &body, options.clone()).await {
                Ok(reply) => {
                    self.tally.answered.fetch_add(1, Ordering::Relaxed);
                    return Ok(credits(&reply.header));
                }
                Err(RpcError::TimedOut) => {
                    self.tally.timeouts.fetch_add(1, Ordering::Relaxed);
                    return Err(record);
                }
                Err(RpcError::ComeAgain(wait)) => self.rt.sleep(wait).await,
                Err(e) => panic!("a write failed: {e}"),
            }
        }
    }
}

/// Requests that a reply lets its client have under way.
fn credits(header: &RpcHeader) -> usize {
    let of_bytes = (header.bytes_granted > 0).then(|| (header.bytes_granted / RECORD).max(1) as usize);
    let of_rpcs = (header.credits_granted > 0).then_some(header.credits_granted as usize);
    of_bytes.into_iter().chain(of_rpcs).min().unwrap_or(MAX_RPCS_IN_FLIGHT as usize)
}

/// The figures of a row.
pub(super) fn figures(row: &str, control: Control, senders: Senders, measured: Option<&Measured>) -> Vec<Figure> {
    let own =
        |figure: &str, unit: &str, value: fn(&Measured) -> f64| Figure::own(row, figure, unit, measured.map(value));
    let timeouts = own("timeouts", "", |m| m.timeouts as f64);
    let mut figures = vec![
        own("goodput", "MB/s", |m| m.goodput_mb_per_s),
        own("the OST writes", "MB/s", |m| m.written_mb_per_s),
        match (control, senders) {
            // "They both don't trigger any timeouts", with the 95 s of equation 6.
            (Control::Cc(60), Senders::GivingUp) => timeouts.beside(FigureKind::Predicted, 0.0, 0.0),
            _ => timeouts,
        },
        own("longest queue", "requests", |m| m.longest_queue),
        own("latency at the OST", "s", |m| m.latency),
        own("longest at the OST", "s", |m| m.longest),
    ];
    if senders == Senders::GivingUp {
        figures.insert(3, own("sent again", "", |m| m.resends as f64));
    }
    figures
}

/// The constants of these rows.
pub(super) fn constants() -> Vec<Constant> {
    let Load { clients, patience_secs, before, measured, .. } = Load::of(Senders::GivingUp);
    let own = |name: &str, value: u32, unit: &str, kind, source: &str| {
        Constant::new(name, f64::from(value), unit, kind, source)
    };
    vec![
        own(
            "giving up: clients",
            clients,
            "",
            ConstantKind::Paper,
            "section IV: 1,024, which begin one after the other",
        ),
        own(
            "giving up: a client waits",
            patience_secs,
            "s",
            ConstantKind::Paper,
            "equation 6: 1.5 x 60 s + 5 s; the paper gives static windows 300 s",
        ),
        own(
            "giving up: time before the measurement",
            before,
            "s",
            ConstantKind::Physical,
            "chosen: all have begun after 522 s",
        ),
        own(
            "giving up: measured time",
            measured,
            "s",
            ConstantKind::Physical,
            "chosen: three times as long as a client waits",
        ),
        own(
            "own clients: at_min",
            at_min_secs(patience_secs),
            "s",
            ConstantKind::Physical,
            "follows: with it Nacre's clients wait for the same time at first",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 16 clients, whose requests wait 2.8 s with 32 of each under way, and 0.7 s with 8.
    fn small(senders: Senders) -> Load {
        let (apart, patience_secs) = (Duration::from_millis(10), 2);
        Load { senders, clients: 16, apart, patience_secs, before: 6, measured: 10 }
    }

    #[test]
    fn clients_that_give_up_collapse_with_long_windows_and_not_with_short_ones() {
        let [short, long] = [8, 32].map(|n| measure(1, Control::Fix(n), small(Senders::GivingUp)).unwrap().0);
        assert_eq!((short.timeouts, short.resends, short.longest_queue), (0, 0, 128.0), "{short:?}");
        assert!(short.goodput_mb_per_s > 140.0, "{short:?}");
        assert!(long.timeouts > 100 && long.resends > 100, "{long:?}");
        assert!(long.longest_queue > 512.0, "those that were given up wait, too: {long:?}");
        assert!(long.goodput_mb_per_s < 0.5 * short.goodput_mb_per_s, "{long:?}");
    }

    #[test]
    fn nacres_clients_wait_for_what_the_ost_has_and_nothing_is_lost() {
        let patient = Load { patience_secs: 10, ..small(Senders::Nacre) };
        let measured = measure(1, Control::Fix(32), patient).unwrap().0;
        assert_eq!((measured.timeouts, measured.resends), (0, 0), "{measured:?}");
        assert!(measured.goodput_mb_per_s > 160.0, "{measured:?}");
    }

    #[test]
    fn nacres_clients_are_set_to_the_same_patience() {
        use nacre_ptlrpc::adaptive_timeout::request_timeout;
        let least = Duration::from_secs(at_min_secs(PATIENCE_SECS).into());
        let waits = request_timeout(least, Duration::ZERO, Duration::ZERO);
        assert_eq!(waits, Duration::from_secs(PATIENCE_SECS.into()));
    }
}
