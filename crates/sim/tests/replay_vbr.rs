//! A server crashes with changes of several clients that are not durable, and one of the clients does not come back. What
//! the others replay must find what it was based on, or fail and be told; see `docs/decisions/0012`.

use super::*;
use nacre_osd::mem::Crash;
use nacre_sim::cluster::Server;
use nacre_wire::attr::mode::S_ISUID;

/// The client that comes back, and whose changes the stories are about.
const SURVIVOR: usize = 0;
/// The client that does not.
const MISSING: usize = 1;
/// One that comes back too.
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

/// What a file contains at first.
const OLD: &[u8] = b"old content";

impl Scene {
    async fn new(c: Arc<Cluster>) -> Scene {
        let (u, missing) = (user(&c, SURVIVOR), user(&c, MISSING));
        let dir = u.dir(ROOT, "scene").await.unwrap();
        let (x, y) = (u.file(dir, "x", OLD).await, u.file(dir, "y", OLD).await);
        let (from, to) = (u.dir(dir, "from").await.unwrap(), u.dir(dir, "to").await.unwrap());
        // Who is not connected is not waited for.
        assert_eq!(user(&c, OTHER).content(x).await, OLD);
        missing.file(dir, "theirs", OLD).await;
        missing.remove(dir, "theirs").await.unwrap();
        let scene = Scene { c, u, missing, dir, x, y, from, to };
        scene.all_is_durable().await;
        scene
    }

    /// Nothing that happened so far is lost by a crash.
    async fn all_is_durable(&self) {
        self.u.sync().await.unwrap();
        self.c.rt().sleep(secs(30)).await;
    }

    /// The server dies, and the missing client with it; the server is started, and does not wait for the missing for long.
    async fn crash(&self, server: Server) {
        self.c.kill_client(MISSING);
        // What was written to an object is not there by chance.
        self.c.crash(server, Crash::PowerCut);
        self.c.restart(server).await.unwrap();
        assert_eq!(self.c.set_param(server, "*.*.recovery_time_soft", "20"), 1);
        // Answered when it is over.
        self.u.statfs().await.unwrap();
        self.c.rt().sleep(secs(60)).await;
        assert_eq!(status(&self.c, server, "status"), "COMPLETE");
        assert_eq!(status(&self.c, server, "VBR"), "ENABLED");
        let known = if server == Server::Mds { 3 } else { 4 };
        assert_eq!(status(&self.c, server, "completed_clients"), format!("{}/{known}", known - 1), "one is evicted");
    }

    /// The MDS crashes; so many replays fail.
    async fn crash_mds(&self, failed: usize) {
        self.crash(Server::Mds).await;
        self.check_failed(Server::Mds, failed);
    }

    /// The OSS crashes; so many replays fail.
    async fn crash_oss(&self, failed: usize) {
        self.crash(Server::Oss(0)).await;
        self.check_failed(Server::Oss(0), failed);
    }

    #[track_caller]
    fn check_failed(&self, server: Server, failed: usize) {
        let counted = status(&self.c, server, "failed_requests");
        assert_eq!(counted, if failed == 0 { String::new() } else { failed.to_string() });
    }

    /// Whether the survivor's program hears of a loss when it wants to be sure of a file or directory.
    async fn is_told(&self, fid: Fid) -> bool {
        let file = self.u.open(&root(), fid, 0).await.unwrap();
        let told = self.u.fsync(&file, false).await;
        let again = self.u.fsync(&file, false).await;
        self.u.release(file).await.unwrap();
        assert_eq!(again, Ok(()), "told once");
        assert!(told == Ok(()) || told == Err(Errno::EIO), "{told:?}");
        told.is_err()
    }

    /// Whether the survivor's program hears that its open file is no more.
    async fn is_lost(&self, file: &OpenFile) -> bool {
        // Of the MDT, or of an OST that has destroyed the objects.
        matches!(self.u.fsync(file, false).await, Err(Errno::ESTALE | Errno::ENOENT))
    }

    /// What everybody sees in a directory.
    async fn names_are(&self, dir: Fid, want: &[&str]) {
        assert_eq!(self.u.names(dir).await, want);
        assert_eq!(user(&self.c, OTHER).names(dir).await, want);
    }
}

/// A line of `recovery_status`; empty if there is none.
fn status(c: &Cluster, server: Server, line: &str) -> String {
    let (_, status) = c.param(server, "*.*.recovery_status").pop().expect("the server has a target");
    let value = status.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(": ").map(str::to_owned));
    value.unwrap_or_default()
}

/// Three clients, one of which will be missing.
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

    /// The survivor's program made a file of its own under a name that the missing client had freed: it must not be told
    /// that the old file is it.
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

    /// The missing client had replaced `x`: what the survivor removed was the new one.
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

    /// What the survivor replaced was the missing client's.
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

    /// The missing client gave a program away, and the survivor made it run as its new owner. Without the first the second
    /// would make it run as root.
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
            assert!(s.is_lost(&file).await);
            s.u.release(file).await.unwrap();
        });
    }
}

mod data {
    use super::*;

    /// Locks move between clients without a commit: only then an OST can lose what others have seen.
    async fn never_commits_for_others(s: &Scene) {
        assert_eq!(s.c.set_param(Server::Oss(0), "obdfilter.*.sync_on_lock_cancel", "never"), 1);
    }

    /// What was written is at the server, and not durable.
    async fn is_written_back(s: &Scene) {
        s.c.rt().sleep(secs(3)).await;
    }

    /// All writers of a shared file but one come back.
    #[test]
    fn written_side_by_side_does_not_mind_who_is_missing() {
        vbr(|s| async move {
            never_commits_for_others(&s).await;
            let (mine, theirs) = (s.u.reopen(s.x).await, s.missing.reopen(s.x).await);
            for i in 0..8 {
                s.missing.put(&theirs, 100 + i * 20, &[b't'; 10]).await.unwrap();
                s.u.put(&mine, 110 + i * 20, &[b'm'; 10]).await.unwrap();
            }
            is_written_back(&s).await;
            s.crash_oss(0).await;
            let content = user(&s.c, OTHER).content(s.x).await;
            assert_eq!(&content[..OLD.len()], OLD);
            for i in 0..8 {
                assert_eq!(content[110 + i * 20..][..10], [b'm'; 10]);
            }
            assert!(!s.is_told(s.x).await);
            s.u.release(mine).await.unwrap();
        });
    }

    #[test]
    fn written_over_the_missing_clients_is_kept() {
        vbr(|s| async move {
            never_commits_for_others(&s).await;
            let (mine, theirs) = (s.u.reopen(s.x).await, s.missing.reopen(s.x).await);
            s.missing.put(&theirs, 0, b"theirs").await.unwrap();
            s.u.put(&mine, 0, b"mine").await.unwrap();
            is_written_back(&s).await;
            s.crash_oss(0).await;
            assert_eq!(user(&s.c, OTHER).content(s.x).await, b"minecontent");
            assert!(!s.is_told(s.x).await);
            s.u.release(mine).await.unwrap();
        });
    }

    /// The missing client had emptied the file: what was written into it then must not be mixed with what was there before.
    #[test]
    fn written_after_a_truncation_that_is_missing_is_lost() {
        vbr(|s| async move {
            never_commits_for_others(&s).await;
            let beside = s.u.reopen(s.y).await;
            s.missing.truncate(s.x, 0).await.unwrap();
            let file = s.u.reopen(s.x).await;
            s.u.put(&file, 0, b"new").await.unwrap();
            s.u.put(&beside, 0, b"new").await.unwrap();
            is_written_back(&s).await;
            s.crash_oss(1).await;
            assert_eq!(user(&s.c, OTHER).content(s.x).await, OLD);
            assert_eq!(user(&s.c, OTHER).content(s.y).await, b"new content");
            assert!(s.is_told(s.x).await && !s.is_told(s.y).await);
            s.u.put(&file, 0, b"more").await.unwrap();
            assert_eq!(s.u.fsync(&file, false).await, Ok(()), "the file is good again");
            s.u.release(file).await.unwrap();
            s.u.release(beside).await.unwrap();
        });
    }

    #[test]
    fn cut_off_after_a_truncation_that_is_missing_is_not() {
        vbr(|s| async move {
            never_commits_for_others(&s).await;
            s.missing.truncate(s.x, 0).await.unwrap();
            s.u.truncate(s.x, 5).await.unwrap();
            is_written_back(&s).await;
            s.crash_oss(1).await;
            assert_eq!(user(&s.c, OTHER).content(s.x).await, OLD);
            assert!(s.is_told(s.x).await);
        });
    }

    /// The survivor's own truncation comes before its write again.
    #[test]
    fn written_after_a_truncation_of_ones_own_is_kept() {
        vbr(|s| async move {
            never_commits_for_others(&s).await;
            let theirs = s.missing.reopen(s.x).await;
            s.missing.put(&theirs, 0, b"theirs").await.unwrap();
            s.u.truncate(s.x, 3).await.unwrap();
            let file = s.u.reopen(s.x).await;
            s.u.put(&file, 5, b"new").await.unwrap();
            is_written_back(&s).await;
            s.crash_oss(0).await;
            assert_eq!(user(&s.c, OTHER).content(s.x).await, b"old\0\0new");
            assert!(!s.is_told(s.x).await);
            s.u.release(file).await.unwrap();
        });
    }
}

mod course {
    use super::*;
    use nacre_base::fault::{Fault, FaultAction};

    /// Lustre's first case: two directories, two clients, one of which is missing.
    #[test]
    fn clients_in_directories_of_their_own_do_not_need_each_other() {
        vbr(|s| async move {
            let mut made = Vec::new();
            for i in 0..25 {
                made.push(s.u.file(s.from, &format!("{i:02}"), b"mine").await);
                s.missing.file(s.to, &format!("{i:02}"), b"theirs").await;
            }
            for i in 0..5 {
                s.u.remove(s.from, &format!("{i:02}")).await.unwrap();
            }
            s.crash_mds(0).await;
            let left: Vec<String> = (5..25).map(|i| format!("{i:02}")).collect();
            assert_eq!(user(&s.c, OTHER).names(s.from).await, left);
            for fid in &made[5..] {
                assert_eq!(user(&s.c, OTHER).content(*fid).await, b"mine");
            }
            s.names_are(s.to, &[]).await;
            assert!(!s.is_told(s.from).await);
        });
    }

    /// What was built on a change that fails fails too, whoever made it; what was not does not.
    #[test]
    fn a_failure_takes_with_it_what_was_built_on_it() {
        vbr(|s| async move {
            let other = user(&s.c, OTHER);
            s.missing.chmod(s.dir, 0o777).await.unwrap();
            let lost = s.u.dir(s.dir, "lost").await.unwrap();
            s.u.chmod(lost, 0o700).await.unwrap();
            other.file(lost, "lost too", b"").await;
            other.file(s.to, "kept", b"").await;
            s.u.chmod(s.x, 0o640).await.unwrap();
            other.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
            s.crash_mds(3).await;
            s.names_are(s.dir, &["from", "to", "x", "y"]).await;
            s.names_are(s.to, &["kept"]).await;
            let x = s.u.stat(s.x).await.unwrap();
            assert_eq!((x.uid, x.mode & 0o777), (ALICE, 0o640));
        });
    }

    /// A client whose answer gets lost asks again, and must not hear that all is well.
    #[test]
    fn who_does_not_hear_of_a_failure_hears_of_it_the_next_time() {
        vbr(|s| async move {
            s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
            s.u.chmod(s.x, S_ISUID | 0o755).await.unwrap();
            s.c.kill_client(MISSING);
            s.c.crash(Server::Mds, Crash::Process);
            s.c.restart(Server::Mds).await.unwrap();
            assert_eq!(s.c.set_param(Server::Mds, "*.*.recovery_time_soft", "60"), 1);
            let faults = s.c.faults(Server::Mds).expect("it runs");
            faults.arm(&format!("rpc.{}.drop_reply", nacre_wire::Opcode::MdsReint), Fault::once(FaultAction::Drop));
            s.c.rt().sleep(secs(300)).await;
            assert_eq!(status(&s.c, Server::Mds, "status"), "COMPLETE");
            s.check_failed(Server::Mds, 1);
            assert_eq!(s.u.stat(s.x).await.unwrap().mode & 0o7777, 0o644);
            assert!(s.is_told(s.x).await);
        });
    }

    /// The server dies again in the middle of the recovery: what failed fails again.
    #[test]
    fn a_second_crash_changes_nothing() {
        vbr(|s| async move {
            s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
            s.u.chmod(s.x, S_ISUID | 0o755).await.unwrap();
            s.u.chmod(s.y, 0o640).await.unwrap();
            s.c.kill_client(MISSING);
            for _ in 0..2 {
                s.c.crash(Server::Mds, Crash::Process);
                s.c.restart(Server::Mds).await.unwrap();
                assert_eq!(s.c.set_param(Server::Mds, "*.*.recovery_time_soft", "20"), 1);
                s.c.rt().sleep(secs(10)).await;
                assert_eq!(status(&s.c, Server::Mds, "status"), "RECOVERING");
            }
            s.c.rt().sleep(secs(60)).await;
            s.check_failed(Server::Mds, 1);
            assert_eq!(s.u.stat(s.x).await.unwrap().mode & 0o7777, 0o644);
            assert_eq!(s.u.stat(s.y).await.unwrap().mode & 0o7777, 0o640);
            assert!(s.is_told(s.x).await && !s.is_told(s.y).await);
        });
    }

    #[test]
    fn syncfs_tells_of_any_loss() {
        vbr(|s| async move {
            s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
            s.u.chmod(s.x, S_ISUID | 0o755).await.unwrap();
            s.crash_mds(1).await;
            assert_eq!((s.u.sync().await, s.u.sync().await), (Err(Errno::EIO), Ok(())));
        });
    }

    /// The missing client is only late, but too late.
    #[test]
    fn who_comes_late_is_evicted_and_told() {
        story(1, 3, |c| async move {
            let s = Scene::new(c.clone()).await;
            s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
            s.u.chmod(s.x, S_ISUID | 0o755).await.unwrap();
            s.u.chmod(s.y, 0o640).await.unwrap();
            c.net().partition([c.client_numbers()[MISSING]], c.server_numbers());
            c.crash(Server::Mds, Crash::Process);
            c.restart(Server::Mds).await.unwrap();
            assert_eq!(c.set_param(Server::Mds, "*.*.recovery_time_soft", "20"), 1);
            c.rt().sleep(secs(60)).await;
            assert_eq!(status(&c, Server::Mds, "completed_clients"), "2/3");
            c.net().heal();
            let x = s.missing.stat(s.x).await.unwrap();
            assert_eq!((x.uid, x.mode & 0o7777), (0, 0o644));
            let file = s.missing.open(&root(), s.x, 0).await.unwrap();
            assert_eq!(s.missing.fsync(&file, false).await, Err(Errno::EIO));
            s.missing.release(file).await.unwrap();
            assert!(s.is_told(s.x).await && !s.is_told(s.y).await);
            s.missing.file(s.dir, "again", b"back").await;
            s.names_are(s.dir, &["again", "from", "to", "x", "y"]).await;
        });
    }

    /// The missing client is late, but in time: nothing is missing.
    #[test]
    fn who_comes_late_but_in_time_is_waited_for() {
        story(1, 3, |c| async move {
            let s = Scene::new(c.clone()).await;
            s.missing.setattr(&root(), s.x, owner(ALICE), None).await.unwrap();
            s.u.chmod(s.x, S_ISUID | 0o755).await.unwrap();
            c.net().partition([c.client_numbers()[MISSING]], c.server_numbers());
            c.crash(Server::Mds, Crash::Process);
            c.restart(Server::Mds).await.unwrap();
            c.rt().sleep(secs(200)).await;
            assert_eq!(status(&c, Server::Mds, "status"), "RECOVERING");
            c.net().heal();
            let x = s.u.stat(s.x).await.unwrap();
            assert_eq!((x.uid, x.mode & 0o7777), (ALICE, S_ISUID | 0o755));
            c.rt().sleep(secs(60)).await;
            assert_eq!(status(&c, Server::Mds, "completed_clients"), "3/3");
            assert_eq!(status(&c, Server::Mds, "VBR"), "DISABLED");
            s.check_failed(Server::Mds, 0);
            assert!(!s.is_told(s.x).await);
        });
    }

    /// Whoever unmounts in the middle of a recovery is missing as well.
    #[test]
    fn an_administrator_who_does_not_wait_loses_only_what_is_missing() {
        vbr(|s| async move {
            s.missing.file(s.dir, "lost", b"").await;
            s.u.file(s.dir, "made", b"new").await;
            s.all_is_durable().await;
            s.missing.file(s.dir, "lost too", b"").await;
            s.u.file(s.dir, "lost as well", b"").await;
            s.c.kill_client(MISSING);
            s.c.crash(Server::Mds, Crash::Process);
            s.c.restart(Server::Mds).await.unwrap();
            s.c.rt().sleep(secs(5)).await;
            assert_eq!(s.c.set_param(Server::Mds, "*.*.abort_recovery", "1"), 1);
            s.c.rt().sleep(secs(5)).await;
            assert_eq!(status(&s.c, Server::Mds, "status"), "COMPLETE");
            s.names_are(s.dir, &["from", "lost", "made", "to", "x", "y"]).await;
            assert!(s.is_told(s.dir).await);
        });
    }
}
