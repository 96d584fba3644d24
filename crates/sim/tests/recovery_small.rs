//! Requests and replies that get lost, servers that die with requests in flight, clients that are cut off.

use super::replays::*;
use super::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_osd::mem::Crash;
use nacre_sim::failures::{Locks, Mishap};
use nacre_wire::Opcode;

mod callbacks;
mod eviction;
mod full;
mod leases;
mod management;
mod requests;
mod silence;
mod storage;

/// A change that must happen exactly once, made in a directory with `victim`, `empty` (a directory) and `file`.
#[derive(Clone, Copy, Debug)]
enum Change {
    Mkdir,
    Create,
    Symlink,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Setxattr,
    Chmod,
    Close,
    Write,
    Append,
    Truncate,
    Fallocate,
}

impl Change {
    fn server_and_opcode(self) -> (Server, Opcode) {
        match self {
            Change::Create => (Server::Mds, Opcode::MdsOpen),
            Change::Close => (Server::Mds, Opcode::MdsClose),
            Change::Write | Change::Append => (Server::Oss(0), Opcode::OstWrite),
            Change::Truncate => (Server::Oss(0), Opcode::OstPunch),
            Change::Fallocate => (Server::Oss(0), Opcode::OstFallocate),
            _ => (Server::Mds, Opcode::MdsReint),
        }
    }

    /// Makes the change. A second execution would return an error wherever that is possible.
    async fn make(self, u: &User, s: &Scene) -> Result<(), Errno> {
        const XATTR_CREATE: u32 = 1;
        match self {
            Change::Mkdir => u.dir(s.dir, "new").await.map(drop),
            Change::Create => u.release(u.new_file(s.dir, "new", O_EXCL).await?).await,
            Change::Symlink => u.symlink(&root(), s.dir, b"new", b"target").await.map(drop),
            Change::Link => u.link(&root(), s.file.fid(), s.dir, b"new").await.map(drop),
            Change::Unlink => u.remove(s.dir, "victim").await,
            Change::Rmdir => u.rmdir(&root(), s.dir, b"empty").await,
            Change::Rename => u.move_to(s.dir, "victim", s.dir, "new").await,
            Change::Setxattr => u.setxattr(&root(), s.dir, b"user.x", b"1", XATTR_CREATE).await,
            Change::Chmod => u.chmod(s.dir, 0o700).await.map(drop),
            // By name with O_CREAT, so that the MDT knows of it: a file open under a lock only is closed without a
            // request.
            Change::Close => u.release(u.new_file(s.dir, "file", 0).await?).await,
            // A write becomes a request when it is written back.
            Change::Write => {
                u.put(&s.file, 2, b"XY").await?;
                u.fsync(&s.file, false).await
            }
            Change::Append => {
                let file = u.open(&root(), s.file.fid(), O_RDWR | O_APPEND).await?;
                u.put(&file, 0, b"XY").await?;
                u.fsync(&file, false).await?;
                u.release(file).await
            }
            Change::Truncate => u.truncate(s.file.fid(), 3).await.map(drop),
            Change::Fallocate => u.fallocate(&s.file, 0, 0, 1 << 20).await,
        }
    }

    async fn check(self, u: &User, s: &Scene) {
        let names = u.names(s.dir).await;
        let want: &[&str] = match self {
            Change::Mkdir | Change::Create | Change::Symlink | Change::Link => &["empty", "file", "new", "victim"],
            Change::Unlink => &["empty", "file"],
            Change::Rmdir => &["file", "victim"],
            Change::Rename => &["empty", "file", "new"],
            _ => &["empty", "file", "victim"],
        };
        assert_eq!(names, want);
        let content = u.content(s.file.fid()).await;
        match self {
            Change::Write => assert_eq!(content, b"01XY456789"),
            Change::Append => assert_eq!(content, b"0123456789XY"),
            Change::Truncate => assert_eq!(content, b"012"),
            Change::Fallocate => assert_eq!((content.len(), &content[..10]), (1 << 20, &b"0123456789"[..])),
            _ => assert_eq!(content, b"0123456789"),
        }
        assert_eq!(u.stat(s.file.fid()).await.unwrap().nlink, if matches!(self, Change::Link) { 2 } else { 1 });
        let links = if matches!(self, Change::Mkdir) { 4 } else { 3 };
        assert_eq!(u.stat(s.dir).await.unwrap().nlink, if matches!(self, Change::Rmdir) { 2 } else { links });
    }
}

struct Scene {
    dir: Fid,
    file: Arc<OpenFile>,
}

async fn scene(u: &User) -> Scene {
    let dir = u.dir(ROOT, "scene").await.unwrap();
    u.file(dir, "victim", b"").await;
    u.dir(dir, "empty").await.unwrap();
    let file = u.new_file(dir, "file", 0).await.unwrap();
    u.put(&file, 0, b"0123456789").await.unwrap();
    u.fsync(&file, false).await.unwrap();
    Scene { dir, file }
}

fn arm(c: &Cluster, change: Change, what: &str) {
    let (server, opcode) = change.server_and_opcode();
    let faults = c.faults(server).expect("the server runs");
    faults.arm(&format!("rpc.{opcode}.{what}"), Fault::once(FaultAction::Drop));
}

/// One message of the change is lost; the change happens once all the same, and soon.
fn survives_a_lost(message: &'static str, change: Change) {
    story(1, 1, move |c| async move {
        let u = user(&c, 0);
        let s = scene(&u).await;
        arm(&c, change, message);
        let begun = c.rt().now();
        assert_eq!(change.make(&u, &s).await, Ok(()), "{change:?}, lost {message}");
        let took = c.rt().now().since(begun);
        assert!(took > secs(1) && took < secs(60), "the fault struck, and the client noticed in time: {took:?}");
        change.check(&u, &s).await;
        u.release(s.file).await.unwrap();
    });
}

/// The server executes the change, its reply is lost, and the server dies, before or after committing.
fn survives_a_crash(change: Change, committed: bool) {
    story(1, 2, move |c| async move {
        let (u, other) = (user(&c, 0), user(&c, 1));
        let s = Arc::new(scene(&u).await);
        let (server, _) = change.server_and_opcode();
        arm(&c, change, "drop_reply");
        let making = c.rt().spawn({
            let (u, s) = (u.clone(), s.clone());
            async move { assert_eq!(change.make(&u, &s).await, Ok(()), "{change:?}") }
        });
        c.rt().sleep(Duration::from_millis(100)).await;
        if committed {
            let file = other.open(&root(), s.file.fid(), 0).await.unwrap();
            other.fsync(&file, false).await.unwrap();
            other.release(file).await.unwrap();
        }
        assert!(!making.is_finished());
        c.crash(server, Crash::Process);
        c.rt().sleep(secs(3)).await;
        c.restart(server).await.unwrap();
        making.await;
        change.check(&other, &s).await;
        let s = Arc::try_unwrap(s).ok().expect("nobody else has the scene");
        u.release(s.file).await.unwrap();
    });
}

macro_rules! exactly_once {
    ($($name:ident: $change:ident,)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn happens_once_if_the_request_is_lost() {
                survives_a_lost("drop_request", Change::$change);
            }

            #[test]
            fn happens_once_if_the_reply_is_lost() {
                survives_a_lost("drop_reply", Change::$change);
            }

            #[test]
            fn happens_once_if_the_server_dies_after_its_commit() {
                survives_a_crash(Change::$change, true);
            }

            #[test]
            fn happens_once_if_the_server_dies_before_its_commit() {
                survives_a_crash(Change::$change, false);
            }
        }
    )*};
}

exactly_once! {
    mkdir: Mkdir,
    create: Create,
    symlink: Symlink,
    link: Link,
    unlink: Unlink,
    rmdir: Rmdir,
    rename: Rename,
    setxattr: Setxattr,
    chmod: Chmod,
    close: Close,
    write: Write,
    append: Append,
    truncate: Truncate,
    fallocate: Fallocate,
}

#[test]
fn what_was_synced_survives_every_server() {
    story(2, 1, |c| async move {
        let u = user(&c, 0);
        let file = u.striped_file(ROOT, "f", 0, stripes(-1, false)).await.unwrap();
        let data = pattern(1 << 20, 1);
        u.put(&file, 0, &data).await.unwrap();
        u.fsync(&file, false).await.unwrap();
        for server in c.servers() {
            c.crash(server, Crash::Process);
            c.restart(server).await.unwrap();
        }
        assert!(u.content(file.fid()).await == data);
        u.release(file).await.unwrap();
    });
}

/// The reply comes from the disk of a restarted server, and the file is open there all the same.
#[test]
fn an_open_that_was_committed_and_not_answered_keeps_its_file() {
    story(1, 2, |c| async move {
        let (u, other) = (user(&c, 0), user(&c, 1));
        let synced = other.new_file(ROOT, "synced", 0).await.unwrap();
        arm(&c, Change::Create, "drop_reply");
        let opened = Arc::new(parking_lot::Mutex::new(None));
        let opening = c.rt().spawn({
            let (u, opened) = (u.clone(), opened.clone());
            async move { *opened.lock() = Some(u.new_file(ROOT, "f", O_EXCL).await.unwrap()) }
        });
        c.rt().sleep(Duration::from_millis(100)).await;
        other.fsync(&synced, false).await.unwrap();
        assert!(!opening.is_finished());
        c.crash(Server::Mds, Crash::Process);
        c.restart(Server::Mds).await.unwrap();
        opening.await;
        let file = opened.lock().take().unwrap();
        other.remove(ROOT, "f").await.unwrap();
        c.rt().sleep(secs(100)).await;
        u.put(&file, 0, b"still open").await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        assert_eq!(u.get(&file, 0, 20).await, b"still open");
        u.release(file).await.unwrap();
        other.release(synced).await.unwrap();
    });
}

#[test]
fn a_read_waits_for_its_server() {
    story(1, 2, |c| async move {
        let u = user(&c, 0);
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"data").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        // From a client that has nothing of it cached.
        let reader = user(&c, 1);
        let handle = reader.open(&root(), file.fid(), 0).await.unwrap();
        let opened = handle.clone();
        c.crash(Server::Oss(0), Crash::Process);
        let reads = reader.clone();
        let reading = c.rt().spawn(async move { assert_eq!(reads.get(&handle, 0, 10).await, b"data") });
        c.rt().sleep(secs(300)).await;
        assert!(!reading.is_finished());
        c.restart(Server::Oss(0)).await.unwrap();
        let back = c.rt().now();
        reading.await;
        assert!(c.rt().now().since(back) < secs(40), "the client comes back soon: {:?}", c.rt().now().since(back));
        reader.release(opened).await.unwrap();
        u.release(file).await.unwrap();
    });
}

/// Imperative recovery: a client that hears of the restart comes back at once. A client that does not hear of it comes back at its next
/// attempt: an attempt under way when the server restarts may have 25 s left, and the pause after it is at most 12.5 s.
#[test]
fn who_is_told_of_a_restart_need_not_wait_for_the_next_try() {
    let pause = |told: bool| {
        story_in(Cluster::builder().oss(1).clients(1).imperative_recovery(told), |c| async move {
            let u = user(&c, 0);
            let file = u.new_file(ROOT, "f", 0).await.unwrap();
            u.put(&file, 0, b"data").await.unwrap();
            c.crash(Server::Oss(0), Crash::Process);
            let (writer, opened) = (u.clone(), file.clone());
            let syncing = c.rt().spawn(async move { writer.fsync(&opened, false).await.unwrap() });
            // Long enough for the pauses between tries to have grown to their full length.
            c.rt().sleep(secs(100)).await;
            c.restart(Server::Oss(0)).await.unwrap();
            let back = c.rt().now();
            syncing.await;
            let pause = c.rt().now().since(back);
            assert_eq!(u.content(file.fid()).await, b"data");
            u.release(file).await.unwrap();
            pause
        })
    };
    let (told, untold) = (pause(true), pause(false));
    assert!(told < secs(1), "told of the restart, and {told:?} later");
    assert!(untold > secs(1) && untold < secs(38), "not told of it: {untold:?}");
}

#[test]
fn work_goes_on_without_the_mgs() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        u.file(ROOT, "before", b"1").await;
        c.crash(Server::Mgs, Crash::Process);
        let fid = u.file(ROOT, "during", b"2").await;
        assert_eq!(u.content(fid).await, b"2");
        c.restart(Server::Mgs).await.unwrap();
        let late = User(c.mount_another(50).await.unwrap());
        assert_eq!(late.names(ROOT).await, ["before", "during"]);
        late.unmount().await;
    });
}

#[test]
fn a_client_cut_off_for_a_minute_goes_on() {
    story(1, 2, |c| async move {
        let u = user(&c, 0);
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.put(&file, 0, b"before").await.unwrap();
        c.net().partition([c.client_numbers()[0]], c.server_numbers());
        let (writer, handle) = (u.clone(), file.clone());
        let writing = c.rt().spawn(async move {
            assert_eq!(writer.put(&handle, 0, b"behind").await, Ok(6));
            assert_eq!(writer.fsync(&handle, false).await, Ok(()));
        });
        c.rt().sleep(secs(60)).await;
        assert!(!writing.is_finished());
        c.net().heal();
        writing.await;
        assert_eq!(user(&c, 1).content(file.fid()).await, b"behind");
        u.release(file).await.unwrap();
    });
}

#[test]
fn a_client_that_is_gone_for_long_is_evicted_and_comes_back() {
    story(1, 2, |c| async move {
        let (u, other) = (user(&c, 0), user(&c, 1));
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.remove(ROOT, "f").await.unwrap();
        let exports = c.exports(Server::Mds);
        c.net().partition([c.client_numbers()[0]], c.server_numbers());
        for _ in 0..60 {
            other.stat(ROOT).await.unwrap();
            c.rt().sleep(secs(10)).await;
        }
        assert_eq!(c.exports(Server::Mds), exports - 1, "the silent client is thrown out");
        assert_eq!(other.stat(file.fid()).await.map(drop), Err(Errno::ESTALE), "and its open file with it");
        c.net().heal();
        u.stat(ROOT).await.unwrap();
        u.file(ROOT, "again", b"").await;
        assert_eq!(u.release(file).await, Ok(()));
    });
}

#[test]
fn an_idle_client_is_not_evicted() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        let file = u.new_file(ROOT, "f", 0).await.unwrap();
        u.remove(ROOT, "f").await.unwrap();
        c.rt().sleep(secs(3600)).await;
        u.put(&file, 0, b"still mine").await.unwrap();
        assert_eq!(u.get(&file, 0, 20).await, b"still mine");
        u.release(file).await.unwrap();
    });
}
