//! Maps a range of a file to bytes of objects: cuts reads and writes into RPCs, puts replies together, and maps offsets
//! back. Pure rules; `lov` sends the RPCs.

use nacre_base::{Fid, OstIndex, Payload};
use nacre_wire::layout::{Component, Layout, Stripe};
use std::collections::BTreeMap;
use std::ops::Range;

/// A run of the file within an RPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) file_offset: u64,
    pub(crate) len: usize,
}

/// One read or write RPC: a run of one object, and the pieces of the file that it consists of, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectIo {
    /// Number of the stripe, over all components.
    pub(crate) stripe: usize,
    pub(crate) ost: OstIndex,
    pub(crate) object: Fid,
    /// First byte within the object.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: usize,
    pub(crate) pieces: Vec<Piece>,
}

/// Cuts a range of the file into RPCs of at most `brw_size` bytes, aligned to it in the object as far as possible.
/// A range of a file meets each object in one run, so each object has as few RPCs as can be.
pub(crate) fn cut(layout: &Layout, offset: u64, len: u64, brw_size: impl Fn(OstIndex) -> u64) -> Vec<ObjectIo> {
    let first_stripes = first_stripes(layout);
    let mut ios: Vec<ObjectIo> = Vec::new();
    let mut open: BTreeMap<usize, usize> = BTreeMap::new();
    for run in layout.runs(offset, len) {
        let stripe = first_stripes[run.component] + run.stripe;
        let target = &layout.components[run.component].stripes[run.stripe];
        let brw_size = brw_size(target.ost).max(1);
        let mut done = 0;
        while done < run.len {
            let at = run.object_offset + done;
            let piece_len = (brw_size - at % brw_size).min(run.len - done);
            let piece = Piece { file_offset: run.file_offset + done, len: piece_len as usize };
            let current = open.get(&stripe).map(|i| &mut ios[*i]);
            match current.filter(|io| io.offset + io.len as u64 == at && !at.is_multiple_of(brw_size)) {
                Some(io) => {
                    io.len += piece.len;
                    io.pieces.push(piece);
                }
                None => {
                    open.insert(stripe, ios.len());
                    let (ost, object, len) = (target.ost, target.object, piece.len);
                    ios.push(ObjectIo { stripe, ost, object, offset: at, len, pieces: vec![piece] });
                }
            }
            done += piece_len;
        }
    }
    ios
}

/// A range of the file that lies in one object, in one run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Single<'a> {
    /// Number of the stripe, over all components.
    pub(crate) stripe: usize,
    pub(crate) of: &'a Stripe,
    /// First byte in the object.
    pub(crate) offset: u64,
}

/// Finds the one object that has a whole range of the file, without a gap. Most ranges are such, and this costs little.
pub(crate) fn single(layout: &Layout, offset: u64, len: u64) -> Option<Single<'_>> {
    let last = offset.checked_add(len)?.checked_sub(1)?;
    let mut before = 0;
    for c in &layout.components {
        if offset >= c.start && last < c.end {
            let unit = u64::from(c.stripe_size);
            if c.stripes.len() > 1 && offset / unit != last / unit {
                return None;
            }
            let index = ((offset / unit) % c.stripes.len().max(1) as u64) as usize;
            let of = c.stripes.get(index)?;
            return Some(Single { stripe: before + index, of, offset: StripeMap::new(c, index).object_offset(offset) });
        }
        before += c.stripes.len();
    }
    None
}

/// The mapping of a stripe, by its number over all components, which must be one of the layout's.
pub(crate) fn stripe_map(layout: &Layout, stripe: usize) -> StripeMap {
    let mut index = stripe;
    for c in &layout.components {
        if index < c.stripes.len() {
            return StripeMap::new(c, index);
        }
        index -= c.stripes.len();
    }
    unreachable!("stripe {stripe} of {} was made from the layout", layout.stripe_count())
}

/// The number of each component's first stripe.
fn first_stripes(layout: &Layout) -> Vec<usize> {
    let mut next = 0;
    let take = |count: usize| {
        next += count;
        next - count
    };
    layout.components.iter().map(|c| c.stripes.len()).map(take).collect()
}

impl ObjectIo {
    /// The bytes to write, taken from `data`, which begins at `offset` of the file.
    pub(crate) fn gather(&self, offset: u64, data: &Payload) -> Payload {
        let mut out = Payload::new();
        for p in &self.pieces {
            assert!(p.file_offset >= offset, "{p:?} is not in data from {offset} on");
            out.append(data.slice((p.file_offset - offset) as usize, p.len));
        }
        assert_eq!(out.len(), self.len, "bytes for {self:?}");
        out
    }

    /// File offset of byte number `index` of the run; the end of its last piece for the byte after the last.
    pub(crate) fn file_offset_of(&self, index: usize) -> u64 {
        assert!(index <= self.len, "byte {index} is asked for of {self:?}");
        let mut left = index;
        for (i, p) in self.pieces.iter().enumerate() {
            if left < p.len || i + 1 == self.pieces.len() {
                return p.file_offset + left as u64;
            }
            left -= p.len;
        }
        panic!("byte {index} is asked for of a run without pieces: {self:?}")
    }

    /// Splits the bytes that were read into pieces of the file.
    pub(crate) fn scatter(&self, data: &Payload) -> Vec<Filled> {
        assert!(data.len() <= self.len, "{} bytes were read for {self:?}", data.len());
        let mut at = 0;
        let mut filled = Vec::with_capacity(self.pieces.len());
        for p in &self.pieces {
            let got = data.len().saturating_sub(at).min(p.len);
            filled.push(Filled { piece: *p, data: data.slice(at.min(data.len()), got) });
            at += p.len;
        }
        filled
    }
}

/// A piece of the file and the bytes that were read for it: fewer than the piece if the object ends within.
#[derive(Debug, Clone)]
pub(crate) struct Filled {
    pub(crate) piece: Piece,
    pub(crate) data: Payload,
}

impl Filled {
    /// First byte of the file after the data.
    pub(crate) fn end(&self) -> u64 {
        self.piece.file_offset + self.data.len() as u64
    }
}

/// Offset up to which the pieces, in file order, leave no gap from `offset` on.
pub(crate) fn gapless_until(offset: u64, filled: &[Filled]) -> u64 {
    let mut at = offset;
    for f in filled {
        if f.piece.file_offset != at {
            break;
        }
        at = f.end();
        if f.data.len() < f.piece.len {
            break;
        }
    }
    at
}

/// The parts of pieces before `end` for which no data was read: (offset, length).
pub(crate) fn missing(filled: &[Filled], end: u64) -> Vec<(u64, u64)> {
    let gap = |f: &Filled| {
        let to = (f.piece.file_offset + f.piece.len as u64).min(end);
        (f.end() < to).then(|| (f.end(), to - f.end()))
    };
    filled.iter().filter_map(gap).collect()
}

/// The bytes `offset .. end` of the file from pieces in file order, with zeros where there is no data.
pub(crate) fn assemble(offset: u64, end: u64, filled: &[Filled]) -> Payload {
    let mut out = Payload::new();
    let mut at = offset;
    for f in filled {
        let from = f.piece.file_offset;
        let to = f.end().min(end);
        if from >= end || to <= at {
            continue;
        }
        out.append(Payload::zeroes(from.saturating_sub(at) as usize));
        at = at.max(from);
        out.append(f.data.slice((at - from) as usize, (to - at) as usize));
        at = to;
    }
    out.append(Payload::zeroes(end.saturating_sub(at) as usize));
    assert_eq!(out.len() as u64, end.saturating_sub(offset), "bytes put together for {offset}..{end}");
    out
}

/// One stripe with the numbers needed to map offsets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StripeMap {
    unit: u64,
    count: u64,
    index: u64,
    end: u64,
    start: u64,
}

impl StripeMap {
    pub(crate) fn new(component: &Component, index: usize) -> StripeMap {
        assert!(index < component.stripes.len(), "stripe {index} of {}", component.stripes.len());
        StripeMap {
            unit: component.stripe_size.into(),
            count: component.stripes.len() as u64,
            index: index as u64,
            start: component.start,
            end: component.end,
        }
    }

    /// Offset in the object of the first byte of this stripe at or after `file_offset`, as if the component had no end.
    fn object_offset(&self, file_offset: u64) -> u64 {
        let number = file_offset / self.unit;
        let (round, turn) = (number / self.count, number % self.count);
        match self.index.cmp(&turn) {
            std::cmp::Ordering::Less => (round + 1).saturating_mul(self.unit),
            std::cmp::Ordering::Equal => round * self.unit + file_offset % self.unit,
            std::cmp::Ordering::Greater => round * self.unit,
        }
    }

    /// Offset in the object of the first byte of this stripe at or after `file_offset`; none if the component ends
    /// before.
    pub(crate) fn first_from(&self, file_offset: u64) -> Option<u64> {
        let object_offset = self.object_offset(file_offset.max(self.start));
        self.file_offset(object_offset).map(|_| object_offset)
    }

    /// The part of the object that lies in a range of the file; none if it has no part in it.
    pub(crate) fn object_range(&self, file_range: &Range<u64>) -> Option<Range<u64>> {
        let (start, end) = (file_range.start.max(self.start), file_range.end.min(self.end));
        let range = self.object_offset(start)..self.object_offset(end);
        (start < end && !range.is_empty()).then_some(range)
    }

    /// The size of the file if it ends with this object, which has `size` bytes.
    pub(crate) fn file_end(&self, size: u64) -> u64 {
        size.checked_sub(1).map_or(0, |last| self.file_offset(last).map_or(self.end, |at| at + 1))
    }

    /// The ranges of the file that hold a part of the object, without what other objects hold in between.
    pub(crate) fn file_ranges(self, part: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = part.start;
        std::iter::from_fn(move || {
            let unit_end = (at - at % self.unit).saturating_add(self.unit);
            let end = if self.count == 1 { part.end } else { part.end.min(unit_end) };
            let start = (at < end).then(|| self.file_offset(at))??;
            let range = start..start.saturating_add(end - at).min(self.end);
            at = end;
            Some(range)
        })
    }

    /// File offset of a byte of the object; none if beyond the component.
    pub(crate) fn file_offset(&self, object_offset: u64) -> Option<u64> {
        let number = (object_offset / self.unit).checked_mul(self.count)?.checked_add(self.index)?;
        let offset = number.checked_mul(self.unit)?.checked_add(object_offset % self.unit)?;
        (offset < self.end).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;
    use nacre_wire::layout::Stripe;

    /// A file on objects in memory, accessed only by the rules of this module and of the layout.
    struct Striped {
        layout: Layout,
        objects: BTreeMap<Fid, Vec<u8>>,
        brw_size: u64,
    }

    /// Some layout: 1 to 9 stripes on 1 to 4 OSTs, so often overstriped; sometimes several components.
    fn random_layout(prng: &mut Prng) -> Layout {
        let unit = 65536 << prng.below(3);
        let mut oid = 0;
        let mut stripe = |prng: &mut Prng| {
            oid += 1;
            Stripe { ost: OstIndex(prng.below(4) as u32), object: Fid { seq: 9, oid, ver: 0 } }
        };
        let ends = if prng.one_in(3) { vec![1 << 18, 1 << 20, u64::MAX] } else { vec![u64::MAX] };
        let (mut components, mut start) = (Vec::new(), 0);
        for end in ends {
            let stripes = (0..prng.range(1, 10)).map(|_| stripe(prng)).collect();
            components.push(Component { start, end, stripe_size: unit, stripes, ..Component::default() });
            start = end;
        }
        Layout { generation: 1, components }
    }

    impl Striped {
        fn new(prng: &mut Prng) -> Striped {
            let brw_size = 65536 << prng.below(4);
            Striped { layout: random_layout(prng), objects: BTreeMap::new(), brw_size }
        }

        fn object(&self, fid: Fid) -> &[u8] {
            self.objects.get(&fid).map_or(&[], |o| o)
        }

        fn size(&self) -> u64 {
            self.layout.file_size(self.layout.stripes().map(|(_, _, s)| self.object(s.object).len() as u64))
        }

        fn cut(&self, offset: u64, len: u64) -> Vec<ObjectIo> {
            let ios = cut(&self.layout, offset, len, |_| self.brw_size);
            assert_eq!(ios.iter().map(|io| io.len as u64).sum::<u64>(), len);
            for io in &ios {
                assert!(io.len as u64 <= self.brw_size);
                assert_eq!(io.len, io.pieces.iter().map(|p| p.len).sum::<usize>());
                let (first, last) = (io.offset, io.offset + io.len as u64 - 1);
                assert_eq!(first / self.brw_size, last / self.brw_size, "an RPC stays within an aligned window");
            }
            ios
        }

        fn write(&mut self, offset: u64, data: &[u8]) {
            let payload = Payload::from(data.to_vec());
            for io in self.cut(offset, data.len() as u64) {
                let bytes = io.gather(offset, &payload).to_bytes();
                let object = self.objects.entry(io.object).or_default();
                let end = io.offset as usize + io.len;
                object.resize(object.len().max(end), 0);
                object[io.offset as usize..end].copy_from_slice(&bytes);
            }
        }

        fn read(&self, offset: u64, len: u64) -> Vec<u8> {
            let mut filled = Vec::new();
            for io in self.cut(offset, len) {
                let object = self.object(io.object);
                let at = |o: u64| (o as usize).min(object.len());
                let data = object[at(io.offset)..at(io.offset + io.len as u64)].to_vec();
                filled.extend(io.scatter(&Payload::from(data)));
            }
            filled.sort_by_key(|f| f.piece.file_offset);
            let end = (offset + len).min(self.size()).max(offset);
            assert!(gapless_until(offset, &filled) <= end);
            assert!(missing(&filled, end).iter().all(|(at, len)| *at >= offset && at + len <= end && *len > 0));
            assemble(offset, end, &filled).to_bytes().to_vec()
        }

        fn truncate(&mut self, size: u64) {
            let sizes = self.layout.object_sizes(size);
            for ((_, _, s), size) in self.layout.stripes().zip(sizes) {
                self.objects.entry(s.object).or_default().resize(size as usize, 0);
            }
        }

        fn punch(&mut self, range: Range<u64>) {
            for (c, s, stripe) in self.layout.stripes() {
                let Some(part) = StripeMap::new(&self.layout.components[c], s).object_range(&range) else { continue };
                let object = self.objects.entry(stripe.object).or_default();
                let at = |o: u64| (o as usize).min(object.len());
                let (from, to) = (at(part.start), at(part.end));
                object[from..to].fill(0);
            }
        }
    }

    #[test]
    fn the_file_has_the_bytes_of_a_part_where_the_map_says_and_no_others_between() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let layout = random_layout(&mut prng);
            let map = stripe_map(&layout, prng.below(layout.stripe_count() as u64) as usize);
            // A page of the component, as far as it has one.
            let Some(first) = map.first_from(prng.below(4 << 20)) else { continue };
            let part = first..first + prng.range(1, 4 << 20);
            let mut at = part.start;
            for range in map.file_ranges(part.clone()) {
                let end = at + (range.end - range.start);
                assert_eq!(map.object_range(&range), Some(at..end), "seed {seed}");
                at = end;
            }
            assert!(at == part.end || map.file_offset(at).is_none(), "seed {seed}: {part:?} ends at {at}");
        }
    }

    #[test]
    fn a_striped_file_is_a_flat_file() {
        for seed in 0..60 {
            let mut prng = Prng::new(seed);
            let (mut file, mut flat) = (Striped::new(&mut prng), Vec::<u8>::new());
            for _ in 0..60 {
                let (offset, len) = (prng.below(3 << 20), prng.range(1, 1 << 19));
                let end = (offset + len) as usize;
                match prng.below(5) {
                    0 | 1 => {
                        let data: Vec<u8> = (0..len).map(|i| (i * 7 + seed) as u8 | 1).collect();
                        file.write(offset, &data);
                        flat.resize(flat.len().max(end), 0);
                        flat[offset as usize..end].copy_from_slice(&data);
                    }
                    2 => {
                        file.truncate(offset);
                        flat.resize(offset as usize, 0);
                    }
                    3 => {
                        file.punch(offset..offset + len);
                        let (from, to) = ((offset as usize).min(flat.len()), end.min(flat.len()));
                        flat[from..to].fill(0);
                    }
                    _ => {
                        let (from, to) = ((offset as usize).min(flat.len()), end.min(flat.len()));
                        assert!(file.read(offset, len) == flat[from..to], "seed {seed}: read of {len} at {offset}");
                    }
                }
                assert_eq!(file.size(), flat.len() as u64, "seed {seed}");
            }
            assert!(file.read(0, flat.len() as u64 + 1) == flat, "seed {seed}");
        }
    }

    #[test]
    fn an_object_gets_one_rpc_for_a_run_within_a_window() {
        let stripe = |oid| Stripe { ost: OstIndex(0), object: Fid { seq: 9, oid, ver: 0 } };
        let stripes = (0..4).map(stripe).collect();
        let c = Component { end: u64::MAX, stripe_size: 65536, stripes, ..Component::default() };
        let layout = Layout { generation: 1, components: vec![c] };
        let ios = cut(&layout, 0, 4 << 20, |_| 4 << 20);
        assert_eq!(ios.len(), 4, "one for each object, not one for each stripe unit");
        assert!(ios.iter().all(|io| io.len == 1 << 20 && io.pieces.len() == 16));
        assert_eq!(cut(&layout, 1 << 20, 0, |_| 1 << 20), vec![]);
    }

    #[test]
    fn offsets_map_there_and_back() {
        let mut prng = Prng::new(5);
        for _ in 0..200 {
            let layout = random_layout(&mut prng);
            let at = prng.below(8 << 20);
            let [run] = layout.runs(at, 1)[..] else { panic!("one byte is one run") };
            let map = StripeMap::new(&layout.components[run.component], run.stripe);
            assert_eq!(map.file_offset(run.object_offset), Some(at));
            assert_eq!(map.first_from(at), Some(run.object_offset));
            let one = single(&layout, at, 1).expect("one byte is in one object");
            assert_eq!(
                (one.offset, one.of),
                (run.object_offset, &layout.components[run.component].stripes[run.stripe])
            );
            assert_eq!(stripe_map(&layout, one.stripe).file_offset(one.offset), Some(at));
            let len = prng.range(1, 1 << 18);
            let runs = layout.runs(at, len);
            if let Some(one) = single(&layout, at, len) {
                assert!(runs.iter().all(|r| layout.components[r.component].stripes[r.stripe] == *one.of));
                assert_eq!(runs[0].object_offset, one.offset);
            }
            for (c, s, _) in layout.stripes() {
                let map = StripeMap::new(&layout.components[c], s);
                let Some(first) = map.first_from(at) else { continue };
                let back = map.file_offset(first).unwrap();
                assert!(back >= at, "the first byte at or after it");
                assert!(
                    first == 0
                        || map.file_offset(first - 1).is_none_or(|before| before < at.max(layout.components[c].start))
                );
            }
        }
    }

    #[test]
    fn the_end_of_all_offsets_is_no_trap() {
        let stripes = vec![Stripe::default(); 3];
        let c = Component { end: u64::MAX, stripe_size: 65536, stripes, ..Component::default() };
        let layout = Layout { generation: 1, components: vec![c] };
        let last = i64::MAX as u64;
        assert_eq!(cut(&layout, last - 10, 10, |_| 4 << 20).len(), 1);
        for s in 0..3 {
            let map = StripeMap::new(&layout.components[0], s);
            assert!(map.object_range(&(0..last)).is_some());
            map.first_from(u64::MAX);
            assert_eq!(map.file_offset(u64::MAX), None);
        }
    }
}
