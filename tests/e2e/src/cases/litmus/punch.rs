//! Holes and allocated space: what one mount punches or allocates the others read as zeros and find by SEEK_HOLE.

use super::steps::{compare, ensure_content, new_file, open_all, read_at};
use crate::case::{Case, Env, Layout};
use crate::failure::{Context, Outcome, ensure, ensure_eq};
use crate::prng::pattern;
use crate::sys;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    const STRIPED: &[Layout] = &[Layout::Count(4)];
    vec![
        Case::new("litmus.sparse-hole", sparse_hole),
        Case::new("litmus.fallocate-punch", fallocate_punch),
        Case::new("litmus.punch-of-cached", punch_of_cached),
        Case::new("litmus.punch-of-dirty", punch_of_dirty),
        Case::new("litmus.punch-random", punch_random).layouts(STRIPED, STRIPED),
        Case::new("litmus.fallocate-then-write", fallocate_then_write),
        Case::new("litmus.seek-after-write", seek_after_write),
        Case::new("litmus.seek-at-end", seek_at_end),
    ]
}

const PUNCH: libc::c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// A hole reads as zeros on the other mount and is no data.
fn sparse_hole(env: &Env) -> Outcome {
    const AT: u64 = 10 << 20;
    let file = File::create(env.a.join("f"))?;
    file.write_all_at(b"end", AT)?;
    let reader = File::open(env.b.join("f"))?;
    ensure_eq!(reader.metadata()?.len(), AT + 3, "size");
    let data = fs::read(env.b.join("f"))?;
    ensure!(data[..AT as usize].iter().all(|&b| b == 0), "the hole is not zeros");
    ensure_eq!(&data[AT as usize..], b"end", "the bytes after the hole");
    let data_at = sys::seek(&reader, 0, libc::SEEK_DATA)?;
    ensure!(data_at <= AT, "SEEK_DATA skipped data: it says {data_at}");
    let hole_at = sys::seek(&reader, 0, libc::SEEK_HOLE)?;
    ensure!(hole_at == 0 || hole_at == AT + 3, "SEEK_HOLE says {hole_at}");
    file.write_all_at(b"middle", AT / 2)?;
    let mut got = [0; 8];
    reader.read_exact_at(&mut got, AT / 2 - 1)?;
    ensure_eq!(&got, b"\0middle\0", "bytes written into the hole");
    Ok(())
}

/// Space allocated beyond the end is zeros, and a punched range becomes zeros, for the other mount.
fn fallocate_punch(env: &Env) -> Outcome {
    let file = File::create(env.a.join("f"))?;
    file.write_all_at(&[1; 100_000], 0)?;
    let reader = File::open(env.b.join("f"))?;
    let mut got = vec![0; 100_000];
    reader.read_exact_at(&mut got, 0)?;
    sys::fallocate(&file, 0, 0, 300_000).context("fallocate")?;
    ensure_eq!(reader.metadata()?.len(), 300_000, "size after fallocate");
    sys::fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 300_000, 100_000).context("fallocate, keeping the size")?;
    ensure_eq!(reader.metadata()?.len(), 300_000, "size after fallocate that keeps it");
    sys::fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 5000, 50_000).context("punch")?;
    let data = fs::read(env.b.join("f"))?;
    let expected = |i: usize| u8::from(i < 5000 || (55_000..100_000).contains(&i));
    let wrong = data.iter().enumerate().find(|&(i, &b)| b != expected(i));
    ensure!(wrong.is_none(), "wrong byte at {:?}", wrong);
    Ok(())
}

/// Bytes that two mounts have read are zeros once the third punched them.
fn punch_of_cached(env: &Env) -> Outcome {
    let mut model = pattern(env.seed, 150_000);
    fs::write(env.a.join("f"), &model)?;
    let files = open_all(env, "f")?;
    let mut random = env.random();
    for round in 0..env.times(20) {
        let (at, len) = (random.below(140_000), 1 + random.below(10_000));
        sys::fallocate(&files[round % 3], PUNCH, at as u64, len as u64).context("punch")?;
        model[at..at + len].fill(0);
        for file in &files {
            compare(&read_at(file, 0, 200_000)?, &model, 0).context(format!("round {round}"))?;
        }
    }
    Ok(())
}

/// A hole stays one though the bytes there were not written back yet when it was punched.
fn punch_of_dirty(env: &Env) -> Outcome {
    for round in env.turns(12) {
        let name = format!("f{round}");
        let writer = new_file(&env.a.join(&name))?;
        let mut model = pattern(round, 60_000);
        writer.write_all_at(&model, 0)?;
        let (at, len) = (round * 3000 + 5, 20_000);
        sys::fallocate(&File::options().write(true).open(env.b.join(&name))?, PUNCH, at, len).context("punch")?;
        model[at as usize..(at + len) as usize].fill(0);
        // The writer goes on inside the hole.
        writer.write_all_at(b"island", at + 100)?;
        model[at as usize + 100..at as usize + 106].copy_from_slice(b"island");
        drop(writer);
        ensure_content(env, &name, &model).context(format!("round {round}"))?;
    }
    Ok(())
}

/// Random punches, allocations and writes over stripes, through all mounts in turn.
fn punch_random(env: &Env) -> Outcome {
    let mut random = env.random();
    let mut model = pattern(env.seed, 400_000);
    fs::write(env.a.join("f"), &model)?;
    let files = open_all(env, "f")?;
    for round in 0..env.times(60) {
        let file = &files[random.below(3)];
        let len = 1 + random.below(70_000);
        let at = random.below(model.len() - len);
        match random.below(3) {
            0 => {
                sys::fallocate(file, PUNCH, at as u64, len as u64).context("punch")?;
                model[at..at + len].fill(0);
            }
            1 => sys::fallocate(file, 0, at as u64, len as u64).context("allocate")?,
            _ => {
                let data = random.bytes(len);
                file.write_all_at(&data, at as u64)?;
                model[at..at + len].copy_from_slice(&data);
            }
        }
        let reader = &files[random.below(3)];
        compare(&read_at(reader, at as u64, len)?, &model[at..at + len], at).context(format!("round {round}"))?;
    }
    ensure_content(env, "f", &model)
}

/// Space that one mount allocates behind the end is the file's for all; what others write there stays.
fn fallocate_then_write(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), b"start")?;
    let files = open_all(env, "f")?;
    let mut model = b"start".to_vec();
    for round in 0..env.times(12) {
        let end = model.len();
        sys::fallocate(&files[round % 3], 0, end as u64, 10_000).context("fallocate")?;
        model.resize(end + 10_000, 0);
        let writer = &files[(round + 1) % 3];
        ensure_eq!(writer.metadata()?.len(), model.len() as u64, "round {round}: size for another mount");
        writer.write_all_at(b"here", end as u64 + 5000)?;
        model[end + 5000..end + 5004].copy_from_slice(b"here");
        sys::fallocate(&files[(round + 2) % 3], 0, 0, end as u64 + 10_000).context("fallocate of what is there")?;
    }
    ensure_content(env, "f", &model)
}

/// SEEK_DATA finds what the other mount wrote into a hole; SEEK_HOLE finds a hole no earlier than the data ends.
fn seek_after_write(env: &Env) -> Outcome {
    const LEN: u64 = 4 << 20;
    let file = new_file(&env.a.join("f"))?;
    file.set_len(LEN)?;
    let reader = File::open(env.b.join("f"))?;
    ensure!(sys::seek(&reader, 0, libc::SEEK_HOLE)? < LEN, "a file without data has no hole");
    let mut random = env.random();
    for round in 0..10 {
        let at = random.below(LEN as usize - 10_000) as u64;
        file.write_all_at(&[1; 10_000], at)?;
        let data = sys::seek(&reader, at, libc::SEEK_DATA).context(format!("round {round}: SEEK_DATA"))?;
        ensure_eq!(data, at, "round {round}: SEEK_DATA from where data is");
        let hole = sys::seek(&reader, at, libc::SEEK_HOLE)?;
        ensure!(hole >= at + 10_000, "round {round}: a hole at {hole}, within the data at {at}");
    }
    Ok(())
}

/// Seeking at and behind the end is refused with ENXIO until the other mount has put data there.
fn seek_at_end(env: &Env) -> Outcome {
    let file = new_file(&env.a.join("f"))?;
    file.write_all_at(&[1; 1000], 0)?;
    let reader = File::open(env.b.join("f"))?;
    for end in [1000, 5000, 20_000] {
        for whence in [libc::SEEK_DATA, libc::SEEK_HOLE] {
            ensure_eq!(
                super::steps::errno(sys::seek(&reader, end, whence)),
                Some(libc::ENXIO),
                "seeking at the end, {end}"
            );
        }
        ensure_eq!(sys::seek(&reader, end - 1, libc::SEEK_HOLE)?, end, "the hole at the end");
        file.write_all_at(&vec![1; 20_000], end)?;
        ensure_eq!(sys::seek(&reader, end, libc::SEEK_DATA)?, end, "data where the end was");
        file.set_len(if end == 1000 { 5000 } else { 20_000 })?;
    }
    Ok(())
}
