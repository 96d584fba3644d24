//! The storage of a stopped cluster under `nacre fsck`.

use crate::cluster::{Cluster, Server};
use nacre_base::OstIndex;
use nacre_fsck::{Finding, Options, Report, Targets};
use nacre_osd::Osd;

impl Cluster {
    /// The targets of a stopped cluster.
    pub fn stopped_targets(&self) -> Targets {
        let mut targets = Targets::default();
        for (server, storage) in self.stopped_storage() {
            let storage: std::sync::Arc<dyn Osd> = storage;
            match server {
                Server::Mgs | Server::SecondMgs => {}
                Server::Mds => targets.mdt = Some((0, storage)),
                Server::Oss(i) => drop(targets.osts.insert(OstIndex(i), storage)),
            }
        }
        targets
    }

    /// Runs fsck over a stopped cluster's targets.
    pub async fn fsck(&self, targets: &Targets, options: Options) -> (Report, Vec<Finding>) {
        let mut found = Vec::new();
        let options = Options { now: self.rt().wall(), ..options };
        let mut sink = |finding: &Finding| found.push(finding.clone());
        let report = nacre_fsck::check(targets, &options, &mut sink, &|_| ()).await;
        (report.expect("the devices are healthy"), found)
    }

    /// Panics if a stopped cluster's storage has any inconsistency.
    pub async fn check_storage(&self) {
        let (_, found) = self.fsck(&self.stopped_targets(), Options::default()).await;
        assert!(found.is_empty(), "fsck finds in healthy storage: {found:#?}");
    }
}
