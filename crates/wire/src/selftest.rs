//! Messages of the network's self-test: between a console and the nodes that take part, and among these.

use bytes::Bytes;
use nacre_base::Nid;

wire_enum! {
    /// The request to a node.
    #[derive(Default)]
    pub enum SelftestOp: u8 {
        /// An answer, and nothing else.
        #[default]
        Ping = 1,
        /// Bulk data, which the node pushes to the asker.
        Read = 2,
        /// Room for bulk data, which the node pulls from the asker.
        Write = 3,
        /// To join the console's session ([`SelftestBegin`]).
        BeginSession = 16,
        /// To leave it, and end its tests.
        EndSession = 17,
        /// To keep a test for later ([`SelftestTest`]).
        AddTest = 18,
        /// To start the tests of a batch (its name).
        Run = 19,
        /// To stop them.
        Stop = 20,
        /// Its counts ([`SelftestCounts`]).
        Stat = 21,
    }
}

wire_enum! {
    /// How bulk data is checked by whoever receives it.
    #[derive(Default)]
    pub enum SelftestCheck: u8 {
        /// Not at all.
        #[default]
        None = 0,
        /// The ends of each page.
        Simple = 1,
        /// Every byte.
        Full = 2,
    }
}

message! {
    MESSAGES;
    /// A question to a node that takes part.
    pub struct SelftestRequest {
        /// Names the question in its answer, and the memory of bulk data.
        pub id: u64,
        /// The session that it belongs to.
        pub session: u64,
        /// The request.
        pub op: SelftestOp,
        /// More about it, by operation.
        pub body: Bytes,
    }

    /// The answer.
    pub struct SelftestReply {
        /// Names the question.
        pub id: u64,
        /// 0, or a negated errno.
        pub status: i32,
        /// The answer, or the reason why there is none, for a person.
        pub body: Bytes,
    }

    /// Of a read or a write.
    pub struct SelftestBulk {
        /// Bytes.
        pub size: u32,
        /// How they are checked.
        pub check: SelftestCheck,
    }

    /// A session.
    pub struct SelftestBegin {
        /// Its name.
        pub name: String,
        /// Time without a word of the console after which it ends.
        pub timeout_secs: u32,
        /// Whether another console's session ends for it.
        pub force: bool,
    }

    /// A test that a node carries out.
    pub struct SelftestTest {
        /// The batch that it belongs to.
        pub batch: String,
        /// The request that is sent to the targets again and again.
        pub op: SelftestOp,
        /// Bytes and checks of reads and writes.
        pub bulk: SelftestBulk,
        /// Questions under way at each target.
        pub concurrency: u32,
        /// Questions of each of them in all; 0 is without end.
        pub loops: u64,
        /// The nodes that are asked.
        pub targets: Vec<Nid>,
    }

    /// Counts of a node.
    pub struct SelftestCounts {
        /// Messages that its network has received since it started.
        pub received: u64,
        /// Messages that it has sent.
        pub sent: u64,
        /// Their bytes.
        pub received_bytes: u64,
        /// Their bytes.
        pub sent_bytes: u64,
        /// Questions of tests that were answered in this session.
        pub done: u64,
        /// Number of those that failed.
        pub failed: u64,
        /// Bulk data that arrived damaged.
        pub damaged: u64,
        /// Questions under way.
        pub running: u32,
    }
}
