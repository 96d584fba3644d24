//! Inode locks: when they are granted, and which clients a change waits for.

use super::cluster::*;
use super::holder::*;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Fid};
use nacre_rt::Rt;
use nacre_wire::attr::{Credentials, SetAttr};
use nacre_wire::ldlm::inode_bits::{ALL, LAYOUT, LOOKUP, PERM, UPDATE, XATTR};
use nacre_wire::mds::open_flags::{O_CREAT, O_RDWR, O_TRUNC};
use nacre_wire::mds::*;
use nacre_wire::{Opcode, attr::mode};
use std::future::Future;

/// Seconds without an answer after which a test calls a request waiting.
const WAIT: u64 = 5;

/// `d/f` and `e`, created some time ago by a client of its own; and two holders.
struct Stage {
    cluster: Cluster,
    one: Holder,
    two: Holder,
    d: Fid,
    e: Fid,
    f: Fid,
}

fn stage<F: Future<Output = ()> + Send + 'static>(scenario: impl FnOnce(Rt, Stage) -> F + Send + 'static) {
    run(|rt| async move {
        let cluster = Cluster::start(&rt, 1).await;
        let maker = cluster.client(9);
        let d = maker.mkdir(Fid::ROOT, "d").await.unwrap().attr.fid;
        let e = maker.mkdir(Fid::ROOT, "e").await.unwrap().attr.fid;
        let f = maker.open(d, "f", O_CREAT | O_RDWR).await.unwrap();
        maker.close(f.attr.fid, f.handle).await.unwrap();
        rt.sleep(secs(WAIT)).await;
        let (one, two) = (cluster.holder(1), cluster.holder(2));
        scenario(rt, Stage { cluster, one, two, d, e, f: f.attr.fid }).await;
    });
}

fn chmod(fid: Fid, mode: u32) -> ReintRecord {
    ReintRecord::Setattr(ReintSetattr { fid, set: SetAttr { mode: Some(mode), ..SetAttr::default() }, handle: 0 })
}

fn rename(old: (Fid, &str), new: (Fid, &str), flags: u32) -> ReintRecord {
    let (old_name, new_name) = (super::super::name(old.1), super::super::name(new.1));
    ReintRecord::Rename(ReintRename { old_parent: old.0, old_name, new_parent: new.0, new_name, flags })
}

#[test]
fn a_change_waits_for_other_holders_and_not_for_its_own_client() {
    stage(|rt, s| async move {
        assert_eq!(s.one.getattr(s.f, ATTR).await.unwrap().lock.unwrap().bits, ATTR);
        s.one.set_manners(Manners::Keeps);
        let began = rt.now();
        s.one.client.reint::<AttrReply>(chmod(s.f, 0o600)).await.unwrap();
        assert!(rt.now().since(began) < secs(1) && s.one.callbacks().is_empty(), "its own lock");
        assert_eq!(s.one.bits(s.f), ATTR, "which stays");

        let f = s.f;
        let mut change = s.two.client.start(move |c| async move { c.reint::<AttrReply>(chmod(f, 0o640)).await });
        rt.sleep(secs(WAIT)).await;
        assert!(change.try_recv().is_err(), "the other's lock");
        assert_eq!(s.one.callbacks(), [(f, LOOKUP | PERM | UPDATE)]);
        let read = s.two.client.getattr(f).await.unwrap();
        assert_eq!(read.attr.mode & 0o777, 0o600, "nothing has changed yet, and reading waits for nobody");
        assert_eq!(s.one.getattr(f, ATTR).await.unwrap().lock, None, "somebody waits");
        s.one.give_back_all().await;
        assert_eq!(change.await.unwrap().unwrap().attr.mode & 0o777, 0o640);
        assert_eq!(s.cluster.server.mdt.lock_counts(), (0, 0));
    });
}

#[test]
fn a_lock_is_granted_with_what_the_answer_tells() {
    stage(|_, s| async move {
        let lock = s.one.getattr(s.f, ALL).await.unwrap().lock.unwrap();
        assert_eq!(lock.bits, ATTR | XATTR);
        let again = s.one.getattr(s.f, LOOKUP).await.unwrap().lock.unwrap();
        assert_eq!(again.handle, lock.handle, "one lock for each inode");
        assert_eq!(s.one.getattr(s.f, 0).await.unwrap().lock, None, "nobody asked");
        assert_eq!(s.two.getattr(s.f, PERM).await.unwrap().lock.unwrap().bits, PERM, "readers share");

        let found = s.one.lookup(s.d, "f", ATTR, ALL).await.unwrap();
        assert_eq!(found.found.unwrap().lock.unwrap().handle, lock.handle);
        assert_eq!(found.parent_lock.unwrap().bits, UPDATE, "of a directory only entries are told");
        let made = s.one.client.open(s.e, "new", O_CREAT | O_RDWR).await.unwrap();
        assert_eq!(made.lock, None);
        let opened: OpenReply = s.one.client.modify(Opcode::MdsOpen, &open(s.d, "f", O_RDWR, ATTR)).await.unwrap();
        assert_eq!(opened.lock.unwrap().handle, lock.handle);
        let fid = s.one.client.new_fid();
        let create = Open { child: fid, ..open(s.e, "newer", O_CREAT | O_RDWR, ATTR) };
        let opened: OpenReply = s.one.client.modify(Opcode::MdsOpen, &create).await.unwrap();
        assert_eq!((opened.created, opened.lock.unwrap().bits), (true, ATTR));
        let reint = Reint { want: ATTR, ..chmod_by_root(s.f) };
        let changed: AttrReply = s.one.client.modify(Opcode::MdsReint, &reint).await.unwrap();
        assert_eq!(changed.lock.unwrap().handle, lock.handle);
    });
}

fn open(parent: Fid, n: &str, flags: u32, want: u64) -> Open {
    Open { parent, name: super::super::name(n), flags, want, mode: 0o644, ..Open::default() }
}

fn chmod_by_root(fid: Fid) -> Reint {
    Reint { cred: Credentials::root(), now: nacre_base::Timestamp::ZERO, want: 0, record: chmod(fid, 0o611) }
}

#[test]
fn the_answer_to_a_change_brings_a_lock_too() {
    stage(|_, s| async move {
        let reint = Reint { want: ATTR, ..chmod_by_root(s.f) };
        let changed: AttrReply = s.one.client.modify(Opcode::MdsReint, &reint).await.unwrap();
        assert_eq!(changed.lock.unwrap().bits, ATTR);
    });
}

#[test]
fn a_name_that_is_not_there_can_be_known_too() {
    stage(|_, s| async move {
        let asked = s.one.lookup(s.d, "absent", ATTR, UPDATE).await.unwrap();
        assert_eq!((asked.found, asked.parent_lock.unwrap().bits), (None, UPDATE));
        assert_eq!(s.one.lookup(s.d, "absent", ATTR, 0).await.map(drop), Err(Errno::ENOENT));
        assert_eq!(s.one.lookup(s.f, "absent", ATTR, UPDATE).await.map(drop), Err(Errno::ENOTDIR));
        let gone = Fid { oid: 99, ..s.d };
        assert_eq!(s.one.lookup(gone, "absent", ATTR, UPDATE).await.map(drop), Err(Errno::ENOENT));
        s.two.client.mkdir(s.d, "absent").await.unwrap();
        assert_eq!(s.one.callbacks(), [(s.d, UPDATE)]);
    });
}

#[test]
fn what_fails_or_changes_nothing_calls_nobody_back() {
    stage(|_, s| async move {
        s.one.readpage(Fid::ROOT, ALL, UPDATE).await.unwrap();
        s.one.readpage(s.d, ALL, UPDATE).await.unwrap();
        let two = &s.two.client;
        assert_eq!(two.mkdir(Fid::ROOT, "d").await.map(drop), Err(Errno::EEXIST));
        assert_eq!(two.unlink(s.d, "absent").await.map(drop), Err(Errno::ENOENT));
        assert_eq!(
            two.reint::<RenameReply>(rename((Fid::ROOT, "d"), (s.d, "x"), 0)).await.map(drop),
            Err(Errno::EINVAL)
        );
        let opened = two.open(s.d, "f", O_RDWR | O_CREAT).await.unwrap();
        two.close(s.f, opened.handle).await.unwrap();
        assert_eq!(s.one.callbacks(), []);
    });
}

#[test]
fn an_unlink_calls_back_the_name_and_the_directory() {
    stage(|rt, s| async move {
        s.one.lookup(s.d, "f", ATTR, UPDATE).await.unwrap();
        s.one.set_manners(Manners::Converts);
        s.two.client.unlink(s.d, "f").await.unwrap();
        let mut called = s.one.callbacks();
        called.sort();
        let mut expected = [(s.d, UPDATE), (s.f, LOOKUP | UPDATE)];
        expected.sort();
        assert_eq!(called, expected);
        rt.sleep(secs(1)).await;
        assert_eq!((s.one.bits(s.d), s.one.bits(s.f)), (0, PERM | LAYOUT), "nobody waits for the rest");
        assert_eq!(s.one.getattr(s.f, ATTR).await.unwrap().lock, None, "nothing leads there any more");
    });
}

#[test]
fn a_rename_calls_back_both_directories_what_moves_and_what_it_replaces() {
    stage(|_, s| async move {
        let g = s.cluster.client(8).open(s.e, "g", O_CREAT | O_RDWR).await.unwrap().attr.fid;
        s.cluster.rt.sleep(secs(WAIT)).await;
        s.one.lookup(s.d, "f", ATTR, UPDATE).await.unwrap();
        s.one.lookup(s.e, "g", ATTR, UPDATE).await.unwrap();
        let reply: RenameReply = s.two.client.reint(rename((s.d, "f"), (s.e, "g"), 0)).await.unwrap();
        let mut called = s.one.callbacks();
        called.sort();
        let mut expected = [(s.d, UPDATE), (s.e, UPDATE), (s.f, LOOKUP | UPDATE), (g, LOOKUP | UPDATE)];
        expected.sort();
        assert_eq!(called, expected);
        let (moved, replaced) = (reply.moved.unwrap(), reply.replaced.unwrap());
        assert_eq!((moved.fid, replaced.fid, replaced.nlink), (s.f, g, 0));
        assert_eq!(moved, s.two.client.getattr(s.f).await.unwrap().attr);
        assert_eq!(replaced, s.two.client.getattr(g).await.unwrap().attr, "it lingers");
    });
}

#[test]
fn opens_and_closes_call_back_what_they_change() {
    stage(|_, s| async move {
        let two = &s.two.client;
        let opened = two.open(s.d, "f", O_RDWR).await.unwrap();
        s.one.lookup(s.d, "f", ATTR, UPDATE).await.unwrap();
        let again = two.open(s.d, "f", O_RDWR | O_TRUNC).await.unwrap();
        assert_eq!(s.one.callbacks(), [(s.f, UPDATE)]);
        s.one.getattr(s.f, ATTR).await.unwrap();
        two.close(s.f, again.handle).await.unwrap();
        assert_eq!(s.one.callbacks(), []);
        let size_blocks = Some((9, 8));
        let close = Close { fid: s.f, handle: opened.handle, size_blocks, ..Close::default() };
        two.modify::<()>(Opcode::MdsClose, &close).await.unwrap();
        assert_eq!(s.one.callbacks(), [(s.f, UPDATE)]);
        assert_eq!(s.one.getattr(s.f, ATTR).await.unwrap().attr.size, 9);
        assert_eq!(s.cluster.server.mdt.open_count(), 0);
        two.open(s.d, "new", O_CREAT).await.unwrap();
        assert_eq!(s.one.callbacks(), [(s.d, UPDATE)]);
    });
}

#[test]
fn a_close_that_waits_keeps_its_handle_until_it_is_done() {
    stage(|rt, s| async move {
        let opened = s.two.client.open(s.d, "f", O_RDWR).await.unwrap();
        s.one.getattr(s.f, ATTR).await.unwrap();
        s.one.set_manners(Manners::Keeps);
        let close = Close { fid: s.f, handle: opened.handle, size_blocks: Some((9, 8)), ..Close::default() };
        let mut closed = s.two.client.start(|c| async move { c.modify::<()>(Opcode::MdsClose, &close).await });
        rt.sleep(secs(WAIT)).await;
        assert!(closed.try_recv().is_err());
        assert_eq!(s.cluster.server.mdt.open_count(), 1);
        s.one.give_back_all().await;
        closed.await.unwrap().unwrap();
        assert_eq!(s.two.client.getattr(s.f).await.unwrap().attr.size, 9, "the hints of who had it open");
        assert_eq!(s.cluster.server.mdt.open_count(), 0);
    });
}

#[test]
fn a_page_of_a_directory_brings_the_locks_of_its_entries() {
    stage(|_, s| async move {
        let maker = s.cluster.client(8);
        for i in 0..1500 {
            maker.mkdir(s.e, &format!("directory {i}")).await.unwrap();
        }
        s.cluster.rt.sleep(secs(WAIT)).await;
        let early = s.two.readpage(s.e, ATTR, UPDATE).await.unwrap();
        let bits = |e: &DirEntry| e.attr.as_ref().unwrap().lock.as_ref().unwrap().bits;
        assert!(early.entries.iter().all(|e| e.name[0] == b'.' || bits(e) == ATTR & !UPDATE), "they may change");
        s.two.give_back_all().await;
        s.cluster.rt.sleep(secs(10)).await;
        let page = s.one.readpage(s.e, ATTR, UPDATE).await.unwrap();
        assert!(!page.end && page.entries.len() > 500, "{}", page.entries.len());
        assert!(nacre_wire::encode(&page).len() <= PAGE_BYTES as usize + 64);
        assert_eq!(page.parent_lock.unwrap().bits, UPDATE);
        assert!(page.entries.iter().all(|e| bits(e) == ATTR));
        assert_eq!(s.cluster.server.mdt.lock_counts().0, page.entries.len(), "one for each, `.` and the page share");
        let without = s.two.readpage(s.e, 0, 0).await.unwrap();
        assert!(without.parent_lock.is_none() && without.entries[5].attr.as_ref().unwrap().lock.is_none());
        assert!(without.entries.len() > page.entries.len(), "locks take room");
    });
}

#[test]
fn attributes_of_entries_are_told_to_who_may_look_them_up() {
    stage(|_, s| async move {
        s.two.client.reint::<AttrReply>(chmod(s.d, 0o704)).await.unwrap();
        let cred = Credentials { uid: 5, gid: 5, groups: Vec::new() };
        let body =
            Readpage { cred, fid: s.d, max_bytes: READPAGE_MAX, with_attr: true, want: ATTR, ..Readpage::default() };
        let page: ReadpageReply = s.one.client.call(Opcode::MdsReadpage, &body).await.unwrap();
        assert_eq!((page.entries.len(), page.entries.iter().all(|e| e.attr.is_none())), (3, true));
    });
}

#[test]
fn a_getattr_that_is_sent_again_brings_the_same_lock() {
    stage(|rt, s| async move {
        s.one.getattr(s.f, 0).await.unwrap();
        s.cluster.faults.arm("rpc.MDS_GETATTR.drop_reply", Fault::once(FaultAction::Drop));
        let lock = s.one.getattr(s.f, ATTR).await.unwrap().lock.unwrap();
        assert_eq!(s.cluster.server.mdt.lock_counts(), (1, 0));
        assert_eq!(s.one.getattr(s.f, ATTR).await.unwrap().lock.unwrap().handle, lock.handle);
        rt.sleep(secs(1)).await;
        s.two.client.reint::<AttrReply>(chmod(s.f, 0o600)).await.unwrap();
        assert_eq!(s.one.callbacks().len(), 1);
    });
}

#[test]
fn an_answer_from_before_a_restart_brings_no_lock() {
    run(|rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let one = cluster.holder(1);
        one.getattr(Fid::ROOT, 0).await.unwrap();
        cluster.faults.arm("mdt.reint.before_reply", Fault::once(FaultAction::Drop));
        let child = one.client.new_fid();
        let create = Open { child, ..open(Fid::ROOT, "f", O_CREAT | O_RDWR, ATTR) };
        let call = one.client.start(|c| async move { c.modify::<OpenReply>(Opcode::MdsOpen, &create).await });
        rt.sleep(secs(1)).await;
        assert_eq!(cluster.server.mdt.lock_counts(), (1, 0), "it was granted");
        cluster.commit().await;
        cluster.restart().await;
        let opened = call.await.unwrap().unwrap();
        assert_eq!((opened.created, opened.lock), (true, None));
        assert_eq!(one.getattr(child, ATTR).await.unwrap().lock.unwrap().bits, ATTR);
    });
}

#[test]
fn clients_that_rename_crosswise_both_get_through() {
    stage(|rt, s| async move {
        let maker = s.cluster.client(7);
        for round in 0..20 {
            for holder in [&s.one, &s.two] {
                holder.readpage(s.d, ATTR, UPDATE).await.unwrap();
                holder.readpage(s.e, ATTR, UPDATE).await.unwrap();
            }
            let name = |i| format!("name {round} {i}");
            for (i, dir) in [s.d, s.e].into_iter().enumerate() {
                maker.mkdir(dir, &name(i)).await.unwrap();
            }
            let (d, e, a, b) = (s.d, s.e, name(0), name(1));
            let forth = s.one.client.start(move |c| async move { c.rename((d, &a), (e, &a)).await });
            let back = s.two.client.start(move |c| async move { c.rename((e, &b), (d, &b)).await });
            let both = async { (forth.await.unwrap(), back.await.unwrap()) };
            let (forth, back) = rt.timeout(secs(60), both).await.expect("no deadlock");
            assert!(forth.is_ok() && back.is_ok(), "{forth:?} {back:?}");
        }
        for holder in [&s.one, &s.two] {
            holder.give_back_all().await;
        }
        rt.sleep(secs(1)).await;
        assert_eq!(s.cluster.server.mdt.lock_counts(), (0, 0));
    });
}

#[test]
fn a_silent_holder_is_evicted_and_the_change_goes_on() {
    for manners in [Manners::Keeps, Manners::Silent] {
        stage(move |rt, s| async move {
            s.one.getattr(s.f, ATTR).await.unwrap();
            s.two.client.reint::<AttrReply>(chmod(s.f, 0o640)).await.unwrap();
            assert_eq!(s.one.callbacks().len(), 1, "it can be called");
            s.one.getattr(s.f, ATTR).await.unwrap();
            s.one.set_manners(manners);
            let began = rt.now();
            s.two.client.reint::<AttrReply>(chmod(s.f, 0o600)).await.unwrap();
            let took = rt.now().since(began);
            assert!(took > secs(50) && took < secs(300), "{manners:?}: {took:?}");
            assert_eq!(s.cluster.server.mdt.lock_counts(), (0, 0));
        });
    }
}

#[test]
fn a_client_that_goes_away_is_waited_for_no_longer() {
    stage(|rt, s| async move {
        s.one.getattr(s.f, ATTR).await.unwrap();
        s.one.set_manners(Manners::Keeps);
        let f = s.f;
        let change = s.two.client.start(move |c| async move { c.reint::<AttrReply>(chmod(f, 0o600)).await });
        rt.sleep(secs(1)).await;
        s.one.client.import.disconnect().await;
        change.await.unwrap().unwrap();
        assert_eq!(s.cluster.server.mdt.lock_counts(), (0, 0));
    });
}

/// A thousand waiting changes must not keep cancels, or other requests, from being served.
#[test]
fn changes_that_wait_leave_their_lane() {
    stage(|rt, s| async move {
        s.one.getattr(s.f, ATTR).await.unwrap();
        s.one.set_manners(Manners::Keeps);
        let f = s.f;
        let clients: Vec<Client> = (20..70).map(|i| s.cluster.client(i)).collect();
        let change = |c: &Client| c.start(move |c| async move { c.reint::<AttrReply>(chmod(f, 0o600)).await });
        let changes: Vec<_> = clients.iter().flat_map(|c| (0..7).map(|_| change(c)).collect::<Vec<_>>()).collect();
        rt.sleep(secs(WAIT)).await;
        let began = rt.now();
        s.two.getattr(s.d, ATTR).await.unwrap();
        assert!(rt.now().since(began) < secs(1));
        s.one.give_back_all().await;
        for change in changes {
            change.await.unwrap().unwrap();
        }
        assert!(rt.now().since(began) < secs(5));
    });
}

#[test]
fn a_directory_that_another_client_changes_is_not_kept() {
    stage(|rt, s| async move {
        s.one.client.mkdir(s.d, "a").await.unwrap();
        assert_eq!(s.one.getattr(s.d, ATTR).await.unwrap().lock.unwrap().bits, ATTR, "its own change");
        s.two.client.mkdir(s.d, "b").await.unwrap();
        assert_eq!(s.one.callbacks(), [(s.d, UPDATE)]);
        assert_eq!(s.one.getattr(s.d, ATTR).await.unwrap().lock.unwrap().bits, ATTR & !UPDATE);
        assert_eq!(
            s.two.getattr(s.d, UPDATE).await.unwrap().lock.unwrap().bits,
            UPDATE,
            "nobody took it away from this one"
        );
        assert_eq!(s.one.lookup(s.d, "c", ATTR, UPDATE).await.unwrap().parent_lock, None);
        s.two.client.mkdir(s.d, "c").await.unwrap();
        assert_eq!(s.one.callbacks(), []);
        rt.sleep(secs(1)).await;
        assert_eq!(s.one.getattr(s.d, ATTR).await.unwrap().lock.unwrap().bits, ATTR);
        s.cluster.server.params.set("ldlm.namespaces.mdt-*.ctime_age_limit", "0").unwrap();
        s.two.client.mkdir(s.d, "e").await.unwrap();
        assert_eq!(s.one.getattr(s.d, ATTR).await.unwrap().lock.unwrap().bits, ATTR, "turned off");
        assert_eq!(s.one.getattr(s.d, ATTR).await.unwrap().attr.mode & mode::S_IFMT, mode::S_IFDIR);
    });
}

#[test]
fn a_path_is_looked_up_as_far_as_it_leads() {
    stage(|_, s| async move {
        let name = super::super::name;
        let path = |below: &[&str]| GetattrName {
            parent: Fid::ROOT,
            name: name("d"),
            want: ATTR,
            want_parent: UPDATE,
            below: below.iter().map(|n| name(n)).collect(),
            ..GetattrName::default()
        };
        let found = s.one.look_up(&path(&["f"])).await.unwrap();
        assert_eq!(found.found.unwrap().attr.fid, s.d);
        let below = &found.below[0];
        assert_eq!((found.below.len(), below.found.as_ref().unwrap().attr.fid), (1, s.f));
        assert_eq!(below.parent_lock.as_ref().unwrap().bits & UPDATE, UPDATE, "entries of d are told");
        assert!(found.pages.is_empty(), "nothing ahead was asked for");
        let found = s.one.look_up(&path(&["absent", "further"])).await.unwrap();
        assert_eq!((found.below.len(), &found.below[0].found), (1, &None));
        let found = s.one.look_up(&path(&["f", "further"])).await.unwrap();
        assert_eq!(found.below.len(), 1, "a file has no names below it");
        assert_eq!(s.one.look_up(&path(&["..", "e"])).await.unwrap().below, [], "the path would lead up again");
        let cred = Credentials { uid: 7, gid: 7, groups: Vec::new() };
        s.two.client.reint::<AttrReply>(chmod(s.d, 0o700)).await.unwrap();
        let found = s.one.look_up(&GetattrName { cred, ..path(&["f"]) }).await.unwrap();
        assert_eq!((found.found.unwrap().attr.fid, found.below.len()), (s.d, 0), "it may not be searched");
    });
}

#[test]
fn entries_ahead_come_with_locks() {
    stage(|rt, s| async move {
        rt.sleep(secs(20)).await;
        let name = super::super::name("d");
        let (ahead, want, want_parent) = (1 << 16, ATTR, UPDATE);
        let asked = GetattrName { parent: Fid::ROOT, name, want, want_parent, ahead, ..GetattrName::default() };
        let found = s.one.look_up(&asked).await.unwrap();
        assert_eq!((found.pages.len(), found.pages[0].fid), (1, s.d));
        assert_eq!(s.one.bits(s.f), ATTR);
        s.two.client.reint::<AttrReply>(chmod(s.f, 0o600)).await.unwrap();
        s.two.client.mkdir(s.d, "new").await.unwrap();
        assert_eq!(s.one.callbacks(), [(s.f, LOOKUP | PERM | UPDATE), (s.d, UPDATE)]);
    });
}
