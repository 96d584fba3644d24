//! O_DIRECT beside cached reads and writes, on the same mount and on others: there is one file, however it is reached.

use super::steps::{compare, ensure_content, in_parallel, mounts, new_file, open, open_all, read_at};
use crate::case::{Case, Env, Layout};
use crate::failure::{Context, Outcome, ensure, ensure_eq};
use crate::prng::pattern;
use crate::sys::AlignedBuffer;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    const STRIPED: &[Layout] = &[Layout::Count(4)];
    vec![
        Case::new("litmus.direct-read-of-dirty", direct_read_of_dirty),
        Case::new("litmus.direct-write-under-cached", direct_write_under_cached),
        Case::new("litmus.direct-same-mount", direct_same_mount),
        Case::new("litmus.direct-random", direct_random).layouts(STRIPED, STRIPED),
        Case::new("litmus.direct-extend", direct_extend),
        Case::new("litmus.direct-at-end", direct_at_end),
        Case::new("litmus.direct-after-truncate", direct_after_truncate),
        Case::new("litmus.direct-writers", direct_writers),
        Case::new("litmus.direct-append", direct_append),
    ]
}

const BLOCK: usize = AlignedBuffer::ALIGNMENT;

fn open_direct(path: &Path) -> Outcome<File> {
    File::options().read(true).write(true).create(true).custom_flags(libc::O_DIRECT).open(path).context("open O_DIRECT")
}

fn write_direct(file: &File, data: &[u8], at: u64) -> Outcome {
    let mut buffer = AlignedBuffer::new(data.len());
    buffer.bytes().copy_from_slice(data);
    file.write_all_at(buffer.bytes(), at).context("direct write")
}

/// One direct read; what it got.
fn read_direct(file: &File, at: u64, len: usize) -> Outcome<Vec<u8>> {
    let mut buffer = AlignedBuffer::new(len);
    let got = file.read_at(buffer.bytes(), at).context("direct read")?;
    Ok(buffer.bytes()[..got].to_vec())
}

/// A direct read sees what another mount wrote through its cache, without fsync.
fn direct_read_of_dirty(env: &Env) -> Outcome {
    let writer = new_file(&env.a.join("f"))?;
    writer.write_all_at(&[0; 8 * BLOCK], 0)?;
    let reader = open_direct(&env.b.join("f"))?;
    for round in env.turns(40).map(|n| n as u8 + 1) {
        let at = u64::from(round) * 700;
        writer.write_all_at(&[round; 100], at)?;
        let start = at / BLOCK as u64 * BLOCK as u64;
        let got = read_direct(&reader, start, 2 * BLOCK)?;
        let from = (at - start) as usize;
        compare(&got[from..from + 100], &[round; 100], at as usize).context(format!("round {round}"))?;
    }
    Ok(())
}

/// A cached reader sees what another mount wrote directly.
fn direct_write_under_cached(env: &Env) -> Outcome {
    let mut model = pattern(env.seed, 10 * BLOCK);
    fs::write(env.a.join("f"), &model)?;
    let writer = open_direct(&env.a.join("f"))?;
    let readers = [File::open(env.b.join("f"))?, File::open(env.c.join("f"))?];
    for round in 0..env.times(30) {
        for reader in &readers {
            compare(&read_at(reader, 0, model.len())?, &model, 0).context(format!("round {round}"))?;
        }
        let (at, data) = (round % 9 * BLOCK, pattern(round as u64, BLOCK * (1 + round % 2)));
        write_direct(&writer, &data, at as u64)?;
        model[at..at + data.len()].copy_from_slice(&data);
    }
    ensure_content(env, "f", &model)
}

/// Both ways on one mount, by two descriptors.
fn direct_same_mount(env: &Env) -> Outcome {
    let (cached, direct) = (new_file(&env.a.join("f"))?, open_direct(&env.a.join("f"))?);
    let mut model = vec![0; 6 * BLOCK];
    cached.write_all_at(&model, 0)?;
    for round in 1..=env.times(40u8) {
        let at = usize::from(round) * 500;
        cached.write_all_at(&[round; 300], at as u64)?;
        model[at..at + 300].fill(round);
        compare(&read_direct(&direct, 0, model.len())?, &model, 0).context("a direct read after a cached write")?;
        let at = usize::from(round % 6) * BLOCK;
        write_direct(&direct, &[!round; BLOCK], at as u64)?;
        model[at..at + BLOCK].fill(!round);
        compare(&read_at(&cached, 0, model.len())?, &model, 0).context("a cached read after a direct write")?;
    }
    ensure_content(env, "f", &model)
}

/// Random blocks over stripes, three mounts, cached or direct at random.
fn direct_random(env: &Env) -> Outcome {
    const BLOCKS: usize = 80;
    let mut random = env.random();
    let mut model = pattern(env.seed, BLOCKS * BLOCK);
    fs::write(env.a.join("f"), &model)?;
    let cached = open_all(env, "f")?;
    let direct = [open_direct(&env.a.join("f"))?, open_direct(&env.b.join("f"))?, open_direct(&env.c.join("f"))?];
    for round in 0..env.times(100) {
        let (mount, blocks) = (random.below(3), 1 + random.below(20));
        let (at, len) = (random.below(BLOCKS - blocks) * BLOCK, blocks * BLOCK);
        let is_direct = random.below(2) == 0;
        if random.below(2) == 0 {
            let data = random.bytes(len);
            if is_direct {
                write_direct(&direct[mount], &data, at as u64)?;
            } else {
                cached[mount].write_all_at(&data, at as u64)?;
            }
            model[at..at + len].copy_from_slice(&data);
        } else {
            let got = if is_direct {
                read_direct(&direct[mount], at as u64, len)?
            } else {
                read_at(&cached[mount], at as u64, len)?
            };
            compare(&got, &model[at..at + len], at).context(format!("round {round}, direct: {is_direct}"))?;
        }
    }
    ensure_content(env, "f", &model)
}

/// A direct write beyond the end moves the size for everyone at once.
fn direct_extend(env: &Env) -> Outcome {
    let direct = open_direct(&env.a.join("f"))?;
    let watchers = [File::open(env.b.join("f"))?, File::open(env.a.join("f"))?];
    for round in 0..env.times(20usize) {
        let end = (round * 2 + 1) * BLOCK;
        write_direct(&direct, &[round as u8 + 1; BLOCK], (end - BLOCK) as u64)?;
        for file in &watchers {
            ensure_eq!(file.metadata()?.len(), end as u64, "round {round}: size");
            let tail = read_at(file, (end - BLOCK) as u64, 2 * BLOCK)?;
            compare(&tail, &[round as u8 + 1; BLOCK], end - BLOCK).context(format!("round {round}"))?;
        }
    }
    Ok(())
}

/// A direct read that meets the end gives what there is, as the other mount's writes move it.
fn direct_at_end(env: &Env) -> Outcome {
    let writer = new_file(&env.a.join("f"))?;
    let reader = open_direct(&env.b.join("f"))?;
    let mut random = env.random();
    let mut size = 0;
    for round in 0..25 {
        ensure_eq!(read_direct(&reader, 0, 64 * BLOCK)?.len(), size, "round {round}: bytes up to the end");
        size += 1 + random.below(5000);
        writer.write_all_at(&[1], size as u64 - 1)?;
        if round % 5 == 4 {
            size /= 3;
            writer.set_len(size as u64)?;
        }
    }
    Ok(())
}

/// What a truncate by another mount cut a direct read does not see, nor does a direct write bring it back.
fn direct_after_truncate(env: &Env) -> Outcome {
    let direct = open_direct(&env.a.join("f"))?;
    let cutter = open(&env.b.join("f"))?;
    for round in 0..10usize {
        write_direct(&direct, &[7; 4 * BLOCK], 0)?;
        let cut = BLOCK + 111 * round;
        cutter.set_len(cut as u64)?;
        ensure!(read_direct(&direct, 0, 4 * BLOCK)? == vec![7; cut], "round {round}: bytes after the cut");
        write_direct(&direct, &[8; BLOCK], 3 * BLOCK as u64)?;
        let mut expected = vec![7; cut];
        expected.resize(3 * BLOCK, 0);
        expected.resize(4 * BLOCK, 8);
        ensure_content(env, "f", &expected).context(format!("round {round}"))?;
    }
    Ok(())
}

/// Direct and cached writers of neighbouring blocks, at once.
fn direct_writers(env: &Env) -> Outcome {
    const ROUNDS: usize = 20;
    new_file(&env.a.join("f"))?;
    in_parallel(mounts(env).into_iter().enumerate(), |(id, dir)| {
        let (cached, direct) = (open(&dir.join("f"))?, open_direct(&dir.join("f"))?);
        for round in 0..ROUNDS {
            let slot = round * 3 + id;
            let (data, at) = (pattern(slot as u64, BLOCK), (slot * BLOCK) as u64);
            if slot % 2 == 0 { write_direct(&direct, &data, at)? } else { cached.write_all_at(&data, at)? }
        }
        Ok(())
    })?;
    let expected: Vec<u8> = (0..ROUNDS * 3).flat_map(|slot| pattern(slot as u64, BLOCK)).collect();
    ensure_content(env, "f", &expected)
}

/// Appending directly on one mount and through the cache on another, in whole blocks.
fn direct_append(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"")?;
    let flags = |extra| File::options().append(true).custom_flags(extra).clone();
    let mut files = [flags(libc::O_DIRECT).open(env.a.join("f"))?, flags(0).open(env.b.join("f"))?];
    let mut model = Vec::new();
    for round in 0..env.times(30u8) {
        let mut buffer = AlignedBuffer::new(BLOCK);
        buffer.bytes().fill(round);
        files[usize::from(round % 2)].write_all(buffer.bytes())?;
        model.extend([round; BLOCK]);
    }
    ensure_content(env, "f", &model)
}
