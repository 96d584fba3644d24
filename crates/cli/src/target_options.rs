//! What the administrator sets in a target's label: the MGS's NIDs, the nodes that may serve the target, and how these keep
//! out of each other's way.

use nacre_base::Nid;
use nacre_osd::MMP_INTERVAL_MAX;
use nacre_osd::disk::{Label, MmpOptions, MmpStatus};
use std::path::PathBuf;
use std::time::Duration;

/// NIDs of the MGS, separated by commas.
const MGSNODE: &str = "mgsnode";
/// NIDs of nodes that may serve the target, separated by commas; Lustre's name.
const SERVICE_NODES: &str = "failover.node";
/// Milliseconds between two updates of multi-mount protection.
const MMP_INTERVAL: &str = "mmp_update_interval";

/// Short enough for a takeover in ten seconds, long enough for a disk that is busy.
const MMP_INTERVAL_DEFAULT: Duration = Duration::from_secs(2);
/// Below, a busy machine would stop targets for nothing.
const MMP_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The options of a label.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct TargetOptions {
    /// NIDs of the MGS.
    pub(crate) mgs: Vec<Nid>,
    /// NIDs of all nodes that may serve the target; none if it stays where it is.
    pub(crate) service_nodes: Vec<Nid>,
    /// If it is not the default.
    pub(crate) mmp_interval: Option<Duration>,
    /// Where commits go first, if not to the target itself.
    pub(crate) journal: Option<PathBuf>,
}

impl TargetOptions {
    /// Those of this label.
    pub(crate) fn of(label: &Label) -> Result<TargetOptions, String> {
        let option = |name: &str| label.options.get(name).map(String::as_str).filter(|text| !text.is_empty());
        let bad = |name: &str, e: &dyn std::fmt::Display| format!("{name} of {}: {e}", label.target);
        let nids = |name: &str| -> Result<Vec<Nid>, String> {
            let text = option(name).into_iter().flat_map(|text| text.split(','));
            text.map(|nid| nid.parse().map_err(|e| bad(name, &e))).collect()
        };
        let interval = option(MMP_INTERVAL).map(|text| mmp_interval(text).map_err(|e| bad(MMP_INTERVAL, &e)));
        Ok(TargetOptions {
            mgs: nids(MGSNODE)?,
            service_nodes: nids(SERVICE_NODES)?,
            mmp_interval: interval.transpose()?,
            journal: option(Label::JOURNAL).map(PathBuf::from),
        })
    }

    /// Puts them into a label.
    pub(crate) fn put_into(&self, label: &mut Label) {
        let nids = |nids: &[Nid]| nids.iter().map(Nid::to_string).collect::<Vec<_>>().join(",");
        let interval = self.mmp_interval.map(|interval| interval.as_millis().to_string());
        let options = [
            (MGSNODE, nids(&self.mgs)),
            (SERVICE_NODES, nids(&self.service_nodes)),
            (MMP_INTERVAL, interval.unwrap_or_default()),
            (Label::JOURNAL, self.journal.as_ref().map_or_else(String::new, |j| j.display().to_string())),
        ];
        for (name, value) in options {
            match value.is_empty() {
                true => label.options.remove(name),
                false => label.options.insert(name.to_owned(), value),
            };
        }
    }

    /// Multi-mount protection, for targets that several nodes may serve.
    pub(crate) fn mmp(&self, node: &str, holder: u64) -> Option<MmpOptions> {
        let interval = self.mmp_interval.unwrap_or(MMP_INTERVAL_DEFAULT);
        let protected = !self.service_nodes.is_empty();
        protected.then(|| MmpOptions { interval, node: node.to_owned(), holder: holder.max(1) })
    }
}

/// An interval in milliseconds, as `--mmp-update-interval` takes it.
pub(crate) fn mmp_interval(text: &str) -> Result<Duration, String> {
    let range = MMP_INTERVAL_MIN..=MMP_INTERVAL_MAX;
    let interval = text.parse().ok().map(Duration::from_millis).filter(|interval| range.contains(interval));
    interval.ok_or_else(|| format!("{text:?} must be {} to {} ms", range.start().as_millis(), range.end().as_millis()))
}

/// What a label says, as `tunefs.lustre` prints it.
pub(crate) fn describe(label: &Label) -> String {
    let target = &label.target;
    let parameters: Vec<String> = label.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!(
        "   Permanent disk data:\nTarget:     {target}\nIndex:      {}\nNacre FS:   {}\nUUID:       {}\nParameters: {}\n",
        target.index,
        target.fsname,
        label.uuid,
        parameters.join(" ")
    )
}

/// What multi-mount protection says, for a parameter.
pub(crate) fn describe_mmp(status: Option<&MmpStatus>) -> String {
    let Some(MmpStatus { record, lost_to }) = status else { return "state: off".to_owned() };
    let state = match lost_to {
        Some(by) => format!("lost to {by}"),
        None => "held".to_owned(),
    };
    let (interval, sequence, node) = (record.interval.as_millis(), record.count, &record.node);
    format!("state: {state}\nnode: {node}\nupdate_interval_ms: {interval}\nsequence: {sequence}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Uuid;

    #[test]
    fn options_are_read_back_and_taken_away() {
        let nids = |text: &str| text.split(' ').map(|nid| nid.parse().unwrap()).collect::<Vec<Nid>>();
        let target = "nacre-OST0003".parse().unwrap();
        let mut label = Label { uuid: Uuid::from_random(1, 2), target, parts: 1, options: Default::default() };
        assert_eq!(TargetOptions::of(&label), Ok(TargetOptions::default()));
        let options = TargetOptions {
            mgs: nids("10.0.0.1@tcp"),
            service_nodes: nids("10.0.0.2@tcp 10.0.0.3:7000@tcp"),
            mmp_interval: Some(Duration::from_millis(500)),
            journal: Some("/journals/ost3".into()),
        };
        options.put_into(&mut label);
        assert_eq!(TargetOptions::of(&label), Ok(options.clone()));
        let text = describe(&label);
        assert!(
            text.contains(
                "Parameters: failover.node=10.0.0.2@tcp,10.0.0.3:7000@tcp journal=/journals/ost3 mgsnode=10.0.0.1@tcp"
            ),
            "{text}"
        );
        assert_eq!(options.mmp("n", 0).unwrap().holder, 1, "0 is nobody");
        let alone = TargetOptions { service_nodes: Vec::new(), ..options };
        alone.put_into(&mut label);
        assert_eq!(TargetOptions::of(&label), Ok(alone.clone()));
        assert_eq!(alone.mmp("n", 5), None);
        label.options.insert(SERVICE_NODES.to_owned(), "rubbish".to_owned());
        assert!(TargetOptions::of(&label).unwrap_err().contains("failover.node of nacre-OST0003"));
    }

    #[test]
    fn an_interval_is_neither_too_short_nor_too_long() {
        assert_eq!(mmp_interval("100"), Ok(Duration::from_millis(100)));
        for bad in ["99", "60001", "x", ""] {
            assert!(mmp_interval(bad).is_err(), "{bad}");
        }
    }
}
