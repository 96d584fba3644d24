//! The conditions of a run of `nacre sim crashes`, beside the crashes themselves: how OSTs answer writes, the cost of
//! their disks, how often they commit, and whether the network is cut meanwhile. The seed decides; nothing may depend on
//! the outcome.

use crate::cluster::{Builder, Cluster};
use crate::crashes::When;
use nacre_base::Prng;
use nacre_osd::mem::{DiskModel, MemOptions};
use std::time::Duration;

/// When OSTs answer a write whose client keeps the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Answers {
    /// After the commit (`sync_journal=1`).
    Commit,
    /// Once the data is on the device: the default.
    Device,
    /// Once the data is received (`reply_from_memory_mb`).
    Memory,
}

impl Answers {
    /// All kinds of answers.
    pub const ALL: [Answers; 3] = [Answers::Commit, Answers::Device, Answers::Memory];

    /// The parameter of `obdfilter.*` that selects these answers; none for the default.
    fn param(self) -> Option<(&'static str, &'static str)> {
        match self {
            Answers::Commit => Some(("sync_journal", "1")),
            Answers::Device => None,
            Answers::Memory => Some(("reply_from_memory_mb", "16")),
        }
    }
}

/// Room on the targets' disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Room for everything.
    Plenty,
    /// Room for this many bytes of data on each OST: less than is written.
    Data(u64),
    /// Room for this many pages of records on each target, most of which are reserved for removals: less than is needed.
    Records(u64),
}

/// The conditions of one run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Conditions {
    /// How OSTs answer writes.
    pub answers: Answers,
    /// Value of `obdfilter.*.sync_on_lock_cancel`.
    pub sync_on_lock_cancel: &'static str,
    /// Cost of requests to any server's disk.
    pub disk: DiskModel,
    /// Longest time between a change and its commit, for every target.
    pub commit_interval: Duration,
    /// True if nodes are cut off from one another meanwhile.
    pub partitions: bool,
    /// Room on the targets' disks.
    pub room: Room,
    /// True if clients keep unused locks for two seconds only, and leave an OST on which they hold nothing after one.
    pub leaving: bool,
}

impl Default for Conditions {
    /// The product's defaults, on disks that take no time.
    fn default() -> Conditions {
        let MemOptions { model, commit_interval, .. } = MemOptions::default();
        Conditions {
            answers: Answers::Device,
            sync_on_lock_cancel: "blocking",
            disk: model,
            commit_interval,
            partitions: false,
            room: Room::Plenty,
            leaving: false,
        }
    }
}

impl Conditions {
    /// The conditions that `seed` draws, with the given answers or any.
    pub fn of_seed(seed: u64, answers: Option<Answers>) -> Conditions {
        // Independent of the numbers that decide who dies, so that a seed keeps its crashes whatever is drawn here.
        let mut prng = Prng::new(seed.rotate_left(32) ^ 0x636f_6e64);
        let drawn = *prng.pick(&Answers::ALL);
        let sync_on_lock_cancel: &'static str = ["never", "blocking", "always"][prng.below(3) as usize];
        // A flush that takes some time, so that a crash can happen during it.
        let flush = Duration::from_millis(prng.range(1, 400));
        let disk = *prng.pick(&[
            DiskModel::FREE,
            DiskModel { flush, ..DiskModel::NVME },
            DiskModel { flush, ..DiskModel::HDD },
        ]);
        Conditions {
            answers: answers.unwrap_or(drawn),
            sync_on_lock_cancel,
            disk,
            commit_interval: Duration::from_millis(*prng.pick(&[100, 1000, 5000, 20_000])),
            partitions: prng.one_in(4),
            room: match prng.below(8) {
                0 => Room::Data(prng.range(1 << 20, 8 << 20)),
                1 => Room::Records(prng.range(2400, 3000)),
                _ => Room::Plenty,
            },
            leaving: false,
        }
    }

    /// The conditions under which a sweep runs `seed`: those of [`Conditions::of_seed`], and clients that leave in one seed of
    /// four. They are drawn apart, so that the seeds that were kept as tests go on finding what they found.
    pub fn of_sweep(seed: u64, answers: Option<Answers>) -> Conditions {
        let mut prng = Prng::new(seed.rotate_left(32) ^ 0x006c_6561_7665);
        Conditions { leaving: prng.one_in(4), ..Conditions::of_seed(seed, answers) }
    }

    /// These conditions with room for everything.
    #[must_use]
    pub fn with_plenty_of_room(self) -> Conditions {
        Conditions { room: Room::Plenty, ..self }
    }

    /// These conditions, as far as they suit a run in which servers die at these times.
    pub(crate) fn where_servers_die(self, when: When) -> Conditions {
        match when {
            // These runs do not expect that anything is refused.
            When::Together => self.with_plenty_of_room(),
            When::Between | When::During | When::DuringLosses => self,
        }
    }

    /// Applies the conditions to the clients of a cluster.
    pub(crate) fn apply_to_clients(&self, cluster: &Cluster) {
        if self.leaving {
            for client in 0..cluster.client_count() {
                let params = cluster.client_node(client).params();
                for (name, value) in [("ldlm.namespaces.*-osc-*.lru_max_age", "2000"), ("osc.*.idle_timeout", "1")] {
                    params.set(name, value).expect("a declared parameter with a value in its range");
                }
            }
        }
    }

    /// Applies the conditions to a cluster.
    pub(crate) fn apply(&self, builder: Builder) -> Builder {
        let storage = MemOptions { model: self.disk, commit_interval: self.commit_interval, ..MemOptions::default() };
        let builder = match self.room {
            Room::Plenty => builder.storage(storage),
            Room::Data(bytes) => {
                builder.storage(storage.clone()).ost_storage(MemOptions { capacity_bytes: bytes, ..storage })
            }
            Room::Records(pages) => builder.storage(MemOptions { index_bytes: pages << 12, ..storage }),
        };
        let params = [("sync_on_lock_cancel", self.sync_on_lock_cancel)].into_iter().chain(self.answers.param());
        builder.ost_params(params.map(|(name, value)| (name, value.to_owned())))
    }
}
