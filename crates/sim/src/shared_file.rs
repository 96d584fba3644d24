//! Many writers of one file, as many as a real cluster has: clients of a simulated file system with one OST write
//! alternating records, beside the same writers with a file each. Virtual time: networks, disks and copying a record into
//! the cache take the time that their models say, servers' processors take none. All data is zeroes, so that hundreds of
//! gigabytes fit into memory.

mod constants;
mod report;

pub use report::{plots, report};

use crate::cluster::{Cluster, Server, run};
use bytes::Bytes;
use clap::ValueEnum;
use constants::{CLIENT_BANDWIDTH, COPY_BANDWIDTH, LATENCY, SERVER_BANDWIDTH};
use futures_util::future::try_join_all;
use nacre_base::param::value::Value;
use nacre_base::{Fid, Payload, Prng};
use nacre_client::open_flags::{O_CREAT, O_EXCL, O_RDWR};
use nacre_client::{Client, OpenFile, RpcCounts};
use nacre_lnet::{LinkOptions, SimNetOptions};
use nacre_osd::PARTS_MAX;
use nacre_osd::mem::{DiskModel, MemOptions};
use nacre_rt::Rt;
use nacre_wire::attr::Credentials;
use nacre_wire::layout::{ComponentSpec, LayoutSpec, STRIPE_COUNT_AUTO, STRIPE_SIZE_MIN};
use std::sync::Arc;
use std::time::Duration;

/// Storage of the OST: one of the two kinds of "Exploring Lustre Overstriping For Shared File Performance on Disk and
/// Flash" (Moore and Farrell, 2019). Every number is in [`constants`], with its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Medium {
    /// 41 disks, 6 GB/s in all, which one local file can reach; scattered requests take longer.
    Disk,
    /// 11.7 GB/s, of which one local file can reach 7.
    Flash,
}

/// How the writers use files and locks, and whose storage is below. The paper's rows have neither Nacre's parts of
/// objects nor its servers' page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Policy {
    /// A file for each writer, on storage like the paper's: the base of comparison for the paper's shared files.
    PaperFilePerProcess,
    /// One file, with locks that the server grows as far as no other lock is in the way, whatever requests wait: so an
    /// object grants one lock at a time and writers take turns, as the paper describes it.
    Grown,
    /// One file, with Lustre's own rule: a lock also ends where a waiting request begins, so that all waiting requests
    /// are granted when it goes.
    Lustre,
    /// A file for each writer, on Nacre's storage: the base of comparison for Nacre's shared files.
    FilePerProcess,
    /// One file, with the default policy, on Nacre's storage.
    Default,
}

/// The load of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Storage of the OST.
    pub medium: Medium,
    /// How the writers get their locks, and whose storage is below.
    pub policy: Policy,
    /// Number of clients.
    pub clients: u32,
    /// Processes of each client, which are neighbours in the file.
    pub processes: u32,
    /// Bytes of a record, at most [`RECORD_MAX`].
    pub record: u64,
    /// Number of records of each process.
    pub records: u64,
    /// Number of stripes of the shared file; or [`AUTOMATIC`].
    pub stripes: u32,
}

/// One measurement.
#[derive(Debug, Clone)]
pub struct Row {
    /// The load that was measured.
    pub load: Load,
    /// 10^9 bytes a second, from the first write until everything is on the OST.
    pub gb_per_s: f64,
    /// Percentage of the rate of the same writers with a file each, if that was measured too.
    pub percent_of_file_per_process: Option<f64>,
    /// Enqueues per record.
    pub enqueues_per_record: f64,
    /// Callbacks per record.
    pub callbacks_per_record: f64,
    /// Number of requests to the OST.
    pub rpcs: u64,
    /// Hash of all events in the simulation.
    pub trace: u64,
    /// Error of the run, if it failed.
    pub failure: Option<String>,
}

/// In place of a number of stripes: the MDS chooses it when the stripes are needed (`lfs setstripe -C auto`).
pub const AUTOMATIC: u32 = 0;

/// The longest record.
pub const RECORD_MAX: u64 = 16 << 20;

/// Content of all records.
static ZEROES: [u8; RECORD_MAX as usize] = [0; RECORD_MAX as usize];

/// Virtual time after which a run counts as hung.
const LIMIT: Duration = Duration::from_secs(3600);

/// The client's parameter for writing shared files, and its values.
const POLICY_PARAM: &str = "osc.*.shared_write_policy";
const POLICY_GROWN: &str = "grown";
const POLICY_DEFAULT: &str = "default";
/// The OST's parameter that lets grown locks end where waiting requests begin.
const ROOM_PARAM: &str = "ldlm.namespaces.*.leave_room";
/// The OST's parameter that makes a client wait for its own locks.
const OWN_PARAM: &str = "ldlm.namespaces.*.own_locks_conflict";
/// The client's parameter for checksums.
const CHECKSUMS_PARAM: &str = "osc.*.checksums";
/// The OST's number of callbacks.
const CALLBACKS_PARAM: &str = "ldlm.namespaces.*.pool.callbacks";

impl Policy {
    /// True for the paper's policies: the locks of one file are grown, nothing else, and storage is Lustre's.
    const fn is_papers(self) -> bool {
        matches!(self, Policy::PaperFilePerProcess | Policy::Grown | Policy::Lustre)
    }

    /// True if each writer has a file.
    pub(crate) const fn is_alone(self) -> bool {
        matches!(self, Policy::PaperFilePerProcess | Policy::FilePerProcess)
    }

    /// The policy with a file for each writer on the same storage.
    const fn base(self) -> Policy {
        if self.is_papers() { Policy::PaperFilePerProcess } else { Policy::FilePerProcess }
    }

    /// How the server stores objects: Lustre has a file for each, and answers a write when it is on the medium. Nacre has
    /// several files, but one on disks with heads.
    const fn storage(self, model: DiskModel) -> DiskModel {
        match self.is_papers() {
            true => DiskModel { object_parts: 1, cache_bytes: 0, ..model },
            false if model.rotational => DiskModel { object_parts: 1, ..model },
            false => DiskModel { object_parts: PARTS_MAX, ..model },
        }
    }
}

impl Load {
    /// Number of processes of all clients.
    pub fn writers(&self) -> u64 {
        u64::from(self.clients) * u64::from(self.processes)
    }

    /// Bytes that all processes write.
    pub fn bytes(&self) -> u64 {
        self.writers() * self.records * self.record
    }

    /// The number of stripes, or `auto`.
    pub fn stripes_text(&self) -> String {
        stripes_text(self.stripes)
    }

    fn layout(&self) -> LayoutSpec {
        let alone = self.policy.is_alone();
        // Aligned records are one stripe each, as in the experiments that these repeat.
        let aligned = !alone && self.record.is_multiple_of(u64::from(STRIPE_SIZE_MIN));
        let stripes = match self.stripes {
            _ if alone => 1,
            AUTOMATIC => STRIPE_COUNT_AUTO,
            count => i32::try_from(count).unwrap_or(STRIPE_COUNT_AUTO),
        };
        let component = ComponentSpec {
            end: u64::MAX,
            stripe_offset: -1,
            stripe_size: if aligned { u32::try_from(self.record).unwrap_or(1 << 20) } else { 1 << 20 },
            stripe_count: stripes,
            overstripe: stripes > 1,
            ..ComponentSpec::default()
        };
        LayoutSpec { components: vec![component] }
    }
}

/// Text for a number of stripes, or `auto`.
fn stripes_text(stripes: u32) -> String {
    if stripes == AUTOMATIC { "auto".to_owned() } else { stripes.to_string() }
}

/// Takes one measurement. Panics if the simulation hangs.
pub fn measure(seed: u64, load: Load) -> Row {
    let model = load.policy.storage(load.medium.model());
    let storage = MemOptions { model, ..MemOptions::default() };
    let link = LinkOptions { latency: LATENCY, jitter: LATENCY, ..LinkOptions::default() };
    let network = SimNetOptions { link, bandwidth: CLIENT_BANDWIDTH, seed, ..SimNetOptions::default() };
    let builder = Cluster::builder().clients(load.clients).network(network).storage(storage);
    let (result, stats) = run(seed, LIMIT, builder, move |cluster| async move {
        for server in cluster.server_numbers() {
            cluster.net().set_bandwidth(server, SERVER_BANDWIDTH);
        }
        work(&cluster, load).await
    });
    let records = (load.writers() * load.records) as f64;
    let (elapsed, counts, failure) = match result {
        Ok((elapsed, counts)) => (elapsed.as_secs_f64(), counts, None),
        Err(error) => (0.0, RpcCounts::default(), Some(error)),
    };
    Row {
        load,
        gb_per_s: if elapsed > 0.0 { load.bytes() as f64 / 1e9 / elapsed } else { 0.0 },
        percent_of_file_per_process: None,
        enqueues_per_record: counts.enqueues as f64 / records,
        callbacks_per_record: counts.callbacks as f64 / records,
        rpcs: counts.rpcs,
        trace: stats.trace,
        failure,
    }
}

impl Row {
    /// The row of a failed measurement.
    pub fn failed(load: Load, why: String) -> Row {
        Row {
            load,
            gb_per_s: 0.0,
            percent_of_file_per_process: None,
            enqueues_per_record: 0.0,
            callbacks_per_record: 0.0,
            rpcs: 0,
            trace: 0,
            failure: Some(why),
        }
    }
}

/// Gives every row its percentage of the rate of the same writers with a file each on the same storage.
pub fn compare(rows: &mut [Row]) {
    let alike = |a: &Load, b: &Load| {
        let writers = |l: &Load| (l.medium, l.clients, l.processes, l.record, l.records, l.policy.base());
        writers(a) == writers(b)
    };
    let is_base = |r: &&Row| r.load.policy.is_alone() && r.failure.is_none();
    let alone: Vec<(Load, f64)> = rows.iter().filter(is_base).map(|r| (r.load, r.gb_per_s)).collect();
    for row in rows {
        let base = alone.iter().find(|(load, _)| alike(load, &row.load)).map(|(_, rate)| *rate);
        row.percent_of_file_per_process =
            base.filter(|_| row.failure.is_none()).map(|rate| 100.0 * row.gb_per_s / rate);
    }
}

/// Writes everything. Returns the time it took and the requests sent for it.
async fn work(cluster: &Arc<Cluster>, load: Load) -> Result<(Duration, RpcCounts), String> {
    choose_policy(cluster, load.policy)?;
    let files = make_files(cluster.client(0), &load).await?;
    let mut opened = Vec::new();
    for writer in 0..load.writers() {
        let (client, fid) = (client_of(cluster, &load, writer), files[writer as usize % files.len()]);
        opened.push(client.open(&Credentials::root(), fid, O_RDWR).await.map_err(|e| format!("open: {e}"))?);
    }
    let (before, callbacks, begun) = (counts_of(cluster), called_back(cluster), cluster.rt().now());
    let each = opened.iter().zip(0..).map(|(file, writer)| {
        let place = if files.len() > 1 { (0, 1) } else { (writer, load.writers()) };
        write(cluster.rt(), client_of(cluster, &load, writer), file, load, place)
    });
    try_join_all(each).await?;
    let (elapsed, counts) = (cluster.rt().now().since(begun), counts_of(cluster) - before);
    let counts = RpcCounts { callbacks: called_back(cluster) - callbacks, ..counts };
    for (file, writer) in opened.into_iter().zip(0..) {
        client_of(cluster, &load, writer).release(file).await.map_err(|e| format!("close: {e}"))?;
    }
    check_sizes(cluster, &load, &files).await?;
    Ok((elapsed, counts))
}

fn choose_policy(cluster: &Cluster, policy: Policy) -> Result<(), String> {
    let value = if policy.is_papers() { POLICY_GROWN } else { POLICY_DEFAULT };
    for i in 0..cluster.client_count() {
        let set = cluster.client_node(i).params().set(POLICY_PARAM, value);
        if set.is_ok_and(|names| names.is_empty()) && policy.is_papers() {
            return Err(format!("clients have no parameter {POLICY_PARAM}"));
        }
    }
    for i in 0..cluster.client_count() {
        // Virtual time does not include checksums, and they take two thirds of the real time.
        let set = cluster.client_node(i).params().set(CHECKSUMS_PARAM, "0");
        set.map_err(|e| format!("{CHECKSUMS_PARAM}: {e}"))?;
    }
    let switch = |param, on: bool| match cluster.set_param(Server::Oss(0), param, if on { "1" } else { "0" }) {
        0 => Err(format!("the OST has no parameter {param}")),
        _ => Ok(()),
    };
    switch(ROOM_PARAM, policy != Policy::Grown)?;
    switch(OWN_PARAM, policy.is_papers())
}

/// Creates the shared file, or one for each writer.
async fn make_files(client: &Client, load: &Load) -> Result<Vec<Fid>, String> {
    let count = if load.policy.is_alone() { load.writers() } else { 1 };
    let root = Credentials::root();
    let mut files = Vec::new();
    for n in 0..count {
        let name = format!("file-{n}").into_bytes();
        let flags = O_CREAT | O_EXCL | O_RDWR;
        let made = client.create(&root, Fid::ROOT, &name, flags, 0o600, 0, Some(load.layout())).await;
        let (attr, file) = made.map_err(|e| format!("create: {e}"))?;
        client.release(file).await.map_err(|e| format!("close: {e}"))?;
        files.push(attr.fid);
    }
    Ok(files)
}

fn client_of<'a>(cluster: &'a Cluster, load: &Load, writer: u64) -> &'a Arc<Client> {
    cluster.client((writer / u64::from(load.processes)) as usize)
}

/// Writes as one writer. `place`: its first record, and the distance to the next.
async fn write(rt: &Rt, client: &Client, file: &OpenFile, load: Load, place: (u64, u64)) -> Result<(), String> {
    let mut prng = Prng::new(rt.random());
    let copy = load.record * 1_000_000_000 / COPY_BANDWIDTH;
    for n in 0..load.records {
        rt.sleep(Duration::from_nanos(copy / 2 + prng.below(copy + 1))).await;
        let at = (place.0 + n * place.1) * load.record;
        let data = Payload::from(Bytes::from_static(&ZEROES[..load.record as usize]));
        let written = client.write(file, at, data).await.map_err(|e| format!("write: {e}"))?;
        if written as u64 != load.record {
            return Err("a short write".to_owned());
        }
    }
    client.fsync(file, true).await.map_err(|e| format!("fsync: {e}"))
}

/// Checks that everything is there, as seen by another client that never wrote.
async fn check_sizes(cluster: &Cluster, load: &Load, files: &[Fid]) -> Result<(), String> {
    let witness = cluster.mount_another(WITNESS).await?;
    for fid in files {
        let attr = witness.getattr(&Credentials::root(), *fid).await.map_err(|e| format!("stat: {e}"))?;
        let expected = load.bytes() / files.len() as u64;
        if attr.size != expected {
            return Err(format!("a file has {} bytes where {expected} were written", attr.size));
        }
    }
    witness.unmount().await;
    Ok(())
}

/// Sums of the requests that all clients sent and received.
fn counts_of(cluster: &Cluster) -> RpcCounts {
    (0..cluster.client_count()).map(|i| RpcCounts::of(cluster.client(i))).sum()
}

/// Locks that the OST has called back so far, including callbacks in the reply that granted them.
fn called_back(cluster: &Cluster) -> u64 {
    let counts = cluster.values(Server::Oss(0), CALLBACKS_PARAM);
    assert!(!counts.is_empty(), "the OST does not run");
    let count = |(name, value): &(String, Value)| value.number().unwrap_or_else(|| panic!("{name} is {value}"));
    counts.iter().map(count).sum::<i128>() as u64
}

/// Number of the client that checks the result.
const WITNESS: u32 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn load(policy: Policy, stripes: u32) -> Load {
        Load { medium: Medium::Flash, policy, clients: 4, processes: 2, record: 1 << 20, records: 24, stripes }
    }

    #[test]
    fn files_of_their_own_reach_what_the_ost_can_without_callbacks() {
        let row = measure(1, load(Policy::FilePerProcess, 1));
        assert_eq!(row.failure, None);
        assert!((8.0..11.71).contains(&row.gb_per_s), "{row:?}");
        assert_eq!(row.callbacks_per_record, 0.0, "{row:?}");
    }

    #[test]
    fn one_local_file_holds_a_shared_file_back_and_its_parts_do_not() {
        // Enough writers, for long enough, that the device is the bottleneck.
        let many = |policy| Load { clients: 16, processes: 1, records: 192, ..load(policy, 1) };
        let mut rows = [Policy::FilePerProcess, Policy::Grown, Policy::Default].map(|p| measure(1, many(p)));
        compare(&mut rows);
        assert!(rows.iter().all(|r| r.failure.is_none()), "{rows:?}");
        assert!(rows[1].gb_per_s < 7.01, "more than a local file can: {rows:?}");
        assert!(rows[2].gb_per_s > 10.0, "hardly more than a local file can: {rows:?}");
        assert_eq!(rows[0].percent_of_file_per_process.map(f64::round), Some(100.0), "{rows:?}");
    }

    #[test]
    fn before_a_moving_head_a_shared_file_is_as_fast_as_files_of_their_own() {
        let many = |policy| Load { medium: Medium::Disk, clients: 48, processes: 1, records: 192, ..load(policy, 1) };
        let mut rows = [Policy::FilePerProcess, Policy::Default].map(|p| measure(1, many(p)));
        compare(&mut rows);
        assert!(rows.iter().all(|r| r.failure.is_none()), "{rows:?}");
        assert!(rows[1].percent_of_file_per_process >= Some(95.0), "{rows:?}");
    }

    #[test]
    fn writers_with_grown_locks_take_turns_unless_each_has_a_stripe() {
        let [turns, stripes, ours] =
            [(Policy::Grown, 1), (Policy::Grown, 8), (Policy::Default, 1)].map(|(p, n)| measure(1, load(p, n)));
        assert!(turns.failure.is_none() && turns.callbacks_per_record > 0.9, "{turns:?}");
        assert!(stripes.gb_per_s > 2.0 * turns.gb_per_s && stripes.callbacks_per_record < 0.01, "{stripes:?}");
        assert!(ours.gb_per_s > 1.5 * turns.gb_per_s && ours.callbacks_per_record < 0.05, "{ours:?}");
    }

    /// As in the experiments: one stripe reaches 3 GB/s with 1 MiB to 6 GB/s with 16 MiB, and enough stripes nearly 11.7
    /// GB/s.
    #[test]
    fn grown_locks_give_what_was_measured_of_them_on_flash() {
        let rate = |record_mib: u64, stripes| {
            let record = record_mib << 20;
            let row =
                measure(1, Load { clients: 8, processes: 16, record, records: 6, ..load(Policy::Grown, stripes) });
            assert_eq!(row.failure, None, "{row:?}");
            row.gb_per_s
        };
        let (turns, long_turns) = (rate(1, 1), rate(16, 1));
        assert!((2.5..3.5).contains(&turns) && (5.5..6.5).contains(&long_turns), "{turns} {long_turns}");
        let (many, few) = (rate(1, 32), rate(16, 8));
        assert!(many > 10.0 && few > 10.5, "{many} {few}");
    }

    /// A writer under a lock that was called back waited for room. The bytes that took the room were under that lock and
    /// under another one, under which they had to be written, which nothing did. So the lock was never given back, and
    /// its client evicted.
    #[test]
    fn who_waits_for_room_under_a_lock_that_is_called_back_gets_it() {
        let many = Load { clients: 48, processes: 16, record: 4 << 20, records: 16, ..load(Policy::Default, 2) };
        let row = measure(1, many);
        assert_eq!(row.failure, None, "{row:?}");
        assert!(row.gb_per_s > 10.0, "{row:?}");
    }

    #[test]
    fn the_papers_rows_have_nothing_that_is_ours_alone() {
        for policy in [Policy::PaperFilePerProcess, Policy::Grown, Policy::Lustre] {
            let model = policy.storage(Medium::Flash.model());
            assert_eq!((model.object_parts, model.cache_bytes, policy.base()), (1, 0, Policy::PaperFilePerProcess));
        }
        let ours = Policy::Default.storage(Medium::Flash.model());
        assert!(ours.object_parts > 1 && ours.cache_bytes > 0);
        assert_eq!(Policy::Default.base(), Policy::FilePerProcess);
    }

    #[test]
    fn the_form_has_the_fitted_row_and_marks_what_misses() {
        let row = |policy, gb_per_s| {
            let load = Load {
                medium: Medium::Flash,
                policy,
                clients: 48,
                processes: 16,
                record: 1 << 20,
                records: 1,
                stripes: 1,
            };
            Row { gb_per_s, failure: None, ..Row::failed(load, String::new()) }
        };
        let mut rows = [row(Policy::PaperFilePerProcess, 11.5), row(Policy::Grown, 2.7), row(Policy::Lustre, 6.9)];
        compare(&mut rows);
        let experiment = report(1, &rows);
        let rate = |row: &str| experiment.figures.iter().find(|f| f.row == row && f.figure == "rate").unwrap();
        let fitted = rate("flash, 48 x 16, 1.0M, shared, grown locks, stripes 1");
        assert!(fitted.kind == nacre_experiment::FigureKind::Fitted && !fitted.misses(), "{fitted:?}");
        let lustre = rate("flash, 48 x 16, 1.0M, shared, Lustre's rule, stripes 1");
        assert!(lustre.kind == nacre_experiment::FigureKind::Predicted && lustre.misses(), "{lustre:?}");
        assert!(experiment.text().contains("MISSED"));
        assert_eq!(rows[1].percent_of_file_per_process.map(f64::round), Some(23.0));
    }

    /// The page is the output of `nacre sim shared-file --markdown`; only a run knows its figures, but the constants are
    /// here.
    #[test]
    fn the_page_of_the_documentation_has_these_constants() {
        let page = include_str!("../../../docs/measurements/sim-shared-file.md");
        let records = 6144 / (48 * 16);
        let load = Load { records, ..load(Policy::Default, 1) };
        let expected = report(1, &[Row::failed(load, String::new())]).constants_markdown();
        assert!(page.ends_with(&expected), "print the page again with `nacre sim shared-file --markdown`:\n{expected}");
    }

    #[test]
    fn a_run_is_determined_by_its_seed() {
        let [a, b] = [0, 0].map(|_| measure(7, load(Policy::Default, 2)));
        assert_eq!((a.gb_per_s, a.rpcs), (b.gb_per_s, b.rpcs));
    }
}
