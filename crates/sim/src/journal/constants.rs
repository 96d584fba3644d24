//! The numbers of `nacre sim journal`, each with its source. Only [`SEEK`] was fitted, to the rate of the synchronous
//! journal; every other figure follows.

use nacre_experiment::{Constant, ConstantKind};
use std::time::Duration;

/// Rate of one array, in bytes a second.
pub(super) const ARRAY_BANDWIDTH: u64 = 200_000_000;
/// Time of a movement of the head, whatever the distance.
pub(super) const SEEK: Duration = Duration::from_micros(7900);
/// Time of a write to the journal's own device.
pub(super) const EXTERNAL_LATENCY: Duration = Duration::from_micros(100);
/// Rate of a network link, in bytes a second.
pub(super) const LINK_BANDWIDTH: u64 = 1_500_000_000;
/// Time of a message, one way.
pub(super) const LINK_LATENCY: Duration = Duration::from_micros(15);
/// Time between commits for which no request waits.
pub(super) const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of metadata that a commit of ext3 writes first, at least.
pub(super) const EXT3_BLOCKS: u64 = 16 << 10;
/// Bytes of the commit record that ext3 writes after them.
pub(super) const EXT3_RECORD: u64 = 4 << 10;
/// Time for which the kernel leaves dirty blocks of metadata in memory.
pub(super) const DIRTY_EXPIRE: Duration = Duration::from_secs(30);
/// Bytes of a block group, which has one bitmap.
pub(super) const GROUP_BYTES: u64 = 128 << 20;
/// Inodes, of 256 bytes each, in a block.
pub(super) const INODES_PER_BLOCK: u64 = 16;
/// Directories in which an OST keeps its objects.
pub(super) const DIRECTORIES: u64 = 32;
/// Bytes of an operation in Nacre's journal: an object's record, and the saved reply.
pub(super) const RECORD_BYTES: u64 = 512;
/// Bytes that a flush of Nacre's index writes before its number, at least.
pub(super) const INDEX_PAGES: u64 = 32 << 10;
/// Time between flushes of Nacre's index on a target with a journal.
pub(super) const INDEX_FLUSH_INTERVAL: Duration = Duration::from_secs(30);
/// Operations after which the index is flushed earlier.
pub(super) const INDEX_FLUSH_CHANGES: u64 = 16_384;
/// Bytes of the header in each process's part of a checkpoint.
pub(super) const HEADER: u64 = 64 << 10;

/// Share of its run for which the paper's application wrote with a synchronous journal.
pub(super) const PAPER_IO_SHARE: f64 = 0.70;
/// Rate of the paper's synchronous journal, as a share of the raw arrays'.
pub(super) const PAPER_SYNC: f64 = 0.249;

/// Computing time of the application between checkpoints, as a multiple of what raw arrays need for one: in the paper's
/// run writing takes 70 % of the time at 24.9 % of the raw rate.
pub(super) const COMPUTE: f64 = (1.0 - PAPER_IO_SHARE) / PAPER_IO_SHARE / PAPER_SYNC;

/// Source of [`COMPUTE`].
pub(super) const COMPUTE_SOURCE: &str = "section 6: writing is 70 % of the run; at 24.9 % of the raw rate that leaves \
    (1 - 0.70) / 0.70 / 0.249 times what raw arrays need for a checkpoint";

/// All constants that do not depend on the command's arguments.
pub(super) fn fixed() -> Vec<Constant> {
    use ConstantKind::{Fitted, Paper, Physical};
    let millis = |d: Duration| d.as_secs_f64() * 1e3;
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    let all = [
        (
            "a seek of an array",
            millis(SEEK),
            "ms",
            Fitted,
            "the synchronous journal's 24.9 %: a commit costs one seek there and one back. Used for every other movement of the \
             head, too. For comparison: half a turn of a disk with 7,200 turns a minute takes 4.2 ms, an average seek 8.5 ms",
        ),
        (
            "rate of an array",
            ARRAY_BANDWIDTH as f64 / 1e6,
            "MB/s",
            Paper,
            "5.6 GB/s of all 28 (section 3.2: 1,398.99 MB/s are 24.9 % of it)",
        ),
        (
            "ext3: blocks of a commit",
            kib(EXT3_BLOCKS),
            "KiB",
            Paper,
            "section 3.2: bitmap, inode, block map, super block",
        ),
        ("ext3: commit record", kib(EXT3_RECORD), "KiB", Paper, "section 3.2"),
        ("between commits", COMMIT_INTERVAL.as_secs_f64(), "s", Paper, "section 5: ext3 commits every 5 s; ours too"),
        ("a request, an RPC", 1.0, "MiB", Paper, "section 3.2: IOR with transfers of 1 MB"),
        (
            "a write to the journal's own device",
            millis(EXTERNAL_LATENCY),
            "ms",
            Physical,
            "assumed: memory behind SRP over InfiniBand; ext3 waits for two, one after the other",
        ),
        ("network, one way", millis(LINK_LATENCY), "ms", Physical, "assumed for InfiniBand; up to twice as much"),
        ("a link", LINK_BANDWIDTH as f64 / 1e6, "MB/s", Physical, "InfiniBand 4x DDR: 16 Gb/s, less its headers"),
        (
            "ext3: dirty blocks stay in memory",
            DIRTY_EXPIRE.as_secs_f64(),
            "s",
            Physical,
            "Linux's dirty_expire_centisecs. A block that several commits changed is written home once",
        ),
        (
            "ext3: data of a bitmap",
            GROUP_BYTES as f64 / 1048576.0,
            "MiB",
            Physical,
            "ext3: 4 KiB blocks, a bit for each",
        ),
        ("ext3: inodes in a block", INODES_PER_BLOCK as f64, "", Physical, "ldiskfs: inodes of 256 bytes"),
        (
            "directories of objects",
            DIRECTORIES as f64,
            "",
            Physical,
            "Lustre: O/0/d0 to d31; ext3 spreads directories over its groups, and keeps inodes and data in their directory's",
        ),
        ("ours: record of an operation", RECORD_BYTES as f64, "B", Physical, "an object's record and the kept reply"),
        (
            "ours: a flush of the index",
            kib(INDEX_PAGES),
            "KiB",
            Physical,
            "a few pages of each table, then the number's page",
        ),
        (
            "ours: between flushes of the index",
            INDEX_FLUSH_INTERVAL.as_secs_f64(),
            "s",
            Physical,
            "with a journal; or after 16,384 operations",
        ),
        (
            "application: header of a process's part",
            kib(HEADER),
            "KiB",
            Physical,
            "assumed; the paper does not tell its sizes",
        ),
    ];
    all.map(|(name, value, unit, kind, source)| Constant::new(name, value, unit, kind, source)).to_vec()
}
