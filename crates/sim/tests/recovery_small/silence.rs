//! Servers that fall silent: everybody knows within seconds, and nobody breaks off what works.

use super::*;

const MGS: Server = Server::Mgs;
const SECOND_OSS: Server = Server::Oss(1);
const SECOND_OSS_NODE: u32 = 11;
/// Time within which everybody knows.
const KNOWN_WITHIN: u64 = 3;
/// Time within which a server that is back has connected to the MGS again, and everybody knows.
const BACK_WITHIN: u64 = 30;

/// OSTs that the MDT and each client use.
fn in_use(c: &Cluster) -> Vec<String> {
    let of_client = |n| c.client_node(n).params().values("lov.*.activeobd")[0].1.to_string();
    let of_mdt = c.param(MDS, "lod.*.activeobd")[0].1.clone();
    (0..c.client_count()).map(of_client).chain([of_mdt]).collect()
}

fn silent(c: &Cluster) -> String {
    c.param(MGS, "mgs.MGS.silent_targets")[0].1.clone()
}

/// Three idle clients know two OSTs, of which the second becomes unreachable and comes back.
fn known<Lose, Back, Fut>(lose: Lose, back: Back)
where
    Lose: FnOnce(&Cluster) + Send + 'static,
    Back: FnOnce(Arc<Cluster>) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    story(2, 3, |c| async move {
        for n in 0..3 {
            user(&c, n).statfs().await.unwrap();
        }
        c.rt().sleep(secs(100)).await;
        assert_eq!((in_use(&c), silent(&c)), (vec!["2".to_owned(); 4], String::new()));
        lose(&c);
        c.rt().sleep(secs(KNOWN_WITHIN)).await;
        assert_eq!((in_use(&c), silent(&c)), (vec!["1".to_owned(); 4], "nacre-OST0001".to_owned()));
        for n in 0..20 {
            user(&c, 0).file(ROOT, &format!("f{n}"), b"on the other OST").await;
        }
        c.rt().sleep(secs(100)).await;
        back(c.clone()).await;
        c.rt().sleep(secs(BACK_WITHIN)).await;
        assert_eq!((in_use(&c), silent(&c)), (vec!["2".to_owned(); 4], String::new()));
    });
}

#[test]
fn a_server_whose_process_dies_is_known() {
    known(|c| c.kill(SECOND_OSS, Crash::Process), |c| async move { c.restart(SECOND_OSS).await.unwrap() });
}

#[test]
fn a_server_that_loses_power_is_known() {
    known(|c| c.crash(SECOND_OSS, Crash::PowerCut), |c| async move { c.restart(SECOND_OSS).await.unwrap() });
}

#[test]
fn a_server_that_is_cut_off_is_known() {
    known(
        |c| {
            let others = [c.server_numbers(), c.client_numbers()].concat();
            c.net().partition([SECOND_OSS_NODE], others.into_iter().filter(|n| *n != SECOND_OSS_NODE));
        },
        |c| async move { c.net().heal() },
    );
}

/// The MGS may be the one that is cut off: its word makes nobody give up a server that answers.
#[test]
fn a_server_that_only_the_mgs_does_not_hear_goes_on() {
    story(2, 3, |c| async move {
        let u = user(&c, 0);
        let file = u.striped_file(ROOT, "f", 0, stripes(2, false)).await.unwrap();
        u.put(&file, 0, b"old").await.unwrap();
        u.fsync(&file, false).await.unwrap();
        c.rt().sleep(secs(20)).await;
        c.net().partition([SECOND_OSS_NODE], [1]);
        c.rt().sleep(secs(KNOWN_WITHIN)).await;
        assert_eq!(silent(&c), "nacre-OST0001");
        let begun = c.rt().now();
        u.put(&file, 0, &[7; 4 << 20]).await.unwrap();
        assert_eq!(u.fsync(&file, false).await, Ok(()));
        assert_eq!(c.rt().now().since(begun).as_secs(), 0, "nobody waits");
        c.rt().sleep(secs(10)).await;
        let in_use = in_use(&c);
        assert_eq!([&in_use[0], &in_use[3]], ["2", "2"], "they heard the OST themselves");
        u.release(file).await.unwrap();
        assert_eq!(c.exports(SECOND_OSS), 2, "that of the MDT and of the client that has a file there");
    });
}

/// A new start of the MGS has heard of no server yet, and takes none to be silent.
#[test]
fn a_new_mgs_calls_nobody_silent_that_it_hears() {
    story(2, 3, |c| async move {
        c.rt().sleep(secs(20)).await;
        c.crash(MGS, Crash::Process);
        c.rt().sleep(secs(60)).await;
        assert_eq!(in_use(&c), vec!["2".to_owned(); 4]);
        c.restart(MGS).await.unwrap();
        for _ in 0..20 {
            c.rt().sleep(secs(1)).await;
            assert_eq!((in_use(&c), silent(&c)), (vec!["2".to_owned(); 4], String::new()));
        }
    });
}
