//! `nacre bench object-survey`: one OST, some objects, and some threads that write and read them in requests of 1 MiB,
//! around the client's cache. It shows whether one object is enough to fill the OST.

use crate::instance::{self, Instance, O_CREAT, O_DIRECT, O_EXCL, O_RDWR, root, said};
use crate::output;
use crate::sizes::parse_size;
use clap::Args;
use nacre_base::{Fid, OstIndex, Payload, table};
use nacre_client::OpenFile;
use nacre_experiment::plot::{Line, Plot, svg};
use nacre_experiment::{Constant, Experiment, Figure};
use nacre_wire::layout::{ComponentSpec, LayoutSpec};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Arguments of `nacre bench object-survey`.
#[derive(Args, Debug)]
pub(crate) struct ObjectSurvey {
    /// The running file system: MGSNID[,NID]:/FSNAME
    source: nacre_client::MountSource,
    /// Index of the OST
    #[arg(long, default_value_t = 0)]
    ost: u32,
    /// Objects at a time
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16")]
    objects: Vec<u32>,
    /// Threads at a time; at least one for each object
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    threads: Vec<u32>,
    /// Bytes that all threads write together, and read, each time
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Address of this host for the client
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    listen: IpAddr,
    /// File for a plot (SVG)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// One measurement.
#[derive(Debug, Clone)]
struct Row {
    objects: u32,
    threads: u32,
    write_mb_per_s: f64,
    read_mb_per_s: f64,
}

/// Size of a request, and of a stripe: consecutive requests of a thread go to one object.
const REQUEST: u64 = 1 << 20;

pub(crate) fn run(args: &ObjectSurvey, json: bool) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| e.to_string())?;
    let rows = runtime.block_on(measure(args))?;
    output::show_experiment(&report(args, &rows), json, || ())?;
    output::plot(args.plot.as_deref(), || svg(&plots(&rows)))
}

/// The paper's limit of one object, as a share of what several reach: 6.8 to 7.1 of 11.2 to 11.7 GB/s written, and 7.1 to
/// 7.5 read. It comes from another machine: information, not a bar.
const PAPER_ONE_OBJECT: f64 = 60.0;

/// The results in the experiments' form.
fn report(args: &ObjectSurvey, rows: &[Row]) -> Experiment {
    let constants = vec![
        Constant::argument("bytes of each test", args.size as f64 / 1e6, "MB"),
        Constant::argument("OST", f64::from(args.ost), ""),
    ];
    let best = |rate: fn(&Row) -> f64| rows.iter().map(rate).fold(f64::MIN_POSITIVE, f64::max);
    let (best_write, best_read) = (best(|r| r.write_mb_per_s), best(|r| r.read_mb_per_s));
    let figures = |row: &Row| {
        let name = format!("{} objects, {} threads", row.objects, row.threads);
        let paper = (row.objects == 1).then_some(PAPER_ONE_OBJECT);
        let share = |figure, rate, best| Figure::own(&name, figure, "%", Some(100.0 * rate / best)).with_paper(paper);
        [
            Figure::own(&name, "write", "MB/s", Some(row.write_mb_per_s)),
            share("write, of the fastest", row.write_mb_per_s, best_write),
            Figure::own(&name, "read", "MB/s", Some(row.read_mb_per_s)),
            share("read, of the fastest", row.read_mb_per_s, best_read),
        ]
    };
    Experiment::live("object-survey", constants, rows.iter().flat_map(figures).collect())
}

async fn measure(args: &ObjectSurvey) -> Result<Vec<Row>, String> {
    let instance = Instance::mount(&args.source, args.listen, 0).await?;
    let pairs = args.objects.iter().flat_map(|o| args.threads.iter().filter(move |t| *t >= o).map(move |t| (o, t)));
    let bar = output::progress(pairs.clone().count() as u64);
    let mut rows = Ok(Vec::new());
    for (objects, threads) in pairs {
        output::step(&bar, format!("{objects} objects, {threads} threads"));
        let row = take(args, &instance, *objects, *threads).await;
        rows = rows.and_then(|mut rows: Vec<Row>| {
            rows.push(row?);
            Ok(rows)
        });
    }
    bar.finish_and_clear();
    instance.unmount().await;
    rows
}

async fn take(args: &ObjectSurvey, instance: &Instance, objects: u32, threads: u32) -> Result<Row, String> {
    let osts = vec![OstIndex(args.ost); objects as usize];
    let component = ComponentSpec {
        end: u64::MAX,
        stripe_size: REQUEST as u32,
        stripe_count: objects as i32,
        stripe_offset: -1,
        overstripe: objects > 1,
        osts,
        ..ComponentSpec::default()
    };
    let free = instance::free_space(instance).await?;
    let name = format!("object-survey-{}", std::process::id()).into_bytes();
    let layout = Some(LayoutSpec { components: vec![component] });
    let flags = O_CREAT | O_EXCL | O_RDWR | O_DIRECT;
    let made = instance.client.create(&root(), Fid::ROOT, &name, flags, 0o600, 0, layout).await;
    let (_, file) = made.map_err(said("create"))?;
    let result = streams(args, instance, &file, objects, threads).await;
    let closed = instance.client.release(file).await.map_err(said("close"));
    instance.client.unlink(&root(), Fid::ROOT, &name).await.map_err(said("unlink"))?;
    instance::wait_until_free(instance, free.saturating_sub(args.size / 16)).await?;
    closed.and(result)
}

async fn streams(
    args: &ObjectSurvey,
    instance: &Instance,
    file: &Arc<OpenFile>,
    objects: u32,
    threads: u32,
) -> Result<Row, String> {
    let requests = (args.size / REQUEST / u64::from(threads)).max(1);
    let mut rates = [0.0; 2];
    for (rate, writes) in rates.iter_mut().zip([true, false]) {
        let begun = Instant::now();
        let tasks: Vec<_> = (0..threads)
            .map(|thread| {
                let (client, file) = (instance.client.clone(), file.clone());
                tokio::spawn(async move { stream(&client, &file, writes, (objects, thread), requests).await })
            })
            .collect();
        for task in tasks {
            task.await.map_err(|e| e.to_string())??;
        }
        if writes {
            instance.client.fsync(file, false).await.map_err(said("fsync"))?;
        }
        *rate = (requests * REQUEST * u64::from(threads)) as f64 / begun.elapsed().as_secs_f64() / 1e6;
    }
    Ok(Row { objects, threads, write_mb_per_s: rates[0], read_mb_per_s: rates[1] })
}

/// Sends one thread's requests, one after the other: a part of one object, in order.
async fn stream(
    client: &nacre_client::Client,
    file: &Arc<OpenFile>,
    writes: bool,
    (objects, thread): (u32, u32),
    requests: u64,
) -> Result<(), String> {
    let data = Payload::from(vec![thread as u8 + 1; REQUEST as usize]);
    for n in 0..requests {
        let at = place(objects, thread, requests, n);
        if writes {
            client.write(file, at, data.clone()).await.map_err(said("write"))?;
        } else {
            let read = client.read(file, at, REQUEST as usize).await.map_err(said("read"))?.to_bytes();
            if read.len() as u64 != REQUEST || read.iter().any(|b| *b != thread as u8 + 1) {
                return Err(format!("what was read at {at} is not what was written"));
            }
        }
    }
    Ok(())
}

/// Offset in the file of a thread's n-th request: threads that share an object have a part of it each.
fn place(objects: u32, thread: u32, requests: u64, n: u64) -> u64 {
    let (object, part) = (u64::from(thread % objects), u64::from(thread / objects));
    ((part * requests + n) * u64::from(objects) + object) * REQUEST
}

fn plots(rows: &[Row]) -> Vec<Plot> {
    let threads = table::distinct(rows.iter().map(|r| r.threads));
    let objects = table::distinct(rows.iter().map(|r| r.objects));
    let plot = |title: &str, rate: fn(&Row) -> f64| Plot {
        title: title.to_owned(),
        x_title: "threads".to_owned(),
        y_title: "MB/s".to_owned(),
        x_labels: threads.iter().map(u32::to_string).collect(),
        lines: objects
            .iter()
            .map(|o| Line {
                name: format!("{o} objects"),
                points: rows
                    .iter()
                    .filter(|r| r.objects == *o)
                    .map(|r| (threads.binary_search(&r.threads).unwrap_or(0), rate(r)))
                    .collect(),
                dashed: false,
            })
            .collect(),
    };
    vec![plot("write", |r| r.write_mb_per_s), plot("read", |r| r.read_mb_per_s)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn threads_cover_the_objects_without_overlap() {
        for (objects, threads) in [(1, 4), (4, 4), (4, 16)] {
            let places: Vec<u64> = (0..threads).flat_map(|t| (0..8).map(move |n| place(objects, t, 8, n))).collect();
            let distinct: BTreeSet<u64> = places.iter().copied().collect();
            assert_eq!(distinct.len(), places.len());
            assert_eq!(distinct.last(), Some(&((places.len() as u64 - 1) * REQUEST)));
        }
    }
}
