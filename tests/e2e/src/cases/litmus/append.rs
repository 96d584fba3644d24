//! Appending: every record lands at the end as it is at that moment, whole, after whoever was there before.

use super::steps::{compare, ensure_content, in_parallel, mounts, new_file, open, read_at, size_of, watch_while};
use crate::case::{Case, Env, Layout};
use crate::failure::{Context, Outcome, bail, ensure, ensure_eq};
use crate::process::Program;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    const STRIPED: &[Layout] = &[Layout::Count(4)];
    vec![
        Case::new("litmus.append-both", append_both),
        Case::new("litmus.append-processes", append_processes),
        Case::new("litmus.append-three", append_three).layouts(STRIPED, STRIPED),
        Case::new("litmus.append-large", append_large),
        Case::new("litmus.append-tail", append_tail),
        Case::new("litmus.append-after-extend", append_after_extend),
        Case::new("litmus.append-after-truncate", append_after_truncate),
        Case::new("litmus.append-against-truncate", append_against_truncate),
        Case::new("litmus.append-and-write", append_and_write),
    ]
}

/// A record that is recognised anywhere in a file: `<id:sequence:fill>` and a newline.
fn record(id: usize, sequence: usize) -> String {
    format!("<{id}:{sequence}:{}>\n", "x".repeat(20 + (id * 7 + sequence * 13) % 80))
}

/// Appends `count` records as writer `id`; also the body of the worker process.
pub(crate) fn append_records(path: &Path, id: usize, count: usize) -> Outcome {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    for sequence in 0..count {
        file.write_all(record(id, sequence).as_bytes())?;
    }
    Ok(())
}

/// Checks that a file holds each writer's records whole, in order and no more than once: so many of each.
fn check_appended(path: &Path, counts: &[usize]) -> Outcome {
    let text = fs::read_to_string(path)?;
    let mut next = vec![0; counts.len()];
    for (n, line) in text.split_inclusive('\n').enumerate() {
        let mut parts = line.trim_start_matches('<').split(':');
        let id: Option<usize> = parts.next().and_then(|p| p.parse().ok());
        let Some(id) = id.filter(|&id| id < counts.len()) else { bail!("line {n} is damaged: {line:?}") };
        ensure_eq!(line, record(id, next[id]), "line {n}, by writer {id}");
        next[id] += 1;
    }
    ensure_eq!(next, counts, "records of each writer");
    Ok(())
}

/// Appenders on both mounts lose nothing and tear nothing.
fn append_both(env: &Env) -> Outcome {
    let count = env.times(env.pick(300, 3000));
    in_parallel([(&env.a, 0), (&env.b, 1)], |(dir, id)| append_records(&dir.join("log"), id, count))?;
    check_appended(&env.b.join("log"), &[count; 2])
}

/// The same with four processes on each mount.
fn append_processes(env: &Env) -> Outcome {
    let count = env.times(env.pick(100, 1000));
    let mut workers = Vec::new();
    for id in 0..8 {
        let dir = if id % 2 == 0 { &env.a } else { &env.b };
        let args = [dir.join("log").to_string_lossy().into_owned(), id.to_string(), count.to_string()];
        workers.push(Program::worker("append")?.args(args).start()?);
    }
    for worker in workers {
        worker.finish(Duration::from_secs(120))?;
    }
    check_appended(&env.a.join("log"), &[count; 8])
}

/// Three mounts append to a file with stripes of 64 KiB, from just before the end of the first: records cross stripes.
fn append_three(env: &Env) -> Outcome {
    let count = env.times(env.pick(250, 2500));
    let before = 900;
    let first: String = (0..before).map(|sequence| record(3, sequence)).collect();
    ensure!((56 << 10..64 << 10).contains(&first.len()), "{} bytes first", first.len());
    fs::write(env.b.join("log"), first)?;
    in_parallel(mounts(env).into_iter().enumerate(), |(id, dir)| append_records(&dir.join("log"), id, count))?;
    mounts(env).into_iter().try_for_each(|dir| check_appended(&dir.join("log"), &[count, count, count, before]))
}

fn appender(path: &Path) -> Outcome<File> {
    OpenOptions::new().read(true).append(true).create(true).open(path).context("open for appending")
}

/// Records of many pages stay in one piece.
fn append_large(env: &Env) -> Outcome {
    const LEN: usize = 50_001;
    new_file(&env.a.join("log"))?;
    in_parallel(mounts(env).into_iter().enumerate(), |(id, dir)| {
        let mut file = appender(&dir.join("log"))?;
        (0..8u8).try_for_each(|n| file.write_all(&[n * 3 + id as u8 + 1; LEN]).context("append"))
    })?;
    let data = fs::read(env.b.join("log"))?;
    ensure_eq!(data.len(), 24 * LEN, "size");
    let mut found: Vec<u8> = Vec::new();
    for (n, piece) in data.chunks(LEN).enumerate() {
        ensure!(piece.iter().all(|b| *b == piece[0]), "record {n} is torn");
        found.push(piece[0]);
    }
    for id in 0..3 {
        let of_writer: Vec<u8> = found.iter().copied().filter(|b| (b - 1) % 3 == id).collect();
        ensure_eq!(of_writer, (0..8).map(|n| n * 3 + id + 1).collect::<Vec<u8>>(), "records of mount {id}");
    }
    Ok(())
}

/// Who follows a growing file, as `tail -f` does, reads what was appended and never a zero in its place.
fn append_tail(env: &Env) -> Outcome {
    let count = env.times(150);
    let mut writer = appender(&env.a.join("log"))?;
    let readers = [File::open(env.b.join("log"))?, File::open(env.c.join("log"))?];
    let mut at = [0u64; 2];
    let byte = |at: u64| (at % 251) as u8 + 1;
    watch_while(
        || {
            for (reader, at) in readers.iter().zip(&mut at) {
                let data = read_at(reader, *at, 4000)?;
                let wrong = data.iter().zip(*at..).find(|(b, at)| **b != byte(*at));
                ensure!(wrong.is_none(), "a wrong byte: {wrong:?}");
                *at += data.len() as u64;
            }
            Ok(())
        },
        || {
            let mut end = 0;
            for n in 0..count {
                let record: Vec<u8> = (end..end + 37 + n % 300).map(byte).collect();
                writer.write_all(&record)?;
                end += record.len() as u64;
            }
            Ok(())
        },
    )?;
    let end = size_of(&env.b.join("log"))?;
    let whole: Vec<u8> = (0..end).map(byte).collect();
    ensure!(end > count * 37, "only {end} bytes");
    ensure_content(env, "log", &whole)
}

/// What one mount appends lands after what another wrote far behind the end a moment ago.
fn append_after_extend(env: &Env) -> Outcome {
    let writer = new_file(&env.a.join("f"))?;
    let mut appenders = [appender(&env.b.join("f"))?, appender(&env.c.join("f"))?];
    let mut random = env.random();
    let mut model: Vec<u8> = Vec::new();
    for round in 0..env.times(30) {
        let at = model.len() + random.below(9000);
        writer.write_all_at(b"far", at as u64)?;
        model.resize(at, 0);
        model.extend(b"far");
        let data = random.bytes(1 + random.clone().below(3000));
        let file = &mut appenders[round % 2];
        file.write_all(&data)?;
        model.extend(&data);
    }
    ensure_content(env, "f", &model)
}

/// After a truncate by another mount the next record is at the new end: no hole, nothing of the old.
fn append_after_truncate(env: &Env) -> Outcome {
    let mut file = appender(&env.b.join("f"))?;
    for round in 0..env.times(20u64) {
        file.write_all(&[round as u8 + 1; 5000])?;
        let cut = round * 37 % 4000;
        open(&env.a.join("f"))?.set_len(cut)?;
        file.write_all(b"<end>")?;
        let data = fs::read(env.c.join("f"))?;
        ensure_eq!(data.len() as u64, cut + 5, "round {round}: size");
        compare(&data[cut as usize..], b"<end>", cut as usize).context(format!("round {round}"))?;
        open(&env.c.join("f"))?.set_len(0)?;
    }
    Ok(())
}

/// Truncating to nothing beside appenders: what is left is whole records, without a hole.
fn append_against_truncate(env: &Env) -> Outcome {
    new_file(&env.a.join("log"))?;
    in_parallel(mounts(env).into_iter().enumerate(), |(id, dir)| {
        if id == 2 {
            let file = open(&dir.join("log"))?;
            for _ in 0..env.times(25).max(12) {
                file.set_len(0)?;
                std::thread::sleep(Duration::from_millis(1));
            }
            return Ok(());
        }
        append_records(&dir.join("log"), id, env.times(120))
    })?;
    let data = fs::read(env.a.join("log"))?;
    let lines = String::from_utf8_lossy(&data).into_owned();
    for line in lines.split_inclusive('\n') {
        ensure!(line.starts_with('<') && line.ends_with(">\n"), "not a whole record: {:?}", line.as_bytes());
    }
    ensure_content(env, "log", &data)
}

/// One mount appends and another writes over the beginning, of which both have the page.
fn append_and_write(env: &Env) -> Outcome {
    let mut tail = appender(&env.a.join("f"))?;
    tail.write_all(&[b'.'; 100])?;
    let mut head = open(&env.b.join("f"))?;
    let mut model = vec![b'.'; 100];
    for n in 0..env.times(60u8) {
        tail.write_all(&[n; 3])?;
        model.extend([n; 3]);
        head.seek(SeekFrom::Start(u64::from(n)))?;
        head.write_all(b"#")?;
        model[usize::from(n)] = b'#';
    }
    ensure_content(env, "f", &model)
}
