//! Which targets are silent: served by a node that no longer says so. Each node with targets names them again and again, and
//! says when it will do so next (MGS_LEASES). One that is late is asked by the network, and is silent if it does not answer
//! either. Clients and MDTs hear of silent targets with the configuration. They choose other targets and do not wait for
//! these, but no connection is broken and nobody is evicted, because the MGS may be the one that is cut off.
//!
//! Where several MGSs share a configuration, each hears the nodes that are connected to it, and tells the others which targets it
//! calls silent. A target that one of them hears is not silent, and the others leave it to that one.

use nacre_base::steps::Steps;
use nacre_base::{Nid, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A node may be late by so much.
const GRACE: Duration = Duration::from_millis(500);
/// A node that is late is silent if it does not answer the network within this time.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// A node that answers the network, but names no targets, is asked again after this time.
const PAUSE: Duration = Duration::from_secs(1);

/// State of a node with targets, as the MGS knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The node has named its targets in time.
    Heard,
    /// The node is late, and the MGS has asked whether it lives.
    Asked,
    /// The node is late, and did not answer the question.
    Silent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The node has named its targets.
    Named,
    /// The node has not named its targets in time.
    Late,
    /// The node has answered the question whether it lives.
    Answered,
    /// The node has not answered that question in time.
    Unanswered,
}

/// All steps.
const STEPS: Steps<State, Event> = Steps(&[
    (State::Heard, Event::Named, State::Heard),
    (State::Heard, Event::Late, State::Asked),
    (State::Asked, Event::Named, State::Heard),
    (State::Asked, Event::Answered, State::Heard),
    (State::Asked, Event::Unanswered, State::Silent),
    (State::Silent, Event::Named, State::Heard),
]);

#[derive(Debug)]
struct Node {
    state: State,
    /// When it has to name its targets at the latest.
    due: Time,
    /// The targets that it named last.
    targets: Vec<String>,
}

/// The nodes and targets that were heard of in one start of the MGS. A sans-IO engine.
pub(crate) struct Heartbeats {
    /// Grows with each change of the set of silent targets. No other start of the MGS has the same number.
    version: u64,
    nodes: BTreeMap<Nid, Node>,
    /// The targets that this MGS watches, each with the node that named it last.
    named_by: BTreeMap<String, Nid>,
    /// The targets that each other MGS calls silent.
    others: BTreeMap<String, BTreeSet<String>>,
    /// Targets that an MGS called silent until it ended. They are this one's to tell of until some MGS hears them.
    inherited: BTreeSet<String>,
}

/// The targets that have become silent, and those that no longer are.
pub(crate) type Changed = (Vec<String>, Vec<String>);

impl Heartbeats {
    /// Nothing is known yet in start `instance` of the MGS.
    pub(crate) fn new(instance: u64) -> Heartbeats {
        let (nodes, named_by, others, inherited) = Default::default();
        Heartbeats { version: instance << 32, nodes, named_by, others, inherited }
    }

    /// A node has named its targets, and will do so again within `next`. Those that it no longer names are silent.
    pub(crate) fn handle_named(&mut self, nid: Nid, targets: &[String], next: Duration, now: Time) -> Changed {
        let due = now + next + GRACE;
        let new = || Node { state: State::Heard, due, targets: Vec::new() };
        let node = self.nodes.entry(nid).or_insert_with(new);
        let state = STEPS.next(node.state, Event::Named);
        if node.state != State::Silent && node.targets == targets {
            (node.due, node.state) = (due, state);
            return Changed::default();
        }
        self.change(|this| {
            this.named_by.extend(targets.iter().map(|target| (target.clone(), nid)));
            this.nodes.insert(nid, Node { state, due, targets: targets.to_vec() });
            this.inherited.retain(|target| !targets.contains(target));
            // A node whose targets were all taken over by others is of no interest, whether it lives or not.
            let named_by = &this.named_by;
            this.nodes.retain(|at, _| *at == nid || named_by.values().any(|by| by == at));
        })
    }

    /// Returns the nodes that have to be asked now, because they are late.
    pub(crate) fn handle_time(&mut self, now: Time) -> Vec<Nid> {
        let late = self.nodes.iter_mut().filter(|(_, node)| node.state == State::Heard && node.due <= now);
        let asked = late.map(|(nid, node)| {
            node.state = STEPS.next(node.state, Event::Late);
            *nid
        });
        asked.collect()
    }

    /// A node that was asked has answered, or not in time. Returns the targets that are silent from now on.
    pub(crate) fn handle_asked(&mut self, nid: Nid, answered: bool, now: Time) -> Vec<String> {
        // The node may have named its targets meanwhile, and been asked once more.
        let Some(node) = self.nodes.get_mut(&nid).filter(|node| node.state == State::Asked) else { return Vec::new() };
        let state = STEPS.next(node.state, if answered { Event::Answered } else { Event::Unanswered });
        if state == State::Silent {
            let set_state = |this: &mut Heartbeats| {
                this.nodes.entry(nid).and_modify(|node| node.state = state);
            };
            return self.change(set_state).0;
        }
        node.state = state;
        node.due = node.due.max(now + PAUSE);
        Vec::new()
    }

    /// Another MGS says which targets it calls silent, or has ended.
    pub(crate) fn handle_other(&mut self, mgs: &str, silent: Option<BTreeSet<String>>) -> Changed {
        self.change(|this| {
            let before = this.others.remove(mgs).unwrap_or_default();
            match silent {
                Some(silent) if silent.is_empty() => {}
                Some(silent) => drop(this.others.insert(mgs.to_owned(), silent)),
                None => {
                    let unheard: Vec<_> = before.into_iter().filter(|target| !this.is_heard(target)).collect();
                    this.inherited.extend(unheard);
                }
            }
        })
    }

    /// Whether another MGS calls anything silent.
    pub(crate) fn have_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Another MGS hears these targets, and watches them from now on. Those that this MGS hears itself stay its own as well.
    pub(crate) fn handle_heard_elsewhere(&mut self, targets: &BTreeSet<String>) -> Changed {
        self.change(|this| {
            let theirs: Vec<_> = targets.iter().filter(|target| !this.is_heard(target)).collect();
            for target in theirs {
                if let Some(node) = this.named_by.remove(target).and_then(|nid| this.nodes.get_mut(&nid)) {
                    node.targets.retain(|named| named != target);
                }
                this.inherited.remove(target);
                this.others.values_mut().for_each(|silent| {
                    silent.remove(target);
                });
            }
            this.nodes.retain(|_, node| !node.targets.is_empty());
        })
    }

    /// The targets that this MGS itself calls silent, which the others should know.
    pub(crate) fn own_silent(&self) -> BTreeSet<String> {
        let own = self.named_by.keys().chain(&self.inherited);
        own.filter(|target| !self.is_heard(target)).cloned().collect()
    }

    /// The targets that another MGS calls silent, and that this one hears.
    pub(crate) fn contested(&self) -> BTreeSet<String> {
        self.others.values().flatten().filter(|target| self.is_heard(target)).cloned().collect()
    }

    fn is_heard(&self, target: &String) -> bool {
        let node = self.named_by.get(target).and_then(|nid| self.nodes.get(nid));
        node.is_some_and(|node| node.state != State::Silent && node.targets.contains(target))
    }

    /// When [`Heartbeats::handle_time`] has something to do; `Time::FAR_FUTURE` if no node is heard.
    pub(crate) fn next(&self) -> Time {
        let heard = self.nodes.values().filter(|node| node.state == State::Heard);
        heard.map(|node| node.due).min().unwrap_or(Time::FAR_FUTURE)
    }

    /// Number of the current set of silent targets.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The silent targets of a file system, or of all.
    pub(crate) fn silent<'a>(&'a self, fsname: Option<&'a str>) -> impl Iterator<Item = &'a String> + 'a {
        let is_of = move |target: &str| match fsname {
            Some(fsname) => target.rsplit_once('-').is_some_and(|(of, _)| of == fsname),
            None => true,
        };
        let known = self.named_by.keys().chain(&self.inherited).chain(self.others.values().flatten());
        let silent: BTreeSet<&String> = known.filter(|target| is_of(target) && !self.is_heard(target)).collect();
        silent.into_iter()
    }

    /// Makes a change.
    fn change(&mut self, change: impl FnOnce(&mut Heartbeats)) -> Changed {
        let before: BTreeSet<String> = self.silent(None).cloned().collect();
        change(self);
        let after: BTreeSet<String> = self.silent(None).cloned().collect();
        self.version += u64::from(before != after);
        assert!(after.iter().all(|target| !self.is_heard(target)), "silent, and heard: {after:?}");
        assert!(self.inherited.iter().all(|target| !self.is_heard(target)), "what is heard is no longer inherited");
        (after.difference(&before).cloned().collect(), before.difference(&after).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn silent(all: &Heartbeats) -> Vec<&str> {
        all.silent(None).map(String::as_str).collect()
    }

    /// Two nodes with a target each; the first has just fallen silent.
    fn one_of_two_silent() -> Heartbeats {
        let mut all = Heartbeats::new(3);
        all.handle_named(Nid::sim(1), &names(&["nacre-OST0000"]), SECOND, at(0));
        all.handle_named(Nid::sim(2), &names(&["nacre-OST0001"]), SECOND, at(100));
        assert_eq!(all.handle_time(at(1499)), []);
        assert_eq!(all.next(), at(1500));
        assert_eq!(all.handle_time(at(1500)), [Nid::sim(1)]);
        all.handle_named(Nid::sim(2), &names(&["nacre-OST0001"]), SECOND, at(1550));
        assert_eq!(silent(&all), [""; 0], "it is only late");
        assert_eq!(all.handle_asked(Nid::sim(1), false, at(2500)), ["nacre-OST0000"]);
        all
    }

    #[test]
    fn the_table_is_sound() {
        STEPS.assert_sound();
    }

    #[test]
    fn a_node_that_is_late_and_does_not_answer_is_silent_until_it_is_heard() {
        let mut all = one_of_two_silent();
        let version = all.version();
        assert_eq!(silent(&all), ["nacre-OST0000"]);
        assert_eq!(all.handle_time(at(2549)), [], "who is silent is not asked");
        let heard = all.handle_named(Nid::sim(1), &names(&["nacre-OST0000"]), SECOND, at(9000));
        assert_eq!((heard, all.version()), ((Vec::new(), names(&["nacre-OST0000"])), version + 1));
        assert_eq!(silent(&all), [""; 0]);
        assert_eq!(all.handle_named(Nid::sim(1), &names(&["nacre-OST0000"]), SECOND, at(9500)), Changed::default());
        assert_eq!(all.version(), version + 1, "nothing new");
    }

    #[test]
    fn a_node_that_is_late_and_answers_is_asked_again_and_again() {
        let mut all = Heartbeats::new(3);
        all.handle_named(Nid::sim(1), &names(&["nacre-OST0000"]), SECOND, at(0));
        for second in 0..5 {
            let now = at(1500 + 1000 * second);
            assert_eq!(all.handle_time(now), [Nid::sim(1)]);
            assert!(all.handle_asked(Nid::sim(1), true, now).is_empty());
        }
        assert_eq!((silent(&all).len(), all.version()), (0, 3 << 32));
    }

    #[test]
    fn an_answer_that_is_late_does_not_matter() {
        let mut all = Heartbeats::new(3);
        all.handle_named(Nid::sim(1), &names(&["nacre-OST0000"]), SECOND, at(0));
        assert_eq!(all.handle_time(at(1500)).len(), 1);
        all.handle_named(Nid::sim(1), &names(&["nacre-OST0000"]), SECOND, at(2000));
        assert!(all.handle_asked(Nid::sim(1), false, at(2500)).is_empty());
        assert!(all.handle_asked(Nid::sim(9), false, at(2500)).is_empty(), "nobody knows it");
        assert_eq!(silent(&all), [""; 0]);
    }

    /// A node says itself when it is heard next: at once, if it likes.
    #[test]
    fn two_questions_to_one_node_may_be_under_way() {
        let mut all = Heartbeats::new(3);
        let name = |all: &mut Heartbeats, at| {
            all.handle_named(Nid::sim(1), &names(&["nacre-OST0000"]), Duration::ZERO, at);
        };
        name(&mut all, at(0));
        assert_eq!(all.handle_time(at(500)).len(), 1);
        name(&mut all, at(600));
        assert_eq!(all.handle_time(at(1100)).len(), 1);
        assert_eq!(all.handle_asked(Nid::sim(1), false, at(1500)), ["nacre-OST0000"], "no answer to the first");
        assert!(all.handle_asked(Nid::sim(1), true, at(1600)).is_empty(), "an answer to the second");
        assert_eq!(silent(&all), ["nacre-OST0000"], "until it names its targets");
        name(&mut all, at(1700));
        assert_eq!(silent(&all), [""; 0]);
    }

    #[test]
    fn a_target_that_another_node_takes_over_is_heard() {
        let mut all = one_of_two_silent();
        let both = names(&["nacre-OST0000", "nacre-OST0001"]);
        assert_eq!(all.handle_named(Nid::sim(2), &both, SECOND, at(3000)).1, ["nacre-OST0000"]);
        assert_eq!((silent(&all).len(), all.nodes.len()), (0, 1), "the other node is of no interest");
    }

    fn set(list: &[&str]) -> BTreeSet<String> {
        names(list).into_iter().collect()
    }

    #[test]
    fn what_another_mgs_calls_silent_is_silent_unless_it_is_heard_here() {
        let mut all = Heartbeats::new(3);
        all.handle_named(Nid::sim(1), &names(&["nacre-OST0000"]), SECOND, at(0));
        let told = set(&["nacre-OST0000", "nacre-OST0001"]);
        assert_eq!(all.handle_other("7", Some(told)), (names(&["nacre-OST0001"]), Vec::new()));
        assert_eq!((all.own_silent(), all.contested()), (set(&[]), set(&["nacre-OST0000"])));
        assert_eq!(all.handle_other("7", Some(set(&[]))).1, ["nacre-OST0001"]);
        assert_eq!((silent(&all).len(), all.contested().len()), (0, 0));
    }

    #[test]
    fn a_target_that_another_mgs_hears_is_left_to_that_one() {
        let mut all = one_of_two_silent();
        assert_eq!(all.own_silent(), set(&["nacre-OST0000"]));
        let heard = set(&["nacre-OST0000", "nacre-OST0001"]);
        assert_eq!(all.handle_heard_elsewhere(&heard), (Vec::new(), names(&["nacre-OST0000"])));
        assert_eq!((all.own_silent(), all.nodes.len()), (set(&[]), 1), "the node that is heard is still watched");
        assert_eq!(all.handle_time(at(60_000)), [Nid::sim(2)]);
        assert_eq!(all.handle_other("7", Some(set(&["nacre-OST0000"]))).0, ["nacre-OST0000"], "it died there");
    }

    #[test]
    fn what_an_mgs_called_silent_when_it_ended_stays_so_until_somebody_hears_it() {
        let mut all = Heartbeats::new(3);
        all.handle_other("7", Some(set(&["nacre-OST0000", "nacre-OST0001"])));
        assert_eq!(all.own_silent(), set(&[]));
        assert_eq!(all.handle_other("7", None), Changed::default());
        assert_eq!(all.own_silent(), set(&["nacre-OST0000", "nacre-OST0001"]), "the others hear it from this one now");
        assert_eq!(all.handle_named(Nid::sim(1), &names(&["nacre-OST0000"]), SECOND, at(0)).1, ["nacre-OST0000"]);
        assert_eq!(all.handle_heard_elsewhere(&set(&["nacre-OST0001"])).1, ["nacre-OST0001"]);
        assert_eq!((silent(&all).len(), all.own_silent().len()), (0, 0));
    }

    #[test]
    fn a_target_that_its_node_no_longer_names_is_silent() {
        let mut all = Heartbeats::new(3);
        all.handle_named(Nid::sim(1), &names(&["a-OST0000", "b-OST0000"]), SECOND, at(0));
        assert_eq!(all.handle_named(Nid::sim(1), &names(&["a-OST0000"]), SECOND, at(500)).0, ["b-OST0000"]);
        assert_eq!(silent(&all), ["b-OST0000"]);
        assert_eq!((all.silent(Some("a")).count(), all.silent(Some("b")).count()), (0, 1));
        assert_eq!(all.version(), (3 << 32) + 1);
    }
}
