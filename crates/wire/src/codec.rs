//! How fields become bytes: the [`Field`] trait, its implementations for plain types, and the `message!` macro that
//! composes them. What messages there are is not here.

use bytes::Bytes;
use nacre_base::{Errno, Fid, MdtIndex, Nid, OstIndex, RawNid, Timestamp, Transno, Uuid, Xid};
use std::sync::Arc;

/// Why bytes are not the message they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends before the field does.
    #[error("message is too short: {wanted} bytes wanted, {left} left")]
    Truncated {
        /// Bytes the field needs.
        wanted: usize,
        /// Bytes there are.
        left: usize,
    },
    /// A value that this field cannot have.
    #[error("{what} cannot be {value:#x}")]
    BadValue {
        /// Which field.
        what: &'static str,
        /// What it was.
        value: u64,
    },
    /// A length or count beyond its limit.
    #[error("{what} of {len} is beyond the limit of {limit}")]
    TooLong {
        /// Which field.
        what: &'static str,
        /// What it was.
        len: usize,
        /// What it may be.
        limit: usize,
    },
}

impl From<WireError> for Errno {
    fn from(_: WireError) -> Errno {
        Errno::EPROTO
    }
}

/// A cursor over received bytes. Sections taken out of it share the buffer.
#[derive(Debug, Clone)]
pub struct Reader {
    buf: Bytes,
}

impl Reader {
    /// Reads `buf` from its beginning.
    pub fn new(buf: Bytes) -> Reader {
        Reader { buf }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.buf.len()
    }

    /// The next `len` bytes, shared.
    pub fn take(&mut self, len: usize) -> Result<Bytes, WireError> {
        self.check(len)?;
        Ok(self.buf.split_to(len))
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.check(N)?;
        let mut a = [0; N];
        a.copy_from_slice(&self.buf[..N]);
        bytes::Buf::advance(&mut self.buf, N);
        Ok(a)
    }

    fn check(&self, wanted: usize) -> Result<(), WireError> {
        let left = self.buf.len();
        if wanted > left { Err(WireError::Truncated { wanted, left }) } else { Ok(()) }
    }
}

/// Something that can be a field of a message.
pub trait Field: Sized {
    /// The fewest bytes a value takes: bounds a count before anything is allocated for it.
    const MIN_SIZE: usize;
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads a value.
    fn take(from: &mut Reader) -> Result<Self, WireError>;
}

/// Bytes that most messages do not exceed.
const SMALL: usize = 256;

/// The bytes of `message`.
pub fn encode<M: Field>(message: &M) -> Bytes {
    let mut out = Vec::with_capacity(SMALL);
    message.put(&mut out);
    if out.capacity() == SMALL {
        // A request is kept until it is answered, which may be long. Bytes of a vector with room to spare would need a second
        // allocation anyway.
        out.shrink_to_fit();
    }
    out.into()
}

/// The message in `bytes`; bytes after it are ignored.
pub fn decode<M: Field>(bytes: &Bytes) -> Result<M, WireError> {
    M::take(&mut Reader::new(bytes.clone()))
}

macro_rules! integer_fields {
    ($($t:ty),*) => {$(
        impl Field for $t {
            const MIN_SIZE: usize = size_of::<$t>();
            fn put(&self, out: &mut Vec<u8>) { out.extend_from_slice(&self.to_le_bytes()); }
            fn take(from: &mut Reader) -> Result<Self, WireError> { Ok(<$t>::from_le_bytes(from.array()?)) }
        }
    )*};
}
integer_fields!(u8, u16, u32, u64, i32, i64);

impl Field for bool {
    const MIN_SIZE: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(from: &mut Reader) -> Result<bool, WireError> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            v => Err(WireError::BadValue { what: "a boolean", value: v.into() }),
        }
    }
}

impl<const N: usize> Field for [u8; N] {
    const MIN_SIZE: usize = N;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(from: &mut Reader) -> Result<Self, WireError> {
        from.array()
    }
}

impl Field for Bytes {
    const MIN_SIZE: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        out.extend_from_slice(self);
    }
    fn take(from: &mut Reader) -> Result<Bytes, WireError> {
        let len = u32::take(from)? as usize;
        from.take(len)
    }
}

impl Field for String {
    const MIN_SIZE: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }
    fn take(from: &mut Reader) -> Result<String, WireError> {
        let bytes = Bytes::take(from)?;
        let bad = |e: std::str::Utf8Error| WireError::BadValue { what: "text", value: e.valid_up_to() as u64 };
        Ok(std::str::from_utf8(&bytes).map_err(bad)?.to_owned())
    }
}

impl<T: Field> Field for Vec<T> {
    const MIN_SIZE: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        self.iter().for_each(|v| v.put(out));
    }
    fn take(from: &mut Reader) -> Result<Vec<T>, WireError> {
        let count = u32::take(from)? as usize;
        let wanted = count.saturating_mul(T::MIN_SIZE.max(1));
        from.check(wanted)?;
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            all.push(T::take(from)?);
        }
        Ok(all)
    }
}

/// Encodes the value itself. Sharing saves memory in one process and does not show on the wire.
impl<T: Field> Field for Arc<T> {
    const MIN_SIZE: usize = T::MIN_SIZE;
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }
    fn take(from: &mut Reader) -> Result<Arc<T>, WireError> {
        T::take(from).map(Arc::new)
    }
}

impl<T: Field> Field for Option<T> {
    const MIN_SIZE: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(v) = self {
            v.put(out);
        }
    }
    fn take(from: &mut Reader) -> Result<Option<T>, WireError> {
        Ok(if bool::take(from)? { Some(T::take(from)?) } else { None })
    }
}

impl Field for () {
    const MIN_SIZE: usize = 0;
    fn put(&self, _: &mut Vec<u8>) {}
    fn take(_: &mut Reader) -> Result<(), WireError> {
        Ok(())
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    const MIN_SIZE: usize = A::MIN_SIZE + B::MIN_SIZE;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(from: &mut Reader) -> Result<(A, B), WireError> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

pub(crate) fn put_len(len: usize, out: &mut Vec<u8>) {
    let len = u32::try_from(len).expect("a section is far below 4 GiB: bulk data never travels in a body");
    len.put(out);
}

macro_rules! newtype_fields {
    ($($t:ident($inner:ty)),*) => {$(
        impl Field for $t {
            const MIN_SIZE: usize = <$inner>::MIN_SIZE;
            fn put(&self, out: &mut Vec<u8>) { self.0.put(out); }
            fn take(from: &mut Reader) -> Result<Self, WireError> { Ok($t(<$inner>::take(from)?)) }
        }
    )*};
}
newtype_fields!(Xid(u64), Transno(u64), OstIndex(u32), MdtIndex(u32), Uuid([u8; 16]));

impl Field for Fid {
    const MIN_SIZE: usize = 16;
    fn put(&self, out: &mut Vec<u8>) {
        self.seq.put(out);
        self.oid.put(out);
        self.ver.put(out);
    }
    fn take(from: &mut Reader) -> Result<Fid, WireError> {
        Ok(Fid { seq: u64::take(from)?, oid: u32::take(from)?, ver: u32::take(from)? })
    }
}

impl Field for Timestamp {
    const MIN_SIZE: usize = 12;
    fn put(&self, out: &mut Vec<u8>) {
        self.secs.put(out);
        self.nanos.put(out);
    }
    fn take(from: &mut Reader) -> Result<Timestamp, WireError> {
        let (secs, nanos) = (i64::take(from)?, u32::take(from)?);
        if nanos >= 1_000_000_000 {
            return Err(WireError::BadValue { what: "nanoseconds", value: nanos.into() });
        }
        Ok(Timestamp { secs, nanos })
    }
}

/// Targets' records on disk contain NIDs. A NID whose address is not IPv6 is encoded as before there was IPv6, so that old
/// and new records are read alike; a flag in the network announces the longer address.
impl Field for Nid {
    const MIN_SIZE: usize = 10;
    fn put(&self, out: &mut Vec<u8>) {
        let raw = self.to_raw();
        raw.network.put(out);
        if raw.is_ipv6() {
            raw.address.to_be_bytes().put(out);
        } else {
            u32::try_from(raw.address).expect("an address that is not IPv6 has four bytes").put(out);
        }
        raw.port.put(out);
    }
    fn take(from: &mut Reader) -> Result<Nid, WireError> {
        let mut raw = RawNid { network: u32::take(from)?, address: 0, port: 0 };
        raw.address = if raw.is_ipv6() { u128::from_be_bytes(from.array()?) } else { u32::take(from)?.into() };
        raw.port = u16::take(from)?;
        Nid::from_raw(raw).ok_or(WireError::BadValue { what: "the network of a NID", value: raw.network.into() })
    }
}

/// A message's decoder, for tests that feed bytes to all of them.
#[derive(Debug, Clone, Copy)]
pub struct Decoder {
    /// Path of the message's type.
    pub name: &'static str,
    /// [`round_trip`] of the message.
    pub round_trip: fn(&Bytes) -> Result<(), WireError>,
}

/// Decodes a message, which must encode to the bytes that it was decoded from. Panics if it does not, so this is for tests.
pub fn round_trip<M: Field + std::fmt::Debug>(bytes: &Bytes) -> Result<(), WireError> {
    let message = decode::<M>(bytes)?;
    let again = encode(&message);
    assert_eq!(again[..], bytes[..again.len()], "{message:?}");
    Ok(())
}

/// Declares messages: structs whose fields cross the wire in the order written. The first word names the list of their
/// decoders, which `lib.rs: DECODERS` must contain.
macro_rules! message {
    ($list:ident; $($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* pub $field:ident: $t:ty,)* })*) => {
        pub(crate) const $list: &[$crate::codec::Decoder] = &[$($crate::codec::Decoder {
            name: concat!(module_path!(), "::", stringify!($name)),
            round_trip: $crate::codec::round_trip::<$name>,
        },)*];
        $(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $name { $($(#[$fmeta])* pub $field: $t,)* }

        impl $crate::codec::Field for $name {
            const MIN_SIZE: usize = 0 $(+ <$t as $crate::codec::Field>::MIN_SIZE)*;
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::codec::Field::put(&self.$field, out);)*
                let _ = out;
            }
            fn take(from: &mut $crate::codec::Reader) -> Result<Self, $crate::codec::WireError> {
                let _ = &from;
                Ok($name { $($field: $crate::codec::Field::take(from)?,)* })
            }
        }
        )*
    };
}

/// Declares enums that cross the wire as one number.
macro_rules! wire_enum {
    ($(#[$meta:meta])* pub enum $name:ident: $repr:ty { $($(#[$vmeta:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($repr)]
        pub enum $name { $($(#[$vmeta])* $variant = $value,)* }

        impl $crate::codec::Field for $name {
            const MIN_SIZE: usize = size_of::<$repr>();
            fn put(&self, out: &mut Vec<u8>) {
                $crate::codec::Field::put(&(*self as $repr), out);
            }
            fn take(from: &mut $crate::codec::Reader) -> Result<Self, $crate::codec::WireError> {
                match <$repr as $crate::codec::Field>::take(from)? {
                    $($value => Ok($name::$variant),)*
                    v => Err($crate::codec::WireError::BadValue { what: stringify!($name), value: v as u64 }),
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_count_allocates_nothing() {
        let bytes = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 1, 2, 3]);
        assert!(matches!(decode::<Vec<u64>>(&bytes), Err(WireError::Truncated { .. })));
        assert!(matches!(decode::<Bytes>(&bytes), Err(WireError::Truncated { .. })));
        assert!(decode::<Option<u8>>(&Bytes::from_static(&[2])).is_err());
        assert!(decode::<String>(&Bytes::from_static(&[1, 0, 0, 0, 0xff])).is_err());
    }

    #[test]
    fn plain_types_round_trip() {
        let v = vec![(7u16, Some("x".to_owned())), (8, None)];
        assert_eq!(decode::<Vec<(u16, Option<String>)>>(&encode(&v)), Ok(v));
    }
}
