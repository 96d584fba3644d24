//! The table of causes: what makes a file system slow, and the finding that must name it.

use super::stage::{Scene, Stage};
use crate::failure::Outcome;

/// A cause of slowness.
pub(super) struct Cause {
    /// The cause in a few words, as `nacre sim culprits` calls it.
    pub(super) name: &'static str,
    /// The file system that it is injected into.
    pub(super) scene: Scene,
    /// Makes it happen.
    pub(super) inject: fn(&Stage) -> Outcome,
    /// Kind and name of the finding that must come first.
    pub(super) expected: (&'static str, Culprit),
    /// Ends it. The threads that `inject` has started have been told to end before.
    pub(super) relieve: fn(&Stage) -> Outcome,
    /// True if the short profile has it, too.
    pub(super) is_short: bool,
}

/// The name in a finding.
pub(super) enum Culprit {
    /// An OST by its index.
    Ost(usize),
    /// The only MDT.
    Mdt,
    /// A mount by its number from 1. Findings call it by its host and process.
    Mount(usize),
    /// One of two mounts.
    OneOf(usize, usize),
    /// The job of threads with this name.
    Job(&'static str),
    /// The FID of a directory of the root.
    Directory(&'static str),
    /// A router of [`super::stage::ROUTERS`], by one of its NIDs.
    Router(usize),
}

/// All causes, in the order in which they are injected.
pub(super) const CAUSES: &[Cause] = &[
    Cause {
        name: "slow disk of an OST",
        scene: Scene::OneHost,
        inject: |s| s.throttle_disk(),
        expected: ("slow-disk", Culprit::Ost(2)),
        relieve: |s| s.release_disk(),
        is_short: false,
    },
    Cause {
        name: "slow commits of an OST",
        scene: Scene::OneHost,
        inject: |s| s.arm("oss2", "osd.commit:delay=1500:always").and_then(|()| s.write_durably(1)),
        expected: ("slow-commit", Culprit::Ost(1)),
        relieve: |s| s.cluster.disarm_faults(),
        is_short: false,
    },
    Cause {
        name: "slow commits of the MDT",
        scene: Scene::OneHost,
        inject: |s| s.arm("mds", "osd.commit:delay=1500:always").and_then(|()| s.make_durable_names()),
        expected: ("slow-commit", Culprit::Mdt),
        relieve: |s| s.cluster.disarm_faults(),
        is_short: false,
    },
    Cause {
        name: "disk of an OST that fails",
        scene: Scene::OneHost,
        inject: |s| s.arm("oss4", "osd.commit:fail=5:always"),
        expected: ("unhealthy", Culprit::Ost(3)),
        relieve: |s| s.cluster.kill("oss4").and_then(|()| s.cluster.restart("oss4")),
        is_short: false,
    },
    Cause {
        name: "full OST",
        scene: Scene::OneHost,
        inject: |s| s.fill_disk(),
        expected: ("full", Culprit::Ost(2)),
        relieve: |s| s.empty_disk(),
        is_short: false,
    },
    Cause {
        name: "busy processor of a server",
        scene: Scene::OneHost,
        inject: |s| s.arm("oss1", "ost.write.before_reply:delay=100:always"),
        expected: ("slow-server", Culprit::Ost(0)),
        relieve: |s| s.cluster.disarm_faults(),
        is_short: true,
    },
    Cause {
        name: "server that is gone",
        scene: Scene::OneHost,
        inject: |s| s.cluster.kill("oss2"),
        expected: ("unreachable", Culprit::Ost(1)),
        relieve: |s| s.cluster.restart("oss2"),
        is_short: false,
    },
    Cause {
        name: "recovery without a client",
        scene: Scene::OneHost,
        inject: |s| s.recover_without_client("oss1"),
        expected: ("recovery", Culprit::Ost(0)),
        relieve: |s| s.complete_recovery("oss1"),
        is_short: false,
    },
    Cause {
        name: "stuck client that holds a lock",
        scene: Scene::OneHost,
        inject: |s| s.keep_lock(),
        expected: ("kept-lock", Culprit::Mount(1)),
        relieve: |s| s.resume(1),
        is_short: false,
    },
    Cause {
        name: "stuck client that holds a directory",
        scene: Scene::OneHost,
        inject: |s| s.keep_directory(),
        expected: ("kept-lock", Culprit::Mount(2)),
        relieve: |s| s.resume(2),
        is_short: false,
    },
    Cause {
        name: "lock ping-pong",
        scene: Scene::OneHost,
        inject: |s| s.contend(1, 3),
        expected: ("contended-lock", Culprit::OneOf(1, 3)),
        relieve: |s| s.set_shared_writes("default"),
        is_short: false,
    },
    Cause {
        name: "MDT busy with one directory",
        scene: Scene::OneHost,
        inject: |s| s.crowd_directory(),
        expected: ("busy-directory", Culprit::Directory("busy")),
        relieve: |s| s.remove_more_mounts(),
        is_short: false,
    },
    Cause {
        name: "greedy job that writes",
        scene: Scene::OneHost,
        inject: |s| s.narrow_osts().and_then(|()| s.write_greedily(256 << 10)),
        expected: ("greedy-job", Culprit::Job("greedy")),
        relieve: |s| s.widen_osts(),
        is_short: false,
    },
    Cause {
        name: "greedy job that reads",
        scene: Scene::OneHost,
        inject: |s| s.narrow_osts().and_then(|()| s.read_greedily()),
        expected: ("greedy-job", Culprit::Job("greedy")),
        relieve: |s| s.widen_osts(),
        is_short: false,
    },
    Cause {
        name: "greedy job at the MDT",
        scene: Scene::OneHost,
        inject: |s| s.crowd_mdt(),
        expected: ("greedy-job", Culprit::Job("greedy")),
        relieve: |s| s.widen_mdt(),
        is_short: false,
    },
    Cause {
        name: "small random records",
        scene: Scene::OneHost,
        inject: |s| s.narrow_osts().and_then(|()| s.write_greedily(4 << 10)),
        expected: ("small-records", Culprit::Job("greedy")),
        relieve: |s| s.widen_osts(),
        is_short: false,
    },
    Cause {
        name: "client with too many changes",
        scene: Scene::OneHost,
        inject: |s| s.arm("mds", "rpc.MDS_REINT.delay:delay=20:always").and_then(|()| s.change_names("busy", 1, 48)),
        expected: ("client", Culprit::Mount(1)),
        relieve: |s| s.cluster.disarm_faults(),
        is_short: true,
    },
    Cause {
        name: "client with a small window",
        scene: Scene::OneHost,
        inject: |s| s.narrow_window(2),
        expected: ("window", Culprit::Mount(2)),
        relieve: |s| s.set_window(2, 0),
        is_short: false,
    },
    Cause {
        name: "slow link of a client",
        scene: Scene::Hosts,
        inject: |s| s.slow_link("client2", 6_000_000),
        expected: ("slow-link", Culprit::Mount(2)),
        relieve: |s| s.mend_link("client2"),
        is_short: false,
    },
    Cause {
        name: "slow link of a server",
        scene: Scene::Hosts,
        inject: |s| s.slow_link("oss2", 20_000_000),
        expected: ("slow-link", Culprit::Ost(1)),
        relieve: |s| s.mend_link("oss2"),
        is_short: false,
    },
    Cause {
        name: "lossy link of a client",
        scene: Scene::Hosts,
        inject: |s| s.lose_packets("client3"),
        expected: ("lossy-link", Culprit::Mount(3)),
        relieve: |s| s.keep_packets("client3"),
        is_short: false,
    },
    Cause {
        name: "lossy link of a server",
        scene: Scene::Hosts,
        inject: |s| s.lose_packets("oss3"),
        expected: ("lossy-link", Culprit::Ost(2)),
        relieve: |s| s.keep_packets("oss3"),
        is_short: false,
    },
    Cause {
        name: "router short of buffers",
        scene: Scene::Routed,
        inject: |s| s.starve_router(|s| s.set_buffers(0, 1)),
        expected: ("router-buffers", Culprit::Router(0)),
        relieve: |s| s.set_buffers(0, 1024),
        is_short: false,
    },
    Cause {
        name: "router short of credits",
        scene: Scene::Routed,
        inject: |s| s.starve_router(|s| s.set_credits(1, 1)),
        expected: ("router-credits", Culprit::Router(1)),
        relieve: |s| s.set_credits(1, 1024),
        is_short: false,
    },
    Cause {
        name: "slow link of a router",
        scene: Scene::Routed,
        inject: |s| s.slow_link("router1", 16_000_000),
        expected: ("slow-router", Culprit::Router(0)),
        relieve: |s| s.mend_link("router1"),
        is_short: false,
    },
    Cause {
        name: "router that is gone",
        scene: Scene::Routed,
        inject: |s| s.cluster.kill("router2"),
        expected: ("router-down", Culprit::Router(1)),
        relieve: |s| s.restart_router("router2"),
        is_short: false,
    },
];
