//! Rows beside the paper's first ones: what happens to latency, rate and fairness when clients or the disk change, when some read, when one
//! has many files, and when some want little. Writers never end; the OST shows everything that is measured. Rows with several OSTs, and those
//! with clients that give up, are in files of their own.
//!
//! Each story runs with each controller on the disk of [`super::constants`], which was fitted to the paper and is not changed here.

use super::collapse::{self, Senders};
use super::{Control, FILE_BYTES, RECORD, ZEROES, all_timeouts, constants, copying, create, sleep_to_second, write};
use super::{run_row, settled_after, shared_file, slow_ost};
use crate::cluster::{Cluster, Server};
use crate::experiment::{self, Traces};
use nacre_base::param::value::Value;
use nacre_base::{Part, Prng};
use nacre_client::open_flags::O_DIRECT;
use nacre_diagnosis::{Picture, Use, Values, json};
use nacre_experiment::{Constant, ConstantKind, Experiment, Figure};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Story {
    /// 64 clients write, each a file.
    Even,
    /// As many again nine times over come at once.
    ManyMore,
    /// The disk becomes three times slower for 90 s.
    SlowerDisk,
    /// Every second client reads.
    Reads,
    /// One of the clients writes 32 files.
    Greedy,
    /// Beside those who write much, four clients write 4 KiB ten times a second, and wait for each.
    Small,
    /// The paper's last experiment: 1,024 clients write one file over 32 OSTs.
    SharedFile,
    /// 1,024 clients give up each request after 95 s, and send it again as a new one.
    Collapse,
    /// The same load, written by Nacre's own clients.
    OwnClients,
    /// 32 clients write to each of 32 OSTs, and the disk of one becomes ten times slower.
    SlowOst,
}

impl Story {
    fn name(self) -> &'static str {
        match self {
            Story::Even => "even",
            Story::ManyMore => "many more",
            Story::SlowerDisk => "slower disk",
            Story::Reads => "reads",
            Story::Greedy => "greedy",
            Story::Small => "small",
            Story::SharedFile => "shared file",
            Story::Collapse => "giving up",
            Story::OwnClients => "own clients",
            Story::SlowOst => "slow OST",
        }
    }

    /// The controllers that it is told with unless others are named.
    pub fn controls(self) -> Vec<Control> {
        use Control::{Cc, Fix, Nacre};
        match self {
            Story::SharedFile => vec![Fix(8), Cc(60), Nacre(0), Nacre(60)],
            Story::Collapse => vec![Fix(8), Fix(32), Cc(60), Nacre(0), Nacre(60)],
            Story::OwnClients => vec![Fix(32), Nacre(0)],
            Story::SlowOst => vec![Fix(32), Cc(4), Nacre(0), Nacre(4)],
            _ => vec![Fix(8), Fix(32), Cc(4), Nacre(0), Nacre(4)],
        }
    }

    /// Clients that the cluster has.
    fn clients(self) -> usize {
        match self {
            Story::ManyMore => 10 * CLIENTS,
            Story::Small => CLIENTS + SMALL_CLIENTS,
            _ => CLIENTS,
        }
    }
}

/// A story with a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// What happens.
    pub story: Story,
    /// Who decides on windows.
    pub control: Control,
    /// The clients of a shared file begin within so many seconds.
    pub dispatch: u32,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {})", self.story.name(), self.control)
    }
}

/// Clients of which each always has something to write.
const CLIENTS: usize = 64;
/// Files of the greedy one.
const GREEDY_FILES: usize = 32;
/// Clients that want little.
const SMALL_CLIENTS: usize = 4;
/// What they write at a time, and how often.
const SMALL_BYTES: usize = 4096;
const SMALL_PAUSE: Duration = Duration::from_millis(100);
/// Requests that a reader has under way if it may.
const READS_AT_ONCE: usize = 64;
/// Seconds until the load has come to rest, and seconds that are measured from then on.
const BEFORE: usize = 60;
const MEASURED: usize = 90;
/// Seconds after a step that are not measured as rest: more than the longest bound of a row, twice, and ten.
const GRACE: usize = 90;
/// How much slower the disk becomes.
const SLOWER: u32 = 3;

/// The result of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// Its figures, beside the paper's where the paper has one.
    pub figures: Vec<Figure>,
    /// Hash of all events.
    pub trace: u64,
}

/// What writers that never end showed at one OST.
#[derive(Debug, Clone, PartialEq, Default)]
struct Measured {
    /// 10^6 bytes a second that the OST moved.
    mb_per_s: f64,
    /// How long requests took from their arrival to their reply: the mean, and the longest, in seconds.
    latency: f64,
    /// See `latency`.
    longest: f64,
    /// Jain's index of the bytes that those clients moved which always had more; the lowest of all stretches that are ten times as
    /// long as the bound, or as a request takes if that is more.
    fairness: f64,
    /// Seconds from a step until no request took longer than 105 % of the stated bound, or of what it takes to serve a request of each
    /// client; none without a step or a bound.
    settled_after: Option<f64>,
    /// Of the small writes: milliseconds that 99 of 100 took at most; and the mean without the time of the disk.
    small_ms: Option<(f64, f64)>,
    /// Requests that timed out.
    timeouts: u64,
}

/// Takes a row's measurements. Panics if the simulation hangs.
pub fn measure(seed: u64, row: Row) -> Result<Told, String> {
    let (name, control) = (row.to_string(), row.control);
    let (figures, trace) = match row.story {
        Story::SharedFile => {
            let (measured, trace) = shared_file::measure(
                seed,
                control,
                shared_file::Size { dispatch: row.dispatch, ..shared_file::Size::PAPER },
            )?;
            (shared_file::figures(&name, control, Some(&measured)), trace)
        }
        Story::Collapse => {
            let (measured, trace) = collapse::measure(seed, control, collapse::Load::of(Senders::GivingUp))?;
            (collapse::figures(&name, control, Senders::GivingUp, Some(&measured)), trace)
        }
        Story::OwnClients => {
            let (measured, trace) = collapse::measure(seed, control, collapse::Load::of(Senders::Nacre))?;
            (collapse::figures(&name, control, Senders::Nacre, Some(&measured)), trace)
        }
        Story::SlowOst => {
            let (measured, trace) = slow_ost::measure(seed, control, slow_ost::Size::CHOSEN)?;
            (slow_ost::figures(&name, control, Some(&measured)), trace)
        }
        _ => {
            let builder = super::builder(seed, control, row.story.clients() as u32);
            let story = move |cluster| async move { tell(cluster, row).await };
            let (measured, trace) = run_row(seed, builder, story)?;
            (figures(&row, Some(&measured)), trace)
        }
    };
    Ok(Told { figures, trace })
}

/// The figures of a row whose measurement failed: without values.
fn failed(row: &Row) -> Vec<Figure> {
    let (name, control) = (row.to_string(), row.control);
    match row.story {
        Story::SharedFile => shared_file::figures(&name, control, None),
        Story::Collapse => collapse::figures(&name, control, Senders::GivingUp, None),
        Story::OwnClients => collapse::figures(&name, control, Senders::Nacre, None),
        Story::SlowOst => slow_ost::figures(&name, control, None),
        _ => figures(row, None),
    }
}

/// What the small writes take where nobody else writes: as `small_ms` of [`Measured`].
pub fn small_alone(seed: u64) -> Result<(f64, f64), String> {
    let builder = super::builder(seed, Control::Nacre(0), SMALL_CLIENTS as u32);
    let story = move |cluster: Arc<Cluster>| async move {
        super::prepare(&cluster, Control::Nacre(0))?;
        let stop = Arc::new(AtomicBool::new(false));
        let took = start_small(&cluster, 0, &stop).await?;
        let second = Duration::from_secs(1);
        cluster.rt().sleep(second * 10).await;
        took.lock().clear();
        let before = clients(&cluster);
        cluster.rt().sleep(second * 60).await;
        stop.store(true, Ordering::Relaxed);
        let after = clients(&cluster);
        let measured = (percentile_99(&took.lock()), without_disk(&names(&cluster, 0..SMALL_CLIENTS), &before, &after));
        cluster.rt().sleep(second * 10).await;
        Ok(measured)
    };
    run_row(seed, builder, story).map(|(measured, _)| measured)
}

async fn tell(cluster: Arc<Cluster>, row: Row) -> Result<Measured, String> {
    super::prepare(&cluster, row.control)?;
    let stop = Arc::new(AtomicBool::new(false));
    for client in 0..CLIENTS {
        start(&cluster, row.story, client, &stop).await?;
    }
    let small = match row.story {
        Story::Small => Some(start_small(&cluster, CLIENTS, &stop).await?),
        _ => None,
    };
    sleep_to_second(&cluster).await;
    cluster.rt().sleep(Duration::from_secs(BEFORE as u64)).await;
    let mut begin = 0;
    match row.story {
        Story::ManyMore => {
            for client in CLIENTS..row.story.clients() {
                start(&cluster, row.story, client, &stop).await?;
            }
            begin = GRACE;
        }
        Story::SlowerDisk => {
            cluster.running_storage(Server::Oss(0)).set_slower(SLOWER);
            begin = GRACE;
        }
        _ => {}
    }
    if let Some(small) = &small {
        small.lock().clear();
    }
    let (mut samples, mut bytes) = (Vec::new(), vec![clients(&cluster)]);
    for _ in 0..begin + MEASURED {
        cluster.rt().sleep(Duration::from_secs(1)).await;
        samples.push(super::sample(&cluster, Server::Oss(0)));
        bytes.push(clients(&cluster));
    }
    cluster.running_storage(Server::Oss(0)).set_slower(1);
    stop.store(true, Ordering::Relaxed);
    let timeouts = all_timeouts(&cluster);
    let busy = match row.story {
        Story::Small => names(&cluster, 0..CLIENTS),
        _ => names(&cluster, 0..cluster.client_count()),
    };
    let moved: f64 = busy.iter().map(|name| moved(name, &bytes[begin], &bytes[bytes.len() - 1])).sum();
    let rested = &samples[begin..];
    let rate = rested.iter().map(|sample| sample.answered).sum::<f64>() / rested.len() as f64;
    let latencies = super::latencies(rested, 0);
    let bound = row.control.bound(busy.len(), rate);
    let measured = Measured {
        mb_per_s: moved / 1e6 / MEASURED as f64,
        latency: latencies.mean,
        longest: latencies.longest,
        // Where no bound is stated, what requests take is what everybody's turn takes.
        fairness: fairness(&busy, &bytes[begin..], (10.0 * bound.max(latencies.mean)).ceil() as usize),
        settled_after: (begin > 0 && row.control.is_bounded()).then(|| settled_after(&samples, bound)),
        small_ms: small.map(|took| {
            let names = names(&cluster, CLIENTS..cluster.client_count());
            (percentile_99(&took.lock()), without_disk(&names, &bytes[0], &bytes[bytes.len() - 1]))
        }),
        timeouts,
    };
    // The programs have time to notice that it is over.
    cluster.rt().sleep(Duration::from_secs(600)).await;
    Ok(measured)
}

fn names(cluster: &Cluster, clients: Range<usize>) -> Vec<String> {
    clients.map(|client| cluster.client_name(client)).collect()
}

/// What the OST has counted for each client, by name.
fn clients(cluster: &Cluster) -> BTreeMap<String, Use> {
    let shown = ["obdfilter.*.time_parts", "obdfilter.*.health"].map(|pattern| cluster.values(Server::Oss(0), pattern));
    let values: Values =
        shown.into_iter().flatten().map(|(name, value): (String, Value)| (name, json::value(&value))).collect();
    let picture = Picture::new(0.0, &[values]);
    picture.targets.into_values().flat_map(|target| target.clients.into_values()).map(|c| (c.name, c.used)).collect()
}

type Counts = BTreeMap<String, Use>;

fn used(name: &str, before: &Counts, after: &Counts) -> Use {
    let of = |counts: &Counts| counts.get(name).copied().unwrap_or_default();
    of(after).since(&of(before))
}

fn moved(name: &str, before: &Counts, after: &Counts) -> f64 {
    used(name, before, after).bytes()
}

/// Jain's index of what the clients moved, the lowest over all stretches of so many seconds.
fn fairness(names: &[String], seconds: &[Counts], stretch: usize) -> f64 {
    let stretch = stretch.clamp(1, seconds.len() - 1);
    let index = |at: usize| {
        let shares: Vec<f64> = names.iter().map(|name| moved(name, &seconds[at], &seconds[at + stretch])).collect();
        let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|share| share * share).sum::<f64>());
        if squares > 0.0 { sum * sum / (shares.len() as f64 * squares) } else { 0.0 }
    };
    (0..seconds.len() - stretch).map(index).fold(1.0, f64::min)
}

/// Milliseconds of a request of these clients on average, but for those at the disk.
fn without_disk(names: &[String], before: &Counts, after: &Counts) -> f64 {
    let mut all = Use::default();
    names.iter().for_each(|name| all.add(&used(name, before, after)));
    (all.all() - all.part(Part::Device)) / all.requests.max(1.0) / 1e3
}

fn percentile_99(took: &[Duration]) -> f64 {
    let mut sorted = took.to_vec();
    sorted.sort_unstable();
    sorted
        .get((sorted.len() * 99 / 100).min(sorted.len().saturating_sub(1)))
        .map_or(0.0, |took| took.as_secs_f64() * 1e3)
}

/// Starts what a client does all the time.
async fn start(cluster: &Arc<Cluster>, story: Story, client: usize, stop: &Arc<AtomicBool>) -> Result<(), String> {
    let is_greedy = story == Story::Greedy && client == 0;
    let reads = story == Story::Reads && client % 2 == 1;
    for n in 0..if is_greedy { GREEDY_FILES } else { 1 } {
        let (mounted, rt) = (cluster.client(client).clone(), cluster.client_rt(client).clone());
        let flags = if reads { O_DIRECT } else { 0 };
        let file = create(&mounted, &format!("file-{client}-{n}"), flags).await?;
        if reads {
            // The file is as long as if it had been written.
            write(&mounted, &file, FILE_BYTES - RECORD, &ZEROES).await?;
        }
        for at in 0..if reads { READS_AT_ONCE } else { 1 } {
            let (mounted, file, stop, pace) = (mounted.clone(), file.clone(), stop.clone(), rt.clone());
            let mut prng = Prng::new(rt.random());
            drop(rt.spawn(async move {
                let step = if reads { READS_AT_ONCE } else { 1 } as u64;
                for n in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    pace.sleep(copying(&mut prng)).await;
                    let offset = (at as u64 + n * step) * RECORD % FILE_BYTES;
                    let done = match reads {
                        true => mounted.read(&file, offset, RECORD as usize).await.map(drop).map_err(|e| e.to_string()),
                        false => write(&mounted, &file, offset, &ZEROES).await,
                    };
                    assert_eq!(done, Ok(()), "client {client} at {offset}");
                }
            }));
        }
    }
    Ok(())
}

/// How long each small write took.
type Took = Arc<parking_lot::Mutex<Vec<Duration>>>;

/// Starts the clients that want little; they are the ones from `first` on.
async fn start_small(cluster: &Arc<Cluster>, first: usize, stop: &Arc<AtomicBool>) -> Result<Took, String> {
    let took = Took::default();
    for client in first..first + SMALL_CLIENTS {
        let (mounted, rt) = (cluster.client(client).clone(), cluster.client_rt(client).clone());
        let file = create(&mounted, &format!("small-{client}"), O_DIRECT).await?;
        let (took, stop, mut prng) = (took.clone(), stop.clone(), Prng::new(rt.random()));
        drop(rt.clone().spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let offset = prng.below(1 << 16) * SMALL_BYTES as u64;
                let begun = rt.now();
                let done = write(&mounted, &file, offset, &ZEROES[..SMALL_BYTES]).await;
                assert_eq!(done, Ok(()), "a small write of client {client}");
                took.lock().push(rt.now().since(begun));
                rt.sleep(SMALL_PAUSE).await;
            }
        }));
    }
    Ok(took)
}

/// The experiment, from its rows and what the small writes take alone.
pub fn report(seed: u64, rows: &[(Row, Result<Told, String>)], alone: Option<(f64, f64)>) -> Experiment {
    let mut traces = Traces::default();
    rows.iter().filter_map(|(_, told)| told.as_ref().ok()).for_each(|told| traces.add(told.trace));
    let of_row = |(row, told): &(Row, Result<Told, String>)| {
        told.as_ref().map_or_else(|_| failed(row), |told| told.figures.clone())
    };
    let mut figures: Vec<_> = rows.iter().flat_map(of_row).collect();
    if let Some((slowest, mean)) = alone {
        figures.push(Figure::own("small, nobody else", "small writes, 99 %", "ms", Some(slowest)));
        figures.push(Figure::own("small, nobody else", "small writes without the disk, mean", "ms", Some(mean)));
    }
    figures.extend(shared_file::gain(&figures));
    let mut constants = constants::fixed();
    let tells = |stories: &[Story]| rows.iter().any(|(row, _)| stories.contains(&row.story));
    if tells(&[Story::Even, Story::ManyMore, Story::SlowerDisk, Story::Reads, Story::Greedy, Story::Small]) {
        constants.extend(own_constants());
    }
    if let Some((row, _)) = rows.iter().find(|(row, _)| row.story == Story::SharedFile) {
        constants.extend(shared_file::constants(row.dispatch));
    }
    if tells(&[Story::Collapse, Story::OwnClients]) {
        constants.extend(collapse::constants());
    }
    if tells(&[Story::SlowOst]) {
        constants.extend(slow_ost::constants());
    }
    experiment::new("congestion-stories", seed, traces, constants, figures)
}

fn own_constants() -> [Constant; 6] {
    let own = |name: &str, value: f64, unit: &str, source: &str| {
        Constant::new(name, value, unit, ConstantKind::Physical, source)
    };
    [
        own(
            "clients that always write",
            CLIENTS as f64,
            "",
            "chosen: FIX(8) keeps 512 requests under way, which take 2.7 s",
        ),
        own("clients after the step", (10 * CLIENTS) as f64, "", "ten times as many"),
        own("disk after the step", f64::from(SLOWER), "times slower", "chosen"),
        own("time before the measurement", BEFORE as f64, "s", "chosen"),
        own("measured time", MEASURED as f64, "s", "chosen"),
        own("time after a step that is not measured", GRACE as f64, "s", "chosen"),
    ]
}

fn figures(row: &Row, measured: Option<&Measured>) -> Vec<Figure> {
    let name = row.to_string();
    let own = |figure: &str, unit: &str, value: fn(&Measured) -> Option<f64>| {
        Figure::own(&name, figure, unit, measured.and_then(value))
    };
    let mut figures = vec![
        own("rate", "MB/s", |m| Some(m.mb_per_s)),
        own("latency", "s", |m| Some(m.latency)),
        own("longest", "s", |m| Some(m.longest)),
        own("fairness (Jain)", "", |m| Some(m.fairness)),
        own("timeouts", "", |m| Some(m.timeouts as f64)),
    ];
    if matches!(row.story, Story::ManyMore | Story::SlowerDisk) && row.control.is_bounded() {
        figures.push(own("within the bound after the step", "s", |m| m.settled_after));
    }
    if row.story == Story::Small {
        figures.push(own("small writes, 99 %", "ms", |m| m.small_ms.map(|(slowest, _)| slowest)));
        figures.push(own("small writes without the disk, mean", "ms", |m| m.small_ms.map(|(_, mean)| mean)));
    }
    figures
}
