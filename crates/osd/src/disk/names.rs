//! Names of the files of objects: by FID, and by part if not the first, in directories that spread them.

use nacre_base::Fid;
use nacre_base::hash::mix64;

/// Directories that objects are spread over, so that none grows too large.
pub(super) const SHARDS: usize = 256;

/// The directory of an object. Objects are spread evenly whatever the pattern of their FIDs. Frozen: it decides where
/// objects are found.
pub(super) fn shard_of(object: Fid) -> usize {
    (mix64(mix64(object.seq) ^ (u64::from(object.oid) << 32 | u64::from(object.ver))) % SHARDS as u64) as usize
}

/// The name of a part's file.
pub(super) fn file_name(object: Fid, part: usize) -> String {
    let Fid { seq, oid, ver } = object;
    if part == 0 { format!("{seq:x}-{oid:x}-{ver:x}") } else { format!("{seq:x}-{oid:x}-{ver:x}.{part}") }
}

/// The object and part of a file with this name.
pub(super) fn parse_file_name(name: &str) -> Option<(Fid, usize)> {
    let (object, part) = match name.split_once('.') {
        Some((object, part)) => (object, part.parse().ok()?),
        None => (name, 0),
    };
    let mut numbers = object.split('-');
    let seq = u64::from_str_radix(numbers.next()?, 16).ok()?;
    let oid = u32::from_str_radix(numbers.next()?, 16).ok()?;
    let ver = u32::from_str_radix(numbers.next()?, 16).ok()?;
    let object = Fid { seq, oid, ver };
    // Only the one name that `file_name` gives.
    (file_name(object, part) == name).then_some((object, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places_of_objects_are_frozen() {
        let object = Fid { seq: 0x2_0000_0401, oid: 0x1f, ver: 0 };
        assert_eq!(file_name(object, 0), "200000401-1f-0");
        assert_eq!(file_name(object, 7), "200000401-1f-0.7");
        assert_eq!(parse_file_name("200000401-1f-0"), Some((object, 0)));
        assert_eq!(parse_file_name("200000401-1f-0.7"), Some((object, 7)));
        let foreign = ["", "200000401-1f", "0200000401-1f-0", "200000401-1f-0-0", "x-y-z", "200000401-1F-0"];
        for foreign in foreign.into_iter().chain(["200000401-1f-0.0", "200000401-1f-0.07", "200000401-1f-0.x"]) {
            assert_eq!(parse_file_name(foreign), None, "{foreign}");
        }
        assert_eq!(shard_of(object), 121);
        let mut count = [0; SHARDS];
        (0..25_600).for_each(|oid| count[shard_of(Fid { seq: 0x2_0000_0402, oid, ver: 0 })] += 1);
        assert!(count.iter().all(|c| (50..150).contains(c)), "uneven: {count:?}");
    }
}
