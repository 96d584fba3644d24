//! What the replay suites share: one who works, and a witness on another node who finds what the servers know.

use super::*;
use nacre_client::{FlockKind, FlockRequest};
pub use nacre_sim::cluster::Server;
use nacre_wire::layout::Layout;

pub const MDS: Server = Server::Mds;
pub const OSS: Server = Server::Oss(0);

/// Longer than this nobody waits for a server that is up again, if all its clients are there.
pub const PAUSE_MAX: Duration = Duration::from_secs(12);

/// A user and a witness, of a file system with so many OSTs.
pub fn witnessed<F, Fut>(oss: u32, tell: F)
where
    F: FnOnce(Arc<Cluster>, User, User) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    story(oss, 2, |c| {
        let (one, two) = (user(&c, 0), user(&c, 1));
        tell(c, one, two)
    });
}

/// The server fails and comes back: soon, and for everybody. How many requests were replayed.
pub async fn fail(c: &Cluster, server: Server) -> u64 {
    let recovered = c.fail(server).await;
    assert!(recovered.pause < PAUSE_MAX, "{server:?} was away for {:?}", recovered.pause);
    assert_eq!(recovered.completed, recovered.known, "{server:?} evicted clients");
    recovered.replayed
}

/// Who has no such name says ENOENT.
pub fn gone<T>(found: Result<T, Errno>) -> bool {
    found.map(drop) == Err(Errno::ENOENT)
}

pub async fn layout_of(u: &User, fid: Fid) -> Layout {
    let value = u.getxattr(&root(), fid, b"lustre.lov").await.unwrap();
    nacre_wire::lov_ea::decode_layout(&value).unwrap().0
}

/// A lock on a whole file: fcntl's, or flock's if `bsd`.
pub fn whole_file(owner: u64, kind: FlockKind, wait: bool, bsd: bool) -> FlockRequest {
    FlockRequest { owner, pid: owner as u32, kind, start: 0, end: u64::MAX, wait, bsd }
}
