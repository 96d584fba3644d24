//! `nacre bench shared-file`: many writers of one file, each writing every n-th record, beside the same writers with a
//! file each. Client instances of this process on a running file system: real requests, real disks. A client other than
//! the writer reads every byte back.

use crate::instance::{self, Instance, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, counts_of, root, said};
use crate::output::{self, median, median_interval};
use crate::sizes::{parse_record, parse_size};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use nacre_base::{Fid, Payload, size, table};
use nacre_client::{OpenFile, RpcCounts};
use nacre_experiment::plot::{Line, Plot, svg};
use nacre_experiment::{Constant, Experiment, Figure};
use nacre_wire::layout::{ComponentSpec, LayoutSpec, STRIPE_SIZE_MIN};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Arguments of `nacre bench shared-file`.
#[derive(Args, Debug)]
pub(crate) struct SharedFile {
    /// The running file system: MGSNID[,NID]:/FSNAME
    source: nacre_client::MountSource,
    /// Clients, each with locks and a cache of its own
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Writers of each client
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    writers: Vec<usize>,
    /// Bytes of a record
    #[arg(long, value_delimiter = ',', default_value = "1M,4M,16M,47008", value_parser = parse_record)]
    records: Vec<u64>,
    /// Policies; file-per-process, the base of comparison, is always measured
    #[arg(long = "policy", value_delimiter = ',', default_value = "file-per-process,grown,default")]
    policies: Vec<Policy>,
    /// Stripes of the shared file on each OST
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    stripes: Vec<u32>,
    /// Bytes that all writers write together, each time
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Times each measurement is taken; the median counts
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Address of this host for the clients
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    listen: IpAddr,
    /// File for a plot (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// How the writers use files and locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// A file for each writer: the base of comparison for a shared file.
    FilePerProcess,
    /// One file, with locks grown by the server, as in Lustre.
    Grown,
    /// One file, with the default policy.
    Default,
}

/// One measurement.
#[derive(Debug, Clone)]
struct Row {
    policy: Policy,
    clients: usize,
    writers_per_client: usize,
    record_bytes: u64,
    stripes_per_ost: u32,
    mb_per_s: f64,
    percent_of_file_per_process: f64,
    /// Bounds of the percentage with 95 % confidence, if there were six runs or more.
    percent_low: f64,
    percent_high: f64,
    enqueues: u64,
    cancels: u64,
    callbacks: u64,
    rpcs_per_gb: f64,
}

/// The client's parameter for writing shared files, and its value for grown locks.
const POLICY_PARAM: &str = "osc.*.shared_write_policy";
const POLICY_GROWN: &str = "grown";

/// The load of one measurement.
#[derive(Debug, Clone, Copy)]
struct Load {
    writers_per_client: usize,
    record: u64,
    /// Number of records of one writer.
    records: u64,
}

impl Load {
    /// Bytes that this number of writers write.
    fn bytes(self, writers: usize) -> u64 {
        self.record * self.records * writers as u64
    }
}

pub(crate) fn run(args: &SharedFile, json: bool) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| e.to_string())?;
    let rows = runtime.block_on(measure(args))?;
    output::show_experiment(&report(args, &rows), json, || ())?;
    output::plot(args.plot.as_deref(), || svg(&plots(&rows)))
}

async fn measure(args: &SharedFile) -> Result<Vec<Row>, String> {
    let instances = Instance::mount_all(&args.source, args.listen, args.clients.max(2)).await?;
    let bar = output::progress(0);
    let result = measure_all(args, &instances, &bar).await;
    bar.finish_and_clear();
    for instance in instances {
        instance.unmount().await;
    }
    result
}

async fn measure_all(args: &SharedFile, instances: &[Instance], bar: &ProgressBar) -> Result<Vec<Row>, String> {
    let osts = instance::ost_count(&instances[0]).await?;
    // The base of comparison.
    let alone = [(Policy::FilePerProcess, 1)];
    let shared = args.policies.iter().filter(|p| **p != Policy::FilePerProcess);
    let together = shared.flat_map(|p| args.stripes.iter().map(move |s| (*p, *s)));
    let variants: Vec<_> = alone.into_iter().chain(together).collect();
    let cases = args.writers.len() * args.records.len();
    bar.set_length((cases * variants.len() * args.runs as usize) as u64);
    let mut rows = Vec::new();
    for writers in &args.writers {
        for record in &args.records {
            let writer_count = args.clients * *writers;
            let records = (args.size / *record / writer_count as u64).max(1);
            let load = Load { writers_per_client: *writers, record: *record, records };
            let taken = measure_variants(args, instances, osts, load, &variants, bar).await?;
            rows.extend(
                variants.iter().enumerate().map(|(n, variant)| row(args, load, *variant, &taken[n], &taken[0])),
            );
        }
    }
    Ok(rows)
}

/// Bytes per second, and requests sent meanwhile.
type Taken = (f64, RpcCounts);

/// Measures all variants in each run, so that changes of the disk affect all of them; each run begins with another
/// variant. Returns for each variant one measurement of each run, in order.
async fn measure_variants(
    args: &SharedFile,
    instances: &[Instance],
    osts: u32,
    load: Load,
    variants: &[(Policy, u32)],
    bar: &ProgressBar,
) -> Result<Vec<Vec<Taken>>, String> {
    let mut taken = vec![Vec::new(); variants.len()];
    for run in 0..args.runs as usize {
        for n in 0..variants.len() {
            let which = (run + n) % variants.len();
            let (policy, stripes) = variants[which];
            let (writers, record) = (load.writers_per_client, size::human(load.record));
            output::step(bar, format!("{policy:?}, {writers} x {record}, {stripes} stripes"));
            taken[which].push(take(args, instances, osts, load, policy, stripes).await?);
        }
    }
    Ok(taken)
}

/// Medians of the rates, and of their ratios to the rate of `alone` in the same run; the request counts are those of the
/// run with the median rate.
fn row(
    args: &SharedFile,
    load: Load,
    (policy, stripes_per_ost): (Policy, u32),
    taken: &[Taken],
    alone: &[Taken],
) -> Row {
    let bytes = load.bytes(args.clients * load.writers_per_client);
    let shares: Vec<f64> = taken.iter().zip(alone).map(|((rate, _), (alone, _))| 100.0 * rate / alone).collect();
    let mut by_rate = taken.to_vec();
    by_rate.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (rate, counts) = by_rate[by_rate.len() / 2];
    let (low, high) = median_interval(shares.clone());
    Row {
        policy,
        clients: args.clients,
        writers_per_client: load.writers_per_client,
        record_bytes: load.record,
        stripes_per_ost,
        mb_per_s: rate / 1e6,
        percent_of_file_per_process: median(shares),
        percent_low: low,
        percent_high: high,
        enqueues: counts.enqueues,
        cancels: counts.cancels,
        callbacks: counts.callbacks,
        rpcs_per_gb: counts.rpcs as f64 / (bytes as f64 / 1e9),
    }
}

/// One measurement.
async fn take(
    args: &SharedFile,
    instances: &[Instance],
    osts: u32,
    load: Load,
    policy: Policy,
    stripes: u32,
) -> Result<Taken, String> {
    if policy != Policy::FilePerProcess {
        let value = if policy == Policy::Grown { POLICY_GROWN } else { "default" };
        if !instances.iter().all(|i| i.set_param(POLICY_PARAM, value)) {
            return Err("a client cannot be told how to write shared files".to_owned());
        }
    }
    let writers = args.clients * load.writers_per_client;
    let free = instance::free_space(&instances[0]).await?;
    let files = Files::make(&instances[0], policy, osts, stripes, load.record, writers).await?;
    let result = write_and_verify(args, instances, load, &files).await;
    // Otherwise the OSTs would call the locks back when they destroy the objects, in the middle of the next measurement.
    instance::give_all_locks_back(instances).await?;
    files.remove(&instances[0]).await?;
    instance::wait_until_free(&instances[0], free.saturating_sub(load.bytes(writers) / 16)).await?;
    result
}

async fn write_and_verify(
    args: &SharedFile,
    instances: &[Instance],
    load: Load,
    files: &Files,
) -> Result<Taken, String> {
    let writers = args.clients * load.writers_per_client;
    let mut opened = Vec::new();
    for writer in 0..writers {
        let client = &instances[writer / load.writers_per_client].client;
        let file = client.open(&root(), files.of(writer), O_RDWR).await.map_err(said("open"))?;
        opened.push(file);
    }
    let before = counts_of(instances);
    let begun = Instant::now();
    let each = opened.iter().enumerate().map(|(writer, file)| {
        let client = instances[writer / load.writers_per_client].client.clone();
        let (file, place) = (file.clone(), files.place(writer, writers));
        async move { write(&client, &file, load, place).await }
    });
    side_by_side(each).await?;
    let rate = load.bytes(writers) as f64 / begun.elapsed().as_secs_f64();
    let counts = counts_of(instances) - before;
    for (writer, file) in opened.into_iter().enumerate() {
        instances[writer / load.writers_per_client].client.release(file).await.map_err(said("close"))?;
    }
    let each = (0..writers).map(|writer| {
        // Another client, which reads data that was written back, from the servers.
        let reader = instances[(writer / load.writers_per_client + 1) % instances.len()].client.clone();
        let (fid, place) = (files.of(writer), files.place(writer, writers));
        async move { verify(&reader, fid, load, place).await }
    });
    side_by_side(each).await?;
    Ok((rate, counts))
}

/// Runs all at once. Returns the first error.
async fn side_by_side<F>(each: impl Iterator<Item = F>) -> Result<(), String>
where
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let tasks: Vec<_> = each.map(tokio::spawn).collect();
    let mut result = Ok(());
    for task in tasks {
        let one = task.await.map_err(|e| e.to_string()).and_then(|r| r);
        result = result.and(one);
    }
    result
}

/// Records of a writer: the first one, and the distance to the next.
#[derive(Debug, Clone, Copy)]
struct Place {
    first: u64,
    step: u64,
    /// Seed that makes the files of different writers differ.
    seed: u64,
}

async fn write(client: &nacre_client::Client, file: &Arc<OpenFile>, load: Load, place: Place) -> Result<(), String> {
    for n in 0..load.records {
        let at = (place.first + n * place.step) * load.record;
        let written = client.write(file, at, Payload::from(content(place.seed, at, load.record))).await;
        if written.map_err(said("write"))? as u64 != load.record {
            return Err("a short write".to_owned());
        }
    }
    client.fsync(file, false).await.map_err(said("fsync"))
}

async fn verify(client: &nacre_client::Client, fid: Fid, load: Load, place: Place) -> Result<(), String> {
    let file = client.open(&root(), fid, O_RDONLY).await.map_err(said("open to verify"))?;
    for n in 0..load.records {
        let at = (place.first + n * place.step) * load.record;
        let data = client.read(&file, at, load.record as usize).await.map_err(said("read"))?.to_bytes();
        let expected = content(place.seed, at, load.record);
        if data[..] != expected[..] {
            let wrong = data.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(data.len());
            return Err(format!("byte {} is not what was written ({} bytes read)", at + wrong as u64, data.len()));
        }
    }
    client.release(file).await.map_err(said("close after verifying"))
}

/// Bytes that are different at every place of every file; cheap, so that generating them costs less than writing them.
fn content(seed: u64, at: u64, len: u64) -> Vec<u8> {
    let word = |i: u64| ((at / 8 + i) ^ (seed << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(word).collect();
    bytes.truncate(len as usize);
    bytes
}

/// The files of one measurement.
struct Files {
    names: Vec<(Vec<u8>, Fid)>,
}

impl Files {
    async fn make(
        instance: &Instance,
        policy: Policy,
        osts: u32,
        stripes: u32,
        record: u64,
        writers: usize,
    ) -> Result<Files, String> {
        let alone = policy == Policy::FilePerProcess;
        let mut component = ComponentSpec { end: u64::MAX, stripe_offset: -1, ..ComponentSpec::default() };
        // Aligned records are one stripe each, as in the experiments that these repeat.
        let aligned = record.is_multiple_of(u64::from(STRIPE_SIZE_MIN));
        component.stripe_size = if aligned && !alone { u32::try_from(record).unwrap_or(1 << 20) } else { 1 << 20 };
        component.stripe_count = if alone { 1 } else { (osts * stripes) as i32 };
        component.overstripe = !alone && stripes > 1;
        let layout = LayoutSpec { components: vec![component] };
        let mut names = Vec::new();
        for n in 0..if alone { writers } else { 1 } {
            let name = format!("shared-file-{}-{n}", std::process::id()).into_bytes();
            let flags = O_CREAT | O_EXCL | O_RDWR;
            let made = instance.client.create(&root(), Fid::ROOT, &name, flags, 0o600, 0, Some(layout.clone())).await;
            let (attr, file) = made.map_err(said("create"))?;
            instance.client.release(file).await.map_err(said("close"))?;
            names.push((name, attr.fid));
        }
        Ok(Files { names })
    }

    fn of(&self, writer: usize) -> Fid {
        self.names[writer % self.names.len()].1
    }

    fn place(&self, writer: usize, writers: usize) -> Place {
        if self.names.len() > 1 {
            return Place { first: 0, step: 1, seed: writer as u64 + 1 };
        }
        Place { first: writer as u64, step: writers as u64, seed: 0 }
    }

    async fn remove(&self, instance: &Instance) -> Result<(), String> {
        for (name, _) in &self.names {
            instance.client.unlink(&root(), Fid::ROOT, name).await.map_err(said("unlink"))?;
        }
        Ok(())
    }
}

/// The results in the experiments' form: medians of all runs. Percentages are of the same run, and their bounds have 95 %
/// confidence from six runs on.
fn report(args: &SharedFile, rows: &[Row]) -> Experiment {
    let constants = vec![
        Constant::argument("bytes of each measurement", args.size as f64 / 1e6, "MB"),
        Constant::argument("runs", f64::from(args.runs), ""),
    ];
    let figures = |row: &Row| {
        let (clients, writers, record) = (row.clients, row.writers_per_client, size::human(row.record_bytes));
        let name = format!("{clients} x {writers}, {record}, {}, stripes {}", name(row.policy), row.stripes_per_ost);
        let own = |figure, unit, value| Figure::own(&name, figure, unit, Some(value));
        [
            own("rate", "MB/s", row.mb_per_s),
            own("of own files", "%", row.percent_of_file_per_process),
            own("at least", "%", row.percent_low),
            own("at most", "%", row.percent_high),
            own("enqueues", "", row.enqueues as f64),
            own("cancels", "", row.cancels as f64),
            own("callbacks", "", row.callbacks as f64),
            own("RPCs", "a GB", row.rpcs_per_gb),
        ]
    };
    Experiment::live("shared-file", constants, rows.iter().flat_map(figures).collect())
}

fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::FilePerProcess => "file per process",
        Policy::Grown => "shared, grown locks",
        Policy::Default => "shared",
    }
}

/// One plot for each number of writers: rate over stripes, a line for each policy and record.
fn plots(rows: &[Row]) -> Vec<Plot> {
    let stripes = table::distinct(rows.iter().map(|r| r.stripes_per_ost));
    let writers = table::distinct(rows.iter().map(|r| r.writers_per_client));
    let records = table::distinct(rows.iter().map(|r| r.record_bytes));
    let plot = |writers: usize| {
        let mut lines = Vec::new();
        for record in &records {
            for policy in [Policy::FilePerProcess, Policy::Grown, Policy::Default] {
                let of = rows
                    .iter()
                    .filter(|r| r.writers_per_client == writers && r.record_bytes == *record && r.policy == policy);
                let dashed = policy == Policy::FilePerProcess;
                let mut points: Vec<(usize, f64)> =
                    of.map(|r| (stripes.binary_search(&r.stripes_per_ost).unwrap_or(0), r.mb_per_s)).collect();
                if let (true, Some(only)) = (dashed, points.first().copied()) {
                    points = (0..stripes.len()).map(|i| (i, only.1)).collect();
                }
                if !points.is_empty() {
                    lines.push(Line { name: format!("{}, {record} bytes", name(policy)), points, dashed });
                }
            }
        }
        Plot {
            title: format!("{writers} writers on each client"),
            x_title: "stripes on each OST".into(),
            y_title: "MB/s".into(),
            x_labels: stripes.iter().map(u32::to_string).collect(),
            lines,
        }
    };
    writers.iter().map(|w| plot(*w)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_depends_on_file_and_place_only() {
        let whole = content(3, 0, 4096);
        assert_eq!(content(3, 1024, 100), whole[1024..1124]);
        assert_ne!(content(4, 0, 4096), whole);
        assert_ne!(whole[..8], whole[8..16]);
    }

    #[test]
    fn writers_of_one_file_take_turns_and_those_of_their_own_go_on() {
        let shared = Files { names: vec![(Vec::new(), Fid::ROOT)] };
        let place = shared.place(2, 8);
        assert_eq!((place.first, place.step), (2, 8));
        let own = Files { names: vec![(Vec::new(), Fid::ROOT); 8] };
        let place = own.place(2, 8);
        assert_eq!((place.first, place.step), (0, 1));
    }
}
