//! The numbers of `nacre sim shared-file`, each with its source. Two were fitted, to the two figures of one row: one
//! stripe on flash.

use super::Medium;
use nacre_experiment::{Constant, ConstantKind};
use nacre_osd::mem::DiskModel;
use std::time::Duration;

/// Bytes a second that a client can send and receive.
pub(super) const CLIENT_BANDWIDTH: u64 = 12_000_000_000;
/// Bytes a second that a server can send and receive: more than its OST's rate.
pub(super) const SERVER_BANDWIDTH: u64 = 25_000_000_000;
/// Latency of one way, including the software on both sides; up to twice as long.
pub(super) const LATENCY: Duration = Duration::from_micros(10);
/// Average rate at which a process makes a record and copies it into the cache, in bytes a second. Each record takes from
/// half of that time to half as much again: otherwise the writers would be in step, as real ones never are.
pub(super) const COPY_BANDWIDTH: u64 = 1_500_000_000;
/// Room for dirty pages on Nacre's servers: part of the default, a fifth of 128 GB.
const CACHE_BYTES: u64 = 16 << 30;

const DISK_BANDWIDTH: u64 = 6_200_000_000;
const DISK_LATENCY: Duration = Duration::from_millis(2);
const DISK_SEEK: Duration = Duration::from_micros(100);
const FLASH_BANDWIDTH: u64 = 11_700_000_000;
const FLASH_LATENCY: Duration = Duration::from_micros(60);
const FLASH_SEEK: Duration = Duration::from_micros(4);
const FLASH_OBJECT: u64 = 7_000_000_000;

impl Medium {
    /// The model of the medium.
    pub const fn model(self) -> DiskModel {
        let base = DiskModel {
            streams: 64,
            queue_depth: 128,
            cache_bytes: CACHE_BYTES,
            cache_bandwidth: COPY_BANDWIDTH,
            ..DiskModel::FREE
        };
        match self {
            Medium::Disk => DiskModel {
                latency: DISK_LATENCY,
                seek: DISK_SEEK,
                bandwidth: DISK_BANDWIDTH,
                rotational: true,
                ..base
            },
            Medium::Flash => DiskModel {
                latency: FLASH_LATENCY,
                seek: FLASH_SEEK,
                bandwidth: FLASH_BANDWIDTH,
                object_bandwidth: FLASH_OBJECT,
                ..base
            },
        }
    }
}

/// All constants that do not depend on the command's arguments.
pub(super) fn fixed() -> Vec<Constant> {
    use ConstantKind::{Fitted, Paper, Physical};
    let gb = |rate: u64| rate as f64 / 1e9;
    let micros = |d: Duration| d.as_secs_f64() * 1e6;
    let all = [
        (
            "a message, one way",
            micros(LATENCY),
            "us",
            Fitted,
            "flash, 1 MiB records on one stripe: 3 GB/s. With the software on both sides; up to twice as much",
        ),
        (
            "a client's link",
            gb(CLIENT_BANDWIDTH),
            "GB/s",
            Fitted,
            "flash, 16 MiB records on one stripe: 6 GB/s. It is that of InfiniBand EDR; the paper does not tell which it had",
        ),
        ("a server's link", gb(SERVER_BANDWIDTH), "GB/s", Physical, "assumed: two EDR links, more than its OST"),
        ("flash: rate", gb(FLASH_BANDWIDTH), "GB/s", Paper, "section 3.B: 11.2 to 11.7 GB/s"),
        ("flash: rate of one local file", gb(FLASH_OBJECT), "GB/s", Paper, "section 3.B: 6.8 to 7.5 GB/s"),
        ("flash: latency", micros(FLASH_LATENCY), "us", Physical, "assumed for flash"),
        ("flash: a request that does not follow another", micros(FLASH_SEEK), "us", Physical, "assumed for flash"),
        ("disk: rate", gb(DISK_BANDWIDTH), "GB/s", Paper, "section 3.C: file per process reaches 6 GB/s"),
        ("disk: latency", micros(DISK_LATENCY), "us", Physical, "assumed for 41 disks behind a controller"),
        (
            "disk: a request that does not follow another",
            micros(DISK_SEEK),
            "us",
            Physical,
            "assumed: 4 ms over 41 disks",
        ),
        ("a process's copy", gb(COPY_BANDWIDTH), "GB/s", Physical, "assumed: one core of the clients' processors"),
        (
            "ours: page cache of a server",
            CACHE_BYTES as f64 / f64::from(1 << 30),
            "GiB",
            Physical,
            "assumed; none in the paper's rows",
        ),
        (
            "ours: parts of an object on flash",
            f64::from(nacre_osd::PARTS_MAX),
            "",
            Physical,
            "ours; 1 in the paper's rows",
        ),
    ];
    all.map(|(name, value, unit, kind, source)| Constant::new(name, value, unit, kind, source)).to_vec()
}
