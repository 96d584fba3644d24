//! The configuration as of the last commit that the MGS has heard of, with the versions at which its parts changed, so that
//! an asker gets what is new to it and no more. A sans-IO engine.

use crate::config;
use crate::draft::{Draft, Entries};
use crate::error::ConfigError;
use crate::store::Changes;
use nacre_wire::mgs::{Config, ConfigReply};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most parts of a file system whose changes are remembered. An asker who is behind by more reads everything.
const CHANGED_MAX: usize = 1 << 14;

/// The configuration of all file systems.
#[derive(Default)]
pub(crate) struct State {
    entries: Entries,
    /// Revision of the last commit.
    revision: u64,
    file_systems: BTreeMap<String, Recent>,
}

/// A part of a file system's configuration, by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Target(String),
    Param(String),
}

/// The latest changes of a file system's configuration.
#[derive(Default)]
struct Recent {
    /// All changes after this version are known.
    complete_after: u64,
    /// The version at which each part changed last.
    changed: BTreeMap<Item, u64>,
    /// The same, in order.
    in_order: BTreeSet<(u64, Item)>,
    /// The whole configuration of the newest version. It is read when the first client asks for it and kept until the next commit, because
    /// thousands of clients may mount together.
    whole: Option<Config>,
}

impl Recent {
    fn note(&mut self, item: Item, version: u64) {
        if let Some(before) = self.changed.insert(item.clone(), version) {
            self.in_order.remove(&(before, item.clone()));
        }
        self.in_order.insert((version, item));
        if self.changed.len() > CHANGED_MAX {
            *self = Recent { complete_after: version, ..Recent::default() };
        }
        assert_eq!(self.changed.len(), self.in_order.len(), "each part stands in both");
    }

    fn since(&self, version: u64) -> impl Iterator<Item = &Item> {
        self.in_order.range((version + 1, Item::Target(String::new()))..).map(|(_, item)| item)
    }
}

impl State {
    /// The state with these entries, as of this revision. What changed before is not known.
    pub(crate) fn new(revision: u64, entries: Entries) -> State {
        let draft = Draft::new(&entries);
        let mut file_systems = BTreeMap::new();
        for fsname in config::file_systems(&draft) {
            // A damaged version is found when it is read.
            let complete_after = config::version(&draft, &fsname).unwrap_or(u64::MAX);
            file_systems.insert(fsname, Recent { complete_after, ..Recent::default() });
        }
        State { entries, revision, file_systems }
    }

    /// Revision of the last commit.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The entries, to be read and changed on trial.
    pub(crate) fn draft(&self) -> Draft<'_> {
        Draft::new(&self.entries)
    }

    /// A commit was made. Returns the file systems that it changed. One that is known already is ignored, because the MGS
    /// that made it hears of it twice.
    pub(crate) fn handle_commit(&mut self, revision: u64, changes: &Changes) -> Vec<String> {
        if revision <= self.revision {
            return Vec::new();
        }
        self.revision = revision;
        self.file_systems.values_mut().for_each(|recent| recent.whole = None);
        for (key, value) in changes {
            match value {
                Some(value) => self.entries.insert(key.clone(), value.clone()),
                None => self.entries.remove(key),
            };
        }
        let mut changed = Vec::new();
        for key in changes.keys() {
            if let Part::Version(fsname) = part_of(key) {
                self.file_systems.entry(fsname.to_owned()).or_default();
                changed.push(fsname.to_owned());
            }
        }
        for key in changes.keys() {
            match part_of(key) {
                Part::Target(fsname, name) => self.note(fsname, &Item::Target(name.to_owned())),
                Part::Param("", name) => {
                    let all: Vec<String> = self.file_systems.keys().cloned().collect();
                    all.iter().for_each(|fsname| self.note(fsname, &Item::Param(name.to_owned())));
                }
                Part::Param(fsname, name) => self.note(fsname, &Item::Param(name.to_owned())),
                Part::Version(_) | Part::Other => {}
            }
        }
        changed
    }

    fn note(&mut self, fsname: &str, item: &Item) {
        let version = config::version(&Draft::new(&self.entries), fsname).unwrap_or(0);
        if let Some(recent) = self.file_systems.get_mut(fsname) {
            recent.note(item.clone(), version);
        }
    }

    /// The newest version of a file system's configuration, for an asker that has `since`: the changes if they are remembered,
    /// otherwise everything.
    pub(crate) fn reply(&mut self, fsname: &str, since: u64) -> Result<ConfigReply, ConfigError> {
        let draft = Draft::new(&self.entries);
        let version = config::version(&draft, fsname)?;
        let Some(recent) = self.file_systems.get_mut(fsname) else {
            return Ok(ConfigReply { config: config::read(&draft, fsname)?, ..ConfigReply::default() });
        };
        if since == 0 || since < recent.complete_after || since > version {
            let config = match &recent.whole {
                Some(whole) => whole.clone(),
                None => recent.whole.insert(config::read(&draft, fsname)?).clone(),
            };
            assert_eq!(config.version, version, "a commit ends what was read before it");
            return Ok(ConfigReply { config, ..ConfigReply::default() });
        }
        let config = Config { version, fsname: fsname.to_owned(), ..Config::default() };
        let mut reply = ConfigReply { since, config, unset: Vec::new() };
        for item in recent.since(since) {
            match item {
                Item::Target(name) => reply.config.targets.extend(config::entry_of(&draft, name)?.map(Arc::new)),
                Item::Param(name) => match config::param(&draft, fsname, name) {
                    Some(value) => reply.config.params.push((name.clone(), value)),
                    None => reply.unset.push(name.clone()),
                },
            }
        }
        Ok(reply)
    }
}

/// The part of the configuration that a key belongs to.
enum Part<'a> {
    /// A target of a file system.
    Target(&'a str, &'a str),
    /// A setting for a file system, or for all of them if its name is empty.
    Param(&'a str, &'a str),
    /// The version of a file system.
    Version(&'a str),
    /// Parts that no client sees.
    Other,
}

/// Says what is kept under a key.
fn part_of(key: &[u8]) -> Part<'_> {
    let parts: Vec<&str> = str::from_utf8(key).unwrap_or_default().splitn(3, '/').collect();
    match parts[..] {
        ["target", fsname, name] => Part::Target(fsname, name),
        ["param", fsname, name] => Part::Param(fsname, name),
        ["version", fsname] => Part::Version(fsname),
        _ => Part::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::From;
    use nacre_base::param::Params;
    use nacre_base::param::declared::{Declared, SWITCH};
    use nacre_base::{Nid, Uuid};
    use nacre_wire::mgs::{SetParam, TargetReg};

    const PARAM: &str = "osc.*.active";
    const DECLARED: &[Declared] = &[Declared::kept(&["osc"], "active", SWITCH, "1", "0 makes each access fail.")];

    /// Commits a change to a state.
    fn commit(state: &mut State, change: impl FnOnce(&mut Draft)) -> Vec<String> {
        let mut draft = state.draft();
        change(&mut draft);
        let changes = draft.into_changes().0;
        state.handle_commit(state.revision() + 1, &changes)
    }

    fn register(state: &mut State, target: &str, instance: u64) -> Vec<String> {
        let nids = vec![Nid::sim(1)];
        let reg = TargetReg { target: target.into(), uuid: Uuid([1; 16]), nids, instance, host: "h".into() };
        commit(state, |draft| {
            config::register(draft, &reg, From::Here).unwrap();
        })
    }

    fn set(state: &mut State, fsname: &str, value: Option<&str>) -> Vec<String> {
        let params = Params::new();
        params.declare(DECLARED);
        let param = SetParam { fsname: fsname.into(), name: PARAM.into(), value: value.map(str::to_owned) };
        commit(state, |draft| config::set_param(draft, &params, &param).unwrap())
    }

    /// The contents of a reply: the version, whether it is all there is, and what it names.
    fn carried(state: &mut State, fsname: &str, since: u64) -> (u64, bool, Vec<String>) {
        let reply = state.reply(fsname, since).unwrap();
        let targets = reply.config.targets.iter().map(|t| format!("{} {}", t.target, t.instance));
        let params = reply.config.params.iter().map(|(name, value)| format!("{name}={value}"));
        let unset = reply.unset.iter().map(|name| format!("no {name}"));
        (reply.config.version, reply.since == 0, targets.chain(params).chain(unset).collect())
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn an_asker_gets_what_is_new_to_it() {
        let mut state = State::default();
        for (index, target) in ["n-MDT0000", "n-OST0000", "n-OST0001"].iter().enumerate() {
            assert_eq!(register(&mut state, target, 1), ["n"]);
            assert_eq!(carried(&mut state, "n", 0).0, index as u64 + 1);
        }
        register(&mut state, "n-OST0001", 2);
        register(&mut state, "n-OST0001", 3);
        assert_eq!(set(&mut state, "n", Some("0")), ["n"]);
        assert_eq!(carried(&mut state, "n", 3), (6, false, texts(&["n-OST0001 3", "osc.*.active=0"])));
        assert_eq!(carried(&mut state, "n", 5), (6, false, texts(&["osc.*.active=0"])));
        assert_eq!(carried(&mut state, "n", 6), (6, false, vec![]));
        set(&mut state, "n", None);
        assert_eq!(carried(&mut state, "n", 5), (7, false, texts(&["no osc.*.active"])));
        let all = (7, true, texts(&["n-MDT0000 1", "n-OST0000 1", "n-OST0001 3"]));
        assert_eq!(
            [carried(&mut state, "n", 0), carried(&mut state, "n", 8)],
            [all.clone(), all],
            "nothing known, or too much"
        );
    }

    #[test]
    fn a_whole_configuration_is_read_once_for_all_who_ask_until_something_changes() {
        let mut state = State::default();
        register(&mut state, "n-MDT0000", 1);
        let mut first_target = || state.reply("n", 0).unwrap().config.targets[0].clone();
        assert!(Arc::ptr_eq(&first_target(), &first_target()));
        register(&mut state, "n-MDT0000", 2);
        assert_eq!(state.reply("n", 0).unwrap().config.targets[0].instance, 2);
    }

    #[test]
    fn a_setting_for_all_is_news_for_each_file_system() {
        let mut state = State::default();
        register(&mut state, "a-MDT0000", 1);
        register(&mut state, "b-MDT0000", 1);
        set(&mut state, "b", Some("0"));
        assert_eq!(set(&mut state, "", Some("1")), ["a", "b"]);
        assert_eq!(carried(&mut state, "a", 1), (2, false, texts(&["osc.*.active=1"])));
        assert_eq!(carried(&mut state, "b", 2), (3, false, texts(&["osc.*.active=0"])), "its own setting holds");
        set(&mut state, "b", None);
        assert_eq!(carried(&mut state, "b", 3), (4, false, texts(&["osc.*.active=1"])));
    }

    /// Changes before a start of the MGS are forgotten.
    #[test]
    fn an_asker_who_is_too_far_behind_gets_everything() {
        let mut state = State::default();
        register(&mut state, "n-MDT0000", 1);
        register(&mut state, "n-OST0000", 1);
        let mut again = State::new(7, state.entries.clone());
        assert!(carried(&mut again, "n", 1).1);
        assert_eq!(carried(&mut again, "n", 2), (2, false, vec![]));
        register(&mut again, "n-OST0000", 2);
        assert_eq!(carried(&mut again, "n", 2), (3, false, texts(&["n-OST0000 2"])));
    }

    #[test]
    fn a_commit_that_is_known_changes_nothing_again() {
        let mut state = State::default();
        let changes = |text: &str| Changes::from([(b"param/n/x".to_vec(), Some(text.as_bytes().to_vec()))]);
        state.handle_commit(3, &changes("new"));
        state.handle_commit(3, &changes("old"));
        state.handle_commit(2, &changes("older"));
        assert_eq!(config::param(&state.draft(), "n", "x").as_deref(), Some("new"));
    }
}
