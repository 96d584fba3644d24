//! Stores into shared mappings of several mounts, without a single msync: what one mount stores is what the next one loads.

use super::steps::{in_parallel, new_file, open};
use crate::case::{Case, Env, text};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};
use crate::process::Program;
use crate::sys::{self, Map};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    vec![
        Case::new("litmus.stores-counter", counter),
        Case::new("litmus.stores-one-page", one_page),
        Case::new("litmus.stores-ring", ring),
        Case::new("litmus.stores-grown", grown),
        Case::new("litmus.stores-private", private),
        Case::new("litmus.stores-sparse", sparse),
        Case::new("litmus.stores-cut", cut),
        Case::new("litmus.programs-replaced", replaced),
    ]
}

const PAGE: usize = 4096;

/// A number in a mapping, which other mounts may have mapped, too.
struct Number<'a>(&'a Map, usize);

impl Number<'_> {
    fn atomic(&self) -> &AtomicU64 {
        self.0.atomic(self.1)
    }

    fn load(&self) -> u64 {
        self.atomic().load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.atomic().store(value, Ordering::Release);
    }
}

/// Maps a file of `len` bytes at each mount.
fn map_at(dirs: [&Path; 2], len: usize) -> Outcome<[Map; 2]> {
    new_file(&dirs[0].join("f"))?.set_len(len as u64)?;
    let map = |dir: &Path| Ok::<_, Failure>(Map::shared(&open(&dir.join("f"))?, len, true)?);
    Ok([map(dirs[0])?, map(dirs[1])?])
}

/// One process's part of [`counter`].
pub(crate) fn count_up_mapped(path: &Path, rounds: usize) -> Outcome {
    let file = open(path)?;
    let map = Map::shared(&file, PAGE, true)?;
    let number = Number(&map, 0);
    for _ in 0..rounds {
        sys::record_lock(&file, libc::F_WRLCK, 0, 8, true)?;
        number.store(number.load() + 1);
        sys::record_lock(&file, libc::F_UNLCK, 0, 8, true)?;
    }
    Ok(())
}

/// A mapped counter under a lock loses no step of two mounts with two processes each.
fn counter(env: &Env) -> Outcome {
    let rounds = env.times(env.pick(100, 1000));
    new_file(&env.a.join("counter"))?.set_len(PAGE as u64)?;
    let mut workers = Vec::new();
    for dir in [&env.a, &env.b, &env.a, &env.b] {
        let args = [text(&dir.join("counter")), rounds.to_string()];
        workers.push(Program::worker("count-mapped")?.args(args).start()?);
    }
    for worker in workers {
        worker.finish(Duration::from_secs(120))?;
    }
    let map = Map::shared(&File::open(env.c.join("counter"))?, PAGE, false)?;
    ensure_eq!(Number(&map, 0).load(), 4 * rounds as u64, "the counter");
    Ok(())
}

/// Three mounts count in one page, each in a number of its own and without a lock, for a while. No step is lost, and none
/// starves.
fn one_page(env: &Env) -> Outcome {
    new_file(&env.a.join("f"))?.set_len(PAGE as u64)?;
    let map = |dir: &Path| Ok::<_, Failure>(Map::shared(&open(&dir.join("f"))?, PAGE, true)?);
    let maps = [map(&env.a)?, map(&env.b)?, map(&env.c)?];
    let counts = [(); 3].map(|()| AtomicU64::new(0));
    let (begun, time) = (Instant::now(), Duration::from_secs(env.pick(2, 10)));
    in_parallel(&[0, 1, 2], |mount: &usize| {
        let number = Number(&maps[*mount], 8 * mount);
        while begun.elapsed() < time {
            let count = counts[*mount].fetch_add(1, Ordering::Relaxed);
            ensure_eq!(number.load(), count, "the number of mount {mount}");
            number.store(count + 1);
        }
        Ok(())
    })?;
    drop(maps);
    let counts = counts.map(AtomicU64::into_inner);
    let page = fs::read(env.b.join("f"))?;
    let number = |mount: usize| u64::from_le_bytes(page[8 * mount..8 * mount + 8].try_into().expect("8 bytes"));
    ensure_eq!([0, 1, 2].map(number), counts, "the numbers in the file");
    let fair = counts.iter().sum::<u64>() / 3;
    ensure!(counts.iter().all(|count| *count >= fair / 3), "one starved: {counts:?}");
    Ok(())
}

/// Another mount makes the file longer than the size for which this kernel would write a page out: what is stored beyond that
/// size comes to the file, or msync says that it does not.
fn grown(env: &Env) -> Outcome {
    for round in 0..env.times(20u8) {
        let (mine, theirs) = (env.a.join(format!("f{round}")), env.b.join(format!("f{round}")));
        new_file(&mine)?.write_all_at(&[1; 100], 0)?;
        let file = open(&theirs)?;
        let map = Map::shared(&file, PAGE, true)?;
        ensure_eq!(map.read(99, 1), [1], "the last byte");
        open(&mine)?.write_all_at(&[2; 50], 100)?;
        map.write(120, &[3]);
        let synced = map.sync();
        let bytes = fs::read(&mine)?;
        ensure_eq!(bytes.len(), 150, "the size");
        ensure!(synced.is_err() || bytes[120] == 3, "a store is gone, and msync said nothing");
        ensure_eq!((&bytes[..100], &bytes[121..]), (&[1; 100][..], &[2; 29][..]), "what was not stored to");
    }
    Ok(())
}

/// A private mapping shows what another mount stores, as long as its own program stores nothing there.
fn private(env: &Env) -> Outcome {
    let maps = map_at([&env.a, &env.b], PAGE)?;
    let private = Map::private(&File::open(env.c.join("f"))?, PAGE)?;
    for round in 1..=env.times(50u64) {
        let place = 8 * (round as usize % 100);
        Number(&maps[round as usize % 2], place).store(round);
        ensure_eq!(Number(&private, place).load(), round, "round {round}");
    }
    Number(&private, 0).store(7);
    Number(&maps[0], 0).store(8);
    ensure_eq!((Number(&private, 0).load(), Number(&maps[1], 0).load()), (7, 8), "its own store, and the file's");
    Ok(())
}

/// Stores into a file of holes: they are data for the others, and the rest stays holes.
fn sparse(env: &Env) -> Outcome {
    const LEN: usize = 64 << 20;
    let maps = map_at([&env.a, &env.b], LEN)?;
    let rounds = env.times(60usize);
    let place = |round: usize| (round * 977 * PAGE + 8 * round) % LEN / 8 * 8;
    for round in 1..=rounds {
        Number(&maps[round % 2], place(round)).store(round as u64);
        ensure_eq!(Number(&maps[(round + 1) % 2], place(round)).load(), round as u64, "round {round}");
    }
    drop(maps);
    let file = File::open(env.c.join("f"))?;
    for round in 1..=rounds {
        let mut number = [0; 8];
        file.read_exact_at(&mut number, place(round) as u64)?;
        ensure_eq!(u64::from_le_bytes(number), round as u64, "in the file, round {round}");
    }
    let blocks = file.metadata()?.blocks() * 512;
    ensure!(blocks < LEN as u64 / 4, "{blocks} bytes are on the disk, of {rounds} pages");
    Ok(())
}

/// A file is cut and made longer by one mount while another one has it mapped: what was behind the cut is zeros for both.
fn cut(env: &Env) -> Outcome {
    let maps = map_at([&env.a, &env.b], 4 * PAGE)?;
    let file = open(&env.a.join("f"))?;
    for round in 1..=env.times(30u64) {
        Number(&maps[1], 2 * PAGE).store(round);
        Number(&maps[1], 0).store(round);
        ensure_eq!(Number(&maps[0], 2 * PAGE).load(), round, "before the cut in round {round}");
        file.set_len(PAGE as u64)?;
        file.set_len(4 * PAGE as u64)?;
        // The kernel of the other mount hears of the size by the way, or is asked.
        ensure_eq!(fs::metadata(env.b.join("f"))?.len(), 4 * PAGE as u64, "the size");
        for map in &maps {
            ensure_eq!((Number(map, 0).load(), Number(map, 2 * PAGE).load()), (round, 0), "after it in round {round}");
        }
    }
    Ok(())
}

/// A program that another mount replaces, by another file of the name or by other bytes, runs as what it is then.
fn replaced(env: &Env) -> Outcome {
    let (here, there) = (env.a.join("program"), env.b.join("program"));
    for round in 0..env.times(12u32) {
        let (source, status) = if round % 2 == 0 { ("/bin/true", 0) } else { ("/bin/false", 1) };
        if round % 4 < 2 {
            fs::copy(source, env.a.join("new"))?;
            fs::rename(env.a.join("new"), &here)?;
        } else {
            let program = fs::read(source)?;
            File::options().write(true).truncate(true).open(&here)?.write_all_at(&program, 0)?;
        }
        for _ in 0..2 {
            let ran = std::process::Command::new(&there).status()?;
            ensure_eq!(ran.code(), Some(status), "round {round}");
        }
    }
    Ok(())
}

/// A ring of slots between a producer and a consumer, the numbers that say how far they are in other pages.
fn ring(env: &Env) -> Outcome {
    const SLOTS: u64 = 64;
    const SLOTS_AT: usize = 2 * PAGE;
    let items = env.times(env.pick(500, 5000)) as u64;
    let maps = map_at([&env.a, &env.b], SLOTS_AT + PAGE)?;
    let deadline = Instant::now() + Duration::from_secs(100);
    let wait = |until: &dyn Fn() -> bool| {
        while !until() {
            ensure!(Instant::now() < deadline, "the other side does not go on");
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    };
    in_parallel(&[0, 1], |side: &usize| {
        let map = &maps[*side];
        let (head, tail) = (Number(map, 0), Number(map, PAGE));
        let slot = |item: u64| Number(map, SLOTS_AT + (item % SLOTS) as usize * 8);
        for item in 0..items {
            if *side == 0 {
                wait(&|| item < tail.load() + SLOTS)?;
                slot(item).store(item * item + 1);
                head.store(item + 1);
            } else {
                wait(&|| item < head.load())?;
                ensure_eq!(slot(item).load(), item * item + 1, "item {item}");
                tail.store(item + 1);
            }
        }
        Ok(())
    })
}
