//! Rules of `tbf` that the MGS keeps, at the OSSs and the MDS: they limit what users do, and are there again after a restart.

use super::*;
use nacre_osd::mem::Crash;
use nacre_sim::cluster::Server;
use nacre_wire::mgs::SetParam;

const IO_RULES: &str = "start others uid={7} rate=100MB; start root uid={0}&opcode={ost_write} rate=1MB";
const MDT_RULES: &str = "start opens opcode={mds_open} rate=5";

async fn keep(c: &Cluster, name: &str, value: &str) -> Result<(), String> {
    let mgs = c.server_node(Server::Mgs).unwrap();
    let param = SetParam { fsname: String::new(), name: name.into(), value: Some(value.into()) };
    nacre_mgc::keep_param(mgs.rpc(), &param).await
}

/// How long this many creates take, in milliseconds.
async fn creates(c: &Cluster, u: &User, names: &str, count: u32) -> u128 {
    let begun = c.rt().now();
    for n in 0..count {
        u.file(ROOT, &format!("{names}{n}"), b"").await;
    }
    c.rt().now().since(begun).as_millis()
}

/// How long a write takes that is on the disk, in milliseconds.
async fn writes(c: &Cluster, u: &User, name: &str, bytes: usize) -> u128 {
    let file = u.new_file(ROOT, name, 0).await.unwrap();
    let begun = c.rt().now();
    u.put(&file, 0, &vec![7; bytes]).await.unwrap();
    u.fsync(&file, false).await.unwrap();
    let took = c.rt().now().since(begun).as_millis();
    u.release(file).await.unwrap();
    took
}

#[test]
fn limits_that_the_mgs_keeps_are_at_every_server_and_stay() {
    story(2, 1, |c| async move {
        let u = user(&c, 0);
        assert!(creates(&c, &u, "free", 20).await < 1000);
        assert!(writes(&c, &u, "free", 10 << 20).await < 1000);
        for (name, value) in [
            ("ost.OSS.ost_io.nrs_tbf_rule", IO_RULES),
            ("ost.OSS.ost_io.nrs_policies", "tbf uid"),
            ("mds.MDS.mdt.nrs_policies", "tbf"),
            ("mds.MDS.mdt.nrs_tbf_rule", MDT_RULES),
        ] {
            keep(&c, name, value).await.unwrap();
        }
        for (name, value, why) in [
            (
                "ost.OSS.ost_io.nrs_tbf_rule",
                "stop root",
                "ost.OSS.ost_io.nrs_tbf_rule must be commands with ; between them",
            ),
            ("mds.MDS.mdt.nrs_tbf_rule", "start x uid={0} rate=5%", "mds.MDS.mdt.nrs_tbf_rule must be commands"),
            ("mds.MDS.mdt.nrs_policies", "turns", "mds.MDS.mdt.nrs_policies must be fifo, crrn, delay, or tbf"),
        ] {
            let refused = keep(&c, name, value).await.unwrap_err();
            assert!(refused.starts_with(why), "{name}={value}: {refused}");
        }
        c.rt().sleep(Duration::from_secs(5)).await;
        for round in 0..2 {
            for oss in 0..2 {
                let rules = c.param(Server::Oss(oss), "ost.OSS.ost_io.nrs_tbf_rule")[0].1.clone();
                assert!(rules.contains("root uid={0}&opcode={ost_write} 1MB, ref"), "{rules}");
                assert!(rules.contains("others {7} 100MB, ref 0"), "{rules}");
            }
            let rules = c.param(Server::Mds, "mds.MDS.mdt.nrs_tbf_rule")[0].1.clone();
            assert!(rules.contains("opens opcode={mds_open} 5, ref"), "{rules}");
            let took = creates(&c, &u, &format!("limited{round}"), 20).await;
            assert!((3000..4500).contains(&took), "20 opens at 5 a second, with a burst, take {took} ms");
            let took = writes(&c, &u, &format!("limited{round}"), 10 << 20).await;
            assert!((5000..12_000).contains(&took), "10 MiB at 1 MB/s, with a burst, take {took} ms");
            if round == 0 {
                let all = [Server::Mgs, Server::Mds, Server::Oss(0), Server::Oss(1)];
                all.iter().for_each(|server| c.crash(*server, Crash::PowerCut));
                for server in all {
                    c.restart(server).await.unwrap();
                }
                c.rt().sleep(Duration::from_secs(60)).await;
            }
        }
        // The rules of the MGS can be changed, and the running servers follow.
        keep(&c, "mds.MDS.mdt.nrs_tbf_rule", "set opens opcode={mds_open} rate=1000").await.unwrap();
        c.rt().sleep(Duration::from_secs(5)).await;
        assert!(creates(&c, &u, "again", 20).await < 1000);
    });
}
