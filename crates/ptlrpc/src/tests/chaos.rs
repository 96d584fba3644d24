//! Everything at once: loss, reordering, partitions and restarts, several clients, random times. What must hold: every
//! change is made exactly once, every caller gets its own answer, nobody is evicted, nothing hangs, nothing is left.

use super::*;
use nacre_base::Prng;
use nacre_lnet::LinkOptions;

const CLIENTS: u32 = 4;
const CHANGES: u64 = 60;

fn chaos(seed: u64) -> u64 {
    let link = LinkOptions {
        latency: Duration::from_micros(50),
        jitter: Duration::from_millis(1),
        loss_ppm: 10_000,
        reorder_ppm: 20_000,
        reorder_delay: 40 * SECOND,
        ..LinkOptions::default()
    };
    let scenario = move |rt: Rt| async move {
        let mut w = World::with(&rt, SimNetOptions { link, seed, ..SimNetOptions::default() });
        let clients: Vec<_> = (0..CLIENTS).map(|i| node(&rt, &w.net, 10 + i)).collect();
        let imports: Vec<_> = clients.iter().zip(1..).map(|(n, i)| n.import(config(i))).collect();
        let answers = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..CHANGES)
            .map(|n| {
                let (import, answers, rt2) = (imports[n as usize % imports.len()].clone(), answers.clone(), rt.clone());
                rt.spawn(async move {
                    for step in 0..4 {
                        rt2.sleep(Duration::from_millis(rt2.random() % 60_000)).await;
                        let value = n * 100 + step;
                        let transno = apply(&import, value).await.unwrap();
                        answers.lock().push((value, transno));
                        if step == 1 {
                            wait_ms(&import, rt2.random() % 40_000).await.unwrap();
                            assert!(read(&import, 100_000).await.unwrap() == pattern(100_000));
                        }
                    }
                })
            })
            .collect();
        let mut prng = Prng::new(seed);
        for _ in 0..4 {
            rt.sleep(Duration::from_secs(prng.range(5, 60))).await;
            match prng.below(3) {
                0 => {
                    w.crash_server();
                    rt.sleep(Duration::from_secs(prng.below(100))).await;
                    w.restart_server();
                }
                1 => {
                    // Short enough that an idle client is not rightly evicted as dead.
                    w.net.partition([SERVER], 10..10 + prng.range(1, u64::from(CLIENTS) + 1) as u32);
                    rt.sleep(Duration::from_secs(prng.below(60))).await;
                    w.net.heal();
                }
                _ => {
                    w.server.served.stop().await;
                    rt.sleep(Duration::from_secs(prng.below(30))).await;
                    let target = Arc::new(TestTarget::new(w.server.node.rt(), &w.disk));
                    w.server.served = w.server.node.serve(TARGET, target);
                }
            }
        }
        for t in tasks {
            t.await;
        }
        let applied = w.applied();
        assert_eq!(applied.len() as u64, CHANGES * 4, "seed {seed}: exactly once");
        for (value, transno) in answers.lock().iter() {
            assert_eq!(applied[*transno as usize - 1], *value, "seed {seed}");
        }
        assert!(imports.iter().all(|i| i.generation() == 0), "seed {seed}: evicted");
        assert!(imports.iter().all(|i| i.0.state.lock().calls.is_empty()));
        rt.sleep(700 * SECOND).await;
        assert!(w.server.served.exports().iter().all(|e| e.requests_running() == 0), "seed {seed}: left over");
    };
    run(seed, 1_000_000, scenario).1
}

#[test]
fn chaos_changes_nothing_but_time() {
    let from: u64 = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let count: u64 = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(15);
    for seed in from..from + count {
        chaos(seed);
    }
    assert_eq!(chaos(from), chaos(from), "same seed, same history");
}
