//! The causes that are injected, and the times in which nothing is.

use serde::Serialize;

macro_rules! causes {
    ($($(#[doc = $about:literal])* $name:ident: $words:literal, $quiet:literal;)*) => {
        /// Causes that are injected, and times in which nothing is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Cause { $($(#[doc = $about])* $name,)* }

        impl Cause {
            /// All of them.
            pub const ALL: &[Cause] = &[$(Cause::$name,)*];

            /// The cause in a few words.
            pub fn words(self) -> &'static str {
                match self { $(Cause::$name => $words,)* }
            }

            /// The cause with this name, such as `slow-disk`.
            pub fn named(name: &str) -> Result<Cause, String> {
                let wanted = |cause: &&Cause| serde_json::to_value(cause).is_ok_and(|value| value == name);
                Cause::ALL.iter().find(wanted).copied().ok_or_else(|| format!("there is no cause {name:?}"))
            }

            /// True if nobody must be named.
            pub fn is_quiet(self) -> bool {
                match self { $(Cause::$name => $quiet,)* }
            }
        }
    };
}

causes! {
    /// Every write of the disk of an OST takes longer.
    SlowDisk: "slow disk of an OST", false;
    /// Every commit of an OST takes longer.
    SlowCommit: "slow commits of an OST", false;
    /// Every commit of the MDT takes longer.
    SlowMdtCommit: "slow commits of the MDT", false;
    /// A commit of an OST fails, and its device stops.
    FailedDisk: "disk of an OST that fails", false;
    /// An OST has hardly any space left.
    FullOst: "full OST", false;
    /// The server of an OST computes for a long time on each write.
    SlowServer: "busy processor of a server", false;
    /// An OSS dies, and nobody starts it again.
    DeadServer: "server that is gone", false;
    /// An OST is restarted, and one of its clients does not come back.
    Recovery: "recovery without a client", false;
    /// A client dies while it holds a lock that another client wants.
    KeptLock: "stuck client that holds a lock", false;
    /// A client dies while it holds a lock on a directory in which another client changes names.
    KeptDirectory: "stuck client that holds a directory", false;
    /// Two clients write the same bytes in turn.
    ContendedLock: "lock ping-pong", false;
    /// Many clients make and remove files in one directory.
    BusyDirectory: "MDT busy with one directory", false;
    /// A job with many streams writes to an OST, while others write a little there.
    GreedyJob: "greedy job that writes", false;
    /// A job with many streams reads from an OST, while others write a little there.
    GreedyReader: "greedy job that reads", false;
    /// A job changes names all the time, while others work with the MDT a little.
    GreedyAtMdt: "greedy job at the MDT", false;
    /// A job with many streams writes tiny records at random places.
    SmallRecords: "small random records", false;
    /// Programs of a client change more names at a time than it has modify slots.
    BusyClient: "client with too many changes", false;
    /// A client may have one request under way, while its programs write with many streams.
    SmallWindow: "client with a small window", false;
    /// The link of a client becomes slow.
    SlowLink: "slow link of a client", false;
    /// The link of an OSS becomes slow.
    SlowServerLink: "slow link of a server", false;
    /// The link of a client loses packets.
    LossyLink: "lossy link of a client", false;
    /// The link of an OSS loses packets.
    LossyServerLink: "lossy link of a server", false;
    /// A router has hardly any buffers.
    RouterBuffers: "router short of buffers", false;
    /// A router has hardly any credits for each peer.
    RouterCredits: "router short of credits", false;
    /// The link of a router becomes slow.
    SlowRouter: "slow link of a router", false;
    /// A router dies.
    DeadRouter: "router that is gone", false;
    /// No client does anything.
    Idle: "quiet: idle", true;
    /// The diagnosis begins with the load.
    Start: "quiet: start", true;
    /// All clients write as fast as they can.
    BusyEvenly: "quiet: even heavy load", true;
    /// All clients write through their caches as fast as they can.
    BusyCaches: "quiet: even heavy load through caches", true;
    /// All clients make, look up and remove files of their own as fast as they can, and write.
    BusyNames: "quiet: even heavy load with names", true;
    /// All clients read and write as fast as they can, through routers.
    BusyRouters: "quiet: even heavy load through routers", true;
    /// An OST was restarted, and all of its clients have come back.
    AfterFailover: "quiet: after a failover", true;
    /// Clients come and go.
    Remounts: "quiet: mounts and unmounts", true;
}

impl Cause {
    /// True if routers are between clients and servers.
    pub(super) fn is_routed(self) -> bool {
        use Cause::{BusyRouters, DeadRouter, RouterBuffers, RouterCredits, SlowRouter};
        matches!(self, RouterBuffers | RouterCredits | SlowRouter | DeadRouter | BusyRouters)
    }
}
