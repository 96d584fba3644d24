//! Targets whose index is full: requests that take space are refused, and the targets can be emptied, whatever crashes
//! meanwhile.

use super::*;
use nacre_osd::mem::MemOptions;
use nacre_osd::{Osd, SpaceLimits};

/// An index that a thousand long records fill.
fn small_index(pages: u64, reserve_pages: u64) -> MemOptions {
    let space = SpaceLimits { reserve_pages, ..SpaceLimits::default() };
    MemOptions { index_bytes: pages << 12, space, ..MemOptions::default() }
}

const MDT_PAGES: u64 = 1280;

/// Creates long symbolic links until there is no space. Returns how many there are then.
async fn make_links(u: &User, from: usize) -> usize {
    for n in from..from + 5000 {
        match u.symlink(&root(), ROOT, name(n).as_bytes(), &[b'x'; 1900]).await {
            Ok(_) => {}
            Err(e) => {
                assert_eq!(e, Errno::ENOSPC);
                return n;
            }
        }
    }
    panic!("10 MB of links fit into {MDT_PAGES} pages");
}

fn name(n: usize) -> String {
    format!("link{n}")
}

#[test]
fn a_full_mdt_can_be_emptied_though_it_dies_again_and_again() {
    let cluster = Cluster::builder().clients(2).storage(small_index(MDT_PAGES, 128));
    run(1, secs(10_000), cluster, |c| async move {
        let (u, w) = (user(&c, 0), user(&c, 1));
        let file = u.new_file(ROOT, "kept", 0).await.unwrap();
        u.put(&file, 0, b"kept").await.unwrap();
        let first = make_links(&u, 0).await;
        assert!(first > 200, "{first}");
        // A few small links may still find space that was too little for a long one.
        let mut small = 0;
        let refused = loop {
            match w.dir(ROOT, &format!("d{small}")).await {
                Ok(_) => small += 1,
                Err(e) => break e,
            }
            assert!(small < 100, "not full");
        };
        assert_eq!(refused, Errno::ENOSPC);
        // Operations that take no space succeed.
        assert_eq!(u.put(&file, 4, b" on").await, Ok(3));
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        u.chmod(file.fid(), 0o600).await.unwrap();
        assert!(c.running_storage(MDS).full().is_some());
        let (mut from, mut to) = (0, first);
        for round in 1..4 {
            for n in from..to {
                if n % 97 == 50 {
                    c.crash(MDS, if n % 2 == 0 { Crash::PowerCut } else { Crash::Process });
                    c.restart(MDS).await.unwrap();
                }
                w.remove(ROOT, &name(n)).await.unwrap();
            }
            c.rt().sleep(secs(20)).await;
            assert_eq!(c.running_storage(MDS).full(), None, "round {round}");
            from = 10_000 * round;
            to = make_links(&u, from).await;
            assert!(to - from > first * 3 / 4, "round {round}: {} links, {first} at first", to - from);
        }
        // After the disk was enlarged there is room, without a restart.
        c.running_storage(MDS).grow_index((2 * MDT_PAGES) << 12);
        assert!(make_links(&u, to).await > to + first / 2);
        u.release(file).await.unwrap();
        c.stop().await;
        c.check_storage().await;
    });
}

#[test]
fn an_ost_that_has_no_room_for_records_is_emptied_and_used_again() {
    let cluster = Cluster::builder().clients(1).ost_storage(small_index(600, 64));
    run(1, secs(10_000), cluster, |c| async move {
        let u = user(&c, 0);
        for round in 0..2 {
            let mut made = 0;
            loop {
                match u.new_file(ROOT, &name(made), O_EXCL).await {
                    Ok(file) => u.release(file).await.unwrap(),
                    Err(e) => {
                        assert_eq!(e, Errno::ENOSPC);
                        break;
                    }
                }
                made += 1;
                assert!(made < 20_000, "never full");
            }
            assert!(made > 300, "round {round}: {made}");
            c.crash(OSS, Crash::PowerCut);
            c.restart(OSS).await.unwrap();
            for n in 0..made {
                u.remove(ROOT, &name(n)).await.unwrap();
            }
            c.rt().sleep(secs(100)).await;
        }
        c.stop().await;
        c.check_storage().await;
    });
}
