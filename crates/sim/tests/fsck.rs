//! Damage of every kind under fsck: it finds exactly that damage, repairs it, and finds nothing when it runs again; the
//! file system works afterwards, and undamaged files are as they were.

use super::*;
use nacre_base::param::value::Value;
use nacre_base::{OstIndex, Prng};
use nacre_fsck::{Finding, Kind, Options, Outcome, Targets};
use nacre_mdt::record::{Dirent, Inode, LastUsed};
use nacre_mdt::tables::{self, DESTROYS, DIRENTS, INODES, LINKS, OBJECTS, ORPHANS, XATTRS};
use nacre_osd::mem::Crash;
use nacre_osd::{Osd, Table, Transaction};
use nacre_sim::cluster::Server;
use nacre_sim::workload::Workload;
use std::ops::ControlFlow;

/// Records of objects, on OSTs.
const OST_OBJECTS: Table = Table("objects");

/// The files that the stories use.
#[derive(Clone, Copy)]
struct Tree {
    dir: Fid,
    sub: Fid,
    /// `dir/striped`, two objects, and `dir/sub/link`.
    striped: Fid,
    /// `dir/small`, one object.
    small: Fid,
    /// `dir/sub/other`, one object.
    other: Fid,
}

const STRIPED: usize = 5 * STRIPE_SIZE_MIN as usize + 17;

async fn build(c: &Cluster) -> Tree {
    let u = user(c, 0);
    let dir = u.dir(ROOT, "dir").await.unwrap();
    let sub = u.dir(dir, "sub").await.unwrap();
    let file = u.striped_file(dir, "striped", O_EXCL, stripes(2, false)).await.unwrap();
    u.put(&file, 0, &pattern(STRIPED, 1)).await.unwrap();
    let striped = file.fid();
    u.release(file).await.unwrap();
    u.link(&root(), striped, sub, b"link").await.unwrap();
    let (small, other) = (u.file(dir, "small", b"small").await, u.file(sub, "other", b"other").await);
    u.sync().await.unwrap();
    Tree { dir, sub, striped, small, other }
}

/// Runs `f` in a transaction of a target's storage, and finishes it.
async fn turn<T>(osd: &dyn Osd, f: impl FnOnce(&mut dyn Transaction) -> T) -> T {
    let mut tx = osd.begin().await.unwrap();
    let out = f(&mut *tx);
    tx.finish();
    out
}

fn mdt(targets: &Targets) -> &dyn Osd {
    &*targets.mdt.as_ref().unwrap().1
}

fn ost(targets: &Targets, ost: OstIndex) -> &dyn Osd {
    &*targets.osts[&ost]
}

fn inode_of(tx: &dyn Transaction, fid: Fid) -> Inode {
    tables::inode(tx, fid).unwrap().unwrap()
}

fn change_inode(tx: &mut dyn Transaction, fid: Fid, change: impl FnOnce(&mut Inode)) {
    let mut inode = inode_of(tx, fid);
    change(&mut inode);
    tables::put_inode(tx, fid, &inode).unwrap();
}

fn dirent_key(parent: Fid, name: &[u8]) -> Vec<u8> {
    [&parent.to_key()[..], &tables::name_hash(name).to_be_bytes(), name].concat()
}

fn link_key(fid: Fid, parent: Fid, name: &[u8]) -> Vec<u8> {
    [&fid.to_key()[..], &parent.to_key(), name].concat()
}

/// OST and FID of a file's object.
async fn object(targets: &Targets, file: Fid, index: usize) -> (OstIndex, Fid) {
    turn(mdt(targets), |tx| {
        let inode = inode_of(tx, file);
        let (_, _, stripe) = inode.layout.as_ref().unwrap().stripes().nth(index).unwrap();
        (stripe.ost, stripe.object)
    })
    .await
}

/// Kinds of the findings, and whether each was repaired.
fn kinds(found: &[Finding]) -> Vec<(Kind, bool)> {
    let mut kinds: Vec<_> = found.iter().map(|f| (f.kind, f.outcome == Outcome::Repaired)).collect();
    kinds.sort();
    kinds
}

/// Builds, stops, damages, checks (nothing changes), repairs, checks again, and starts again; then `after` looks.
fn damage<D, DFut, A, AFut>(expected: &[Kind], harm: D, after: A)
where
    D: FnOnce(Tree, Arc<Targets>) -> DFut + Send + 'static,
    DFut: Future<Output = ()> + Send + 'static,
    A: FnOnce(Tree, User) -> AFut + Send + 'static,
    AFut: Future<Output = ()> + Send + 'static,
{
    let expected: Vec<(Kind, bool)> = expected.iter().map(|k| (*k, true)).collect();
    run(1, secs(10_000), Cluster::builder().oss(2), |cluster| async move {
        let tree = build(&cluster).await;
        cluster.rt().sleep(secs(20)).await;
        cluster.stop().await;
        let targets = Arc::new(cluster.stopped_targets());
        harm(tree, targets.clone()).await;
        for _ in 0..2 {
            let (_, found) = cluster.fsck(&targets, Options::default()).await;
            assert_eq!(kinds(&found), expected, "a dry run: {found:#?}");
        }
        let repair = Options { repair: true, create_objects: true, ..Options::default() };
        let (_, found) = cluster.fsck(&targets, repair).await;
        assert_eq!(kinds(&found), expected, "repairing: {found:#?}");
        let (_, found) = cluster.fsck(&targets, repair).await;
        assert!(found.is_empty(), "the second time: {found:#?}");
        close(&targets).await;
        for server in cluster.servers() {
            cluster.restart(server).await.unwrap();
        }
        let u = User(cluster.mount_another(7).await.unwrap());
        after(tree, u.clone()).await;
        u.unmount().await;
    });
}

async fn close(targets: &Targets) {
    for osd in targets.mdt.iter().map(|(_, osd)| osd).chain(targets.osts.values()) {
        osd.close().await.unwrap();
    }
}

/// Checks that all files have the data that was written to them.
async fn intact(tree: Tree, u: User) {
    assert_eq!(u.names(ROOT).await, ["dir"]);
    assert_eq!(u.content(u.find(tree.dir, "striped").await.unwrap().fid).await, pattern(STRIPED, 1));
    assert_eq!(u.content(u.find(tree.dir, "small").await.unwrap().fid).await, b"small");
    assert_eq!(u.content(u.find(tree.sub, "other").await.unwrap().fid).await, b"other");
    let link = u.find(tree.sub, "link").await.unwrap();
    assert_eq!((link.fid, link.nlink), (tree.striped, 2));
    assert_eq!((u.stat(tree.dir).await.unwrap().nlink, u.stat(tree.sub).await.unwrap().nlink), (3, 2));
    u.remove(tree.dir, "small").await.unwrap();
    u.file(tree.dir, "new", b"new").await;
}

/// Damage of the MDT's tables that is repaired without a trace.
fn namespace(expected: &[Kind], harm: impl FnOnce(Tree, &mut dyn Transaction) + Send + 'static) {
    let harm = |tree, targets: Arc<Targets>| async move { turn(mdt(&targets), |tx| harm(tree, tx)).await };
    damage(expected, harm, intact);
}

#[test]
fn a_healthy_file_system() {
    namespace(&[], |_, _| ());
}

#[test]
fn link_counts() {
    namespace(&[Kind::WrongLinkCount, Kind::WrongLinkCount], |tree, tx| {
        change_inode(tx, tree.striped, |i| i.nlink = 7);
        change_inode(tx, tree.dir, |i| i.nlink = 2);
    });
}

#[test]
fn a_lost_entry_comes_back_from_its_back_pointer() {
    namespace(&[Kind::LostEntry, Kind::LostEntry], |tree, tx| {
        assert!(tx.delete(DIRENTS, &dirent_key(tree.dir, b"striped")).unwrap());
        assert!(tx.delete(DIRENTS, &dirent_key(tree.dir, b"sub")).unwrap());
    });
}

#[test]
fn a_lost_back_pointer_comes_back_from_its_entry() {
    namespace(&[Kind::MissingLink, Kind::MissingLink], |tree, tx| {
        assert!(tx.delete(LINKS, &link_key(tree.striped, tree.sub, b"link")).unwrap());
        assert!(tx.delete(LINKS, &link_key(tree.sub, tree.dir, b"sub")).unwrap());
    });
}

#[test]
fn an_entry_that_names_nothing_goes() {
    namespace(&[Kind::DanglingEntry], |tree, tx| {
        let entry = Dirent { fid: Fid { oid: 999, ..tree.small }, file_type: 0o100000 };
        tx.put(DIRENTS, &dirent_key(tree.dir, b"ghost"), &entry.encode()).unwrap();
    });
}

#[test]
fn an_entry_of_a_wrong_type_and_one_of_a_wrong_hash() {
    namespace(&[Kind::BadName, Kind::WrongFileType], |tree, tx| {
        let entry = Dirent { fid: tree.small, file_type: 0o120000 };
        tx.put(DIRENTS, &dirent_key(tree.dir, b"small"), &entry.encode()).unwrap();
        let key = dirent_key(tree.sub, b"other");
        let value = tx.get(DIRENTS, &key).unwrap().unwrap();
        tx.delete(DIRENTS, &key).unwrap();
        let mut elsewhere = key;
        elsewhere[20] ^= 0x55;
        tx.put(DIRENTS, &elsewhere, &value).unwrap();
    });
}

#[test]
fn dot_dot_follows_the_name() {
    namespace(&[Kind::WrongParent], |tree, tx| change_inode(tx, tree.sub, |i| i.parent = ROOT));
}

#[test]
fn a_lost_directory_comes_back_with_its_entries() {
    namespace(&[Kind::LostDirectory], |tree, tx| {
        assert!(tx.delete(INODES, &tree.sub.to_key()).unwrap());
    });
}

#[test]
fn the_root_comes_back() {
    namespace(&[Kind::LostDirectory], |_, tx| {
        assert!(tx.delete(INODES, &ROOT.to_key()).unwrap());
    });
}

#[test]
fn the_list_of_deleted_inodes() {
    namespace(&[Kind::WrongOrphan, Kind::WrongOrphan], |tree, tx| {
        tables::put_orphan(tx, tree.small).unwrap();
        tables::put_orphan(tx, Fid { oid: 998, ..tree.small }).unwrap();
    });
}

#[test]
fn attributes_stored_outside_of_inodes() {
    namespace(&[Kind::StrayXattr, Kind::StrayXattr], |tree, tx| {
        tables::put_xattr(tx, Fid { oid: 998, ..tree.small }, "user.a", b"1").unwrap();
        tables::put_xattr(tx, tree.small, "user.a", b"1").unwrap();
    });
}

#[test]
fn records_that_cannot_be_read() {
    namespace(&[Kind::UnreadableRecord, Kind::UnreadableRecord, Kind::LostEntry], |tree, tx| {
        tx.put(ORPHANS, b"short", b"\x01").unwrap();
        tx.put(DIRENTS, &dirent_key(tree.dir, b"small"), b"nonsense").unwrap();
    });
}

#[test]
fn a_directory_with_two_names_keeps_the_one_that_dot_dot_says() {
    namespace(&[Kind::SecondName], |tree, tx| {
        let entry = Dirent { fid: tree.sub, file_type: 0o040000 };
        tables::put_dirent(tx, ROOT, b"again", &entry).unwrap();
    });
}

/// Names in lost+found.
async fn lost_found(u: &User) -> Vec<String> {
    let mut at = ROOT;
    for name in [".lustre", "lost+found", "MDT0000"] {
        at = u.find(at, name).await.unwrap().fid;
    }
    u.names(at).await
}

async fn rescued(u: &User, name: &str) -> Fid {
    let mut at = ROOT;
    for name in [".lustre", "lost+found", "MDT0000", name] {
        at = u.find(at, name).await.unwrap().fid;
    }
    at
}

#[test]
fn an_inode_without_a_name_goes_to_lost_found() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        turn(mdt(&targets), |tx| tables::delete_dirent(tx, tree.dir, b"small", tree.small).unwrap()).await;
    };
    damage(&[Kind::NamelessInode], harm, |tree, u| async move {
        assert_eq!(lost_found(&u).await, [format!("{}-N-0", tree.small)]);
        assert_eq!(u.content(tree.small).await, b"small");
    });
}

#[test]
fn a_circle_is_broken() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        turn(mdt(&targets), |tx| {
            // As if `dir` had been moved into its own subdirectory.
            tables::delete_dirent(tx, ROOT, b"dir", tree.dir).unwrap();
            let entry = Dirent { fid: tree.dir, file_type: 0o040000 };
            tables::put_dirent(tx, tree.sub, b"dir", &entry).unwrap();
            change_inode(tx, tree.dir, |i| i.parent = tree.sub);
            change_inode(tx, tree.sub, |i| i.nlink = 3);
            change_inode(tx, ROOT, |i| i.nlink = 2);
        })
        .await;
    };
    damage(&[Kind::Unreachable], harm, |tree, u| async move {
        let lowest = tree.dir.min(tree.sub);
        assert_eq!(lost_found(&u).await, [format!("{lowest}-N-0")]);
        assert_eq!(u.content(tree.striped).await, pattern(STRIPED, 1));
    });
}

#[test]
fn a_lost_inode_comes_back_from_its_objects_under_its_names() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        assert!(turn(mdt(&targets), |tx| tx.delete(INODES, &tree.small.to_key()).unwrap()).await);
    };
    damage(&[Kind::OrphanObject], harm, |tree, u| async move {
        let attr = u.find(tree.dir, "small").await.unwrap();
        assert_eq!((attr.fid, attr.size, attr.nlink), (tree.small, 5, 1));
        assert_eq!(u.content(tree.small).await, b"small");
    });
}

#[test]
fn objects_of_a_file_that_is_gone_with_its_names() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        turn(mdt(&targets), |tx| {
            tables::delete_dirent(tx, tree.dir, b"small", tree.small).unwrap();
            tx.delete(INODES, &tree.small.to_key()).unwrap();
        })
        .await;
    };
    damage(&[Kind::OrphanObject], harm, |tree, u| async move {
        let fid = rescued(&u, &format!("{}-R-0", tree.small)).await;
        assert_eq!(u.content(fid).await, b"small");
    });
}

#[test]
fn a_layout_that_is_lost_comes_back_from_the_objects() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        turn(mdt(&targets), |tx| {
            change_inode(tx, tree.small, |i| i.layout.as_mut().unwrap().components[0].stripe_size = 7)
        })
        .await;
    };
    damage(&[Kind::BadLayout, Kind::OrphanObject], harm, intact);
}

#[test]
fn a_missing_object_is_left_unless_it_may_be_made_again() {
    run(1, secs(10_000), Cluster::builder().oss(2), |cluster| async move {
        let tree = build(&cluster).await;
        cluster.stop().await;
        let targets = cluster.stopped_targets();
        let (index, gone) = object(&targets, tree.small, 0).await;
        turn(ost(&targets, index), |tx| tx.delete(OST_OBJECTS, &gone.to_key()).unwrap()).await;
        ost(&targets, index).commit().await.unwrap();
        ost(&targets, index).remove(gone).await.unwrap();
        let repair = Options { repair: true, ..Options::default() };
        for _ in 0..2 {
            let (_, found) = cluster.fsck(&targets, repair).await;
            assert_eq!(kinds(&found), [(Kind::DanglingObject, false)]);
        }
        let create = Options { create_objects: true, ..repair };
        assert_eq!(kinds(&cluster.fsck(&targets, create).await.1), [(Kind::DanglingObject, true)]);
        assert_eq!(kinds(&cluster.fsck(&targets, repair).await.1), []);
    });
}

#[test]
fn an_object_that_says_it_is_anothers() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        let (index, fid) = object(&targets, tree.small, 0).await;
        turn(ost(&targets, index), |tx| {
            let mut record = tx.get(OST_OBJECTS, &fid.to_key()).unwrap().unwrap().to_vec();
            // A byte of the parent's object id.
            record[60] ^= 0x40;
            tx.put(OST_OBJECTS, &fid.to_key(), &record).unwrap();
        })
        .await;
    };
    damage(&[Kind::UnmatchedPair], harm, intact);
}

#[test]
fn of_two_files_with_one_object_the_one_that_it_names_keeps_it() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        let (ost, fid) = object(&targets, tree.striped, 0).await;
        turn(mdt(&targets), |tx| {
            change_inode(tx, tree.small, |i| {
                let stripe = &mut i.layout.as_mut().unwrap().components[0].stripes[0];
                (stripe.ost, stripe.object) = (ost, fid);
            });
        })
        .await;
    };
    // No file has the object then that the file had before.
    damage(&[Kind::MultipleReferenced, Kind::OrphanObject], harm, |tree, u| async move {
        assert_eq!(u.content(tree.striped).await, pattern(STRIPED, 1));
        assert_eq!(u.content(tree.other).await, b"other");
        assert_eq!(u.content(rescued(&u, &format!("{}-C-0", tree.small)).await).await, b"small");
        let file = u.reopen(tree.small).await;
        u.put(&file, 0, b"again").await.unwrap();
        u.release(file).await.unwrap();
        assert_eq!(u.content(tree.striped).await, pattern(STRIPED, 1), "it has an object of its own now");
    });
}

#[test]
fn a_record_of_an_object_is_made_anew_from_its_data() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        let (index, fid) = object(&targets, tree.small, 0).await;
        turn(ost(&targets, index), |tx| tx.put(OST_OBJECTS, &fid.to_key(), b"nonsense").unwrap()).await;
        let (index, fid) = object(&targets, tree.other, 0).await;
        turn(ost(&targets, index), |tx| tx.delete(OST_OBJECTS, &fid.to_key()).unwrap()).await;
    };
    damage(&[Kind::UnreadableObject, Kind::StrayData], harm, intact);
}

#[test]
fn an_object_without_its_data_is_empty() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        let (index, fid) = object(&targets, tree.small, 0).await;
        ost(&targets, index).remove(fid).await.unwrap();
    };
    damage(&[Kind::LostData], harm, |tree, u| async move {
        assert_eq!(u.content(tree.small).await, b"");
        assert_eq!(u.content(tree.striped).await, pattern(STRIPED, 1));
    });
}

#[test]
fn a_files_object_is_not_destroyed() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        let (index, fid) = object(&targets, tree.small, 0).await;
        turn(mdt(&targets), |tx| tables::put_destroy(tx, index, 5, fid).unwrap()).await;
    };
    damage(&[Kind::WrongDestroy], harm, intact);
}

#[test]
fn an_mdt_that_is_older_than_its_osts_destroys_nothing_that_is_in_use() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        let (index, fid) = object(&targets, tree.small, 0).await;
        let last = LastUsed { seq: fid.seq, oid: fid.oid - 1 };
        turn(mdt(&targets), |tx| tables::put_last_used(tx, index, &last).unwrap()).await;
    };
    damage(&[Kind::IdsReusable], harm, intact);
}

#[test]
fn an_ost_that_is_older_than_the_mdt_hands_no_id_out_twice() {
    let harm = |tree: Tree, targets: Arc<Targets>| async move {
        let (index, fid) = object(&targets, tree.small, 0).await;
        turn(ost(&targets, index), |tx| {
            tx.put(Table("target"), b"last_id", &(fid.oid - 1).to_be_bytes()).unwrap();
        })
        .await;
    };
    run(1, secs(10_000), Cluster::builder().oss(2), move |cluster| async move {
        let tree = build(&cluster).await;
        cluster.stop().await;
        let targets = Arc::new(cluster.stopped_targets());
        harm(tree, targets.clone()).await;
        let repair = Options { repair: true, ..Options::default() };
        let (_, found) = cluster.fsck(&targets, repair).await;
        assert!(found.iter().all(|f| f.kind == Kind::IdsReusable) && !found.is_empty(), "{found:#?}");
        assert_eq!(kinds(&cluster.fsck(&targets, repair).await.1), []);
    });
}

/// All records of a table.
fn records(tx: &dyn Transaction, table: Table) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    tx.scan(table, &[], &mut |key, value| {
        all.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

/// Changes, swaps, moves, duplicates or removes a record.
fn harm_record(tx: &mut dyn Transaction, table: Table, prng: &mut Prng) {
    let all = records(tx, table);
    if all.is_empty() {
        return tx.put(table, &prng.next_u64().to_be_bytes(), b"nonsense").unwrap();
    }
    let (mut key, mut value) = prng.pick(&all).clone();
    match prng.below(6) {
        0 => drop(tx.delete(table, &key).unwrap()),
        1 | 2 if !value.is_empty() => {
            let at = prng.below(value.len() as u64) as usize;
            value[at] ^= 1 << prng.below(8);
            tx.put(table, &key, &value).unwrap();
        }
        3 => {
            let at = prng.below(key.len() as u64) as usize;
            key[at] ^= 1 << prng.below(8);
            tx.put(table, &key, &value).unwrap();
        }
        4 => {
            let (other, _) = prng.pick(&all);
            tx.put(table, other, &value).unwrap();
        }
        _ => {
            value.truncate(prng.below(value.len() as u64 + 1) as usize);
            tx.put(table, &key, &value).unwrap();
        }
    }
}

const MDT_TABLES: [Table; 9] =
    [INODES, DIRENTS, LINKS, XATTRS, ORPHANS, DESTROYS, OBJECTS, Table("last_rcvd"), Table("reply_slots")];

async fn harm_at_random(targets: &Targets, prng: &mut Prng) {
    let osts: Vec<OstIndex> = targets.osts.keys().copied().collect();
    let index = *prng.pick(&osts);
    match prng.below(10) {
        0..6 => {
            let table = *prng.pick(&MDT_TABLES);
            turn(mdt(targets), |tx| harm_record(tx, table, prng)).await;
        }
        6..9 => turn(ost(targets, index), |tx| harm_record(tx, OST_OBJECTS, prng)).await,
        _ => {
            let objects = ost(targets, index).list_objects().await.unwrap();
            if let Some(fid) = objects.get(prng.below(objects.len().max(1) as u64) as usize) {
                ost(targets, index).remove(*fid).await.unwrap();
            }
        }
    }
}

fn random_damage(seed: u64) {
    run(seed, secs(100_000), Cluster::builder().oss(2), move |cluster| async move {
        let mut work = Workload::new(cluster.clone(), seed);
        work.run(60).await;
        work.close_all().await;
        build(&cluster).await;
        cluster.rt().sleep(secs(100)).await;
        cluster.stop().await;
        let targets = cluster.stopped_targets();
        let mut prng = Prng::new(seed);
        for _ in 0..prng.range(1, 20) {
            harm_at_random(&targets, &mut prng).await;
        }
        let (_, foreseen) = cluster.fsck(&targets, Options::default()).await;
        let repair = Options { repair: true, create_objects: true, abort_recovery: true, ..Options::default() };
        let (_, first) = cluster.fsck(&targets, repair).await;
        let (_, again) = cluster.fsck(&targets, repair).await;
        assert!(again.is_empty(), "seed {seed}: first {first:#?}, then {again:#?}");
        let whats = |found: &[Finding]| found.iter().map(|f| f.what.clone()).collect::<Vec<_>>();
        assert_eq!(foreseen.is_empty(), first.is_empty(), "{:?} {:?}", whats(&foreseen), whats(&first));
        close(&targets).await;
        for server in cluster.servers() {
            cluster.restart(server).await.unwrap_or_else(|e| panic!("seed {seed}: {server:?}: {e}"));
        }
        let u = User(cluster.mount_another(7).await.unwrap());
        u.names(ROOT).await;
        u.file(ROOT, "new", b"new").await;
        u.unmount().await;
    });
}

#[test]
fn random_damage_is_mended_in_one_run() {
    (0..200).for_each(random_damage);
}

/// The state of a part of a running check.
fn state(c: &Cluster, name: &str) -> String {
    let (_, shown) = c.values(Server::Mds, &format!("mdd.*.{name}")).pop().unwrap();
    shown.field("status").and_then(Value::text).unwrap().to_owned()
}

fn counted(c: &Cluster, name: &str, field: &str) -> i128 {
    let (_, shown) = c.values(Server::Mds, &format!("mdd.*.{name}")).pop().unwrap();
    shown.field(field).and_then(Value::number).unwrap()
}

async fn lfsck(c: &Cluster, words: &str) {
    assert_eq!(c.set_param(Server::Mds, "mdd.*.lfsck_control", &format!("start {words}")), 1);
    for _ in 0..10_000 {
        if [state(c, "lfsck_namespace"), state(c, "lfsck_layout")].iter().all(|s| !s.starts_with("scanning")) {
            return;
        }
        c.rt().sleep(Duration::from_millis(100)).await;
    }
    panic!("the check does not end");
}

#[test]
fn a_running_file_system_is_checked_and_mended() {
    story(2, 2, |c| async move {
        let tree = build(&c).await;
        let (u, other) = (user(&c, 0), user(&c, 1));
        assert_eq!(other.stat(tree.small).await.unwrap().nlink, 1, "it is cached there");
        let storage = c.running_storage(Server::Mds);
        turn(&*storage, |tx| {
            change_inode(tx, tree.small, |i| i.nlink = 5);
            tx.delete(LINKS, &link_key(tree.other, tree.sub, b"other")).unwrap();
        })
        .await;
        lfsck(&c, "dryrun").await;
        assert_eq!(counted(&c, "lfsck_namespace", "inconsistent_phase1"), 2);
        lfsck(&c, "orphan create").await;
        assert_eq!((state(&c, "lfsck_namespace"), state(&c, "lfsck_layout")), ("completed".into(), "completed".into()));
        assert_eq!(counted(&c, "lfsck_namespace", "nlinks_repaired"), 1);
        assert_eq!(counted(&c, "lfsck_namespace", "linkea_repaired"), 1);
        lfsck(&c, "orphan create").await;
        assert_eq!(counted(&c, "lfsck_namespace", "updated_phase1"), 0);
        assert_eq!(u.stat(tree.small).await.unwrap().nlink, 1);
        let (_, of_ost) = c.values(Server::Oss(0), "obdfilter.*.lfsck_layout").pop().unwrap();
        assert_eq!(of_ost.field("status").and_then(Value::text), Some("completed"), "{of_ost}");
    });
}

#[test]
fn a_lost_object_of_a_running_file_system() {
    story(2, 1, |c| async move {
        let tree = build(&c).await;
        let u = user(&c, 0);
        let attr = u.stat(tree.small).await.unwrap();
        assert_eq!(attr.size, 5);
        let inode = turn(&*c.running_storage(Server::Mds), |tx| inode_of(tx, tree.small)).await;
        let (_, _, stripe) = inode.layout.as_ref().unwrap().stripes().next().unwrap();
        let server = Server::Oss(stripe.ost.0);
        turn(&*c.running_storage(server), |tx| tx.delete(OST_OBJECTS, &stripe.object.to_key()).unwrap()).await;
        c.running_storage(server).remove(stripe.object).await.unwrap();
        // The OST loses its knowledge in memory.
        c.running_storage(server).commit().await.unwrap();
        c.crash(server, Crash::Process);
        c.restart(server).await.unwrap();
        c.rt().sleep(secs(60)).await;
        lfsck(&c, "layout").await;
        assert_eq!(counted(&c, "lfsck_layout", "failed_phase1"), 1, "left");
        lfsck(&c, "layout create").await;
        assert_eq!(counted(&c, "lfsck_layout", "repaired_dangling"), 1);
        lfsck(&c, "layout create").await;
        assert_eq!(counted(&c, "lfsck_layout", "repaired_dangling"), 0);
    });
}

/// Unfinished changes are no findings: checks run one after another while clients create, write, rename and remove.
#[test]
fn a_check_finds_nothing_while_clients_work() {
    for seed in 0..20 {
        run(seed, secs(100_000), Cluster::builder().oss(3).clients(3), move |cluster| async move {
            let checks = cluster.clone();
            let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let ended = done.clone();
            let task = cluster.rt().spawn(async move {
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    lfsck(&checks, "orphan create").await;
                    assert_eq!(state(&checks, "lfsck_layout"), "completed", "seed {seed}");
                    for repaired in ["layout_repaired", "namespace_repaired"] {
                        assert_eq!(counted(&checks, "lfsck_control", repaired), 0, "seed {seed}: {repaired}");
                    }
                    checks.rt().sleep(Duration::from_millis(20)).await;
                }
            });
            let mut work = Workload::new(cluster.clone(), seed);
            work.run(150).await;
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            task.await;
            work.check_all().await;
            work.close_all().await;
            cluster.rt().sleep(secs(100)).await;
            cluster.stop().await;
            cluster.check_storage().await;
        });
    }
}

#[test]
fn a_check_can_be_stopped_and_goes_on_after_a_restart() {
    story(1, 1, |c| async move {
        let u = user(&c, 0);
        for i in 0..300 {
            u.file(ROOT, &format!("f{i}"), b"x").await;
        }
        let start = "start namespace speed=10";
        c.set_param(Server::Mds, "mdd.*.lfsck_control", start);
        c.rt().sleep(secs(20)).await;
        assert_eq!(c.set_param(Server::Mds, "mdd.*.lfsck_control", "start"), 0, "one at a time");
        assert_eq!(c.set_param(Server::Mds, "mdd.*.lfsck_control", "stop"), 1);
        c.rt().sleep(secs(20)).await;
        assert_eq!(state(&c, "lfsck_namespace"), "stopped");
        c.set_param(Server::Mds, "mdd.*.lfsck_control", start);
        c.rt().sleep(secs(100)).await;
        u.sync().await.unwrap();
        c.crash(Server::Mds, Crash::Process);
        c.restart(Server::Mds).await.unwrap();
        c.rt().sleep(secs(30)).await;
        assert_eq!(state(&c, "lfsck_namespace"), "completed", "it is not slow any more");
        let all = counted(&c, "lfsck_namespace", "checked_phase1");
        lfsck(&c, "namespace").await;
        let whole = counted(&c, "lfsck_namespace", "checked_phase1");
        assert!(all < whole, "it went on where it was: {all} of {whole}");
    });
}

#[test]
fn an_ost_that_does_not_answer_is_left_out() {
    story(2, 1, |c| async move {
        build(&c).await;
        c.crash(Server::Oss(1), Crash::Process);
        lfsck(&c, "orphan").await;
        assert_eq!((state(&c, "lfsck_namespace"), state(&c, "lfsck_layout")), ("completed".into(), "partial".into()));
        c.restart(Server::Oss(1)).await.unwrap();
        c.rt().sleep(secs(60)).await;
        lfsck(&c, "orphan").await;
        assert_eq!(state(&c, "lfsck_layout"), "completed");
    });
}
