//! Layouts: how a file's bytes map onto objects. Always composite inside; a plain layout is one component that covers
//! everything. [`Layout`] is what a file has, [`LayoutSpec`] what somebody asked for.

use crate::codec::{Field, Reader, WireError};
use nacre_base::{Fid, OstIndex};
use std::ops::Range;

/// Most stripes of one component (Lustre's LOV_MAX_STRIPE_COUNT).
pub const STRIPE_COUNT_MAX: usize = 2000;
/// Stripe sizes are multiples of this, and offsets of components too.
pub const STRIPE_SIZE_MIN: u32 = 64 << 10;
/// Stripe size unless asked otherwise.
pub const STRIPE_SIZE_DEFAULT: u32 = 4 << 20;
/// Largest OST index that a layout can name (Lustre's limit, as higher values mean "any").
pub const OST_INDEX_MAX: u32 = 0xffdf;
/// Stripe count that means: to be chosen when the component gets its objects, from who writes and what OSTs there are.
/// With overstriping only. No count of stripes reaches it, and Lustre gives it no meaning.
pub const STRIPE_COUNT_AUTO: i32 = 0x7fff;
/// Most components of a layout.
pub const COMPONENTS_MAX: usize = 256;

/// Bits of [`Component::pattern`], as Lustre numbers them.
pub mod pattern {
    /// Stripes in turn.
    pub const RAID0: u32 = 0x001;
    /// Data on the MDT.
    pub const MDT: u32 = 0x100;
    /// Several stripes may be on one OST.
    pub const OVERSTRIPING: u32 = 0x200;
}

/// Bits of [`Component::flags`], as Lustre numbers them.
pub mod component_flags {
    /// The copy is out of date.
    pub const STALE: u32 = 0x1;
    /// The objects exist.
    pub const INIT: u32 = 0x10;
}

message! {
    MESSAGES;
    /// One object of a striped file.
    pub struct Stripe {
        /// Which OST.
        pub ost: OstIndex,
        /// Which object there.
        pub object: Fid,
    }

    /// The layout of a file.
    pub struct Layout {
        /// Grows with every change: sent with writes as the layout version.
        pub generation: u32,
        /// Ordered by start, contiguous.
        pub components: Vec<Component>,
    }

    /// What is asked of one component. Zero fields mean "from the directory's or the file system's default".
    pub struct ComponentSpec {
        /// First byte after, `u64::MAX` for the end of file.
        pub end: u64,
        /// Bytes of a stripe, 0 for the default.
        pub stripe_size: u32,
        /// Stripes: 0 the default, -1 one on each OST; with `overstripe` -1 to -32 means 1 to 32 on each OST, and
        /// [`STRIPE_COUNT_AUTO`] as many as will be best.
        pub stripe_count: i32,
        /// Whether several stripes may be on one OST.
        pub overstripe: bool,
        /// OST of the first stripe, -1 for any.
        pub stripe_offset: i32,
        /// The OSTs by hand, one for each stripe, empty for any. A repeated one means overstriping.
        pub osts: Vec<OstIndex>,
        /// Pool, empty for none.
        pub pool: String,
    }

    /// A layout as it is asked for with `lfs setstripe`, or a directory's default.
    pub struct LayoutSpec {
        /// At least one; ordered by end.
        pub components: Vec<ComponentSpec>,
    }
}

/// A range of the file with its own striping.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Component {
    /// Mirror id << 16 | number, never used again within the layout.
    pub id: u32,
    /// Bits of [`component_flags`].
    pub flags: u32,
    /// First byte of the file.
    pub start: u64,
    /// First byte after, `u64::MAX` for the end of file.
    pub end: u64,
    /// Bits of [`pattern`].
    pub pattern: u32,
    /// Bytes of a stripe.
    pub stripe_size: u32,
    /// Name of the pool the OSTs are from, if any.
    pub pool: String,
    /// The objects; empty if the component is not instantiated.
    pub stripes: Vec<Stripe>,
    /// What its objects are to be; only as long as it has none.
    pub wanted: Option<ComponentSpec>,
}

/// With objects there is no wish, and no byte for one.
impl Field for Component {
    const MIN_SIZE: usize = 4 * 4 + 2 * 8 + String::MIN_SIZE + Vec::<Stripe>::MIN_SIZE;

    fn put(&self, out: &mut Vec<u8>) {
        self.id.put(out);
        self.flags.put(out);
        self.start.put(out);
        self.end.put(out);
        self.pattern.put(out);
        self.stripe_size.put(out);
        self.pool.put(out);
        self.stripes.put(out);
        if self.stripes.is_empty() {
            self.wanted.put(out);
        }
    }

    fn take(from: &mut Reader) -> Result<Component, WireError> {
        let mut c = Component {
            id: Field::take(from)?,
            flags: Field::take(from)?,
            start: Field::take(from)?,
            end: Field::take(from)?,
            pattern: Field::take(from)?,
            stripe_size: Field::take(from)?,
            pool: Field::take(from)?,
            stripes: Field::take(from)?,
            wanted: None,
        };
        if c.stripes.is_empty() {
            c.wanted = Field::take(from)?;
        }
        Ok(c)
    }
}

/// Why a layout that was asked for cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Stripe size out of range.
    #[error("stripe size {0} must be a multiple of 65536, from 65536 to 4294901760")]
    StripeSize(u64),
    /// Too many stripes.
    #[error("stripe count {0} must be -1 (all OSTs), or 1 to {STRIPE_COUNT_MAX}; with overstriping also -1 to -32")]
    StripeCount(i64),
    /// Index beyond the limit.
    #[error("OST index {0} must be -1 (any), or 0 to {OST_INDEX_MAX}")]
    OstIndex(i64),
    /// `-c` and `-o` disagree.
    #[error("stripe count {count} does not match the {osts} OSTs given")]
    CountMismatch {
        /// The count.
        count: i32,
        /// OSTs in the list.
        osts: usize,
    },
    /// Component ends must grow and be multiples of 64 KiB.
    #[error("component end {0} must be a multiple of 65536 and beyond the one before")]
    ComponentEnd(u64),
    /// No component, or too many.
    #[error("a layout has 1 to {COMPONENTS_MAX} components, not {0}")]
    ComponentCount(usize),
    /// Bytes that are no layout.
    #[error("not a layout: {0}")]
    Malformed(&'static str),
}

impl LayoutSpec {
    /// One component over the whole file with all choices left open.
    pub fn plain() -> LayoutSpec {
        let whole = ComponentSpec { end: u64::MAX, stripe_offset: -1, ..ComponentSpec::default() };
        LayoutSpec { components: vec![whole] }
    }

    /// Checks everything that can be checked without knowing the OSTs.
    pub fn check(&self) -> Result<(), LayoutError> {
        if !(1..=COMPONENTS_MAX).contains(&self.components.len()) {
            return Err(LayoutError::ComponentCount(self.components.len()));
        }
        let mut previous = 0;
        for c in &self.components {
            if c.end <= previous || (c.end != u64::MAX && !c.end.is_multiple_of(STRIPE_SIZE_MIN.into())) {
                return Err(LayoutError::ComponentEnd(c.end));
            }
            previous = c.end;
            c.check()?;
        }
        Ok(())
    }
}

impl ComponentSpec {
    /// Whether its stripes are counted when it gets its objects.
    pub fn is_automatic(&self) -> bool {
        self.stripe_count == STRIPE_COUNT_AUTO
    }

    fn check(&self) -> Result<(), LayoutError> {
        if !self.stripe_size.is_multiple_of(STRIPE_SIZE_MIN) {
            return Err(LayoutError::StripeSize(self.stripe_size.into()));
        }
        let lowest = if self.overstripe { -32 } else { -1 };
        let automatic = self.is_automatic() && self.overstripe && self.osts.is_empty();
        if !automatic && (self.stripe_count < lowest || self.stripe_count > STRIPE_COUNT_MAX as i32) {
            return Err(LayoutError::StripeCount(self.stripe_count.into()));
        }
        if self.stripe_offset < -1 || self.stripe_offset > OST_INDEX_MAX as i32 {
            return Err(LayoutError::OstIndex(self.stripe_offset.into()));
        }
        if self.osts.len() > STRIPE_COUNT_MAX {
            return Err(LayoutError::StripeCount(self.osts.len() as i64));
        }
        if let Some(bad) = self.osts.iter().find(|o| o.0 > OST_INDEX_MAX) {
            return Err(LayoutError::OstIndex(bad.0.into()));
        }
        if !self.osts.is_empty() && self.stripe_count > 0 && self.stripe_count as usize != self.osts.len() {
            return Err(LayoutError::CountMismatch { count: self.stripe_count, osts: self.osts.len() });
        }
        Ok(())
    }
}

/// A run of one object that holds a run of the file: what one read or write of the file becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Index of the component.
    pub component: usize,
    /// Index of the stripe in it.
    pub stripe: usize,
    /// First byte in the object.
    pub object_offset: u64,
    /// First byte in the file.
    pub file_offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Layout {
    /// Total number of stripes.
    pub fn stripe_count(&self) -> usize {
        self.components.iter().map(|c| c.stripes.len()).sum()
    }

    /// Whether all components have objects.
    pub fn is_complete(&self) -> bool {
        self.components.iter().all(|c| !c.stripes.is_empty())
    }

    /// Whether a part of a range has no objects yet.
    pub fn lacks(&self, range: &Range<u64>) -> bool {
        self.components.iter().any(|c| c.stripes.is_empty() && c.overlaps(range))
    }

    /// Sent with data as the layout version: an object refuses data by an older one than it has seen. It rises when
    /// objects are replaced, which nothing does yet; not when components get theirs, as that is no reason to refuse
    /// what was written to the cache before.
    pub fn fence(&self) -> u32 {
        0
    }

    /// All stripes with (component, stripe) index, in order.
    pub fn stripes(&self) -> impl Iterator<Item = (usize, usize, &Stripe)> {
        let numbered = self.components.iter().enumerate();
        numbered.flat_map(|(c, comp)| comp.stripes.iter().enumerate().map(move |(s, stripe)| (c, s, stripe)))
    }

    /// The runs that `offset .. offset + len` of the file consists of, in file order. Parts that no instantiated
    /// component covers have no run.
    pub fn runs(&self, offset: u64, len: u64) -> Vec<Run> {
        let end = offset.saturating_add(len);
        let mut runs = Vec::new();
        for (index, c) in self.components.iter().enumerate() {
            let (from, to) = (offset.max(c.start), end.min(c.end));
            if from >= to || c.stripes.is_empty() {
                continue;
            }
            let mut at = from;
            while at < to {
                let (stripe, object_offset) = c.locate(at);
                let left_in_unit = u64::from(c.stripe_size) - at % u64::from(c.stripe_size);
                let run_len = left_in_unit.min(to - at);
                runs.push(Run { component: index, stripe, object_offset, file_offset: at, len: run_len });
                at += run_len;
            }
        }
        runs
    }

    /// The size of the file, given the sizes of its objects in the order of [`Layout::stripes`].
    pub fn file_size(&self, object_sizes: impl IntoIterator<Item = u64>) -> u64 {
        let ends = self.stripes().zip(object_sizes).filter(|(_, size)| *size > 0);
        ends.map(|((c, s, _), size)| self.components[c].file_end(s, size)).max().unwrap_or(0)
    }

    /// The sizes the objects must have at most when the file is cut to `size`, in the order of [`Layout::stripes`].
    pub fn object_sizes(&self, size: u64) -> Vec<u64> {
        self.stripes().map(|(c, s, _)| self.components[c].object_size(s, size)).collect()
    }

    /// Whether a mapping by this layout can be computed: hostile bytes may decode into one that cannot.
    pub fn check(&self) -> Result<(), LayoutError> {
        let mut at = 0;
        for c in &self.components {
            if c.start != at || c.end <= c.start {
                return Err(LayoutError::ComponentEnd(c.end));
            }
            at = c.end;
            if c.stripe_size == 0 || !c.stripe_size.is_multiple_of(STRIPE_SIZE_MIN) {
                return Err(LayoutError::StripeSize(c.stripe_size.into()));
            }
            if c.stripes.len() > STRIPE_COUNT_MAX {
                return Err(LayoutError::StripeCount(c.stripes.len() as i64));
            }
        }
        Ok(())
    }
}

impl Component {
    /// Stripe index and object offset of a byte of the file. The component's start is not subtracted: objects of
    /// later components are sparse at the front, as in Lustre.
    fn locate(&self, file_offset: u64) -> (usize, u64) {
        let (size, n) = (u64::from(self.stripe_size), self.stripes.len() as u64);
        let unit = file_offset / size;
        ((unit % n) as usize, unit / n * size + file_offset % size)
    }

    /// First file byte after the last one that stripe `s`, `size` > 0 bytes long, holds.
    fn file_end(&self, s: usize, size: u64) -> u64 {
        let (unit, n) = (u64::from(self.stripe_size), self.stripes.len() as u64);
        let last = size - 1;
        let file_unit = (last / unit).saturating_mul(n).saturating_add(s as u64);
        file_unit.saturating_mul(unit).saturating_add(last % unit + 1)
    }

    /// Size of stripe `s` if the file has `size` bytes.
    fn object_size(&self, s: usize, size: u64) -> u64 {
        let size = size.min(self.end);
        if size <= self.start {
            return 0;
        }
        let (unit, n, s) = (u64::from(self.stripe_size), self.stripes.len() as u64, s as u64);
        let (full_units, rest) = (size / unit, size % unit);
        let (rounds, extra) = (full_units / n, full_units % n);
        match s.cmp(&extra) {
            std::cmp::Ordering::Less => (rounds + 1) * unit,
            std::cmp::Ordering::Equal => rounds * unit + rest,
            std::cmp::Ordering::Greater => rounds * unit,
        }
    }

    /// Whether a part of a range of the file is in it.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        self.start.max(range.start) < self.end.min(range.end)
    }

    /// Stripes that it has, or is to have, as in [`ComponentSpec`].
    pub fn stripe_count(&self) -> i32 {
        match &self.wanted {
            Some(wanted) if !wanted.osts.is_empty() => wanted.osts.len() as i32,
            Some(wanted) => wanted.stripe_count,
            None => self.stripes.len() as i32,
        }
    }

    /// Whether several stripes are, or may be, on one OST.
    pub fn is_overstriped(&self) -> bool {
        self.pattern & pattern::OVERSTRIPING != 0
    }
}

/// Layouts are also stored, so their bytes are a format of the disk: see the golden tests.
impl Layout {
    /// The bytes to store.
    pub fn to_stored(&self) -> bytes::Bytes {
        let mut out = Vec::new();
        self.put(&mut out);
        out.into()
    }

    /// Reads stored bytes and checks that they can be mapped by.
    pub fn from_stored(bytes: &bytes::Bytes) -> Result<Layout, WireError> {
        let layout = Layout::take(&mut Reader::new(bytes.clone()))?;
        layout.check().map_err(|_| WireError::BadValue { what: "a stored layout", value: layout.generation.into() })?;
        Ok(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(stripes: u32, size: u32) -> Layout {
        let stripe = |i| Stripe { ost: OstIndex(i), object: Fid { seq: 1, oid: i, ver: 0 } };
        let c = Component {
            id: 1,
            end: u64::MAX,
            pattern: pattern::RAID0,
            stripe_size: size,
            stripes: (0..stripes).map(stripe).collect(),
            ..Component::default()
        };
        Layout { generation: 1, components: vec![c] }
    }

    #[test]
    fn runs_follow_the_stripes() {
        let l = layout(2, 65536);
        let runs: Vec<_> = l.runs(65000, 70000).iter().map(|r| (r.stripe, r.object_offset, r.len)).collect();
        assert_eq!(runs, [(0, 65000, 536), (1, 0, 65536), (0, 65536, 3928)]);
    }

    #[test]
    fn sizes_agree_with_writing_every_byte_range() {
        for stripes in [1, 2, 3, 7] {
            let l = layout(stripes, 65536);
            for size in [0, 1, 65535, 65536, 65537, 131072, 458752, 458753, 1_000_000] {
                let mut objects = vec![0; stripes as usize];
                for r in l.runs(0, size) {
                    objects[r.stripe] = objects[r.stripe].max(r.object_offset + r.len);
                }
                assert_eq!(l.object_sizes(size), objects, "{stripes} stripes, {size} bytes");
                assert_eq!(l.file_size(objects), size, "{stripes} stripes");
            }
        }
    }

    #[test]
    fn components_without_objects_say_what_they_are_to_be() {
        let mut l = layout(2, 65536);
        l.components[0].end = 1 << 20;
        let complete = crate::encode(&l);
        let wanted = ComponentSpec { stripe_count: STRIPE_COUNT_AUTO, overstripe: true, ..ComponentSpec::default() };
        let rest = Component { start: 1 << 20, end: u64::MAX, wanted: Some(wanted), ..l.components[0].clone() };
        l.components.push(Component { stripes: Vec::new(), ..rest });
        assert_eq!(crate::decode::<Layout>(&crate::encode(&l)), Ok(l.clone()));
        assert_eq!(crate::decode::<Layout>(&complete).unwrap().components, l.components[..1]);
        assert!(!l.is_complete() && l.lacks(&(0..(1 << 20) + 1)) && l.lacks(&(5 << 20..6 << 20)));
        assert!(!l.lacks(&(0..1 << 20)) && !l.lacks(&(5 << 20..5 << 20)), "nothing lacks nothing");
        assert_eq!((l.components[0].stripe_count(), l.components[1].stripe_count()), (2, STRIPE_COUNT_AUTO));
        let runs: u64 = l.runs(0, 2 << 20).iter().map(|r| r.len).sum();
        assert_eq!(runs, 1 << 20, "nowhere to write the rest");
        assert_eq!(l.file_size([0, 100]), 65536 + 100);
    }

    #[test]
    fn impossible_wishes_are_refused() {
        let with = |f: fn(&mut ComponentSpec)| {
            let mut s = LayoutSpec::plain();
            f(&mut s.components[0]);
            s.check()
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|c| c.stripe_size = 1000), Err(LayoutError::StripeSize(1000)));
        assert_eq!(with(|c| c.stripe_count = 2001), Err(LayoutError::StripeCount(2001)));
        assert_eq!(with(|c| c.stripe_count = -2), Err(LayoutError::StripeCount(-2)));
        assert!(
            with(|c| {
                c.stripe_count = -2;
                c.overstripe = true
            })
            .is_ok()
        );
        assert_eq!(with(|c| c.stripe_count = STRIPE_COUNT_AUTO), Err(LayoutError::StripeCount(0x7fff)));
        assert_eq!(with(|c| (c.stripe_count, c.overstripe) = (STRIPE_COUNT_AUTO, true)), Ok(()));
        assert!(
            with(|c| {
                (c.stripe_count, c.overstripe) = (STRIPE_COUNT_AUTO, true);
                c.osts = vec![OstIndex(0)]
            })
            .is_err()
        );
        assert!(
            with(|c| {
                c.stripe_count = 3;
                c.osts = vec![OstIndex(0), OstIndex(1)]
            })
            .is_err()
        );
    }
}
