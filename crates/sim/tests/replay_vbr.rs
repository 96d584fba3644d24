//! A server crashes with changes of several clients that are not durable, and one of the clients does not come back. The
//! replays of the others must find the state that they were based on, or fail and be reported; see `docs/decisions/0012`.

mod course;
mod data;

use super::*;
use nacre_osd::mem::Crash;
use nacre_sim::cluster::Server;
use nacre_wire::attr::mode::S_ISUID;

/// The client that comes back, and whose changes the stories are about.
const SURVIVOR: usize = 0;
/// The client that does not come back.
const MISSING: usize = 1;
/// Another client that comes back.
const OTHER: usize = 2;

const ALICE: u32 = 1000;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

/// A directory with a file `x`, a file `y` and directories `from` and `to`; all of it durable.
struct Scene {
    c: Arc<Cluster>,
    u: User,
    missing: User,
    dir: Fid,
    x: Fid,
    y: Fid,
    from: Fid,
    to: Fid,
}

/// Initial content of a file.
const OLD: &[u8] = b"old content";

impl Scene {
    async fn new(c: Arc<Cluster>) -> Scene {
        let (u, missing) = (user(&c, SURVIVOR), user(&c, MISSING));
        let dir = u.dir(ROOT, "scene").await.unwrap();
        let (x, y) = (u.file(dir, "x", OLD).await, u.file(dir, "y", OLD).await);
        let (from, to) = (u.dir(dir, "from").await.unwrap(), u.dir(dir, "to").await.unwrap());
        // Connects, because a recovery waits only for clients that were connected.
        assert_eq!(user(&c, OTHER).content(x).await, OLD);
        missing.file(dir, "theirs", OLD).await;
        missing.remove(dir, "theirs").await.unwrap();
        let scene = Scene { c, u, missing, dir, x, y, from, to };
        scene.all_is_durable().await;
        scene
    }

    /// Makes everything durable that happened so far.
    async fn all_is_durable(&self) {
        self.u.sync().await.unwrap();
        self.c.rt().sleep(secs(30)).await;
    }

    /// The server dies, and the missing client with it; the server starts again, and does not wait long for the missing
    /// client.
    async fn crash(&self, server: Server) {
        self.c.kill_client(MISSING);
        // A power cut, so that data written to an object is not there by chance.
        self.c.crash(server, Crash::PowerCut);
        self.c.restart(server).await.unwrap();
        assert_eq!(self.c.set_param(server, "*.*.recovery_time_soft", "20"), 1);
        // Answered when the recovery is over.
        self.u.statfs().await.unwrap();
        self.c.rt().sleep(secs(60)).await;
        assert_eq!(status(&self.c, server, "status"), "COMPLETE");
        assert_eq!(status(&self.c, server, "VBR"), "ENABLED");
        let known = if server == Server::Mds { 3 } else { 4 };
        assert_eq!(status(&self.c, server, "completed_clients"), format!("{}/{known}", known - 1), "one is evicted");
    }

    /// Crashes the MDS; `failed` replays fail.
    async fn crash_mds(&self, failed: usize) {
        self.crash(Server::Mds).await;
        self.check_failed(Server::Mds, failed);
    }

    /// Crashes the OSS; `failed` replays fail.
    async fn crash_oss(&self, failed: usize) {
        self.crash(Server::Oss(0)).await;
        self.check_failed(Server::Oss(0), failed);
    }

    #[track_caller]
    fn check_failed(&self, server: Server, failed: usize) {
        let counted = status(&self.c, server, "failed_requests");
        assert_eq!(counted, if failed == 0 { String::new() } else { failed.to_string() });
    }

    /// True if fsync of a file or directory tells the survivor's program of a loss.
    async fn is_told(&self, fid: Fid) -> bool {
        let file = self.u.open(&root(), fid, 0).await.unwrap();
        let told = self.u.fsync(&file, false).await;
        let again = self.u.fsync(&file, false).await;
        self.u.release(file).await.unwrap();
        assert_eq!(again, Ok(()), "told once");
        assert!(told == Ok(()) || told == Err(Errno::EIO), "{told:?}");
        told.is_err()
    }

    /// True if the survivor's program is told that the file it made is lost, and then finds it gone.
    async fn is_lost(&self, file: &OpenFile) -> bool {
        self.u.fsync(file, false).await == Err(Errno::EIO) && self.is_gone(file).await
    }

    /// True if the survivor's program is told that its open file is gone.
    async fn is_gone(&self, file: &OpenFile) -> bool {
        // From the MDT, or from an OST that has destroyed the objects.
        matches!(self.u.fsync(file, false).await, Err(Errno::ESTALE | Errno::ENOENT))
    }

    /// Checks the names that all clients see in a directory.
    async fn names_are(&self, dir: Fid, want: &[&str]) {
        assert_eq!(self.u.names(dir).await, want);
        assert_eq!(user(&self.c, OTHER).names(dir).await, want);
    }
}

/// A field of `recovery_status`; empty if there is none.
fn status(c: &Cluster, server: Server, field: &str) -> String {
    c.recovery_status(server, field)
}

/// Tells a story with three clients, one of which will be missing.
fn vbr<F, Fut>(tell: F)
where
    F: FnOnce(Scene) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    story(1, 3, |c| async move { tell(Scene::new(c).await).await });
}

fn owner(uid: u32) -> SetAttr {
    SetAttr { uid: Some(uid), ..SetAttr::default() }
}

mod create {
    use super::*;

    #[test]
    fn needs_nothing_of_others_in_the_same_directory() {
        vbr(|s| async move {
            s.missing.file(s.dir, "lost", b"").await;
            s.missing.remove(s.dir, "y").await.unwrap();
            s.missing.dir(s.dir, "lost dir").await.unwrap();
            let made = s.u.file(s.dir, "made", b"new").await;
            s.u.dir(s.dir, "made dir").await.unwrap();
            s.crash_mds(0).await;
            s.names_are(s.dir, &["from", "made", "made dir", "to", "x", "y"]).await;
            assert_eq!(s.u.content(made).await, b"new");
            assert!(!s.is_told(s.dir).await && !s.is_told(made).await);
        });
    }

    #[test]
    fn checks_the_directory_it_is_made_in() {
        vbr(|s| async move {
            s.missing.chmod(s.dir, 0o2777).await.unwrap();
            let lost = s.u.new_file(s.dir, "lost", O_EXCL).await.unwrap();
            let elsewhere = s.u.file(s.to, "made", b"new").await;
            s.crash_mds(1).await;
            s.names_are(s.dir, &["from", "to", "x", "y"]).await;
            assert_eq!(s.u.content(elsewhere).await, b"new");
            assert!(s.is_lost(&lost).await);
            s.u.release(lost).await.unwrap();
            assert!(s.is_told(s.dir).await && !s.is_told(s.to).await);
        });
    }

    #[test]
    fn of_directories_links_and_devices_checks_it_too() {
        vbr(|s| async move {
            s.missing.setattr(&root(), s.dir, owner(ALICE), None).await.unwrap();
            s.u.dir(s.dir, "d").await.unwrap();
            s.u.symlink(&root(), s.dir, b"s", b"target").await.unwrap();
            s.u.link(&root(), s.x, s.dir, b"l").await.unwrap();
            s.crash_mds(3).await;
            s.names_are(s.dir, &["from", "to", "x", "y"]).await;
            assert_eq!(s.u.stat(s.x).await.unwrap().nlink, 1);
            assert!(s.is_told(s.dir).await && s.is_told(s.x).await);
        });
    }

    #[test]
    fn checks_the_default_layout_it_inherits() {
        vbr(|s| async move {
            let striped = nacre_wire::lov_ea::encode_spec(&stripes(1, false).unwrap());
            s.missing.setxattr(&root(), s.dir, b"lustre.lov", &striped, 0).await.unwrap();
            let lost = s.u.new_file(s.dir, "lost", O_EXCL).await.unwrap();
            s.crash_mds(1).await;
            s.names_are(s.dir, &["from", "to", "x", "y"]).await;
            assert!(s.is_lost(&lost).await);
            s.u.release(lost).await.unwrap();
        });
    }

    /// The survivor's program created a file under a name that the missing client had freed: its open must not lead to
    /// the old file.
    #[test]
    fn does_not_take_an_old_file_for_the_new_one() {
        vbr(|s| async move {
            s.missing.remove(s.dir, "x").await.unwrap();
            let file = s.u.new_file(s.dir, "x", 0).await.unwrap();
            assert_ne!(file.fid(), s.x);
            s.u.put(&file, 0, b"mine").await.unwrap();
            s.crash_mds(1).await;
            assert_eq!(s.u.find(s.dir, "x").await.unwrap().fid, s.x);
            assert_eq!(s.u.content(s.x).await, OLD);
            assert!(s.is_lost(&file).await);
            s.u.release(file).await.unwrap();
        });
    }

    #[test]
    fn in_a_directory_that_only_the_missing_client_made_is_lost() {
        vbr(|s| async move {
            let theirs = s.missing.dir(s.dir, "theirs").await.unwrap();
            let file = s.u.new_file(theirs, "lost", O_EXCL).await.unwrap();
            let beside = s.u.file(s.dir, "beside", b"kept").await;
            s.crash_mds(1).await;
            s.names_are(s.dir, &["beside", "from", "to", "x", "y"]).await;
            assert_eq!(s.u.content(beside).await, b"kept");
            assert_eq!(s.u.stat(theirs).await.map(drop), Err(Errno::ESTALE));
            assert!(s.is_lost(&file).await);
            s.u.release(file).await.unwrap();
        });
    }
}

mod unlink {
    use super::*;

    /// The missing client had replaced `x`: the survivor removed the new file.
    #[test]
    fn does_not_hit_the_old_file() {
        vbr(|s| async move {
            s.missing.remove(s.dir, "x").await.unwrap();
            s.missing.file(s.dir, "x", b"new").await;
            s.u.remove(s.dir, "x").await.unwrap();
            s.crash_mds(1).await;
            assert_eq!(s.u.find(s.dir, "x").await.unwrap().fid, s.x);
            assert_eq!(s.u.content(s.x).await, OLD);
            assert!(s.is_told(s.dir).await);
        });
    }

    #[test]
    fn needs_nothing_of_others_in_the_same_directory() {
        vbr(|s| async move {
            s.missing.file(s.dir, "lost", b"").await;
            s.missing.chmod(s.x, 0o600).await.unwrap();
            s.u.remove(s.dir, "x").await.unwrap();
            s.crash_mds(0).await;
            s.names_are(s.dir, &["from", "to", "y"]).await;
            assert!(!s.is_told(s.dir).await && s.u.is_gone(&s.c, s.x).await);
        });
    }

    #[test]
    fn checks_the_directory() {
        vbr(|s| async move {
            s.missing.chmod(s.dir, 0o777).await.unwrap();
            s.u.remove(s.dir, "x").await.unwrap();
            s.u.rmdir(&root(), s.dir, b"to").await.unwrap();
            s.crash_mds(2).await;
            s.names_are(s.dir, &["from", "to", "x", "y"]).await;
            assert_eq!(s.u.content(s.x).await, OLD);
            assert!(s.is_told(s.dir).await);
        });
    }

    #[test]
    fn of_a_directory_that_the_missing_client_emptied_fails() {
        vbr(|s| async move {
            s.u.file(s.to, "in the way", b"").await;
            s.all_is_durable().await;
            s.missing.remove(s.to, "in the way").await.unwrap();
            s.u.rmdir(&root(), s.dir, b"to").await.unwrap();
            s.u.rmdir(&root(), s.dir, b"from").await.unwrap();
            s.crash_mds(1).await;
            s.names_are(s.dir, &["to", "x", "y"]).await;
            s.names_are(s.to, &["in the way"]).await;
            assert!(s.is_told(s.dir).await);
        });
    }

    #[test]
    fn of_what_the_missing_client_made_fails() {
        vbr(|s| async move {
            s.missing.file(s.dir, "theirs", b"").await;
            s.u.remove(s.dir, "theirs").await.unwrap();
            s.u.remove(s.dir, "y").await.unwrap();
            s.crash_mds(1).await;
            s.names_are(s.dir, &["from", "to", "x"]).await;
        });
    }
}

mod rename {
    use super::*;

    #[test]
    fn needs_nothing_of_others_in_the_same_directories() {
        vbr(|s| async move {
            s.missing.file(s.dir, "lost", b"").await;
            s.missing.file(s.to, "lost", b"").await;
            s.missing.remove(s.dir, "y").await.unwrap();
            s.u.move_to(s.dir, "x", s.to, "moved").await.unwrap();
            s.u.move_to(s.dir, "from", s.to, "moved dir").await.unwrap();
            s.crash_mds(0).await;
            s.names_are(s.dir, &["to", "y"]).await;
            s.names_are(s.to, &["moved", "moved dir"]).await;
            assert_eq!(s.u.content(s.x).await, OLD);
        });
    }

    #[test]
    fn does_not_move_the_old_source() {
        vbr(|s| async move {
            s.missing.remove(s.dir, "x").await.unwrap();
            s.missing.file(s.dir, "x", b"new").await;
            s.u.move_to(s.dir, "x", s.to, "moved").await.unwrap();
            s.crash_mds(1).await;
            assert_eq!(s.u.find(s.dir, "x").await.unwrap().fid, s.x);
            s.names_are(s.to, &[]).await;
            assert!(s.is_told(s.dir).await && s.is_told(s.to).await);
        });
    }

    /// The name was free when the survivor moved something there.
    #[test]
    fn does_not_replace_what_the_missing_client_had_removed() {
        vbr(|s| async move {
            s.missing.remove(s.dir, "y").await.unwrap();
            s.u.move_to(s.dir, "x", s.dir, "y").await.unwrap();
            s.crash_mds(1).await;
            assert_eq!(s.u.find(s.dir, "x").await.unwrap().fid, s.x);
            assert_eq!(s.u.find(s.dir, "y").await.unwrap().fid, s.y);
            assert!(s.is_told(s.dir).await);
        });
    }

    /// The file that the survivor replaced was the missing client's.
    #[test]
    fn does_not_replace_another_target() {
        vbr(|s| async move {
            s.missing.remove(s.dir, "y").await.unwrap();
            s.missing.file(s.dir, "y", b"new").await;
            s.u.move_to(s.dir, "x", s.dir, "y").await.unwrap();
            s.crash_mds(1).await;
            s.names_are(s.dir, &["from", "to", "x", "y"]).await;
            assert_eq!(s.u.content(s.y).await, OLD);
        });
    }

    #[test]
    fn checks_both_directories() {
        vbr(|s| async move {
            s.u.file(s.from, "a", b"").await;
            s.u.file(s.dir, "b", b"").await;
            s.all_is_durable().await;
            s.missing.chmod(s.from, 0o777).await.unwrap();
            s.u.move_to(s.from, "a", s.to, "a").await.unwrap();
            s.u.move_to(s.dir, "b", s.from, "b").await.unwrap();
            s.u.move_to(s.dir, "x", s.to, "x").await.unwrap();
            s.crash_mds(2).await;
            s.names_are(s.from, &["a"]).await;
            s.names_are(s.dir, &["b", "from", "to", "y"]).await;
            s.names_are(s.to, &["x"]).await;
        });
    }

    #[test]
    fn by_the_missing_client_of_what_the_survivor_then_moved_on() {
        vbr(|s| async move {
            s.missing.move_to(s.dir, "x", s.from, "x").await.unwrap();
            s.u.move_to(s.from, "x", s.to, "x").await.unwrap();
            s.crash_mds(1).await;
            s.names_are(s.dir, &["from", "to", "x", "y"]).await;
            assert!(s.is_told(s.to).await);
        });
    }
}

mod link {
    use super::*;

    #[test]
    fn needs_nothing_of_others_but_the_file() {
        vbr(|s| async move {
            s.u.link(&root(), s.x, s.dir, b"x2").await.unwrap();
            s.all_is_durable().await;
            s.missing.remove(s.dir, "x2").await.unwrap();
            s.missing.file(s.to, "lost", b"").await;
            s.u.link(&root(), s.x, s.to, b"x3").await.unwrap();
            s.crash_mds(0).await;
            s.names_are(s.to, &["x3"]).await;
            s.names_are(s.dir, &["from", "to", "x", "x2", "y"]).await;
            assert_eq!(s.u.stat(s.x).await.unwrap().nlink, 3);
        });
    }

    #[test]
    fn under_a_name_that_the_missing_client_freed_fails() {
        vbr(|s| async move {
            s.missing.remove(s.dir, "y").await.unwrap();
            s.u.link(&root(), s.x, s.dir, b"y").await.unwrap();
            s.crash_mds(1).await;
            assert_eq!(s.u.find(s.dir, "y").await.unwrap().fid, s.y);
            assert_eq!(s.u.stat(s.x).await.unwrap().nlink, 1);
            assert!(s.is_told(s.x).await && s.is_told(s.dir).await);
        });
    }
}

mod attributes {
    use super::*;

    /// The missing client gave a program away, and the survivor made it run with its new owner's rights. Without the
    /// first change the second would make it run as root.
    #[test]
    fn permissions_that_another_owner_was_meant_to_give_are_not_given() {
        vbr(|s| async move {
            s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
            assert_eq!(s.u.chmod(s.x, S_ISUID | 0o755).await.unwrap().uid, ALICE);
            s.u.chmod(s.y, 0o600).await.unwrap();
            s.crash_mds(1).await;
            let x = s.u.stat(s.x).await.unwrap();
            assert_eq!((x.uid, x.mode & 0o7777), (0, 0o644));
            assert_eq!(s.u.stat(s.y).await.unwrap().mode & 0o7777, 0o600);
            assert!(s.is_told(s.x).await && !s.is_told(s.y).await);
        });
    }

    #[test]
    fn times_and_sizes_are_set_whatever_they_were() {
        vbr(|s| async move {
            s.missing.chmod(s.x, 0o666).await.unwrap();
            s.missing.truncate(s.x, 7).await.unwrap();
            let mtime = nacre_base::Timestamp { secs: 77, nanos: 0 };
            s.u.truncate(s.x, 3).await.unwrap();
            s.u.setattr(&root(), s.x, SetAttr { mtime: Some(mtime), ..SetAttr::default() }, None).await.unwrap();
            s.crash_mds(0).await;
            let x = s.u.stat(s.x).await.unwrap();
            assert_eq!((x.size, x.mtime, x.mode & 0o777), (3, mtime, 0o644));
            assert!(!s.is_told(s.x).await);
        });
    }

    #[test]
    fn extended_attributes_of_programs_do_not_mind_each_other() {
        vbr(|s| async move {
            s.missing.setxattr(&root(), s.x, b"user.lost", b"1", 0).await.unwrap();
            s.missing.setxattr(&root(), s.x, b"user.a", b"theirs", 0).await.unwrap();
            s.missing.chmod(s.x, 0o666).await.unwrap();
            s.u.setxattr(&root(), s.x, b"user.a", b"mine", 0).await.unwrap();
            s.u.setxattr(&root(), s.x, b"user.b", b"mine", XATTR_CREATE).await.unwrap();
            s.crash_mds(0).await;
            assert_eq!(&s.u.getxattr(&root(), s.x, b"user.a").await.unwrap()[..], b"mine");
            assert_eq!(&s.u.getxattr(&root(), s.x, b"user.b").await.unwrap()[..], b"mine");
            assert_eq!(s.u.getxattr(&root(), s.x, b"user.lost").await.map(drop), Err(Errno::ENODATA));
            assert!(!s.is_told(s.x).await);
        });
    }

    #[test]
    fn an_extended_attribute_that_replaced_a_missing_one_is_lost() {
        vbr(|s| async move {
            s.missing.setxattr(&root(), s.x, b"user.a", b"theirs", 0).await.unwrap();
            s.u.setxattr(&root(), s.x, b"user.a", b"mine", XATTR_REPLACE).await.unwrap();
            s.crash_mds(1).await;
            assert_eq!(s.u.getxattr(&root(), s.x, b"user.a").await.map(drop), Err(Errno::ENODATA));
            assert!(s.is_told(s.x).await);
        });
    }

    #[test]
    fn capabilities_check_the_owner() {
        vbr(|s| async move {
            s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
            s.u.setxattr(&root(), s.x, b"security.capability", b"everything", 0).await.unwrap();
            s.crash_mds(1).await;
            assert_eq!(s.u.getxattr(&root(), s.x, b"security.capability").await.map(drop), Err(Errno::ENODATA));
            assert!(s.is_told(s.x).await);
        });
    }
}

mod open {
    use super::*;

    #[test]
    fn files_stay_open_and_are_closed_whatever_the_missing_client_changed() {
        vbr(|s| async move {
            s.missing.chmod(s.x, 0o600).await.unwrap();
            s.missing.chmod(s.dir, 0o700).await.unwrap();
            let file = s.u.reopen(s.x).await;
            s.u.put(&file, 0, b"new").await.unwrap();
            s.crash_mds(0).await;
            s.u.put(&file, 3, b"er").await.unwrap();
            assert_eq!(s.u.fsync(&file, false).await, Ok(()));
            s.u.release(file).await.unwrap();
            assert_eq!(s.u.content(s.x).await, b"newerontent");
        });
    }

    #[test]
    fn what_the_missing_client_had_unlinked_is_there_again() {
        vbr(|s| async move {
            let file = s.u.reopen(s.x).await;
            s.missing.remove(s.dir, "x").await.unwrap();
            s.u.put(&file, 0, b"new").await.unwrap();
            s.crash_mds(0).await;
            assert_eq!(s.u.fsync(&file, false).await, Ok(()));
            s.u.release(file).await.unwrap();
            s.names_are(s.dir, &["from", "to", "x", "y"]).await;
            assert_eq!(s.u.content(s.x).await, b"new content");
        });
    }

    #[test]
    fn data_of_a_file_that_only_the_missing_client_made_is_told_to_be_lost() {
        vbr(|s| async move {
            let theirs = s.missing.file(s.dir, "theirs", b"").await;
            let file = s.u.reopen(theirs).await;
            s.u.put(&file, 0, b"mine").await.unwrap();
            s.crash_mds(0).await;
            s.names_are(s.dir, &["from", "to", "x", "y"]).await;
            assert!(s.is_gone(&file).await);
            s.u.release(file).await.unwrap();
        });
    }
}
