//! The options that the administrator sets in a target's label: the MGS's NIDs, the nodes that may serve the target,
//! and their protection against serving it at the same time.

use nacre_base::param::declared::{Access, Declared};
use nacre_base::param::value::Fields;
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
/// With a shorter interval, a busy machine would stop targets without need.
const MMP_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The options of a label.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TargetOptions {
    /// NIDs of the MGS.
    pub mgs: Vec<Nid>,
    /// NIDs of all nodes that may serve the target; none if it never moves.
    pub service_nodes: Vec<Nid>,
    /// Interval of multi-mount protection, if it is not the default.
    pub mmp_interval: Option<Duration>,
    /// Place where commits go first, if not to the target itself.
    pub journal: Option<PathBuf>,
    /// Values of parameters that the target begins with, by names such as `obdfilter.sync_journal`.
    pub params: BTreeMap<String, String>,
}

/// Milliseconds between a change and its commit at most; read when the storage is opened.
const COMMIT_INTERVAL: &str = "osd-nacre.commit_interval_ms";

/// The layers whose settings the label of such a target may keep.
fn layers(kind: TargetKind) -> &'static [&'static str] {
    match kind {
        TargetKind::Mgt => &[],
        TargetKind::Mdt => &["mdt", "lod"],
        TargetKind::Ost => &["obdfilter"],
    }
}

/// Every parameter that the label of such a target may keep, by its name in the label (`obdfilter.sync_journal`): settings that
/// change what the target promises or how it serves, and the commit interval.
fn kept(kind: TargetKind) -> impl Iterator<Item = (String, &'static Declared)> {
    let declared = || nacre_node::DECLARED.iter().copied().flatten().chain(crate::PARAMS);
    let in_layer = move |layer: &'static str| {
        let of_layer = move |d: &&Declared| d.access == Access::Kept && d.layers.contains(&layer);
        declared().filter(of_layer).map(move |d| (format!("{layer}.{}", d.name), d))
    };
    let interval = crate::PARAMS.iter().map(|d| (format!("osd-nacre.{}", d.name), d));
    layers(kind)
        .iter()
        .flat_map(move |layer| in_layer(layer))
        .chain(interval.filter(|(name, _)| name == COMMIT_INTERVAL))
}

/// `NAME=VALUE` of `--param`, for a target of this kind. An empty value takes the parameter out of the label.
pub fn parse_param(text: &str, kind: TargetKind) -> Result<(String, String), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(format!("--param {text:?} must be NAME=VALUE, such as obdfilter.sync_journal=1"));
    };
    // `obdfilter.*.sync_journal`, as set_param takes it, is the same: a label speaks of one target.
    let name = name.replace(['/'], ".").replace(".*.", ".");
    let Some((name, declared)) = kept(kind).find(|(kept, _)| *kept == name) else {
        let known = kept(kind).map(|(name, _)| name).collect::<Vec<_>>().join(", ");
        return Err(format!("--param {name}: a target of this kind keeps none of that name, but {known}"));
    };
    let value = value.trim();
    if !value.is_empty() && !declared.kind.allows(value) {
        return Err(format!("--param {name}={value}: the value must be {}", declared.kind));
    }
    Ok((name, value.to_owned()))
}

/// Name in the registry of the target's parameter that the label calls `name`.
fn registered(name: &str, target: &TargetName) -> String {
    match name.split_once('.') {
        Some(("lod", last)) => format!("lod.{target}-mdtlov.{last}"),
        Some((layer, last)) => format!("{layer}.{target}.{last}"),
        None => name.to_owned(),
    }
}

impl TargetOptions {
    /// The options of this label.
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
            params: kept(label.target.kind)
                .filter_map(|(name, _)| option(&name).map(str::to_owned).map(|value| (name, value)))
                .collect(),
        })
    }

    /// Writes the options into a label.
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
        for (name, _) in kept(label.target.kind) {
            label.options.remove(&name);
        }
        let set = self.params.iter().filter(|(_, value)| !value.is_empty());
        label.options.extend(set.map(|(name, value)| (name.clone(), value.clone())));
    }

    /// The longest time between a change and its commit, if the label has one.
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

/// The contents of a label, as `tunefs.lustre` prints them.
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

/// State of multi-mount protection, for a parameter.
pub fn describe_mmp(status: Option<&MmpStatus>) -> Fields {
    let mut fields = Fields::default();
    let Some(MmpStatus { record, lost_to }) = status else {
        fields.push("state", "off");
        return fields;
    };
    fields.push("state", lost_to.as_ref().map_or_else(|| "held".to_owned(), |by| format!("lost to {by}")));
    fields.push("node", record.node.clone());
    fields.push("update_interval_ms", record.interval.as_millis() as u64);
    fields.push("sequence", record.count);
    fields
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
            service_nodes: nids("10.0.0.2@tcp 10.0.0.3:7000@tcp [2001:db8::2]:7000@tcp 2001:db8::3@tcp"),
            mmp_interval: Some(Duration::from_millis(500)),
            journal: Some("/journals/ost3".into()),
            params: BTreeMap::new(),
        };
        options.put_into(&mut label);
        assert_eq!(TargetOptions::of(&label), Ok(options.clone()));
        let text = describe(&label);
        let nodes = "10.0.0.2@tcp,10.0.0.3:7000@tcp,[2001:db8::2]:7000@tcp,2001:db8::3@tcp";
        let parameters = format!("Parameters: failover.node={nodes} journal=/journals/ost3 mgsnode=10.0.0.1@tcp");
        assert!(text.contains(&parameters), "{text}");
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
        for bad in bad.into_iter().chain(["obdfilter.sync_journal=2", "obdfilter.brw_size=x", "obdfilter.brw_size=65"])
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let of_mdt = |text: &str| parse_param(text, TargetKind::Mdt);
        for good in ["mdt.recovery_time_soft=9", "mdt.root_squash=65534:65534", "lod.qos_prio_free=90%"] {
            assert!(of_mdt(good).is_ok(), "{good}");
        }
        assert_eq!(of_mdt("mdt.*.nosquash_nids=10.0.0.1@tcp").unwrap().0, "mdt.nosquash_nids");
        assert!(of_mdt("mdt.nosquash_nids=nobody").is_err());
        let refused = of_mdt("mdt.root_squash=nobody").unwrap_err();
        assert_eq!(refused, "--param mdt.root_squash=nobody: the value must be UID:GID");
        // A layer of several kinds of targets has parameters that only one of them knows.
        assert!(kept(TargetKind::Ost).all(|(name, _)| !name.contains("squash")));

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
