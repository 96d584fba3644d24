//! What the administrator sets in a target's label: the MGS's NIDs, the nodes that may serve the target, and how these keep
//! out of each other's way.

use nacre_base::{Nid, TargetKind, TargetName};
use nacre_osd::MMP_INTERVAL_MAX;
use nacre_osd::disk::{Label, MmpOptions, MmpStatus};
use std::collections::BTreeMap;
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
pub struct TargetOptions {
    /// NIDs of the MGS.
    pub mgs: Vec<Nid>,
    /// NIDs of all nodes that may serve the target; none if it stays where it is.
    pub service_nodes: Vec<Nid>,
    /// If it is not the default.
    pub mmp_interval: Option<Duration>,
    /// Where commits go first, if not to the target itself.
    pub journal: Option<PathBuf>,
    /// Values of parameters that the target begins with, by names such as `obdfilter.sync_journal`.
    pub params: BTreeMap<String, String>,
}

/// A parameter whose value may be kept in a label: one that changes what the target promises, or how it serves.
struct Kept {
    /// Of which kind of target.
    kind: TargetKind,
    /// Its name as `--param` takes it: without the target, as in Lustre.
    name: &'static str,
    /// Whether a value may be set.
    accepts: fn(&str) -> bool,
}

/// Every parameter that a label may keep. Ranges are checked again when the target starts.
const KEPT: &[Kept] = &[
    Kept { kind: TargetKind::Ost, name: "obdfilter.reply_from_memory_mb", accepts: is_number },
    Kept { kind: TargetKind::Ost, name: "obdfilter.sync_journal", accepts: is_switch },
    Kept { kind: TargetKind::Ost, name: "obdfilter.sync_on_lock_cancel", accepts: is_word },
    Kept { kind: TargetKind::Ost, name: "obdfilter.brw_size", accepts: is_number },
    Kept { kind: TargetKind::Ost, name: "obdfilter.degraded", accepts: is_switch },
    Kept { kind: TargetKind::Ost, name: "obdfilter.no_create", accepts: is_switch },
    Kept { kind: TargetKind::Ost, name: "obdfilter.readonly", accepts: is_switch },
    Kept { kind: TargetKind::Ost, name: "obdfilter.recovery_time_soft", accepts: is_number },
    Kept { kind: TargetKind::Ost, name: "obdfilter.recovery_time_hard", accepts: is_number },
    Kept { kind: TargetKind::Mdt, name: "mdt.recovery_time_soft", accepts: is_number },
    Kept { kind: TargetKind::Mdt, name: "mdt.recovery_time_hard", accepts: is_number },
    Kept { kind: TargetKind::Mdt, name: "lod.stripecount", accepts: is_word },
    Kept { kind: TargetKind::Mdt, name: "lod.stripesize", accepts: is_number },
    Kept { kind: TargetKind::Mdt, name: "lod.auto_stripe", accepts: is_switch },
    Kept { kind: TargetKind::Mdt, name: "lod.qos_threshold_rr", accepts: is_word },
    Kept { kind: TargetKind::Mdt, name: "lod.qos_prio_free", accepts: is_word },
    Kept { kind: TargetKind::Ost, name: COMMIT_INTERVAL, accepts: is_commit_interval },
    Kept { kind: TargetKind::Mdt, name: COMMIT_INTERVAL, accepts: is_commit_interval },
    Kept { kind: TargetKind::Mgt, name: COMMIT_INTERVAL, accepts: is_commit_interval },
];

/// Milliseconds between a change and its commit at most; taken when the storage is opened.
const COMMIT_INTERVAL: &str = "osd-nacre.commit_interval_ms";
/// A commit more often would be one for each change; a change that is not durable for more than a minute is a surprise.
const COMMIT_INTERVAL_MS: std::ops::RangeInclusive<u64> = 10..=60_000;

fn is_number(text: &str) -> bool {
    text.parse::<u64>().is_ok()
}

fn is_switch(text: &str) -> bool {
    matches!(text, "0" | "1")
}

fn is_word(text: &str) -> bool {
    !text.contains(char::is_whitespace)
}

fn is_commit_interval(text: &str) -> bool {
    text.parse().is_ok_and(|ms| COMMIT_INTERVAL_MS.contains(&ms))
}

/// `NAME=VALUE` of `--param`, for a target of this kind. An empty value takes the parameter out of the label.
pub fn parse_param(text: &str, kind: TargetKind) -> Result<(String, String), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(format!("--param {text:?} must be NAME=VALUE, such as obdfilter.sync_journal=1"));
    };
    // `obdfilter.*.sync_journal`, as set_param takes it, is the same: a label speaks of one target.
    let name = name.replace(['/'], ".").replace(".*.", ".");
    let of_kind = || KEPT.iter().filter(|kept| kept.kind == kind);
    let Some(kept) = of_kind().find(|kept| kept.name == name) else {
        let known = of_kind().map(|kept| kept.name).collect::<Vec<_>>().join(", ");
        return Err(format!("--param {name}: a target of this kind keeps none of that name, but {known}"));
    };
    let value = value.trim();
    if !value.is_empty() && !(kept.accepts)(value) {
        return Err(format!("--param {name}={value}: the parameter does not take this value"));
    }
    Ok((name, value.to_owned()))
}

/// The name in the registry of a target's parameter that its label has as `name`.
fn registered(name: &str, target: &TargetName) -> String {
    match name.split_once('.') {
        Some(("lod", last)) => format!("lod.{target}-mdtlov.{last}"),
        Some((layer, last)) => format!("{layer}.{target}.{last}"),
        None => name.to_owned(),
    }
}

impl TargetOptions {
    /// Those of this label.
    pub fn of(label: &Label) -> Result<TargetOptions, String> {
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
            params: KEPT
                .iter()
                .filter(|kept| kept.kind == label.target.kind)
                .filter_map(|kept| Some((kept.name.to_owned(), option(kept.name)?.to_owned())))
                .collect(),
        })
    }

    /// Puts them into a label.
    pub fn put_into(&self, label: &mut Label) {
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
        label.options.retain(|name, _| !KEPT.iter().any(|kept| kept.name == name));
        let set = self.params.iter().filter(|(_, value)| !value.is_empty());
        label.options.extend(set.map(|(name, value)| (name.clone(), value.clone())));
    }

    /// The longest time between a change and its commit, if the label says.
    pub fn commit_interval(&self) -> Option<Duration> {
        self.params.get(COMMIT_INTERVAL)?.parse().ok().map(Duration::from_millis)
    }

    /// The values that the target begins with, by the names that its parameters have while it is served.
    pub(crate) fn presets(&self, target: &TargetName) -> Vec<(String, String)> {
        let all = self.params.iter().filter(|(name, _)| *name != COMMIT_INTERVAL);
        all.map(|(name, value)| (registered(name, target), value.clone())).collect()
    }

    /// Multi-mount protection, for targets that several nodes may serve.
    pub fn mmp(&self, node: &str, holder: u64) -> Option<MmpOptions> {
        let interval = self.mmp_interval.unwrap_or(MMP_INTERVAL_DEFAULT);
        let protected = !self.service_nodes.is_empty();
        protected.then(|| MmpOptions { interval, node: node.to_owned(), holder: holder.max(1) })
    }
}

/// An interval in milliseconds, as `--mmp-update-interval` takes it.
pub fn mmp_interval(text: &str) -> Result<Duration, String> {
    let range = MMP_INTERVAL_MIN..=MMP_INTERVAL_MAX;
    let interval = text.parse().ok().map(Duration::from_millis).filter(|interval| range.contains(interval));
    interval.ok_or_else(|| format!("{text:?} must be {} to {} ms", range.start().as_millis(), range.end().as_millis()))
}

/// What a label says, as `tunefs.lustre` prints it.
pub fn describe(label: &Label) -> String {
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
pub fn describe_mmp(status: Option<&MmpStatus>) -> String {
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
            params: BTreeMap::new(),
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
    fn parameters_are_kept_by_the_kind_of_target_and_changed_one_by_one() {
        let parse = |text: &str| parse_param(text, TargetKind::Ost);
        let param = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(parse("obdfilter.sync_journal=1"), Ok(param("obdfilter.sync_journal", "1")));
        assert_eq!(parse("obdfilter.*.brw_size=16"), Ok(param("obdfilter.brw_size", "16")));
        assert_eq!(parse("osd-nacre.commit_interval_ms="), Ok(param(COMMIT_INTERVAL, "")));
        let bad =
            ["x", "x=1", "obdfilter.abort_recovery=1", "mdt.recovery_time_soft=9", "osd-nacre.commit_interval_ms=1"];
        for bad in bad.into_iter().chain(["obdfilter.sync_journal=2", "obdfilter.brw_size=x"]) {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse_param("mdt.recovery_time_soft=9", TargetKind::Mdt).is_ok());

        let target: TargetName = "nacre-OST0003".parse().unwrap();
        let mut label = Label { uuid: Uuid::from_random(1, 2), target, parts: 1, options: Default::default() };
        let mut options = TargetOptions::default();
        options
            .params
            .extend(["obdfilter.sync_journal=1", "osd-nacre.commit_interval_ms=100"].map(|t| parse(t).unwrap()));
        options.put_into(&mut label);
        assert_eq!(TargetOptions::of(&label), Ok(options.clone()));
        assert_eq!(options.commit_interval(), Some(Duration::from_millis(100)));
        options.params.extend([parse("obdfilter.sync_journal=").unwrap()]);
        options.put_into(&mut label);
        let left = TargetOptions::of(&label).unwrap().params;
        assert_eq!(left, [param(COMMIT_INTERVAL, "100")].into());
        assert_eq!(registered("lod.stripecount", &"a-MDT0000".parse().unwrap()), "lod.a-MDT0000-mdtlov.stripecount");
    }

    #[test]
    fn an_interval_is_neither_too_short_nor_too_long() {
        assert_eq!(mmp_interval("100"), Ok(Duration::from_millis(100)));
        for bad in ["99", "60001", "x", ""] {
            assert!(mmp_interval(bad).is_err(), "{bad}");
        }
    }
}
