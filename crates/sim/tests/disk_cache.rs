//! The cache on disk of a client: what it saves, and that it is never older than the file.

use super::*;
use nacre_osd::Osd;
use nacre_osd::mem::{Crash, MemOptions, MemOsd};
use nacre_pcc::{Pcc, TABLES};
use nacre_sim::cluster::Server;
use nacre_wire::Opcode;

const LIMIT: u64 = 64 << 20;

/// Mounts a client with the cache on a disk.
async fn mount(cluster: &Cluster, number: u32, disk: MemOsd) -> (User, Arc<Pcc>, Arc<MemOsd>) {
    let (client, disk) = (cluster.mount_another(number).await.unwrap(), Arc::new(disk));
    let cache = Pcc::open(cluster.rt().clone(), disk.clone(), LIMIT).await.unwrap();
    client.set_disk_cache(Some(cache.clone()));
    (User(client), cache, disk)
}

/// Reads that the OST has executed.
fn reads(cluster: &Cluster) -> u64 {
    cluster.executed(Server::Oss(0), Opcode::OstRead)
}

#[test]
fn what_was_read_is_not_fetched_again_after_a_power_cut_unless_it_was_changed() {
    story(1, 1, |c| async move {
        let writer = user(&c, 0);
        let mut content = pattern(5_000_000, 1);
        let fid = writer.file(ROOT, "f", &content).await;
        let other = writer.file(ROOT, "other", &pattern(70_000, 2)).await;
        let disk = MemOsd::new(c.rt(), &TABLES, MemOptions::default());
        let (reader, _, disk) = mount(&c, 1, disk).await;
        assert!(reader.content(fid).await == content && reader.content(other).await == pattern(70_000, 2));
        let fetched = reads(&c);
        assert!(fetched > 0);
        c.rt().sleep(secs(1)).await;
        disk.commit().await.unwrap();
        disk.crash(Crash::PowerCut);
        reader.unmount().await;

        let (reader, cache, _) = mount(&c, 2, disk.reopen(c.rt(), &TABLES)).await;
        assert!(reader.content(fid).await == content && reader.content(other).await == pattern(70_000, 2));
        assert_eq!(reads(&c), fetched, "all of it came from the disk");
        assert_eq!((cache.status().hits, cache.status().damaged), (5_070_000, 0));

        let file = writer.reopen(fid).await;
        writer.put(&file, 3_000_000, b"changed").await.unwrap();
        writer.release(file).await.unwrap();
        content[3_000_000..3_000_007].copy_from_slice(b"changed");
        assert!(reader.content(fid).await == content);
        assert!(reads(&c) > fetched);
        assert!(reader.content(other).await == pattern(70_000, 2));
        assert_eq!(cache.status().outdated, 1);
        reader.unmount().await;
    });
}

/// What a client writes makes the version on its disk old, although it knows no newer one yet.
#[test]
fn own_changes_are_not_undone_by_the_cache_on_disk() {
    story(1, 1, |c| async move {
        let writer = user(&c, 0);
        let mut content = pattern(3_000_000, 1);
        let fid = writer.file(ROOT, "f", &content).await;
        let disk = MemOsd::new(c.rt(), &TABLES, MemOptions::default());
        let (reader, cache, _) = mount(&c, 1, disk).await;
        assert!(reader.content(fid).await == content);
        c.rt().sleep(secs(1)).await;
        let file = reader.open(&root(), fid, O_RDWR).await.unwrap();
        reader.put(&file, 1_000_000, b"mine").await.unwrap();
        content[1_000_000..1_000_004].copy_from_slice(b"mine");
        // Direct reads and writes leave the cache in memory.
        let direct = reader.open(&root(), fid, O_RDWR | O_DIRECT).await.unwrap();
        reader.put(&direct, 2_000_000, b"direct").await.unwrap();
        content[2_000_000..2_000_006].copy_from_slice(b"direct");
        reader.set_cache_share(0);
        reader.fsync(&file, false).await.unwrap();
        reader.set_cache_share(LIMIT);
        assert!(reader.content(fid).await == content);
        reader.release(file).await.unwrap();
        reader.release(direct).await.unwrap();
        assert_eq!(cache.check(), Ok(()));
        reader.unmount().await;
    });
}

/// Members of a group write beside one another, under locks that they all hold.
#[test]
fn under_a_groups_lock_the_disk_is_neither_asked_nor_given_anything() {
    story(1, 1, |c| async move {
        let writer = user(&c, 0);
        let mut content = pattern(1_000_000, 1);
        let fid = writer.file(ROOT, "f", &content).await;
        let disk = MemOsd::new(c.rt(), &TABLES, MemOptions::default());
        let (reader, cache, _) = mount(&c, 1, disk).await;
        assert!(reader.content(fid).await == content);
        c.rt().sleep(secs(1)).await;
        let (theirs, mine) = (writer.reopen(fid).await, reader.reopen(fid).await);
        writer.group_lock(&theirs, 7, false).await.unwrap();
        reader.group_lock(&mine, 7, false).await.unwrap();
        let before = cache.status();
        writer.put(&theirs, 500_000, b"changed").await.unwrap();
        writer.fsync(&theirs, false).await.unwrap();
        content[500_000..500_007].copy_from_slice(b"changed");
        assert!(reader.get(&mine, 0, 1 << 20).await == content);
        c.rt().sleep(secs(1)).await;
        assert_eq!(cache.status(), before);
        writer.group_unlock(&theirs, 7).await.unwrap();
        reader.group_unlock(&mine, 7).await.unwrap();
        writer.release(theirs).await.unwrap();
        reader.release(mine).await.unwrap();
        reader.unmount().await;
    });
}
