//! RPC on tokio with several threads: failures that only real concurrency can cause.

use super::*;
use nacre_lnet::{Lnet, LnetOptions};

#[test]
fn many_threads_over_lo_with_restarts_of_the_service() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let rt = Rt::production();
        let faults = Faults::new();
        let lnet = Lnet::new(rt.clone(), LnetOptions::default(), faults.clone());
        let node = RpcNode::new(rt.clone(), lnet, faults);
        let disk = Arc::new(Disk::default());
        let serve = || node.serve(TARGET, Arc::new(TestTarget::new(node.rt(), &disk)));
        let mut served = serve();
        let import = node.import(ImportConfig { nids: [Nid::LO].into(), ..config(1) });
        let tasks: Vec<_> = (0..64u64)
            .map(|t| {
                let import = import.clone();
                rt.spawn(async move {
                    for i in 0..60 {
                        apply(&import, t * 1000 + i).await.unwrap();
                        if i % 20 == 0 {
                            assert_eq!(write(&import, pattern(70_000)).await, Ok(70_000));
                            assert_eq!(read(&import, 70_000).await.unwrap().len(), 70_000);
                        }
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            rt.sleep(Duration::from_millis(5)).await;
            served.stop().await;
            served = serve();
        }
        for t in tasks {
            t.await;
        }
        let mut applied = disk.applied.lock().clone();
        applied.sort_unstable();
        let want: Vec<u64> = (0..64).flat_map(|t| (0..60).map(move |i| t * 1000 + i)).collect();
        assert_eq!(applied, want, "each exactly once");
        assert_eq!(import.generation(), 0);
        drop(served);
    });
}

#[test]
fn a_handler_that_panics_costs_its_request_and_nothing_else() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let rt = Rt::production();
        let lnet = Lnet::new(rt.clone(), LnetOptions::default(), Faults::new());
        let node = RpcNode::new(rt.clone(), lnet, Faults::new());
        let served = node.serve(TARGET, Arc::new(TestTarget::new(node.rt(), &Arc::new(Disk::default()))));
        let import = node.import(ImportConfig { nids: [Nid::LO].into(), ..config(1) });
        for ms in [PANIC_AT_ONCE, PANIC_LATER] {
            let answer = rt.timeout(10 * SECOND, wait_ms(&import, ms)).await;
            assert_eq!(answer, Ok(Err(RpcError::Status(Errno::EIO))));
        }
        assert_eq!(wait_ms(&import, 1).await, Ok(1), "others are served on");
        assert_eq!(node.lane_counts(Lane::Request).running, 0, "the slots are free");
        rt.timeout(10 * SECOND, served.stop()).await.expect("nothing is left running");
    });
}
