//! Bytes: a read sees the last write, whichever mounts they go through, and no two reads disagree on the order of writes.

use super::steps::{
    any_mount, compare, ensure_content, in_parallel, mounts, new_file, open, open_all, race, read_at, watch_while,
};
use crate::case::{Case, Env, Layout};
use crate::failure::{Context, Outcome, ensure, ensure_eq};
use crate::prng::pattern;
use crate::sys;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    const STRIPED: &[Layout] = &[Layout::Count(4)];
    const OVERSTRIPED: &[Layout] = &[Layout::Overstripe(8)];
    vec![
        Case::new("litmus.write-read", write_read),
        Case::new("litmus.overwrite-of-cached", overwrite_of_cached),
        Case::new("litmus.strided-writers", strided_writers),
        Case::new("litmus.ping-pong", ping_pong),
        Case::new("litmus.random-turns", random_turns).layouts(STRIPED, STRIPED),
        Case::new("litmus.random-turns-overstriped", random_turns).layouts(OVERSTRIPED, OVERSTRIPED),
        Case::new("litmus.stripe-borders", stripe_borders).layouts(STRIPED, STRIPED),
        Case::new("litmus.reader-opens-first", reader_opens_first),
        Case::new("litmus.read-beyond-end", read_beyond_end),
        Case::new("litmus.one-byte-each", one_byte_each),
        Case::new("litmus.whole-writes", whole_writes),
        Case::new("litmus.message-passing", message_passing),
        Case::new("litmus.store-buffering", store_buffering),
        Case::new("litmus.independent-reads", independent_reads),
        Case::new("litmus.never-back", never_back),
        Case::new("litmus.writers-agree", writers_agree),
        Case::new("litmus.two-descriptors", two_descriptors),
        Case::new("litmus.many-small-files", many_small_files),
        // The kernel copies through its page cache.
        Case::new("litmus.copy-file-range", copy_file_range),
        Case::new("litmus.three-readers", three_readers),
    ]
}

/// What one mount wrote the other reads, for many sizes and both ways.
fn write_read(env: &Env) -> Outcome {
    for (i, len) in
        [0, 1, 511, 4096, 4097, 65_536, 1 << 20, (1 << 22) + 13].into_iter().cycle().take(env.times(32)).enumerate()
    {
        let (writer, reader) = if i % 2 == 0 { (&env.a, &env.b) } else { (&env.b, &env.a) };
        let data = pattern(i as u64, len);
        fs::write(writer.join("f"), &data)?;
        ensure!(fs::read(reader.join("f"))? == data, "round {i}: {len} bytes read differ from those written");
    }
    Ok(())
}

/// A reader that holds the file open, and has the old bytes cached, sees the new ones.
fn overwrite_of_cached(env: &Env) -> Outcome {
    let writer = File::options().write(true).create(true).truncate(true).open(env.a.join("f"))?;
    writer.write_all_at(&[0; 20_000], 0)?;
    let reader = File::open(env.b.join("f"))?;
    for round in 1..=env.times(100u8) {
        writer.write_all_at(&[round; 9000], 3000)?;
        let mut got = [0; 20_000];
        reader.read_exact_at(&mut got, 0)?;
        let whole = got.iter().enumerate().all(|(i, &b)| b == if (3000..12_000).contains(&i) { round } else { 0 });
        ensure!(whole, "round {round}: the reader's open file shows old bytes");
    }
    Ok(())
}

/// Writers of neighbouring records of 777 bytes, thus sharing pages, do not destroy each other's.
fn strided_writers(env: &Env) -> Outcome {
    const WRITERS: usize = 8;
    const LEN: usize = 777;
    let rounds = env.times(env.pick(60, 600));
    File::create(env.a.join("f"))?;
    in_parallel(0..WRITERS, |id| {
        let dir = if id % 2 == 0 { &env.a } else { &env.b };
        let file = File::options().write(true).open(dir.join("f"))?;
        for round in 0..rounds {
            let slot = round * WRITERS + id;
            file.write_all_at(&pattern(slot as u64, LEN), (slot * LEN) as u64)?;
        }
        Ok(())
    })?;
    for dir in [&env.a, &env.b] {
        let data = fs::read(dir.join("f"))?;
        ensure_eq!(data.len(), rounds * WRITERS * LEN, "file size");
        for (slot, bytes) in data.chunks(LEN).enumerate() {
            ensure!(bytes == pattern(slot as u64, LEN), "record {slot}, of writer {}, is damaged", slot % WRITERS);
        }
    }
    Ok(())
}

/// Two mounts overwrite each other's bytes at odd places in turn; each sees the sum of all before its own write.
fn ping_pong(env: &Env) -> Outcome {
    let mut random = env.random();
    let mut model = vec![0; 50_000];
    new_file(&env.a.join("f"))?.write_all_at(&model, 0)?;
    let files = [open(&env.a.join("f"))?, open(&env.b.join("f"))?];
    for turn in 0..env.times(60) {
        let file = &files[turn % 2];
        compare(&read_at(file, 0, model.len())?, &model, 0).context(format!("turn {turn}"))?;
        let len = 1 + random.below(9000);
        let at = random.below(model.len() - len);
        let data = random.bytes(len);
        file.write_all_at(&data, at as u64)?;
        model[at..at + len].copy_from_slice(&data);
    }
    ensure_content(env, "f", &model)
}

/// Three mounts take turns at random writes and reads, unaligned and across stripes, with holes.
fn random_turns(env: &Env) -> Outcome {
    let mut random = env.random();
    let mut model: Vec<u8> = Vec::new();
    new_file(&env.a.join("f"))?;
    let files = open_all(env, "f")?;
    for turn in 0..env.times(120) {
        let file = &files[random.below(3)];
        let (at, len) = (random.below(900_000), 1 + random.below(100_000));
        if random.below(2) == 0 {
            let data = random.bytes(len);
            file.write_all_at(&data, at as u64)?;
            model.resize(model.len().max(at + len), 0);
            model[at..at + len].copy_from_slice(&data);
        } else {
            let expected = model.get(at..(at + len).min(model.len())).unwrap_or(&[]);
            compare(&read_at(file, at as u64, len)?, expected, at).context(format!("turn {turn}"))?;
        }
    }
    ensure_content(env, "f", &model)
}

/// A write over each border between stripes is whole for the mount that had both stripes cached.
fn stripe_borders(env: &Env) -> Outcome {
    const STRIPE: usize = 64 << 10;
    let mut random = env.random();
    let mut model = pattern(env.seed, 8 * STRIPE);
    fs::write(env.a.join("f"), &model)?;
    let files = open_all(env, "f")?;
    for border in 1..8 {
        let (before, after) = (1 + random.below(300), 1 + random.below(300));
        let (at, data) = (border * STRIPE - before, random.bytes(before + after));
        compare(&read_at(&files[1], 0, model.len())?, &model, 0)?;
        files[border % 3].write_all_at(&data, at as u64)?;
        model[at..at + data.len()].copy_from_slice(&data);
        for file in &files {
            let got = read_at(file, at as u64 - 10, data.len() + 20)?;
            compare(&got, &model[at - 10..at + data.len() + 10], at - 10).context(format!("border {border}"))?;
        }
    }
    ensure_content(env, "f", &model)
}

/// A file that was empty when the reader opened it, and said so, has what was written since.
fn reader_opens_first(env: &Env) -> Outcome {
    for round in 0..env.times(20) {
        let name = format!("f{round}");
        let writer = new_file(&env.a.join(&name))?;
        let reader = File::open(env.b.join(&name))?;
        ensure_eq!(read_at(&reader, 0, 100)?, b"", "round {round}: before the write");
        let data = pattern(env.seed + round, 5000);
        writer.write_all_at(&data, 0)?;
        compare(&read_at(&reader, 0, 9000)?, &data, 0).context(format!("round {round}"))?;
    }
    Ok(())
}

/// Where the file ended for a reader it goes on once the other mount extended it.
fn read_beyond_end(env: &Env) -> Outcome {
    let writer = new_file(&env.a.join("f"))?;
    let reader = File::open(env.b.join("f"))?;
    let mut random = env.random();
    let mut model = Vec::new();
    for step in 0..env.times(40) {
        let end = model.len();
        ensure_eq!(read_at(&reader, end as u64, 100)?, b"", "step {step}: at the end");
        ensure_eq!(read_at(&reader, end as u64 + 5000, 100)?, b"", "step {step}: beyond the end");
        let len = 1 + random.below(7000);
        model.extend(random.bytes(len));
        writer.write_all_at(&model[end..], end as u64)?;
        let from = end.saturating_sub(10);
        compare(&read_at(&reader, from as u64, 9000)?, &model[from..], from).context(format!("step {step}"))?;
    }
    Ok(())
}

/// Three mounts at once write every third byte each, in the same pages.
fn one_byte_each(env: &Env) -> Outcome {
    const LEN: usize = 240;
    new_file(&env.a.join("f"))?;
    in_parallel(mounts(env).into_iter().enumerate(), |(id, dir)| {
        let file = open(&dir.join("f"))?;
        (id..LEN).step_by(3).try_for_each(|at| file.write_all_at(&[at as u8 ^ 0x5a], at as u64).context("write"))
    })?;
    ensure_content(env, "f", &(0..LEN).map(|at| at as u8 ^ 0x5a).collect::<Vec<_>>())
}

/// Of writes to the same unaligned range at the same time, one is there whole.
fn whole_writes(env: &Env) -> Outcome {
    const LEN: usize = 40_000;
    new_file(&env.a.join("f"))?;
    let mut random = env.random();
    for round in 0..env.times(12) {
        let at = random.below(5000);
        race(env, 3, |dir, id| {
            open(&dir.join("f"))?.write_all_at(&[round * 3 + id as u8 + 1; LEN], at as u64)?;
            Ok(true)
        })?;
        let got = read_at(&File::open(env.c.join("f"))?, at as u64, LEN)?;
        ensure!(got.len() == LEN && got.iter().all(|b| *b == got[0]), "round {round}: two writes are mixed");
        ensure!((round * 3 + 1..round * 3 + 4).contains(&got[0]), "round {round}: neither of the writes is there");
    }
    Ok(())
}

/// A number in a file.
fn load(file: &File, at: u64) -> Outcome<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at)?;
    Ok(u64::from_le_bytes(bytes))
}

fn store(file: &File, at: u64, value: u64) -> Outcome {
    file.write_all_at(&value.to_le_bytes(), at).context("store")
}

/// A file of zeros, made by the first mount.
fn zeros(dir: &Path, name: &str) -> Outcome {
    fs::write(dir.join(name), [0; 100]).context("zeros")
}

/// Who sees the flag sees the data that was written before it, in another file.
fn message_passing(env: &Env) -> Outcome {
    zeros(&env.a, "data")?;
    zeros(&env.a, "flag")?;
    let (data, flag) = (open_all(env, "data")?, open_all(env, "flag")?);
    watch_while(
        || {
            for reader in 1..3 {
                let raised = load(&flag[reader], 0)?;
                let seen = load(&data[reader], 50)?;
                ensure!(seen >= raised, "mount {reader}: the flag says {raised}, the data {seen}");
            }
            Ok(())
        },
        || {
            for n in 1..=env.times(150) {
                store(&data[0], 50, n)?;
                store(&flag[0], 0, n)?;
            }
            Ok(())
        },
    )
}

/// Each of two writes its own file and reads the other's: one at least sees the other's write.
fn store_buffering(env: &Env) -> Outcome {
    zeros(&env.a, "x")?;
    zeros(&env.a, "y")?;
    let files =
        [(open(&env.a.join("x"))?, open(&env.a.join("y"))?), (open(&env.b.join("y"))?, open(&env.b.join("x"))?)];
    for round in 1..=env.times(80) {
        let start = Barrier::new(2);
        let act = |id: usize| {
            let (mine, theirs) = &files[id];
            start.wait();
            store(mine, 0, round)?;
            load(theirs, 0)
        };
        let [first, second] = std::thread::scope(|scope| {
            let other = scope.spawn(|| act(1));
            [act(0), super::steps::joined(other.join())]
        });
        let (first, second) = (first?, second?);
        ensure!(first == round || second == round, "round {round}: neither saw the other's write");
    }
    Ok(())
}

/// Two readers do not see two writers' independent writes in opposite orders.
fn independent_reads(env: &Env) -> Outcome {
    zeros(&env.a, "x")?;
    zeros(&env.a, "y")?;
    let (x, y) = (&open_all(env, "x")?, &open_all(env, "y")?);
    for round in 1..=env.times(60) {
        let start = &Barrier::new(4);
        let seen = std::thread::scope(|scope| {
            let write = move |file| {
                start.wait();
                store(file, 0, round)
            };
            let read = move |first, second| -> Outcome<(u64, u64)> {
                start.wait();
                Ok((load(first, 0)?, load(second, 0)?))
            };
            let writers = [scope.spawn(move || write(&x[0])), scope.spawn(move || write(&y[1]))];
            let readers = [scope.spawn(move || read(&x[2], &y[2])), scope.spawn(move || read(&y[0], &x[0]))];
            writers.into_iter().try_for_each(|t| super::steps::joined(t.join()))?;
            readers.into_iter().map(|t| super::steps::joined(t.join())).collect::<Outcome<Vec<_>>>()
        })?;
        let before = |(first, second): (u64, u64)| first == round && second != round;
        ensure!(!(before(seen[0]) && before(seen[1])), "round {round}: opposite orders: {seen:?}");
    }
    Ok(())
}

/// A number that one mount counts up never goes back for the others, by any of their reads.
fn never_back(env: &Env) -> Outcome {
    zeros(&env.a, "f")?;
    let files = open_all(env, "f")?;
    let mut last = 0;
    watch_while(
        || {
            for reader in [1, 2, 1, 0] {
                let now = load(&files[reader], 0)?;
                ensure!(now >= last, "mount {reader} reads {now} after {last} was read");
                last = now;
            }
            Ok(())
        },
        || (1..=env.times(200)).try_for_each(|n| store(&files[0], 0, n)),
    )
}

/// After a race of writers on one place all mounts read the same, and one of the values written.
fn writers_agree(env: &Env) -> Outcome {
    zeros(&env.a, "f")?;
    let files = open_all(env, "f")?;
    for round in 1..=env.times(30u64) {
        race(env, 3, |_, id| store(&files[id], 12, round * 10 + id as u64).map(|()| true))?;
        let seen = [load(&files[0], 12)?, load(&files[1], 12)?, load(&files[2], 12)?];
        ensure!(seen[0] / 10 == round && seen.iter().all(|s| *s == seen[0]), "round {round}: {seen:?}");
    }
    Ok(())
}

/// Two descriptors of one mount see the other mount's write alike, and each other's.
fn two_descriptors(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), [0; 30_000])?;
    let pair = [open(&env.b.join("f"))?, File::open(env.b.join("f"))?];
    let writer = open(&env.a.join("f"))?;
    for round in 1..=env.times(40u8) {
        let who = if round % 3 == 0 { &pair[0] } else { &writer };
        who.write_all_at(&[round; 6000], u64::from(round) * 500)?;
        for file in &pair {
            compare(&read_at(file, u64::from(round) * 500, 6000)?, &[round; 6000], 0)
                .context(format!("round {round}"))?;
        }
    }
    Ok(())
}

/// Many small files made by one mount, read by the second, changed by the third, read again.
fn many_small_files(env: &Env) -> Outcome {
    let count = env.times(30);
    let name = |n: u64| format!("f{n}");
    for n in 0..count {
        fs::write(env.a.join(name(n)), pattern(env.seed + n, 100 + n as usize * 50))?;
    }
    for n in 0..count {
        compare(&fs::read(env.b.join(name(n)))?, &pattern(env.seed + n, 100 + n as usize * 50), 0)?;
        fs::write(env.c.join(name(n)), pattern(env.seed ^ n, 2000 - n as usize * 60))?;
    }
    for n in 0..count {
        let expected = pattern(env.seed ^ n, 2000 - n as usize * 60);
        for dir in [&env.a, &env.b] {
            compare(&fs::read(dir.join(name(n)))?, &expected, 0).context(format!("file {n}"))?;
        }
    }
    Ok(())
}

/// `copy_file_range(2)` copies what the other mount wrote a moment ago, over what the third has cached.
fn copy_file_range(env: &Env) -> Outcome {
    fs::write(env.a.join("from"), pattern(1, 100_000))?;
    fs::write(env.a.join("to"), pattern(2, 100_000))?;
    let (from, to) = (open(&env.b.join("from"))?, open(&env.b.join("to"))?);
    let mut expected = fs::read(env.c.join("to"))?;
    for round in 0..env.times(10) {
        let data = pattern(round + env.seed, 40_000);
        open(&env.a.join("from"))?.write_all_at(&data, 777)?;
        let mut done = 0;
        while done < data.len() {
            let (out, into) = (777 + done as u64, 3333 + done as u64);
            done += sys::copy_file_range(&from, out, &to, into, data.len() - done).context("copy_file_range")?;
        }
        expected[3333..43_333].copy_from_slice(&data);
        compare(&fs::read(env.c.join("to"))?, &expected, 0).context(format!("round {round}"))?;
    }
    Ok(())
}

/// All mounts have a file cached, and each in turn changes it: nobody keeps an old byte.
fn three_readers(env: &Env) -> Outcome {
    let mut random = env.random();
    let mut model = pattern(env.seed, 70_000);
    fs::write(env.a.join("f"), &model)?;
    for round in 0..env.times(15) {
        ensure_content(env, "f", &model).context(format!("round {round}"))?;
        let (at, data) = (random.below(60_000), random.bytes(1 + round * 500));
        open(&any_mount(env, &mut random).join("f"))?.write_all_at(&data, at as u64)?;
        model[at..at + data.len()].copy_from_slice(&data);
    }
    ensure_content(env, "f", &model)
}
