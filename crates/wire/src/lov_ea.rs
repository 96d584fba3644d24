//! Layouts in Lustre's own binary form, as programs read and write them through the extended attribute `lustre.lov`.
//! Used at that border only: inside, layouts travel in the form of [`crate::layout`].
//!
//! Plain (`LOV_USER_MAGIC_V1`, and V3 with a pool name after the header): magic u32, pattern u32, object id u64, sequence u64,
//! stripe size u32, stripe count u16, generation u16 (when setting: OST of the first stripe), [pool 16 bytes], then for
//! each stripe FID 16 bytes, generation u32, OST index u32. Composite (`COMP_V1`): header 32 bytes, entries of 48 bytes, then
//! plain blobs. All little-endian. A component that is not instantiated has a stripe count but no stripes.

use crate::layout::{
    Component, ComponentSpec, Layout, LayoutError, LayoutSpec, STRIPE_COUNT_MAX, Stripe, component_flags, pattern,
};
use bytes::{Buf, BufMut};
use nacre_base::{Fid, OstIndex};

/// Plain layout.
pub const MAGIC_V1: u32 = 0x0BD1_0BD0;
/// Plain layout with a pool.
pub const MAGIC_V3: u32 = 0x0BD3_0BD0;
/// Setting: the OSTs are listed.
pub const MAGIC_SPECIFIC: u32 = 0x0BD5_0BD0;
/// Composite layout.
pub const MAGIC_COMP_V1: u32 = 0x0BD6_0BD0;

const V1_BYTES: usize = 32;
const POOL_BYTES: usize = 16;
const STRIPE_BYTES: usize = 24;
const COMP_HEADER_BYTES: usize = 32;
const COMP_ENTRY_BYTES: usize = 48;

/// The attribute's value for a file.
pub fn encode_layout(layout: &Layout, file: Fid) -> Vec<u8> {
    match layout.components.as_slice() {
        [one] if one.start == 0 && one.end == u64::MAX => encode_plain(one, file, layout.generation as u16),
        many => encode_composite(layout, many, file),
    }
}

fn encode_plain(c: &Component, file: Fid, generation: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(V1_BYTES + POOL_BYTES + c.stripes.len() * STRIPE_BYTES);
    out.put_u32_le(if c.pool.is_empty() { MAGIC_V1 } else { MAGIC_V3 });
    out.put_u32_le(c.pattern);
    out.put_u64_le(file.oid.into());
    out.put_u64_le(file.seq);
    out.put_u32_le(c.stripe_size);
    out.put_u16_le(count_to_wire(c.stripe_count()));
    out.put_u16_le(generation);
    put_pool(&mut out, &c.pool);
    for s in &c.stripes {
        out.put_u64_le(s.object.seq);
        out.put_u32_le(s.object.oid);
        out.put_u32_le(s.object.ver);
        out.put_u32_le(0);
        out.put_u32_le(s.ost.0);
    }
    out
}

fn put_pool(out: &mut Vec<u8>, pool: &str) {
    if !pool.is_empty() {
        let mut name = [0; POOL_BYTES];
        let n = pool.len().min(POOL_BYTES - 1);
        name[..n].copy_from_slice(&pool.as_bytes()[..n]);
        out.put_slice(&name);
    }
}

fn encode_composite(layout: &Layout, components: &[Component], file: Fid) -> Vec<u8> {
    let blobs: Vec<_> = components.iter().map(|c| encode_plain(c, file, u16::MAX)).collect();
    let mut offset = COMP_HEADER_BYTES + components.len() * COMP_ENTRY_BYTES;
    let total = offset + blobs.iter().map(Vec::len).sum::<usize>();
    let mut out = Vec::with_capacity(total);
    out.put_u32_le(MAGIC_COMP_V1);
    out.put_u32_le(total as u32);
    out.put_u32_le(layout.generation);
    out.put_u16_le(0);
    out.put_u16_le(components.len() as u16);
    out.put_bytes(0, COMP_HEADER_BYTES - 16);
    for (c, blob) in components.iter().zip(&blobs) {
        out.put_u32_le(c.id);
        out.put_u32_le(c.flags);
        out.put_u64_le(c.start);
        out.put_u64_le(c.end);
        out.put_u32_le(offset as u32);
        out.put_u32_le(blob.len() as u32);
        out.put_bytes(0, COMP_ENTRY_BYTES - 32);
        offset += blob.len();
    }
    blobs.iter().for_each(|b| out.put_slice(b));
    out
}

/// Reads the attribute's value back, as `lfs getstripe` does.
pub fn decode_layout(value: &[u8]) -> Result<(Layout, Fid), LayoutError> {
    let mut header = value;
    if magic(value)? != MAGIC_COMP_V1 {
        let (component, file, generation) = decode_plain(value, true)?;
        let whole = Component { id: 1, flags: component_flags::INIT, end: u64::MAX, ..component };
        return Ok((Layout { generation: generation.into(), components: vec![whole] }, file));
    }
    need(value, COMP_HEADER_BYTES)?;
    header.advance(8);
    let generation = header.get_u32_le();
    header.advance(2);
    let count = header.get_u16_le() as usize;
    need(value, COMP_HEADER_BYTES + count * COMP_ENTRY_BYTES)?;
    let mut layout = Layout { generation, components: Vec::with_capacity(count) };
    let mut file = Fid::ZERO;
    for entry in value[COMP_HEADER_BYTES..].chunks_exact(COMP_ENTRY_BYTES).take(count) {
        let mut e = entry;
        let (id, flags, start, end) = (e.get_u32_le(), e.get_u32_le(), e.get_u64_le(), e.get_u64_le());
        let (offset, size) = (e.get_u32_le() as usize, e.get_u32_le() as usize);
        let blob = offset.checked_add(size).and_then(|to| value.get(offset..to));
        let (component, of, _) = decode_plain(
            blob.ok_or(LayoutError::Malformed("a component lies outside"))?,
            flags & component_flags::INIT != 0,
        )?;
        file = of;
        layout.components.push(Component { id, flags, start, end, ..component });
    }
    Ok((layout, file))
}

fn decode_plain(value: &[u8], has_objects: bool) -> Result<(Component, Fid, u16), LayoutError> {
    let head = PlainHead::decode(value)?;
    if !has_objects {
        let wanted = ComponentSpec {
            stripe_size: head.stripe_size,
            stripe_count: count_from_wire(head.stripe_count),
            overstripe: head.pattern & pattern::OVERSTRIPING != 0,
            stripe_offset: -1,
            pool: head.pool.clone(),
            ..ComponentSpec::default()
        };
        let (pattern, stripe_size, wanted) = (head.pattern, head.stripe_size, Some(wanted));
        let component = Component { pattern, stripe_size, pool: head.pool, wanted, ..Component::default() };
        return Ok((component, head.file, head.generation));
    }
    need(head.rest, usize::from(head.stripe_count) * STRIPE_BYTES)?;
    let stripes = head.rest.chunks_exact(STRIPE_BYTES).take(head.stripe_count.into()).map(decode_stripe).collect();
    let component = Component {
        pattern: head.pattern,
        stripe_size: head.stripe_size,
        pool: head.pool,
        stripes,
        ..Component::default()
    };
    Ok((component, head.file, head.generation))
}

fn decode_stripe(bytes: &[u8]) -> Stripe {
    let mut b = bytes;
    let object = Fid { seq: b.get_u64_le(), oid: b.get_u32_le(), ver: b.get_u32_le() };
    b.advance(4);
    Stripe { object, ost: OstIndex(b.get_u32_le()) }
}

struct PlainHead<'a> {
    magic: u32,
    pattern: u32,
    file: Fid,
    stripe_size: u32,
    stripe_count: u16,
    generation: u16,
    pool: String,
    rest: &'a [u8],
}

impl PlainHead<'_> {
    fn decode(value: &[u8]) -> Result<PlainHead<'_>, LayoutError> {
        need(value, V1_BYTES)?;
        let mut b = value;
        let magic = b.get_u32_le();
        if !matches!(magic, MAGIC_V1 | MAGIC_V3 | MAGIC_SPECIFIC) {
            return Err(LayoutError::Malformed("unknown magic"));
        }
        let pattern = b.get_u32_le();
        let (oid, seq) = (b.get_u64_le(), b.get_u64_le());
        let file = Fid { seq, oid: oid as u32, ver: 0 };
        let (stripe_size, stripe_count, generation) = (b.get_u32_le(), b.get_u16_le(), b.get_u16_le());
        let mut pool = String::new();
        if magic != MAGIC_V1 {
            need(b, POOL_BYTES)?;
            let name = &b[..POOL_BYTES];
            let end = name.iter().position(|c| *c == 0).ok_or(LayoutError::Malformed("the pool's name has no end"))?;
            let text = std::str::from_utf8(&name[..end]).map_err(|_| LayoutError::Malformed("pool is not UTF-8"))?;
            pool = text.to_owned();
            b.advance(POOL_BYTES);
        }
        Ok(PlainHead { magic, pattern, file, stripe_size, stripe_count, generation, pool, rest: b })
    }
}

fn magic(value: &[u8]) -> Result<u32, LayoutError> {
    need(value, 4)?;
    Ok(u32::from_le_bytes([value[0], value[1], value[2], value[3]]))
}

fn need(value: &[u8], len: usize) -> Result<(), LayoutError> {
    if value.len() < len { Err(LayoutError::Malformed("too short")) } else { Ok(()) }
}

/// The value to set for a wish.
pub fn encode_spec(spec: &LayoutSpec) -> Vec<u8> {
    match spec.components.as_slice() {
        [one] if one.end == u64::MAX => encode_plain_spec(one),
        many => encode_composite_spec(many),
    }
}

fn encode_composite_spec(components: &[ComponentSpec]) -> Vec<u8> {
    let blobs: Vec<_> = components.iter().map(encode_plain_spec).collect();
    let mut offset = COMP_HEADER_BYTES + components.len() * COMP_ENTRY_BYTES;
    let mut out = Vec::new();
    out.put_u32_le(MAGIC_COMP_V1);
    out.put_u32_le((offset + blobs.iter().map(Vec::len).sum::<usize>()) as u32);
    out.put_u32_le(0);
    out.put_u16_le(0);
    out.put_u16_le(components.len() as u16);
    out.put_bytes(0, COMP_HEADER_BYTES - 16);
    let mut start = 0;
    for (c, blob) in components.iter().zip(&blobs) {
        out.put_u64_le(0);
        out.put_u64_le(start);
        out.put_u64_le(c.end);
        out.put_u32_le(offset as u32);
        out.put_u32_le(blob.len() as u32);
        out.put_bytes(0, COMP_ENTRY_BYTES - 32);
        offset += blob.len();
        start = c.end;
    }
    blobs.iter().for_each(|b| out.put_slice(b));
    out
}

fn encode_plain_spec(c: &ComponentSpec) -> Vec<u8> {
    let specific = !c.osts.is_empty();
    let with_pool = specific || !c.pool.is_empty();
    let mut out = Vec::new();
    out.put_u32_le(if specific {
        MAGIC_SPECIFIC
    } else if with_pool {
        MAGIC_V3
    } else {
        MAGIC_V1
    });
    out.put_u32_le(pattern::RAID0 | if c.overstripe { pattern::OVERSTRIPING } else { 0 });
    out.put_bytes(0, 16);
    out.put_u32_le(c.stripe_size);
    out.put_u16_le(if specific { c.osts.len() as u16 } else { count_to_wire(c.stripe_count) });
    out.put_u16_le(c.stripe_offset as u16);
    if with_pool {
        let mut name = [0; POOL_BYTES];
        let n = c.pool.len().min(POOL_BYTES - 1);
        name[..n].copy_from_slice(&c.pool.as_bytes()[..n]);
        out.put_slice(&name);
    }
    for ost in &c.osts {
        out.put_bytes(0, STRIPE_BYTES - 4);
        out.put_u32_le(ost.0);
    }
    out
}

/// -1 to -32 are 0xffff to 0xffe0.
fn count_to_wire(count: i32) -> u16 {
    count as i16 as u16
}

fn count_from_wire(count: u16) -> i32 {
    if count >= 0xffe0 { i32::from(count as i16) } else { count.into() }
}

/// Reads a wish that a program set, and checks it.
pub fn decode_spec(value: &[u8]) -> Result<LayoutSpec, LayoutError> {
    let mut spec = LayoutSpec::default();
    if magic(value)? == MAGIC_COMP_V1 {
        need(value, COMP_HEADER_BYTES)?;
        let count = usize::from(u16::from_le_bytes([value[14], value[15]]));
        need(value, COMP_HEADER_BYTES + count * COMP_ENTRY_BYTES)?;
        for entry in value[COMP_HEADER_BYTES..].chunks_exact(COMP_ENTRY_BYTES).take(count) {
            let mut e = entry;
            e.advance(16);
            let (end, offset, size) = (e.get_u64_le(), e.get_u32_le() as usize, e.get_u32_le() as usize);
            let blob = offset.checked_add(size).and_then(|to| value.get(offset..to));
            let blob = blob.ok_or(LayoutError::Malformed("a component lies outside"))?;
            spec.components.push(ComponentSpec { end, ..decode_plain_spec(blob)? });
        }
    } else {
        spec.components.push(ComponentSpec { end: u64::MAX, ..decode_plain_spec(value)? });
    }
    spec.check()?;
    Ok(spec)
}

fn decode_plain_spec(value: &[u8]) -> Result<ComponentSpec, LayoutError> {
    let head = PlainHead::decode(value)?;
    let known = pattern::RAID0 | pattern::OVERSTRIPING;
    if head.pattern & !known != 0 {
        return Err(LayoutError::Malformed("a pattern that is not supported"));
    }
    let mut osts = Vec::new();
    if head.magic == MAGIC_SPECIFIC {
        let n = usize::from(head.stripe_count);
        if n > STRIPE_COUNT_MAX {
            return Err(LayoutError::StripeCount(n as i64));
        }
        need(head.rest, n * STRIPE_BYTES)?;
        osts = head.rest.chunks_exact(STRIPE_BYTES).take(n).map(|s| decode_stripe(s).ost).collect();
    }
    let offset = if head.generation == u16::MAX { -1 } else { i32::from(head.generation) };
    Ok(ComponentSpec {
        end: 0,
        stripe_size: head.stripe_size,
        stripe_count: count_from_wire(head.stripe_count),
        overstripe: head.pattern & pattern::OVERSTRIPING != 0,
        stripe_offset: offset,
        osts,
        pool: head.pool,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::STRIPE_COUNT_AUTO;

    const FILE: Fid = Fid { seq: 0x200000401, oid: 2, ver: 0 };

    fn c2() -> Layout {
        let stripe = |ost, seq, oid| Stripe { ost: OstIndex(ost), object: Fid { seq, oid, ver: 0 } };
        let c = Component {
            id: 1,
            flags: component_flags::INIT,
            end: u64::MAX,
            pattern: pattern::RAID0,
            stripe_size: 1 << 20,
            stripes: vec![stripe(1, 0x280000400, 2), stripe(2, 0x300000400, 3)],
            ..Component::default()
        };
        Layout { generation: 0, components: vec![c] }
    }

    /// The bytes that a real Lustre 2.17 shows for a two-stripe file, but for the generation field.
    #[test]
    fn golden_plain_layout() {
        let hex: String = encode_layout(&c2(), FILE).iter().map(|b| format!("{b:02x}")).collect();
        let want = "d00bd10b010000000200000000000000010400000200000000001000020000000004008002000000020000000000000000000000\
                    0100000000040000030000000300000000000000000000000200\
                    0000";
        assert_eq!(hex, want.replace([' ', '\n'], ""));
    }

    #[test]
    fn layouts_round_trip_plain_and_composite() {
        let mut l = c2();
        assert_eq!(decode_layout(&encode_layout(&l, FILE)), Ok((l.clone(), FILE)));
        l.components[0].end = 1 << 20;
        let rest = |start, end, count: i32, overstripe| Component {
            id: 2,
            flags: 0,
            start,
            end,
            pattern: pattern::RAID0 | if overstripe { pattern::OVERSTRIPING } else { 0 },
            stripes: vec![],
            wanted: Some(ComponentSpec {
                stripe_size: 1 << 20,
                stripe_count: count,
                overstripe,
                stripe_offset: -1,
                ..ComponentSpec::default()
            }),
            ..c2().components[0].clone()
        };
        l.components.push(rest(1 << 20, 2 << 20, 2, false));
        l.components.push(rest(2 << 20, 3 << 20, -1, false));
        l.components.push(rest(3 << 20, 4 << 20, -7, true));
        l.components.push(rest(4 << 20, u64::MAX, STRIPE_COUNT_AUTO, true));
        assert_eq!(decode_layout(&encode_layout(&l, FILE)), Ok((l, FILE)));
    }

    /// The blob of a real Lustre 2.17's third component (`-E -1 -C 8`) that has no objects.
    #[test]
    fn a_component_without_objects_has_a_count_and_no_stripes() {
        let wanted = ComponentSpec { stripe_count: 8, overstripe: true, ..ComponentSpec::default() };
        let c = Component { pattern: 0x201, stripe_size: 4 << 20, wanted: Some(wanted), ..Component::default() };
        let hex: String = encode_plain(&c, Fid::ZERO, u16::MAX).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "d00bd10b0102000000000000000000000000000000000000000040000800ffff");
    }

    #[test]
    fn wishes_round_trip() {
        let mut s = LayoutSpec::plain();
        for (count, over, osts) in [
            (0, false, vec![]),
            (-1, false, vec![]),
            (-7, true, vec![]),
            (3, true, vec![1, 0, 1]),
            (STRIPE_COUNT_AUTO, true, vec![]),
        ] {
            s.components[0].stripe_count = count;
            s.components[0].overstripe = over;
            s.components[0].osts = osts.into_iter().map(OstIndex).collect();
            assert_eq!(decode_spec(&encode_spec(&s)), Ok(s.clone()));
        }
    }

    /// A name that fills its 16 bytes was cut to 15 when it was written back; found by the fuzzer.
    #[test]
    fn a_pool_name_without_its_nul_is_refused() {
        let mut s = LayoutSpec::plain();
        s.components[0].pool = "p".into();
        let mut bytes = encode_spec(&s);
        bytes[V1_BYTES..V1_BYTES + POOL_BYTES].fill(b'A');
        assert!(decode_spec(&bytes).is_err());
        bytes[V1_BYTES + POOL_BYTES - 1] = 0;
        assert_eq!(decode_spec(&bytes).unwrap().components[0].pool.len(), 15);
    }

    #[test]
    fn hostile_bytes_are_refused_not_followed() {
        let good = encode_layout(&c2(), FILE);
        for cut in 0..good.len() {
            assert!(decode_layout(&good[..cut]).is_err());
        }
        let mut prng = nacre_base::Prng::new(1);
        for magic in [MAGIC_V1, MAGIC_V3, MAGIC_SPECIFIC, MAGIC_COMP_V1] {
            for _ in 0..2000 {
                let mut b: Vec<u8> = (0..prng.below(300)).map(|_| prng.next_u64() as u8).collect();
                b.splice(..b.len().min(4), magic.to_le_bytes());
                let _ = decode_layout(&b);
                let _ = decode_spec(&b);
            }
        }
    }
}
