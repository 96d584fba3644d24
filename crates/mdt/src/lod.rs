//! Chooses the OSTs for a new file's stripes: Lustre's logical object device as an engine. Its inputs are OSTs, their
//! space and their state, its outputs lists of OSTs; it creates no objects. Deterministic for a given seed and history.

use crate::auto_stripe;
use nacre_base::steps::Steps;
use nacre_base::{Errno, OstIndex, Prng};
use nacre_wire::attr::{StatFs, statfs_state};
use nacre_wire::layout::{
    Component, ComponentSpec, Layout, LayoutSpec, STRIPE_COUNT_MAX, STRIPE_SIZE_DEFAULT, pattern,
};
use std::collections::{BTreeMap, BTreeSet};

/// Spread of free space, in percent, above which placement follows free space (`qos_threshold_rr`).
pub const QOS_THRESHOLD_RR_DEFAULT: u32 = 17;
/// How much free space counts against having been used just now, in percent (`qos_prio_free`).
pub const QOS_PRIO_FREE_DEFAULT: u32 = 90;
/// An OST with less than this part of its space free counts as full.
const FULL_FRACTION: u64 = 1000;

/// State of an OST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OstState {
    /// The serving host: stripes of a file go to different hosts first.
    pub host: String,
    /// Health of the OST.
    pub health: Health,
    /// True if the administrator wants no new objects there.
    pub no_create: bool,
    /// Bytes that new data may take.
    pub available: u64,
    /// Size of the device in bytes.
    pub total: u64,
    /// Bits of `statfs_state`.
    pub state: u32,
    /// Bytes by which recent use reduces the free space that counts, so that weighted choices do not pile up.
    penalty: u64,
}

/// Whether an OST answers. If a layout may use several OSTs, the least of their values is what a new file can hope for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// The OST answers.
    Active,
    /// The OST was just configured, or the MDT just started: the OST has neither answered nor failed to answer yet.
    Starting,
    /// The OST does not answer. It may come back at any time.
    Away,
    /// The administrator has deactivated it.
    Deactivated,
}

/// Event that changes the health of an OST: the result of a request, or a command of the administrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Answer,
    Silence,
    Deactivate,
    Activate,
}

/// All steps of an OST's health.
const HEALTH: Steps<Health, Heard> = {
    use Health::{Active, Away, Deactivated, Starting};
    Steps(&[
        (Starting, Heard::Answer, Active),
        (Starting, Heard::Silence, Away),
        (Starting, Heard::Deactivate, Deactivated),
        (Starting, Heard::Activate, Starting),
        (Active, Heard::Answer, Active),
        (Active, Heard::Silence, Away),
        (Active, Heard::Deactivate, Deactivated),
        (Active, Heard::Activate, Active),
        (Away, Heard::Answer, Active),
        (Away, Heard::Silence, Away),
        (Away, Heard::Deactivate, Deactivated),
        (Away, Heard::Activate, Away),
        // The result of an earlier request no longer counts.
        (Deactivated, Heard::Answer, Deactivated),
        (Deactivated, Heard::Silence, Deactivated),
        (Deactivated, Heard::Deactivate, Deactivated),
        // Whether the OST answers is not known yet.
        (Deactivated, Heard::Activate, Away),
    ])
};

/// Reason why no OSTs were chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LodError {
    /// None of the OSTs that the layout may use answers; with the best health of any of them.
    #[error("no OST answers: {0:?}")]
    Unavailable(Health),
    /// Every OST that answers is full, or takes no new objects.
    #[error("no OST takes new objects")]
    NoSpace,
    /// The layout names an OST that does not exist.
    #[error("there is no OST {0:?}")]
    Unknown(OstIndex),
    /// The layout names an OST that is full, or takes no new objects.
    #[error("OST {0:?} takes no new objects")]
    NoSpaceOn(OstIndex),
    /// More stripes than a component can have.
    #[error("more than {STRIPE_COUNT_MAX} stripes")]
    TooManyStripes,
}

impl LodError {
    /// The error number for the client. EINPROGRESS if an OST may come: the client then repeats the request, for as long
    /// as it takes.
    pub fn errno(self) -> Errno {
        match self {
            LodError::Unavailable(Health::Deactivated) => Errno::ENXIO,
            LodError::Unavailable(_) => Errno::EINPROGRESS,
            LodError::NoSpace | LodError::NoSpaceOn(_) => Errno::ENOSPC,
            LodError::Unknown(_) => Errno::EINVAL,
            LodError::TooManyStripes => Errno::E2BIG,
        }
    }
}

/// Placement of one component, without objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Bytes of a stripe.
    pub stripe_size: u32,
    /// The OST of each stripe.
    pub osts: Vec<OstIndex>,
}

impl Choice {
    /// True if an OST has several stripes.
    pub fn is_overstriped(&self) -> bool {
        let mut seen = BTreeSet::new();
        !self.osts.iter().all(|o| seen.insert(*o))
    }
}

/// Chooses OSTs for layouts.
#[derive(Debug)]
pub struct Lod {
    osts: BTreeMap<OstIndex, OstState>,
    /// All OSTs, interleaved by host, in the order of round robin.
    order: Vec<OstIndex>,
    /// Index in `order` at which the next file begins.
    cursor: usize,
    prng: Prng,
    /// `qos_threshold_rr` in percent.
    pub qos_threshold_rr: u32,
    /// `qos_prio_free` in percent.
    pub qos_prio_free: u32,
    /// Stripe count of a file without a wish of its own; as in `ComponentSpec`.
    pub default_stripe_count: i32,
    /// Stripe size of such a file, in bytes.
    pub default_stripe_size: u32,
    /// True if such a file gets automatic stripe counts, whatever `default_stripe_count` says.
    pub auto_stripe: bool,
}

impl Lod {
    /// Creates an engine that knows no OST yet.
    pub fn new(seed: u64) -> Lod {
        Lod {
            osts: BTreeMap::new(),
            order: Vec::new(),
            cursor: 0,
            prng: Prng::new(seed),
            qos_threshold_rr: QOS_THRESHOLD_RR_DEFAULT,
            qos_prio_free: QOS_PRIO_FREE_DEFAULT,
            default_stripe_count: 1,
            default_stripe_size: STRIPE_SIZE_DEFAULT,
            auto_stripe: false,
        }
    }

    /// Adds an OST, or moves it to another host. A new OST is starting until its health is reported.
    pub fn handle_ost(&mut self, ost: OstIndex, host: &str) {
        let state = self.osts.entry(ost).or_insert_with(|| OstState {
            host: String::new(),
            health: Health::Starting,
            no_create: false,
            available: 0,
            total: 0,
            state: 0,
            penalty: 0,
        });
        host.clone_into(&mut state.host);
        self.reorder();
    }

    /// Takes an OST's reply to statfs, which shows that the OST is active.
    pub fn handle_statfs(&mut self, ost: OstIndex, statfs: &StatFs) {
        self.set_active(ost, true);
        let (o, block) = (self.known(ost), u64::from(statfs.block_size));
        o.available = statfs.blocks_available.saturating_mul(block);
        o.total = statfs.blocks.saturating_mul(block);
        o.state = statfs.state;
    }

    /// Sets whether an OST answers. That has no effect while the OST is deactivated.
    pub fn set_active(&mut self, ost: OstIndex, active: bool) {
        self.hear(ost, if active { Heard::Answer } else { Heard::Silence });
    }

    fn hear(&mut self, ost: OstIndex, heard: Heard) {
        let o = self.known(ost);
        o.health = HEALTH.next(o.health, heard);
    }

    /// State of a configured OST; callers do not know of others.
    fn known(&mut self, ost: OstIndex) -> &mut OstState {
        let Some(o) = self.osts.get_mut(&ost) else { panic!("{ost:?} is not configured") };
        o
    }

    /// Deactivates an OST for the administrator, or activates it again: then it is away until it answers.
    pub fn set_enabled(&mut self, ost: OstIndex, enabled: bool) {
        self.hear(ost, if enabled { Heard::Activate } else { Heard::Deactivate });
    }

    /// Sets whether an OST takes no new objects.
    pub fn set_no_create(&mut self, ost: OstIndex, no_create: bool) {
        self.known(ost).no_create = no_create;
    }

    /// An OST's state.
    pub fn ost(&self, ost: OstIndex) -> Option<&OstState> {
        self.osts.get(&ost)
    }

    /// Number of configured OSTs.
    pub fn count(&self) -> usize {
        self.osts.len()
    }

    /// Number of OSTs that answer.
    pub fn active_count(&self) -> usize {
        self.osts.values().filter(|o| o.is_active()).count()
    }

    /// The layout of a new file with the wish `spec`: open choices are filled in, and no component has objects.
    pub fn lay_out(&self, spec: &LayoutSpec) -> Result<Layout, LodError> {
        let auto = self.auto_stripe && spec.components.len() == 1 && leaves_striping_open(&spec.components[0]);
        let whole = auto.then(|| self.automatic(&spec.components[0]));
        let asked = whole.as_ref().unwrap_or(spec);
        let expanded = auto_stripe::expand(asked);
        let mut start = 0;
        let mut components = Vec::new();
        for (i, c) in expanded.as_ref().unwrap_or(asked).components.iter().enumerate() {
            let named = c.osts.iter().copied().chain(explicit_start(c));
            if let Some(unknown) = named.into_iter().find(|o| !self.osts.contains_key(o)) {
                return Err(LodError::Unknown(unknown));
            }
            components.push(self.component(i as u32 + 1, start, c));
            start = c.end;
        }
        // As in Lustre: a plain layout has generation 0, and a composite one starts with the number of its components.
        let generation = if components.len() == 1 { 0 } else { components.len() as u32 };
        Ok(Layout { generation, components })
    }

    fn automatic(&self, asked: &ComponentSpec) -> LayoutSpec {
        let mut spec = auto_stripe::whole_file();
        let whole = &mut spec.components[0];
        (whole.end, whole.stripe_size) = (asked.end, asked.stripe_size);
        spec
    }

    fn component(&self, id: u32, start: u64, asked: &ComponentSpec) -> Component {
        let mut wanted = asked.clone();
        if wanted.stripe_size == 0 {
            wanted.stripe_size = self.default_stripe_size;
        }
        if wanted.stripe_count == 0 {
            wanted.stripe_count = self.default_stripe_count;
        }
        Component {
            id,
            flags: 0,
            start,
            end: asked.end,
            pattern: pattern::RAID0 | if asked.overstripe { pattern::OVERSTRIPING } else { 0 },
            stripe_size: wanted.stripe_size,
            pool: asked.pool.clone(),
            stripes: Vec::new(),
            wanted: Some(wanted),
        }
    }

    /// Number of OSTs that take new objects.
    pub fn usable_count(&self) -> usize {
        self.osts.values().filter(|o| o.is_usable()).count()
    }

    /// Chooses OSTs for one component. `ready` returns how many objects an OST has at hand: OSTs without any are avoided.
    pub fn choose(&mut self, spec: &ComponentSpec, ready: &dyn Fn(OstIndex) -> u32) -> Result<Choice, LodError> {
        let stripe_size = if spec.stripe_size == 0 { self.default_stripe_size } else { spec.stripe_size };
        let osts = if spec.osts.is_empty() { self.choose_any(spec, ready)? } else { self.check_list(spec)? };
        assert!(!osts.is_empty() && stripe_size > 0, "{osts:?} with stripes of {stripe_size} bytes are chosen");
        let is_usable = |ost: &OstIndex| self.osts.get(ost).is_some_and(OstState::is_usable);
        assert!(osts.iter().all(is_usable), "some of {osts:?} take no new objects");
        self.note_use(&osts);
        Ok(Choice { stripe_size, osts })
    }

    /// Checks an explicit list, which is used as it is, beginning with the OST of the `-i` option if there is one.
    fn check_list(&self, spec: &ComponentSpec) -> Result<Vec<OstIndex>, LodError> {
        for ost in &spec.osts {
            self.check_named(*ost)?;
        }
        let mut osts = spec.osts.clone();
        if let Some(start) = explicit_start(spec) {
            let at = osts.iter().position(|o| *o == start).ok_or(LodError::Unknown(start))?;
            osts.rotate_left(at);
        }
        Ok(osts)
    }

    fn check_named(&self, ost: OstIndex) -> Result<(), LodError> {
        match self.osts.get(&ost) {
            None => Err(LodError::Unknown(ost)),
            Some(o) if o.is_usable() => Ok(()),
            Some(o) if o.is_active() => Err(LodError::NoSpaceOn(ost)),
            Some(o) => Err(LodError::Unavailable(o.health)),
        }
    }

    fn choose_any(&mut self, spec: &ComponentSpec, ready: &dyn Fn(OstIndex) -> u32) -> Result<Vec<OstIndex>, LodError> {
        let usable = self.usable_count();
        if let Some(start) = explicit_start(spec) {
            self.check_named(start)?;
        }
        if usable == 0 {
            let best = self.osts.values().map(|o| o.health).min();
            return Err(match best.unwrap_or(Health::Starting) {
                Health::Active => LodError::NoSpace,
                health => LodError::Unavailable(health),
            });
        }
        let count = self.stripe_count(spec, usable)?;
        let on_each = count.div_ceil(usable) as u32;
        let distinct = count.min(usable);
        let mut osts = match explicit_start(spec) {
            // From that OST on in the order of indexes, as in Lustre.
            Some(start) => {
                let all: Vec<OstIndex> = self.osts.keys().copied().collect();
                self.preferred(rotated(&all, |o| *o == start), distinct, on_each, ready, Some(start))
            }
            None if self.is_balanced() => {
                let order = self.next_in_turn(distinct);
                self.preferred(order, distinct, on_each, ready, None)
            }
            None => self.weighted(distinct, on_each, ready),
        };
        assert_eq!(osts.len(), distinct, "{osts:?} are chosen of {usable} that can be used");
        let round = osts.clone();
        osts.extend(round.iter().cycle().take(count - distinct));
        let is_overstriped = count > usable;
        assert!(spec.overstripe || !is_overstriped, "{count} stripes on {usable} OSTs were not asked for");
        Ok(osts)
    }

    /// The number of stripes, given the number of usable OSTs: at most one on each unless overstriping.
    fn stripe_count(&self, spec: &ComponentSpec, usable: usize) -> Result<usize, LodError> {
        let asked = if spec.stripe_count == 0 { self.default_stripe_count } else { spec.stripe_count };
        let count = match usize::try_from(asked) {
            Ok(n) if spec.overstripe => n,
            Ok(n) => n.min(usable),
            Err(_) if spec.overstripe => usable.saturating_mul(asked.unsigned_abs() as usize),
            Err(_) => usable.min(STRIPE_COUNT_MAX),
        };
        if count > STRIPE_COUNT_MAX { Err(LodError::TooManyStripes) } else { Ok(count.max(1)) }
    }

    /// The OSTs in the current order of round robin, which moves on by `count`.
    fn next_in_turn(&mut self, count: usize) -> Vec<OstIndex> {
        let n = self.order.len();
        assert_eq!(n, self.osts.len(), "OSTs in the order of turns, and configured");
        assert!(count > 0 && count <= n, "{count} of {n} OSTs are wanted in turn");
        let start = self.cursor % n;
        // A file over all OSTs would otherwise leave the turn where it was, and every such file would begin on the same
        // OST.
        self.cursor = (start + if count.is_multiple_of(n) { count + 1 } else { count }) % n;
        rotated_at(&self.order, start)
    }

    /// The first `count` usable OSTs of `order`: healthy ones with objects at hand before degraded ones, and these before
    /// those without objects. `first`, the beginning of `order`, is included whatever its state.
    fn preferred(
        &self,
        order: Vec<OstIndex>,
        count: usize,
        on_each: u32,
        ready: &dyn Fn(OstIndex) -> u32,
        first: Option<OstIndex>,
    ) -> Vec<OstIndex> {
        let mut best = Vec::with_capacity(order.len());
        let mut healthy = 0;
        for (place, ost) in order.into_iter().enumerate() {
            if !self.osts[&ost].is_usable() {
                continue;
            }
            let tier = if first == Some(ost) { 0 } else { self.tier(ost, on_each, ready) };
            best.push((tier, place, ost));
            healthy += usize::from(tier == 0);
            if healthy == count {
                break;
            }
        }
        best.sort_unstable();
        best.truncate(count);
        // The OSTs are chosen; put them in the order of the turn.
        best.sort_unstable_by_key(|(_, place, _)| *place);
        best.into_iter().map(|(_, _, ost)| ost).collect()
    }

    fn tier(&self, ost: OstIndex, on_each: u32, ready: &dyn Fn(OstIndex) -> u32) -> u8 {
        match (ready(ost) >= on_each, self.osts[&ost].state & statfs_state::DEGRADED == 0) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) => 2,
        }
    }

    /// True if free space is so even that round robin keeps it even.
    fn is_balanced(&self) -> bool {
        let free = || self.osts.values().filter(|o| o.is_usable()).map(|o| o.available);
        let (least, most) = (free().min().unwrap_or(0), free().max().unwrap_or(0));
        let limit = u128::from(most) * u128::from(100 - self.qos_threshold_rr.min(100)) / 100;
        u128::from(least) >= limit
    }

    /// Draws `count` OSTs, each with a chance in proportion to its free space.
    fn weighted(&mut self, count: usize, on_each: u32, ready: &dyn Fn(OstIndex) -> u32) -> Vec<OstIndex> {
        let mut left: Vec<(u8, OstIndex, u64)> = self
            .osts
            .iter()
            .filter(|(_, o)| o.is_usable())
            .map(|(i, o)| (self.tier(*i, on_each, ready), *i, o.weight()))
            .collect();
        let mut chosen = Vec::with_capacity(count);
        while chosen.len() < count {
            let Some(best) = left.iter().map(|(tier, ..)| *tier).min() else { break };
            let total: u64 = left.iter().filter(|(t, ..)| *t == best).map(|(_, _, w)| w).sum();
            let mut drawn = self.prng.below(total.max(1));
            let at = left.iter().position(|(tier, _, weight)| {
                if *tier != best {
                    return false;
                }
                let hit = drawn < *weight;
                drawn = drawn.saturating_sub(*weight);
                hit
            });
            let Some(at) = at else { panic!("nothing was drawn of {left:?}, which weigh {total}") };
            chosen.push(left.remove(at).1);
        }
        chosen
    }

    /// Lets used OSTs count as fuller for a while.
    fn note_use(&mut self, osts: &[OstIndex]) {
        let keep = u64::from(100 - self.qos_prio_free.min(100));
        for (index, o) in &mut self.osts {
            o.penalty /= 2;
            if osts.contains(index) {
                o.penalty = o.penalty.saturating_add(o.available / 100 * keep);
            }
        }
    }

    /// Interleaves the OSTs of different hosts, with each host's OSTs spread evenly.
    fn reorder(&mut self) {
        let mut hosts: BTreeMap<&str, Vec<OstIndex>> = BTreeMap::new();
        for (index, o) in &self.osts {
            hosts.entry(&o.host).or_default().push(*index);
        }
        // The hosts in the order of their first OST, so that one host per OST gives the order of indexes.
        let mut hosts: Vec<Vec<OstIndex>> = hosts.into_values().collect();
        hosts.sort_by_key(|osts| osts[0]);
        let mut places = Vec::new();
        for (host, osts) in hosts.iter().enumerate() {
            for (i, ost) in osts.iter().enumerate() {
                places.push(((2 * i as u64 + 1) * (1 << 32) / (2 * osts.len() as u64), host, *ost));
            }
        }
        places.sort();
        self.order = places.into_iter().map(|(_, _, ost)| ost).collect();
        assert_eq!(self.order.len(), self.osts.len(), "OSTs in the order of turns, and configured");
        self.cursor = self.prng.below(self.order.len() as u64) as usize;
    }
}

impl OstState {
    /// True if the OST answers.
    pub fn is_active(&self) -> bool {
        self.health == Health::Active
    }

    /// True if the OST accepts new objects.
    pub fn is_usable(&self) -> bool {
        let bad = statfs_state::READ_ONLY
            | statfs_state::NO_CREATE
            | statfs_state::OUT_OF_SPACE
            | statfs_state::OUT_OF_INODES;
        self.is_active() && !self.no_create && self.state & bad == 0 && self.available >= self.total / FULL_FRACTION
    }

    fn weight(&self) -> u64 {
        // In megabytes, so that the sum over all OSTs cannot overflow.
        (self.available.saturating_sub(self.penalty) >> 20).max(1)
    }
}

fn explicit_start(spec: &ComponentSpec) -> Option<OstIndex> {
    u32::try_from(spec.stripe_offset).ok().map(OstIndex)
}

fn leaves_striping_open(c: &ComponentSpec) -> bool {
    c.end == u64::MAX && c.stripe_count == 0 && c.osts.is_empty() && c.stripe_offset < 0 && c.pool.is_empty()
}

fn rotated(all: &[OstIndex], is_first: impl FnMut(&OstIndex) -> bool) -> Vec<OstIndex> {
    rotated_at(all, all.iter().position(is_first).unwrap_or(0))
}

fn rotated_at(all: &[OstIndex], start: usize) -> Vec<OstIndex> {
    all[start..].iter().chain(&all[..start]).copied().collect()
}

/// Fills open choices of `spec` from the directory's default: stripe size and count of a plain layout.
pub fn fill_from_default(spec: &mut LayoutSpec, default: Option<&LayoutSpec>) {
    let Some(default) = default.and_then(|d| (d.components.len() == 1).then(|| &d.components[0])) else { return };
    for c in &mut spec.components {
        if c.stripe_size == 0 {
            c.stripe_size = default.stripe_size;
        }
        if c.stripe_count == 0 && c.osts.is_empty() && !c.overstripe {
            (c.stripe_count, c.overstripe) = (default.stripe_count, default.overstripe);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_has_an_answer_to_everything() {
        HEALTH.assert_sound();
        let all = [Health::Active, Health::Starting, Health::Away, Health::Deactivated];
        for heard in [Heard::Answer, Heard::Silence, Heard::Deactivate, Heard::Activate] {
            assert!(all.iter().all(|health| HEALTH.find(*health, heard).is_some()), "{heard:?}");
        }
    }

    #[test]
    #[should_panic(expected = "is not configured")]
    fn nothing_is_heard_of_an_ost_that_is_not_configured() {
        Lod::new(1).set_active(OstIndex(0), true);
    }

    /// `n` OSTs, two on each host, of equal space.
    fn lod(n: u32) -> Lod {
        let mut l = Lod::new(1);
        for i in 0..n {
            l.handle_ost(OstIndex(i), &format!("oss{}", i / 2));
            l.handle_statfs(OstIndex(i), &space(1000));
        }
        l
    }

    fn space(available: u64) -> StatFs {
        StatFs { block_size: 1 << 20, blocks: 1000, blocks_available: available, ..StatFs::default() }
    }

    fn spec(f: impl FnOnce(&mut ComponentSpec)) -> ComponentSpec {
        let mut c = LayoutSpec::plain().components.remove(0);
        f(&mut c);
        c
    }

    fn count(n: i32) -> ComponentSpec {
        spec(|c| c.stripe_count = n)
    }

    fn over(n: i32) -> ComponentSpec {
        spec(|c| (c.stripe_count, c.overstripe) = (n, true))
    }

    fn list(osts: &[u32]) -> ComponentSpec {
        spec(|c| c.osts = osts.iter().map(|o| OstIndex(*o)).collect())
    }

    fn plenty(_: OstIndex) -> u32 {
        u32::MAX
    }

    #[track_caller]
    fn chosen(l: &mut Lod, spec: &ComponentSpec) -> Vec<u32> {
        l.choose(spec, &plenty).unwrap().osts.iter().map(|o| o.0).collect()
    }

    #[test]
    fn defaults_are_one_stripe_of_four_megabytes() {
        let c = lod(4).choose(&count(0), &plenty).unwrap();
        assert_eq!((c.osts.len(), c.stripe_size, c.is_overstriped()), (1, 4 << 20, false));
    }

    #[test]
    fn counts_are_those_of_lfs_setstripe() {
        let len = |spec| lod(4).choose(&spec, &plenty).map(|c| (c.osts.len(), c.is_overstriped()));
        assert_eq!(len(count(-1)), Ok((4, false)));
        assert_eq!(len(count(99)), Ok((4, false)));
        assert_eq!(len(over(8)), Ok((8, true)));
        assert_eq!(len(over(4)), Ok((4, false)), "no OST repeats");
        assert_eq!(len(over(-1)), Ok((4, false)));
        assert_eq!(len(over(-2)), Ok((8, true)));
        assert_eq!(len(over(0)), Ok((1, false)));
        assert_eq!(len(over(2000)), Ok((2000, true)));
        assert_eq!(len(over(2001)), Err(LodError::TooManyStripes));
        assert_eq!(len(over(160)), Ok((160, true)));
    }

    #[test]
    fn overstriping_goes_round_in_turns() {
        let osts = chosen(&mut lod(4), &over(8));
        assert_eq!(osts[..4], osts[4..]);
        let mut sorted = osts[..4].to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3]);
    }

    #[test]
    fn lists_are_taken_as_they_are_or_fail() {
        let mut l = lod(4);
        assert_eq!(chosen(&mut l, &list(&[0, 1, 0, 2, 1, 2, 3, 3])), [0, 1, 0, 2, 1, 2, 3, 3]);
        assert_eq!(chosen(&mut l, &list(&[2, 0])), [2, 0]);
        assert!(!l.choose(&list(&[2, 0]), &plenty).unwrap().is_overstriped());
        assert_eq!(l.choose(&list(&[0, 9]), &plenty), Err(LodError::Unknown(OstIndex(9))));
        l.set_active(OstIndex(2), false);
        assert_eq!(l.choose(&list(&[2, 0]), &plenty), Err(LodError::Unavailable(Health::Away)));
        l.set_active(OstIndex(2), true);
        l.set_no_create(OstIndex(2), true);
        assert_eq!(l.choose(&list(&[2, 0]), &plenty), Err(LodError::NoSpaceOn(OstIndex(2))));
        assert_eq!(LodError::Unknown(OstIndex(9)).errno(), Errno::EINVAL);
    }

    #[test]
    fn a_start_is_kept_and_the_rest_follow_by_index() {
        let mut l = lod(4);
        let start = |i| spec(move |c| (c.stripe_count, c.stripe_offset) = (2, i));
        assert_eq!(chosen(&mut l, &start(1)), [1, 2]);
        assert_eq!(chosen(&mut l, &start(3)), [3, 0]);
        assert_eq!(l.choose(&start(99), &plenty), Err(LodError::Unknown(OstIndex(99))));
        l.handle_statfs(OstIndex(3), &StatFs { state: statfs_state::DEGRADED, ..space(1000) });
        assert_eq!(chosen(&mut l, &start(3)), [3, 0], "degraded, but asked for");
        assert_eq!(chosen(&mut l, &start(2)), [2, 0]);
    }

    #[test]
    fn round_robin_uses_hosts_in_turn_and_all_osts_evenly() {
        let mut l = lod(4);
        let order: Vec<u32> = l.order.iter().map(|o| o.0).collect();
        assert_eq!(order, [0, 2, 1, 3]);
        for n in [1, 2, 3, -1] {
            let mut uses = [0; 4];
            for _ in 0..40 {
                let osts = chosen(&mut l, &count(n));
                assert!(n != 2 || osts[0] / 2 != osts[1] / 2, "two stripes on one host: {osts:?}");
                osts.iter().for_each(|o| uses[*o as usize] += 1);
            }
            assert_eq!(uses.iter().max(), uses.iter().min(), "stripe count {n}: {uses:?}");
        }
        let starts: BTreeSet<u32> = (0..4).map(|_| chosen(&mut l, &count(-1))[0]).collect();
        assert_eq!(starts.len(), 4, "wide files begin on different OSTs");
    }

    #[test]
    fn uneven_space_is_filled_in_proportion() {
        let mut l = lod(2);
        l.handle_statfs(OstIndex(0), &space(250));
        let first = (0..4000).filter(|_| chosen(&mut l, &count(1)) == [0]).count();
        assert!((600..1100).contains(&first), "{first} of 4000, where about a fifth or a quarter was expected");
        l.handle_statfs(OstIndex(0), &space(900));
        let first = (0..100).filter(|_| chosen(&mut l, &count(1)) == [0]).count();
        assert_eq!(first, 50, "within the threshold it is round robin");
    }

    #[test]
    fn full_degraded_slow_and_forbidden_osts_are_avoided() {
        let mut l = lod(4);
        l.handle_statfs(OstIndex(0), &StatFs { state: statfs_state::OUT_OF_SPACE, ..space(1000) });
        l.handle_statfs(OstIndex(1), &StatFs { state: statfs_state::DEGRADED, ..space(1000) });
        l.set_no_create(OstIndex(2), true);
        assert!((0..20).all(|_| chosen(&mut l, &count(1)) == [3]));
        let both = chosen(&mut l, &count(-1));
        assert_eq!(both.iter().collect::<BTreeSet<_>>(), BTreeSet::from([&1, &3]), "degraded is better than none");
        l.set_no_create(OstIndex(2), false);
        let none_at_hand = |o: OstIndex| if o.0 == 3 { 0 } else { 9 };
        assert!((0..20).all(|_| l.choose(&count(1), &none_at_hand).unwrap().osts == [OstIndex(2)]));
        for i in 0..4 {
            l.set_active(OstIndex(i), false);
        }
        assert_eq!(l.choose(&count(1), &plenty), Err(LodError::Unavailable(Health::Away)));
        l.handle_statfs(OstIndex(0), &space(0));
        assert_eq!(l.choose(&count(1), &plenty), Err(LodError::NoSpace));
    }

    #[test]
    fn osts_that_may_come_are_waited_for_and_deactivated_ones_are_not() {
        let mut l = Lod::new(1);
        let refused = |l: &mut Lod, spec: &ComponentSpec| l.choose(spec, &plenty).unwrap_err().errno();
        assert_eq!(refused(&mut l, &count(1)), Errno::EINPROGRESS, "the configuration is on its way");
        for i in 0..3 {
            l.handle_ost(OstIndex(i), "oss");
        }
        assert_eq!(l.choose(&count(1), &plenty), Err(LodError::Unavailable(Health::Starting)));
        for i in 0..3 {
            l.set_active(OstIndex(i), false);
        }
        assert_eq!(refused(&mut l, &count(-1)), Errno::EINPROGRESS);
        l.set_enabled(OstIndex(0), false);
        l.set_enabled(OstIndex(1), false);
        assert_eq!(refused(&mut l, &count(1)), Errno::EINPROGRESS, "one of them may come back");
        assert_eq!(refused(&mut l, &list(&[2])), Errno::EINPROGRESS);
        assert_eq!(refused(&mut l, &list(&[1])), Errno::ENXIO);
        l.handle_statfs(OstIndex(1), &space(1000));
        assert_eq!(refused(&mut l, &list(&[1])), Errno::ENXIO, "an answer does not activate it");
        l.set_enabled(OstIndex(2), false);
        assert_eq!(refused(&mut l, &count(1)), Errno::ENXIO);
        l.set_enabled(OstIndex(1), true);
        assert_eq!(refused(&mut l, &list(&[1])), Errno::EINPROGRESS);
        l.handle_statfs(OstIndex(1), &space(1000));
        assert_eq!(chosen(&mut l, &count(-1)), [1]);
    }

    #[test]
    fn the_same_seed_and_history_give_the_same_choices() {
        let run = || {
            let mut l = lod(8);
            l.handle_statfs(OstIndex(5), &space(100));
            (0..50).map(|i| chosen(&mut l, &count(1 + i % 3))).collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn open_choices_come_from_the_default() {
        let default = LayoutSpec { components: vec![spec(|c| (c.stripe_count, c.stripe_size) = (4, 1 << 20))] };
        let mut asked = LayoutSpec { components: vec![count(2)] };
        fill_from_default(&mut asked, Some(&default));
        assert_eq!((asked.components[0].stripe_count, asked.components[0].stripe_size), (2, 1 << 20));
        let mut asked = LayoutSpec::plain();
        fill_from_default(&mut asked, Some(&default));
        assert_eq!(asked.components[0].stripe_count, 4);
    }
}
