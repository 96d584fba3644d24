//! The cache of inodes and names alone: its answers after messages in every order that matters.

use super::*;
use nacre_wire::attr::mode;
use nacre_wire::ldlm::LockMode;
use nacre_wire::mds::DirEntry;

const D: Fid = Fid { seq: 9, oid: 1, ver: 0 };
const F: Fid = Fid { seq: 9, oid: 2, ver: 0 };
const G: Fid = Fid { seq: 9, oid: 3, ver: 0 };
const NOW: Time = Time(1_000_000_000);

/// A lock whose handle is derived from its inode.
fn lock(fid: Fid, bits: u64) -> Option<InodeLock> {
    Some(InodeLock { handle: 100 + u64::from(fid.oid), bits })
}

fn directory(version: u64, bits: u64) -> AttrReply {
    let attr = Attr { fid: D, mode: mode::S_IFDIR | 0o755, nlink: 2, version, ..Attr::default() };
    AttrReply { attr, layout: None, lock: lock(D, bits) }
}

fn fifo(fid: Fid, version: u64, bits: u64) -> AttrReply {
    let attr = Attr { fid, mode: mode::S_IFIFO | 0o600, uid: 7, nlink: 1, version, ..Attr::default() };
    AttrReply { attr, layout: None, lock: lock(fid, bits) }
}

fn called_back(fid: Fid, bits: u64) -> BlockingCallback {
    let handle = 100 + u64::from(fid.oid);
    BlockingCallback { handle, resource: fid, mode: LockMode::Ex, bits, ..BlockingCallback::default() }
}

fn name(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn root() -> Credentials {
    Credentials::root()
}

/// Requests that are answered at once.
impl InodeCache {
    fn tell(&mut self, reply: &AttrReply) {
        let asked = self.begin();
        self.keep(asked, reply, NOW);
        self.end(asked, NOW);
        self.assert_sound();
    }

    fn tell_name(&mut self, text: &'static str, found: Option<&AttrReply>, parent_bits: u64) {
        let asked = self.begin();
        self.keep_lookup(asked, D, &name(text), found, lock(D, parent_bits).as_ref(), NOW);
        self.end(asked, NOW);
        self.assert_sound();
    }

    fn look(&mut self, text: &str) -> Answer {
        self.lookup(&root(), D, text.as_bytes(), NOW)
    }

    fn version(&mut self, fid: Fid) -> Option<u64> {
        self.attr(fid, NOW).map(|r| r.attr.version)
    }

    /// Sends all messages; the server answers at once. Returns for each what the door was told, and the bits kept.
    fn send_all(&mut self) -> Vec<(Fid, Notice, u64)> {
        let mut sent = Vec::new();
        for out in self.take_out() {
            let Out::Give(giving) = out else { continue };
            let notice = self.notice(&giving);
            assert_eq!(self.given(&giving), nacre_ldlm::lock_cache::Given::Send);
            self.settled(giving.id);
            sent.push((giving.resource, notice, giving.keep));
        }
        sent
    }
}

#[test]
fn what_is_locked_is_answered_from_memory_until_it_is_called_back() {
    let mut c = InodeCache::default();
    c.tell(&fifo(F, 5, LOOKUP | UPDATE));
    assert_eq!(c.version(F), None, "not all of the attributes");
    c.tell(&fifo(F, 5, ALL));
    assert_eq!(c.version(F), Some(5));
    c.handle_blocking(&called_back(F, LAYOUT)).unwrap();
    assert_eq!(c.version(F), Some(5), "it has no layout");
    assert_eq!(c.send_all(), [(F, Notice::default(), ALL & !LAYOUT)]);
    c.handle_blocking(&called_back(F, UPDATE)).unwrap();
    assert_eq!(c.version(F), None);
    assert_eq!(c.send_all(), [(F, Notice::default(), LOOKUP | PERM | XATTR)]);
    assert_eq!(c.handle_blocking(&called_back(G, UPDATE)), Err(Errno::ENOENT));
}

#[test]
fn a_callback_that_overtakes_the_lock_or_a_reply_from_before_it_leaves_nothing_behind() {
    let mut c = InodeCache::default();
    let asked = c.begin();
    c.handle_blocking(&called_back(F, UPDATE)).unwrap();
    c.keep(asked, &fifo(F, 5, ALL), NOW);
    c.end(asked, NOW);
    assert_eq!(c.version(F), None);
    assert_eq!(c.send_all(), [(F, Notice::default(), ALL & !UPDATE)]);

    let mut c = InodeCache::default();
    c.tell(&fifo(F, 5, ALL));
    let asked = c.begin();
    c.handle_blocking(&called_back(F, UPDATE)).unwrap();
    c.send_all();
    c.keep(asked, &fifo(F, 5, ALL), NOW);
    c.end(asked, NOW);
    assert_eq!(c.version(F), None, "the reply is from before the convert");
}

#[test]
fn a_newer_version_is_not_replaced_by_an_older_one() {
    let mut c = InodeCache::default();
    let (first, second) = (c.begin(), c.begin());
    c.keep(second, &fifo(F, 6, ALL), NOW);
    c.keep(first, &fifo(F, 5, ALL), NOW);
    assert_eq!(c.version(F), Some(6));
    let unlocked = AttrReply { lock: None, ..fifo(F, 7, 0) };
    c.keep(first, &unlocked, NOW);
    assert_eq!(c.version(F), None, "what cannot be kept shows all the same that 6 is old");
}

#[test]
fn own_changes_call_nothing_back_and_yet_nothing_stale_is_answered_or_kept() {
    let mut c = InodeCache::default();
    c.tell(&fifo(F, 5, ALL));
    let change = c.begin_change(vec![Part::Inode(F)]);
    assert_eq!(c.version(F), None, "it may have happened already");
    let during = c.begin();
    c.happened(change, &Effect::default());
    c.keep(change, &fifo(F, 8, ALL), NOW);
    c.changed(change);
    c.end(change, NOW);
    assert_eq!(c.version(F), Some(8));
    c.keep(during, &fifo(F, 5, ALL), NOW);
    c.end(during, NOW);
    assert_eq!(c.version(F), Some(8));

    let refused = c.begin_change(vec![Part::Inode(F)]);
    c.refused(refused);
    c.end(refused, NOW);
    assert_eq!(c.version(F), Some(8));

    let deserted = c.begin_change(vec![Part::Inode(F)]);
    c.end(deserted, NOW);
    c.tell(&fifo(F, 9, ALL));
    assert_eq!(c.version(F), None, "it may happen at any time");
    c.lose();
    c.tell(&fifo(F, 9, ALL));
    assert_eq!(c.version(F), Some(9));
}

#[test]
fn names_are_believed_for_the_childs_lock_or_the_directorys() {
    let mut c = InodeCache::default();
    c.tell(&directory(1, ALL & !UPDATE));
    c.tell_name("f", Some(&fifo(F, 5, ALL)), 0);
    c.tell_name("absent", None, 0);
    assert!(matches!(c.look("f"), Answer::Found(_)), "for the child's lock");
    assert_eq!(c.look("absent"), Answer::Unknown);
    c.tell_name("absent", None, UPDATE);
    assert_eq!(c.look("absent"), Answer::Absent);

    c.handle_blocking(&called_back(D, UPDATE)).unwrap();
    c.send_all();
    assert_eq!(c.look("absent"), Answer::Unknown);
    assert!(matches!(c.look("f"), Answer::Found(_)));
    c.handle_blocking(&called_back(F, LOOKUP)).unwrap();
    c.send_all();
    c.tell(&fifo(F, 5, ALL));
    assert_eq!(c.look("f"), Answer::Unknown, "it may have been renamed before the lock came back");
}

#[test]
fn who_may_search_a_directory_is_decided_as_the_mdt_would() {
    let mut c = InodeCache::default();
    let mut closed = directory(1, ALL);
    (closed.attr.mode, closed.attr.uid, closed.attr.gid) = (mode::S_IFDIR | 0o710, 7, 70);
    c.tell(&closed);
    c.tell_name("f", Some(&fifo(F, 5, ALL)), UPDATE);
    let cred = |uid, gid| Credentials { uid, gid, groups: vec![] };
    assert!(matches!(c.lookup(&cred(7, 1), D, b"f", NOW), Answer::Found(_)));
    assert_eq!(c.lookup(&cred(8, 70), D, b"f", NOW), Answer::AskAcl);
    let asked = c.begin();
    c.keep_xattr(asked, D, &root(), ACL, None);
    c.end(asked, NOW);
    assert!(matches!(c.lookup(&cred(8, 70), D, b"f", NOW), Answer::Found(_)));
    assert_eq!(c.lookup(&cred(8, 8), D, b"f", NOW), Answer::Denied);
    c.handle_blocking(&called_back(D, PERM)).unwrap();
    c.send_all();
    assert_eq!(c.lookup(&cred(7, 1), D, b"f", NOW), Answer::Unknown);
}

#[test]
fn a_whole_list_knows_what_is_not_there_and_goes_on_over_own_changes() {
    let mut c = InodeCache::default();
    c.tell(&directory(1, ALL));
    let body = Readpage { fid: D, max_bytes: 1000, ..Readpage::default() };
    let entry = DirEntry { name: name("f"), fid: F, cookie: 9, ..DirEntry::default() };
    let page = ReadpageReply { entries: vec![entry], end: true, parent_lock: lock(D, UPDATE) };
    let asked = c.begin();
    c.keep_page(asked, &body, &page, NOW);
    c.end(asked, NOW);
    assert_eq!(c.page(&body, NOW).map(|p| p.entries.len()), Some(1));
    assert_eq!(c.look("g"), Answer::Absent);

    let made = c.begin_change(vec![Part::Name(D, name("g"))]);
    assert_eq!((c.look("g"), c.page(&body, NOW)), (Answer::Unknown, None));
    assert_eq!(c.look("h"), Answer::Absent, "another name");
    c.happened(made, &Effect { directories: vec![(D, 0)], version: 6, ..Effect::default() });
    let bits = c.keep(made, &fifo(G, 6, ALL), NOW);
    c.keep_name(made, D, &name("g"), Some(G), bits);
    c.changed(made);
    c.end(made, NOW);
    assert!(matches!(c.look("g"), Answer::Found(_)));
    assert_eq!((c.look("h"), c.page(&body, NOW)), (Answer::Absent, None), "the server knows where g comes in the list");

    let removed = c.begin_change(vec![Part::Name(D, name("g")), Part::Inode(G)]);
    c.happened(removed, &Effect { inodes: vec![G], ..Effect::default() });
    c.keep_name(removed, D, &name("g"), None, 0);
    c.changed(removed);
    c.end(removed, NOW);
    assert_eq!((c.look("g"), c.version(G)), (Answer::Absent, None));
}

#[test]
fn a_name_whose_change_has_an_unknown_end_is_asked_for() {
    let mut c = InodeCache::default();
    c.tell(&directory(1, ALL));
    c.tell_name("g", None, UPDATE);
    let deserted = c.begin_change(vec![Part::Name(D, name("g"))]);
    c.end(deserted, NOW);
    c.tell_name("g", None, UPDATE);
    assert_eq!(c.look("g"), Answer::Unknown);
}

#[test]
fn attributes_tell_that_there_are_no_extended_ones() {
    let none = |version| {
        let mut reply = fifo(F, version, ALL);
        reply.attr.has_no_xattrs = true;
        reply
    };
    let mut c = InodeCache::default();
    c.tell(&fifo(F, 5, ALL));
    assert_eq!(c.xattr(F, &root(), "security.x", NOW), None, "nothing is known of them");
    c.tell(&none(6));
    for key in ["security.x", ACL, "trusted.t", "user.u"] {
        assert_eq!(c.xattr(F, &root(), key, NOW), Some(None), "{key}");
    }
    for key in ["", SYMLINK_TARGET, DEFAULT_LAYOUT] {
        assert_eq!(c.xattr(F, &root(), key, NOW), None, "{key}: the attributes say nothing of it");
    }
    // A client that sets one has these bits called back.
    for bits in [XATTR, UPDATE] {
        c.tell(&none(7));
        c.handle_blocking(&called_back(F, bits)).unwrap();
        assert_eq!(c.xattr(F, &root(), "security.x", NOW), None, "without {bits:#x}");
    }
}

#[test]
fn extended_attributes_are_kept_for_the_lock_that_was_held_when_they_were_asked_for() {
    let mut c = InodeCache::default();
    let asked = c.begin();
    c.keep(asked, &fifo(F, 5, ALL), NOW);
    c.keep_xattr(asked, F, &root(), "security.x", None);
    assert_eq!(c.xattr(F, &root(), "security.x", NOW), None, "the lock came later");
    c.end(asked, NOW);
    let asked = c.begin();
    let value = name("v");
    c.keep_xattr(asked, F, &root(), "security.x", Some(&value));
    c.keep_xattr(asked, F, &root(), "", Some(&value));
    c.keep_xattr(asked, F, &root(), "trusted.t", Some(&value));
    c.keep_xattr(asked, F, &root(), "user.u", Some(&value));
    c.end(asked, NOW);
    assert_eq!(c.xattr(F, &root(), "security.x", NOW), Some(Some(value.clone())));
    let user = Credentials { uid: 8, gid: 8, groups: vec![] };
    assert_eq!(c.xattr(F, &user, "", NOW), None, "the superuser sees more names");
    assert_eq!(c.xattr(F, &user, "trusted.t", NOW), None);
    assert_eq!(c.xattr(F, &user, "user.u", NOW), None, "reading it needs permission");
    c.handle_blocking(&called_back(F, XATTR)).unwrap();
    assert_eq!(c.xattr(F, &root(), "security.x", NOW), None);
}

#[test]
fn the_door_is_told_what_it_was_allowed_to_keep_and_once() {
    let mut c = InodeCache::default();
    let fifo5 = fifo(F, 5, ALL);
    c.tell(&directory(1, ALL));
    c.tell_name("f", Some(&fifo5), UPDATE);
    c.tell_name("absent", None, UPDATE);
    assert!(c.show_attr(&fifo5.attr).is_some() && c.show_attr(&fifo(F, 4, 0).attr).is_none());
    assert!(c.show_name(D, b"f", Some(F)) && !c.show_name(D, b"f", Some(G)) && c.show_name(D, b"absent", None));
    c.handle_blocking(&called_back(F, UPDATE)).unwrap();
    assert_eq!(c.send_all(), [(F, Notice { attributes: true, ..Notice::default() }, ALL & !UPDATE)]);
    c.handle_blocking(&called_back(F, LOOKUP)).unwrap();
    assert_eq!(c.send_all(), [(F, Notice { entries: true, ..Notice::default() }, LAYOUT | PERM | XATTR)]);
    c.handle_blocking(&called_back(D, UPDATE)).unwrap();
    assert_eq!(c.send_all(), [(D, Notice { entries: true, ..Notice::default() }, ALL & !UPDATE)]);
    c.show_attr(&directory(1, 0).attr);
    c.lose();
    assert_eq!(c.take_out(), [], "nothing was kept any more");
}

#[test]
fn an_eviction_forgets_all_and_tells_the_door_of_entries_once() {
    let mut c = InodeCache::default();
    c.tell(&directory(1, ALL));
    let (f, g) = (fifo(F, 5, ALL), fifo(G, 6, ALL));
    c.tell_name("f", Some(&f), UPDATE);
    c.tell_name("g", Some(&g), UPDATE);
    assert!(c.show_name(D, b"f", Some(F)) && c.show_name(D, b"g", Some(G)) && c.show_attr(&f.attr).is_some());
    let asked = c.begin();
    c.lose();
    c.keep(asked, &f, NOW);
    c.end(asked, NOW);
    assert_eq!((c.look("f"), c.version(F)), (Answer::Unknown, None), "also what was under way");
    let told: Vec<_> = c.take_out().into_iter().filter(|o| matches!(o, Out::Tell(..))).collect();
    let entries = |n: bool| Notice { entries: n, ..Notice::default() };
    assert_eq!(
        told,
        [Out::Tell(F, Notice { attributes: true, entries: true, list: false }), Out::Tell(G, entries(false)),]
    );
}

#[test]
fn only_so_many_inodes_are_kept_the_last_used_ones() {
    let mut c = InodeCache::default();
    c.limits_mut().size = 2;
    for oid in 10..13 {
        let fid = Fid { oid, ..F };
        let now = Time(u64::from(oid) * 10_000_000_000);
        let asked = c.begin();
        c.keep(asked, &fifo(fid, 1, ALL), now);
        c.attr(Fid { oid: 10, ..F }, now);
        c.end(asked, now);
    }
    assert_eq!(c.send_all().iter().map(|s| (s.0.oid, s.2)).collect::<Vec<_>>(), [(11, 0)]);
    assert_eq!(c.inodes.len(), 2);
    c.clear();
    c.send_all();
    assert!(c.inodes.is_empty() && c.names == 0);
}

#[test]
fn a_close_is_applied_as_the_mdt_applies_it() {
    let at = |secs| Timestamp { secs, nanos: 0 };
    let attr = Attr { mode: mode::S_IFREG, atime: at(10), mtime: at(10), ctime: at(10), size: 5, ..Attr::default() };
    let close = |size, atime| Close { size_blocks: size, atime, ..Close::default() };
    assert_eq!(after_close(&attr, &close(Some((5, 0)), None), 7), None);
    let new = after_close(&attr, &close(Some((6, 8)), Some(at(20))), 7).unwrap();
    assert_eq!((new.size, new.blocks, new.atime, new.version), (6, 8, at(20), 7));
    assert_eq!(after_close(&new, &close(None, Some(at(30))), 8), None, "relatime");
    assert!(after_close(&new, &close(None, Some(at(30 + 86_400))), 8).is_some());
}

#[test]
fn a_directorys_attributes_are_kept_up_with_own_changes() {
    let mut c = InodeCache::default();
    c.tell(&directory(1, ALL));
    let at = |secs| Timestamp { secs, nanos: 0 };
    let effect = |version, gained| Effect {
        directories: vec![(D, gained)],
        now: at(version as i64),
        version,
        ..Effect::default()
    };
    let (first, second) =
        (c.begin_change(vec![Part::Name(D, name("a"))]), c.begin_change(vec![Part::Name(D, name("b"))]));
    c.happened(second, &effect(7, 1));
    c.changed(second);
    c.end(second, NOW);
    assert_eq!(c.version(D), None, "another change may have happened");
    c.happened(first, &effect(6, 1));
    c.changed(first);
    c.end(first, NOW);
    let attr = c.attr(D, NOW).unwrap().attr;
    assert_eq!((attr.version, attr.nlink, attr.mtime, attr.ctime), (7, 4, at(7), at(7)));
    c.handle_blocking(&called_back(D, UPDATE)).unwrap();
    let third = c.begin_change(vec![Part::Name(D, name("c"))]);
    c.happened(third, &effect(9, 0));
    c.changed(third);
    c.end(third, NOW);
    assert_eq!(c.version(D), None, "what others did meanwhile is not known");
}

#[test]
#[should_panic(expected = "names of all directories")]
fn names_that_no_directory_has_are_a_defect() {
    let mut c = InodeCache::default();
    c.names += 1;
    c.assert_sound();
}
