//! Mappings beside read and write of other mounts. What a mapping stores is in the file after msync or munmap and close; what
//! others write is in every mapping made afterwards and, once kernels' pages are called back, in those that stand.

use super::steps::{compare, ensure_content, new_file, open, read_at};
use crate::case::{Case, Env};
use crate::failure::{Context, Outcome, ensure};
use crate::prng::pattern;
use crate::sys::Map;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.mmap-read", mmap_read),
        Case::new("litmus.mmap-write", mmap_write),
        Case::new("litmus.mmap-unmap", mmap_unmap),
        Case::new("litmus.mmap-private", mmap_private),
        Case::new("litmus.mmap-both-ways", mmap_both_ways),
        Case::new("litmus.mmap-hole", mmap_hole),
        Case::new("litmus.mmap-truncate", mmap_truncate),
        Case::new("litmus.mmap-and-write", mmap_and_write),
        Case::new("litmus.mmap-standing-read", mmap_standing_read),
        Case::new("litmus.mmap-standing-write", mmap_standing_write),
    ]
}

const LEN: usize = 65_536;

/// A new mapping sees what the other mount wrote with write(2). (A standing one will when locks can call it back.)
fn mmap_read(env: &Env) -> Outcome {
    let writer = File::create(env.a.join("f"))?;
    writer.write_all_at(&[1; 65_536], 0)?;
    let reader = File::open(env.b.join("f"))?;
    for round in env.turns(50).map(|n| n as u8 + 1) {
        let at = usize::from(round) * 1000;
        writer.write_all_at(&[round; 2000], at as u64)?;
        let map = Map::shared(&reader, 65_536, false)?;
        ensure!(map.read(at, 2000) == [round; 2000], "round {round}: the mapping shows old bytes");
    }
    Ok(())
}

/// read(2) on the other mount sees what was stored through a mapping and synced.
fn mmap_write(env: &Env) -> Outcome {
    let writer = File::options().read(true).write(true).create(true).truncate(true).open(env.a.join("f"))?;
    writer.set_len(65_536)?;
    let map = Map::shared(&writer, 65_536, true)?;
    let reader = File::open(env.b.join("f"))?;
    for round in env.turns(50).map(|n| n as u8 + 1) {
        let at = usize::from(round) * 1000;
        map.write(at, &[round; 2000]);
        map.sync()?;
        let mut got = [0; 2000];
        reader.read_exact_at(&mut got, at as u64)?;
        ensure!(got == [round; 2000], "round {round}: old bytes");
    }
    Ok(())
}

/// What was stored through a mapping is there for the other mount once it is unmapped and the file closed, without msync.
fn mmap_unmap(env: &Env) -> Outcome {
    let mut model = pattern(env.seed, LEN);
    fs::write(env.a.join("f"), &model)?;
    let mut random = env.random();
    for round in 0..env.times(20) {
        let file = open(&[&env.a, &env.b][round % 2].join("f"))?;
        let (at, data) = (random.below(60_000), random.bytes(1 + round * 200));
        let map = Map::shared(&file, LEN, true)?;
        map.write(at, &data);
        drop(map);
        drop(file);
        model[at..at + data.len()].copy_from_slice(&data);
        ensure_content(env, "f", &model).context(format!("round {round}"))?;
    }
    Ok(())
}

/// Stores into a private mapping are nobody's business: not the file's, not the other mount's.
fn mmap_private(env: &Env) -> Outcome {
    let data = pattern(env.seed, LEN);
    fs::write(env.a.join("f"), &data)?;
    let file = open(&env.a.join("f"))?;
    let map = Map::private(&file, LEN)?;
    map.write(1000, &[0xee; 30_000]);
    ensure!(map.read(1000, 30_000) == [0xee; 30_000], "the store is not in the mapping");
    ensure_content(env, "f", &data)?;
    open(&env.b.join("f"))?.write_all_at(b"other", 50_000)?;
    ensure!(map.read(1000, 30_000) == [0xee; 30_000], "the store is lost");
    drop((map, file));
    let mut expected = data;
    expected[50_000..50_005].copy_from_slice(b"other");
    ensure_content(env, "f", &expected)
}

/// Stores through mappings of two mounts in turn, each made anew.
fn mmap_both_ways(env: &Env) -> Outcome {
    let mut model = vec![0; LEN];
    fs::write(env.a.join("f"), &model)?;
    let mut random = env.random();
    for round in 0..env.times(30) {
        let file = open(&[&env.a, &env.b][round % 2].join("f"))?;
        let map = Map::shared(&file, LEN, true)?;
        compare(&map.read(0, LEN), &model, 0).context(format!("round {round}"))?;
        let (at, data) = (random.below(60_000), random.bytes(1 + random.clone().below(5000)));
        map.write(at, &data);
        map.sync()?;
        model[at..at + data.len()].copy_from_slice(&data);
    }
    ensure_content(env, "f", &model)
}

/// A store into a mapped hole makes data there and leaves the size.
fn mmap_hole(env: &Env) -> Outcome {
    let file = new_file(&env.a.join("f"))?;
    file.set_len(LEN as u64 + 100)?;
    let reader = File::open(env.b.join("f"))?;
    compare(&read_at(&reader, 0, LEN)?, &[0; LEN], 0)?;
    let map = Map::shared(&file, LEN, true)?;
    let mut model = vec![0; LEN + 100];
    for round in 1..=16u8 {
        let at = usize::from(round) * 3900;
        map.write(at, &[round; 200]);
        map.sync()?;
        model[at..at + 200].fill(round);
        compare(&read_at(&reader, 0, 2 * LEN)?, &model, 0).context(format!("round {round}"))?;
    }
    Ok(())
}

/// A cut by the other mount is in the next mapping: the bytes behind it are zeros when the file has grown again.
fn mmap_truncate(env: &Env) -> Outcome {
    for round in env.turns(15) {
        fs::write(env.a.join("f"), [9; LEN])?;
        let file = open(&env.a.join("f"))?;
        drop(Map::shared(&file, LEN, false)?.read(0, LEN));
        let cutter = open(&env.b.join("f"))?;
        let cut = 100 + round * 4000;
        cutter.set_len(cut)?;
        cutter.set_len(LEN as u64)?;
        ensure!(file.metadata()?.len() == LEN as u64, "round {round}: size");
        let mut expected = vec![9; cut as usize];
        expected.resize(LEN, 0);
        compare(&Map::shared(&file, LEN, false)?.read(0, LEN), &expected, 0).context(format!("round {round}"))?;
    }
    Ok(())
}

/// On one mount, read, write and a mapping show the same; after msync, the other mount has all of it.
fn mmap_and_write(env: &Env) -> Outcome {
    let file = new_file(&env.a.join("f"))?;
    file.set_len(LEN as u64)?;
    let map = Map::shared(&file, LEN, true)?;
    let mut model = vec![0; LEN];
    for round in 1..=20u8 {
        let at = usize::from(round) * 2000;
        map.write(at, &[round; 700]);
        model[at..at + 700].fill(round);
        compare(&read_at(&file, at as u64, 700)?, &[round; 700], at).context("read of what was stored")?;
        file.write_all_at(&[!round; 500], at as u64 + 900)?;
        model[at + 900..at + 1400].fill(!round);
        compare(&map.read(at, 1400), &model[at..at + 1400], at).context("the mapping after a write")?;
    }
    map.sync()?;
    ensure_content(env, "f", &model)
}

/// A mapping that stands sees what the other mount writes, once the write has returned.
fn mmap_standing_read(env: &Env) -> Outcome {
    let writer = new_file(&env.a.join("f"))?;
    writer.write_all_at(&[0; LEN], 0)?;
    let reader = File::open(env.b.join("f"))?;
    let map = Map::shared(&reader, LEN, false)?;
    for round in env.turns(40).map(|n| n as u8 + 1) {
        let at = usize::from(round) * 1500;
        writer.write_all_at(&[round; 800], at as u64)?;
        compare(&map.read(at, 800), &[round; 800], at).context(format!("round {round}"))?;
    }
    Ok(())
}

/// Mappings of two mounts that stand, stored to in turn within the same pages: no store undoes the other mount's.
fn mmap_standing_write(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), [0; LEN])?;
    let files = [open(&env.a.join("f"))?, open(&env.b.join("f"))?];
    let maps = [Map::shared(&files[0], LEN, true)?, Map::shared(&files[1], LEN, true)?];
    let mut model = vec![0; LEN];
    for round in 1..=env.times(40u8) {
        let at = usize::from(round) * 1111;
        maps[usize::from(round % 2)].write(at, &[round; 300]);
        maps[usize::from(round % 2)].sync()?;
        model[at..at + 300].fill(round);
        compare(&maps[usize::from((round + 1) % 2)].read(0, LEN), &model, 0).context(format!("round {round}"))?;
    }
    drop(maps);
    ensure_content(env, "f", &model)
}
