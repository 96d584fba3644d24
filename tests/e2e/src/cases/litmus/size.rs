//! Sizes: truncate, O_TRUNC, growth. A size is what the last of any mount's operations made it, and bytes beyond it are gone.

use super::steps::{
    compare, ensure_content, mounts, new_file, open, open_all, race, read_at, size_of, wait_for, watch_while,
};
use crate::case::{Case, Env, Layout};
use crate::failure::{Context, Outcome, ensure, ensure_eq};
use crate::prng::pattern;
use crate::sys;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

/// This module's part of the list.
pub(super) fn all() -> Vec<Case> {
    const STRIPED: &[Layout] = &[Layout::Count(4)];
    vec![
        Case::new("litmus.truncate-read", truncate_read),
        Case::new("litmus.o-trunc", o_trunc),
        Case::new("litmus.size-after-extend", size_after_extend),
        Case::new("litmus.truncate-grow", truncate_grow),
        Case::new("litmus.truncate-of-dirty", truncate_of_dirty),
        Case::new("litmus.truncate-then-extend", truncate_then_extend),
        Case::new("litmus.truncate-reader", truncate_reader),
        Case::new("litmus.truncate-race", truncate_race),
        Case::new("litmus.truncate-stripes", truncate_stripes).layouts(STRIPED, STRIPED),
        Case::new("litmus.truncate-tail-of-page", truncate_tail_of_page),
        Case::new("litmus.o-trunc-under-writer", o_trunc_under_writer),
        Case::new("litmus.size-grows-only", size_grows_only),
        Case::new("litmus.size-both-extend", size_both_extend).layouts(STRIPED, STRIPED),
        Case::new("litmus.blocks", blocks),
        Case::new("litmus.statfs", statfs),
    ]
}

/// A truncated file is short for the other mount at once, and zeros where it grew again.
fn truncate_read(env: &Env) -> Outcome {
    let (a, b) = (env.a.join("f"), env.b.join("f"));
    for round in env.turns(20) {
        fs::write(&a, pattern(round, 1 << 20))?;
        ensure_eq!(fs::read(&b)?.len(), 1 << 20, "size before");
        let cut = 10 + round * 4096;
        File::options().write(true).open(&a)?.set_len(cut)?;
        ensure_eq!(fs::metadata(&b)?.len(), cut, "round {round}: size by stat");
        ensure!(fs::read(&b)? == pattern(round, 1 << 20)[..cut as usize], "round {round}: bytes after the cut");
        File::options().write(true).open(&a)?.set_len(cut + 9000)?;
        let data = fs::read(&b)?;
        ensure_eq!(data.len() as u64, cut + 9000, "round {round}: size after growing");
        ensure!(data[cut as usize..].iter().all(|&x| x == 0), "round {round}: cut bytes came back");
    }
    Ok(())
}

/// O_TRUNC at open is seen by the other mount, through its open file, too.
fn o_trunc(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), pattern(1, 300_000))?;
    let mut reader = File::open(env.b.join("f"))?;
    let mut sink = Vec::new();
    reader.read_to_end(&mut sink)?;
    let writer = File::options().write(true).truncate(true).open(env.a.join("f"))?;
    ensure_eq!(fs::metadata(env.b.join("f"))?.len(), 0, "size by stat");
    reader.seek(SeekFrom::Start(0))?;
    ensure_eq!(reader.read(&mut [0; 100])?, 0, "bytes read");
    writer.write_all_at(b"new", 0)?;
    ensure_eq!(fs::read(env.b.join("f"))?, b"new", "content after it was written anew");
    Ok(())
}

/// The size that stat tells grows with every write of the other mount, before any close.
fn size_after_extend(env: &Env) -> Outcome {
    let mut file = File::create(env.a.join("f"))?;
    let mut size = 0;
    for step in 1..=env.times(200u64) {
        let len = step * 37 % 5000;
        file.write_all(&vec![7; len as usize])?;
        size += len;
        ensure_eq!(fs::metadata(env.b.join("f"))?.len(), size, "step {step}: size");
    }
    let reader = File::open(env.b.join("f"))?;
    ensure_eq!(sys::seek(&reader, 0, libc::SEEK_END)?, size, "SEEK_END");
    Ok(())
}

/// Growing by truncate is seen in stat, in SEEK_END and in zeros.
fn truncate_grow(env: &Env) -> Outcome {
    let file = new_file(&env.a.join("f"))?;
    file.write_all_at(b"head", 0)?;
    let reader = File::open(env.b.join("f"))?;
    let mut random = env.random();
    let mut size = 4;
    for round in 0..env.times(25) {
        ensure_eq!(read_at(&reader, size, 1)?, b"", "round {round}: at the old end");
        let old = size;
        size += 1 + random.below(20_000) as u64;
        file.set_len(size)?;
        ensure_eq!(size_of(&env.b.join("f"))?, size, "round {round}: size by stat");
        ensure_eq!(sys::seek(&reader, 0, libc::SEEK_END)?, size, "round {round}: SEEK_END");
        ensure_eq!(read_at(&reader, old, 30_000)?, vec![0; (size - old) as usize], "round {round}: the new part");
    }
    Ok(())
}

/// Another mount's truncate stands, though the writer has the bytes behind the cut not written back yet, and closes later.
fn truncate_of_dirty(env: &Env) -> Outcome {
    for round in env.turns(12) {
        let name = format!("f{round}");
        let writer = new_file(&env.a.join(&name))?;
        writer.write_all_at(&pattern(round, 100_000), 0)?;
        let cut = 1 + round * 8000;
        open(&env.b.join(&name))?.set_len(cut)?;
        ensure_eq!(writer.metadata()?.len(), cut, "round {round}: size for the writer");
        if round % 2 == 0 {
            writer.sync_all()?;
        }
        drop(writer);
        ensure_content(env, &name, &pattern(round, 100_000)[..cut as usize]).context(format!("round {round}"))?;
    }
    Ok(())
}

/// What one mount wrote, another cut and the first extended again is zeros between the cut and the new end.
fn truncate_then_extend(env: &Env) -> Outcome {
    let writer = new_file(&env.a.join("f"))?;
    let cutter = open(&env.b.join("f"))?;
    for round in env.turns(15) {
        writer.write_all_at(&[7; 40_000], 0)?;
        let cut = 100 + round * 2500;
        cutter.set_len(cut)?;
        writer.write_all_at(b"new end", 50_000)?;
        let mut expected = vec![7; cut as usize];
        expected.resize(50_000, 0);
        expected.extend(b"new end");
        ensure_content(env, "f", &expected).context(format!("round {round}"))?;
    }
    Ok(())
}

/// A reader in the middle of a file that another mount cuts before it meets the end, and zeros when it has grown again.
fn truncate_reader(env: &Env) -> Outcome {
    fs::write(env.a.join("f"), pattern(1, 200_000))?;
    let mut reader = File::open(env.b.join("f"))?;
    let mut buffer = vec![0; 50_000];
    reader.read_exact(&mut buffer)?;
    reader.read_exact(&mut buffer)?;
    let cutter = open(&env.c.join("f"))?;
    cutter.set_len(1000)?;
    ensure_eq!(reader.read(&mut buffer)?, 0, "bytes read behind the cut");
    cutter.set_len(200_000)?;
    reader.read_exact(&mut buffer)?;
    ensure!(buffer.iter().all(|b| *b == 0), "cut bytes came back");
    reader.seek(SeekFrom::Start(0))?;
    reader.read_exact(&mut buffer)?;
    compare(&buffer[..1000], &pattern(1, 200_000)[..1000], 0)
}

/// After truncates to different sizes at once all mounts agree on one of them.
fn truncate_race(env: &Env) -> Outcome {
    for round in 0..env.times(15) {
        fs::write(env.a.join("f"), [1; 9000])?;
        race(env, 3, |dir, id| {
            open(&dir.join("f"))?.set_len(1000 * (id as u64 + 1))?;
            Ok(true)
        })?;
        let sizes = [size_of(&env.a.join("f"))?, size_of(&env.b.join("f"))?, size_of(&env.c.join("f"))?];
        ensure!(sizes.iter().all(|s| *s == sizes[0]), "round {round}: sizes {sizes:?}");
        ensure!([1000, 2000, 3000].contains(&sizes[0]), "round {round}: size {}", sizes[0]);
        let data = fs::read(env.b.join("f"))?;
        ensure_eq!(data.len() as u64, sizes[0], "round {round}: bytes read");
        // A later truncate to more grows with zeros: ones, then zeros, nothing else.
        let ones = data.iter().take_while(|b| **b == 1).count();
        ensure!(ones >= 1000 && data[ones..].iter().all(|b| *b == 0), "round {round}: {ones} old bytes");
    }
    Ok(())
}

/// Cuts near the borders of stripes, seen by who has all stripes cached.
fn truncate_stripes(env: &Env) -> Outcome {
    const STRIPE: u64 = 64 << 10;
    let data = pattern(env.seed, 6 * STRIPE as usize);
    let cuts = [5 * STRIPE + 1, 5 * STRIPE, 5 * STRIPE - 1, 2 * STRIPE + 4096, STRIPE, 1];
    for round in env.turns(6) {
        let cut = cuts[round as usize];
        let (cutter, other) = if round % 2 == 0 { (&env.a, &env.b) } else { (&env.b, &env.a) };
        fs::write(other.join("f"), &data)?;
        ensure_content(env, "f", &data)?;
        open(&cutter.join("f"))?.set_len(cut)?;
        ensure_content(env, "f", &data[..cut as usize]).context(format!("cut at {cut}"))?;
        open(&env.c.join("f"))?.set_len(6 * STRIPE)?;
        let mut grown = data[..cut as usize].to_vec();
        grown.resize(data.len(), 0);
        ensure_content(env, "f", &grown).context(format!("grown after the cut at {cut}"))?;
    }
    Ok(())
}

/// The rest of the last page is zeros when the file grows over it, whoever cut it and whoever makes it grow.
fn truncate_tail_of_page(env: &Env) -> Outcome {
    let files = {
        fs::write(env.a.join("f"), b"")?;
        open_all(env, "f")?
    };
    for round in env.turns(12) {
        let round = round as usize;
        let (writer, cutter, grower) = (&files[round % 3], &files[(round + 1) % 3], &files[(round + 2) % 3]);
        writer.write_all_at(&[0xff; 10_000], 0)?;
        let cut = 4097 + 101 * round;
        cutter.set_len(cut as u64)?;
        grower.set_len(10_000)?;
        let mut expected = vec![0xff; cut];
        expected.resize(10_000, 0);
        for file in &files {
            compare(&read_at(file, 0, 20_000)?, &expected, 0).context(format!("round {round}"))?;
        }
    }
    Ok(())
}

/// A writer whose file another mount emptied by O_TRUNC goes on at its old position, behind a hole.
fn o_trunc_under_writer(env: &Env) -> Outcome {
    let mut writer = new_file(&env.a.join("f"))?;
    for round in 0..env.times(10u8) {
        writer.seek(SeekFrom::Start(0))?;
        writer.write_all(&[round + 1; 5000])?;
        drop(File::create(env.b.join("f"))?);
        ensure_eq!(writer.metadata()?.len(), 0, "round {round}: size for the writer");
        writer.write_all(b"on and on")?;
        let mut expected = vec![0; 5000];
        expected.extend(b"on and on");
        ensure_content(env, "f", &expected).context(format!("round {round}"))?;
    }
    Ok(())
}

/// The size of a file that is only written to never shrinks for who looks on.
fn size_grows_only(env: &Env) -> Outcome {
    let mut writer = new_file(&env.a.join("f"))?;
    let reader = File::open(env.c.join("f"))?;
    let mut last = 0;
    watch_while(
        || {
            for size in [size_of(&env.b.join("f"))?, reader.metadata()?.len()] {
                ensure!(size >= last, "size {size} after {last}");
                last = size;
            }
            Ok(())
        },
        || (0..200).try_for_each(|n| writer.write_all(&vec![1; 100 + n * 7]).context("write")),
    )?;
    let end = (0..200).map(|n| 100 + n * 7).sum::<u64>();
    ensure_eq!(mounts(env).map(|d| size_of(&d.join("f")).unwrap_or(0)), [end; 3], "sizes at the end");
    Ok(())
}

/// Mounts extend a striped file in turn; each open file of each mount knows its size at once.
fn size_both_extend(env: &Env) -> Outcome {
    new_file(&env.a.join("f"))?;
    let files = open_all(env, "f")?;
    let mut random = env.random();
    let mut end = 0;
    for round in 0..env.times(40) {
        end += 1 + random.below(100_000) as u64;
        files[random.below(3)].write_all_at(b"x", end - 1)?;
        for (mount, file) in files.iter().enumerate() {
            ensure_eq!(file.metadata()?.len(), end, "round {round}: size by fstat of mount {mount}");
        }
    }
    Ok(())
}

/// The space that a file takes is known to the mount that did not write it, and is given back by a truncate.
fn blocks(env: &Env) -> Outcome {
    let file = new_file(&env.a.join("f"))?;
    ensure_eq!(fs::metadata(env.b.join("f"))?.blocks(), 0, "blocks of an empty file");
    file.write_all_at(&pattern(3, 1 << 20), 0)?;
    file.sync_all()?;
    let seen = wait_for(Duration::from_secs(5), || Ok(fs::metadata(env.b.join("f"))?.blocks() >= 2048))?;
    ensure!(seen, "{} blocks for 1 MiB", fs::metadata(env.b.join("f"))?.blocks());
    file.set_len(0)?;
    let seen = wait_for(Duration::from_secs(5), || Ok(fs::metadata(env.b.join("f"))?.blocks() == 0))?;
    ensure!(seen, "{} blocks after the truncate", fs::metadata(env.b.join("f"))?.blocks());
    Ok(())
}

/// Both mounts tell the same sizes, and space used by one is gone for the other. The OSTs share a disk with each other and with
/// everything else on this machine, so what a mount tells is held against what the disk tells before and after: it is that, but
/// for what the OSTs keep back, which is always the same.
fn statfs(env: &Env) -> Outcome {
    const PART: u64 = 32 << 20;
    /// What others may take and give back between two looks at the disk.
    const SLACK: u64 = 1 << 20;
    let total = sys::space(&env.a)?.0;
    ensure_eq!(total, sys::space(&env.b)?.0, "total size");
    let before = kept_back(env, &env.a)?;
    let file = File::create(env.a.join("f"))?;
    file.write_all_at(&pattern(5, PART as usize), 0)?;
    file.sync_all()?;
    ensure!(file.metadata()?.blocks() * 512 >= PART, "{} blocks for 32 MiB", file.metadata()?.blocks());
    let after = kept_back(env, &env.b)?;
    let overlap = before.start <= after.end + SLACK && after.start <= before.end + SLACK;
    ensure!(overlap, "of the disk's space {after:?} bytes are kept back for one mount, {before:?} for the other");
    let widest = (before.end - before.start).max(after.end - after.start);
    ensure!(widest < PART / 2, "the disk's space moves too much to tell: by {widest} while it is asked once");
    Ok(())
}

/// How much less space a mount tells than the disk of its OSTs has, as near as that can be known while others use the disk.
fn kept_back(env: &Env, dir: &Path) -> Outcome<Range<u64>> {
    let mut nearest = 0..u64::MAX;
    for _ in 0..20 {
        let (before, told, after) = (sys::space(&env.local)?.1, sys::space(dir)?.1, sys::space(&env.local)?.1);
        let (least, most) = (before.min(after), before.max(after));
        ensure!(told <= most, "{told} bytes available of {most} on the disk");
        if most - least < nearest.end - nearest.start {
            nearest = least.saturating_sub(told)..most - told;
        }
    }
    Ok(nearest)
}
