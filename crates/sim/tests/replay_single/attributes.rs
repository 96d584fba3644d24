//! Attributes, extended attributes, access control lists and layouts.

use super::*;
use nacre_base::Timestamp;
use nacre_wire::attr::SetAttr;
use nacre_wire::layout::{ComponentSpec, LayoutSpec, STRIPE_COUNT_AUTO};
use nacre_wire::lov_ea;

const ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Makes a change of one file behind a barrier, and looks at it afterwards.
fn changed<F, G>(
    change: impl FnOnce(User, Fid) -> F + Send + 'static,
    check: impl FnOnce(User, Fid) -> G + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
    G: Future<Output = ()> + Send + 'static,
{
    witnessed(2, move |c, u, w| async move {
        let fid = u.file(ROOT, "f", b"0123456789").await;
        c.replay_barrier(MDS).await;
        change(u.clone(), fid).await;
        let changed = u.stat(fid).await.unwrap();
        assert_eq!(fail(&c, MDS).await, 1);
        let found = w.stat(fid).await.unwrap();
        assert_eq!((found.ctime, found.mtime), (changed.ctime, changed.mtime), "the times of then");
        check(w, fid).await;
    });
}

async fn set(u: &User, fid: Fid, attr: SetAttr) {
    u.setattr(&root(), fid, attr, None).await.unwrap();
}

#[test]
fn a_mode_that_was_set_is_set() {
    changed(
        |u, f| async move { assert!(u.chmod(f, 0o4711).await.is_ok()) },
        |w, f| async move { assert_eq!(w.stat(f).await.unwrap().mode & 0o7777, 0o4711) },
    );
}

/// 57, 58a: objects get the owner, too
#[test]
fn an_owner_that_was_set_is_set() {
    changed(
        |u, f| async move { set(&u, f, SetAttr { uid: Some(1000), gid: Some(100), ..SetAttr::default() }).await },
        |w, f| async move {
            let attr = w.stat(f).await.unwrap();
            assert_eq!((attr.uid, attr.gid), (1000, 100));
        },
    );
}

#[test]
fn times_that_were_set_are_set() {
    let times = |secs| Timestamp { secs, nanos: 7 };
    changed(
        move |u, f| async move {
            set(&u, f, SetAttr { mtime: Some(times(100)), atime: Some(times(200)), ..SetAttr::default() }).await;
        },
        move |w, f| async move {
            let attr = w.stat(f).await.unwrap();
            assert_eq!((attr.mtime, attr.atime), (times(100), times(200)));
        },
    );
}

/// 58b
#[test]
fn an_extended_attribute_that_was_set_is_set() {
    changed(
        |u, f| async move { u.setxattr(&root(), f, b"user.colour", b"blue", 0).await.unwrap() },
        |w, f| async move { assert_eq!(&w.getxattr(&root(), f, b"user.colour").await.unwrap()[..], b"blue") },
    );
}

/// 58b
#[test]
fn an_extended_attribute_of_sixty_kilobytes_comes_back_whole() {
    changed(
        |u, f| async move { u.setxattr(&root(), f, b"user.big", &pattern(60_000, 9), 0).await.unwrap() },
        |w, f| async move { assert!(w.getxattr(&root(), f, b"user.big").await.unwrap()[..] == pattern(60_000, 9)) },
    );
}

/// 58c: setting it a second time, because the first reply was lost, would fail
#[test]
fn an_extended_attribute_that_may_not_exist_is_set_once() {
    witnessed(1, |c, u, w| async move {
        const XATTR_CREATE: u32 = 1;
        let fid = u.file(ROOT, "f", b"").await;
        c.replay_barrier(MDS).await;
        c.mishap(MDS, Opcode::MdsReint, Mishap::LostReply);
        assert_eq!(u.setxattr(&root(), fid, b"user.x", b"1", XATTR_CREATE).await, Ok(()));
        assert!(c.has_struck(MDS));
        assert_eq!(fail(&c, MDS).await, 1);
        assert_eq!(&w.getxattr(&root(), fid, b"user.x").await.unwrap()[..], b"1");
        assert_eq!(u.setxattr(&root(), fid, b"user.x", b"2", XATTR_CREATE).await, Err(Errno::EEXIST));
    });
}

#[test]
fn an_extended_attribute_that_was_removed_is_not_there() {
    witnessed(1, |c, u, w| async move {
        let fid = u.file(ROOT, "f", b"").await;
        u.setxattr(&root(), fid, b"user.a", b"1", 0).await.unwrap();
        u.setxattr(&root(), fid, b"user.b", b"2", 0).await.unwrap();
        c.replay_barrier(MDS).await;
        u.removexattr(&root(), fid, b"user.a").await.unwrap();
        assert_eq!(fail(&c, MDS).await, 1);
        assert_eq!(w.getxattr(&root(), fid, b"user.a").await, Err(Errno::ENODATA));
        assert_eq!(&w.getxattr(&root(), fid, b"user.b").await.unwrap()[..], b"2");
    });
}

/// (tag, permissions, id) as getfacl shows them.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend([&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    bytes
}

fn lets_in_user_5() -> Vec<u8> {
    let none = u32::MAX;
    acl(&[(1, 6, none), (2, 4, 5), (4, 0, none), (16, 4, none), (32, 0, none)])
}

#[test]
fn an_access_control_list_lets_in_and_keeps_out() {
    changed(
        |u, f| async move { u.setxattr(&root(), f, ACL, &lets_in_user_5(), 0).await.unwrap() },
        |w, f| async move {
            let user = |uid| Credentials { uid, gid: uid, ..root() };
            assert_eq!(w.access(&user(5), f, 4).await, Ok(()));
            assert_eq!(w.access(&user(5), f, 2).await, Err(Errno::EACCES));
            assert_eq!(w.access(&user(6), f, 4).await, Err(Errno::EACCES));
            assert_eq!(w.stat(f).await.unwrap().mode & 0o777, 0o640, "the mask is the group's");
        },
    );
}

#[test]
fn a_default_access_control_list_is_inherited_by_what_is_made_behind_the_barrier() {
    witnessed(1, |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        c.replay_barrier(MDS).await;
        u.setxattr(&root(), d, DEFAULT_ACL, &lets_in_user_5(), 0).await.unwrap();
        let before = u.file(d, "before", b"").await;
        fail(&c, MDS).await;
        let after = w.file(d, "after", b"").await;
        for f in [before, after] {
            assert!(w.getxattr(&root(), f, ACL).await.unwrap().len() > 4, "it has a list");
            assert_eq!(w.access(&Credentials { uid: 5, gid: 5, ..root() }, f, 4).await, Ok(()));
        }
    });
}

/// Both an OST and the MDT take part in a truncation: here the MDT dies.
#[test]
fn a_file_that_was_truncated_is_as_short() {
    changed(
        |u, f| async move { assert!(u.truncate(f, 4).await.is_ok()) },
        |w, f| async move { assert_eq!((w.stat(f).await.unwrap().size, w.content(f).await), (4, b"0123".to_vec())) },
    );
}

/// 2c, 2d
#[test]
fn a_striped_file_keeps_its_objects_and_what_is_in_them() {
    witnessed(3, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let file = u.striped_file(ROOT, "f", O_EXCL, stripes(-1, false)).await.unwrap();
        let data = pattern(500_000, 1);
        u.put(&file, 0, &data).await.unwrap();
        let before = layout_of(&u, file.fid()).await;
        fail(&c, MDS).await;
        assert_eq!((layout_of(&w, file.fid()).await, before.stripe_count()), (before.clone(), 3));
        assert!(w.content(file.fid()).await == data);
        u.release(file).await.unwrap();
    });
}

#[test]
fn an_overstriped_file_keeps_its_objects_and_what_is_in_them() {
    witnessed(3, |c, u, w| async move {
        c.replay_barrier(MDS).await;
        let file = u.striped_file(ROOT, "f", O_EXCL, stripes(8, true)).await.unwrap();
        let data = pattern(900_000, 2);
        u.put(&file, 0, &data).await.unwrap();
        let before = layout_of(&u, file.fid()).await;
        fail(&c, MDS).await;
        assert_eq!((layout_of(&w, file.fid()).await, before.stripe_count()), (before.clone(), 8));
        assert!(w.content(file.fid()).await == data);
        u.release(file).await.unwrap();
    });
}

/// One stripe for 256 KiB, then all OSTs, then as many as suits.
fn progressive() -> LayoutSpec {
    let component = |end, stripe_count| ComponentSpec {
        end,
        stripe_size: 65536,
        stripe_count,
        stripe_offset: -1,
        overstripe: stripe_count == STRIPE_COUNT_AUTO,
        ..ComponentSpec::default()
    };
    LayoutSpec {
        components: vec![component(256 << 10, 1), component(1 << 20, -1), component(u64::MAX, STRIPE_COUNT_AUTO)],
    }
}

/// 132a
#[test]
fn components_that_got_their_objects_keep_them_and_others_get_theirs_later() {
    witnessed(3, |c, u, w| async move {
        let file = u.striped_file(ROOT, "f", O_EXCL, Some(progressive())).await.unwrap();
        c.replay_barrier(MDS).await;
        let data = pattern(600 << 10, 3);
        u.put(&file, 0, &data).await.unwrap();
        let before = layout_of(&u, file.fid()).await;
        let counts = |l: &nacre_wire::layout::Layout| l.components.iter().map(|c| c.stripes.len()).collect::<Vec<_>>();
        assert_eq!(counts(&before), [1, 3, 0]);
        assert!(fail(&c, MDS).await > 0);
        assert_eq!(layout_of(&w, file.fid()).await, before);
        let theirs = w.reopen(file.fid()).await;
        w.put(&theirs, 3 << 20, b"end").await.unwrap();
        w.release(theirs).await.unwrap();
        assert_eq!(u.get(&file, 3 << 20, 10).await, b"end");
        assert!(counts(&layout_of(&u, file.fid()).await)[2] > 0);
        assert!(u.get(&file, 0, data.len()).await == data);
        u.release(file).await.unwrap();
    });
}

#[test]
fn the_default_layout_of_a_directory_holds_for_files_before_and_after() {
    witnessed(3, |c, u, w| async move {
        let d = u.dir(ROOT, "d").await.unwrap();
        c.replay_barrier(MDS).await;
        let wish = stripes(6, true).unwrap();
        u.setxattr(&root(), d, b"lustre.lov", &lov_ea::encode_spec(&wish), 0).await.unwrap();
        let before = u.file(d, "before", b"1").await;
        fail(&c, MDS).await;
        assert_eq!(lov_ea::decode_spec(&w.getxattr(&root(), d, b"lustre.lov").await.unwrap()), Ok(wish));
        let after = w.file(d, "after", b"2").await;
        assert_eq!((layout_of(&w, before).await.stripe_count(), layout_of(&w, after).await.stripe_count()), (6, 6));
    });
}

/// 2c: `lfs setstripe` on a file without objects
#[test]
fn a_layout_chosen_for_a_file_without_objects_stays_chosen() {
    witnessed(3, |c, u, w| async move {
        let made = u.mknod(&root(), ROOT, b"f", nacre_wire::attr::mode::S_IFREG | 0o644, 0, 0).await.unwrap();
        c.replay_barrier(MDS).await;
        let wish = lov_ea::encode_spec(&stripes(3, false).unwrap());
        u.setxattr(&root(), made.fid, b"lustre.lov", &wish, 0).await.unwrap();
        fail(&c, MDS).await;
        let file = w.reopen(made.fid).await;
        w.put(&file, 0, &pattern(300_000, 4)).await.unwrap();
        w.release(file).await.unwrap();
        assert_eq!(layout_of(&w, made.fid).await.stripe_count(), 3);
        assert!(u.content(made.fid).await == pattern(300_000, 4));
    });
}
