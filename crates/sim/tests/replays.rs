//! Common parts of the replay suites: a client that works, and a witness on another node that sees what the servers know.

use super::*;
use nacre_client::{FlockKind, FlockRequest};
pub(crate) use nacre_sim::cluster::Server;
use nacre_wire::layout::Layout;

pub(crate) const MDS: Server = Server::Mds;
pub(crate) const OSS: Server = Server::Oss(0);

/// Longest wait for a server that is up again, if all its clients are there.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(12);

/// Tells a story with a user and a witness, of a file system with `oss` OSTs.
pub(crate) fn witnessed<F, Fut>(oss: u32, tell: F)
where
    F: FnOnce(Arc<Cluster>, User, User) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    story(oss, 2, |c| async move {
        never_leave(&c);
        let (one, two) = (user(&c, 0), user(&c, 1));
        // A server commits the record of a new client, which would wait for ever behind a barrier.
        for client in [&one, &two] {
            client.statfs().await.unwrap();
        }
        tell(c, one, two).await;
    });
}

/// No client leaves an OST on which it holds nothing: for stories that count exports.
pub(crate) fn never_leave(c: &Cluster) {
    for client in 0..c.client_count() {
        c.client_node(client).params().set("osc.*.idle_timeout", "0").unwrap();
    }
}

/// The server fails and comes back, soon and for all clients. Returns how many requests were replayed.
pub(crate) async fn fail(c: &Cluster, server: Server) -> u64 {
    let recovered = c.fail(server).await;
    assert!(recovered.pause < PAUSE_MAX, "{server:?} was away for {:?}", recovered.pause);
    assert!(recovered.known >= 2, "{server:?} knew of {recovered:?}");
    assert_eq!(recovered.completed, recovered.known, "{server:?} evicted clients");
    recovered.replayed
}

/// True for ENOENT, because the name does not exist.
pub(crate) fn gone<T>(found: Result<T, Errno>) -> bool {
    found.map(drop) == Err(Errno::ENOENT)
}

pub(crate) async fn layout_of(u: &User, fid: Fid) -> Layout {
    let value = u.getxattr(&root(), fid, b"lustre.lov").await.unwrap();
    nacre_wire::lov_ea::decode_layout(&value).unwrap().0
}

/// Bytes available for writing.
pub(crate) async fn available(u: &User) -> u64 {
    let space = u.statfs().await.unwrap();
    space.blocks_available * u64::from(space.block_size)
}

/// A lock on a whole file: fcntl's, or flock's if `bsd`.
pub(crate) fn whole_file(owner: u64, kind: FlockKind, wait: bool, bsd: bool) -> FlockRequest {
    FlockRequest { owner, pid: owner as u32, kind, start: 0, end: u64::MAX, wait, bsd }
}
