//! The journal of a target that has one: the changes of records that each commit makes durable, one checksummed record
//! for a commit, in a file or on a device elsewhere. The index is flushed only now and then; after that the journal
//! begins again at its start.
//!
//! The first block names the target. Records follow, each on a block of its own: a head with a number one higher than
//! the last one's, then the changes in order. A record is written and synced after the data that it refers to, and the
//! next record only after that. The index has the number of the last record that it includes. So at opening the records
//! with higher numbers are carried out, up to the first that is not whole or not the next: a torn record was
//! acknowledged to nobody, and remains of an earlier round have lower numbers. Everything that is read is treated as
//! hostile.
#![allow(clippy::disallowed_methods)] // An IO edge: owns the journal file.

use crate::{KEY_MAX, OsdError, Table};
use nacre_base::hash::fnv_1a_64;
use nacre_base::{TargetName, Uuid};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek as _, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

/// The label's option for the journal's place: a directory or a block device.
pub(super) const OPTION: &str = "journal";
/// The table in which the index keeps the number of the last record that it includes.
pub(super) const TABLE: Table = Table("osd.journal");
/// The key of that number.
pub(super) const SEQ: &[u8] = b"seq";

const BLOCK: u64 = 4096;
/// Size of a journal in a directory, written in full so that later writes change no metadata of the file system.
const FILE_BYTES: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };
const FIRST_MAGIC: u64 = u64::from_le_bytes(*b"NACREjnl");
const RECORD_MAGIC: u64 = u64::from_le_bytes(*b"NACRErec");
/// Magic, UUID, number, length, checksum of the changes, checksum of all this.
const HEAD: usize = 56;
const _: () = assert!(HEAD <= BLOCK as usize, "one block tells what a record is");
const _: () = assert!(KEY_MAX <= u16::MAX as usize, "a change has two bytes for the length of its key");

/// An open journal.
pub(super) struct Journal {
    file: File,
    uuid: Uuid,
    bytes: u64,
    /// Offset of the next record.
    at: u64,
    /// Number of the last record.
    seq: u64,
}

/// Changes of records, as a journal keeps them.
#[derive(Default)]
pub(super) struct Changes(Vec<u8>);

/// One change; without a value it is a removal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change<'a> {
    pub(super) table: &'a str,
    pub(super) key: &'a [u8],
    pub(super) value: Option<&'a [u8]>,
}

impl Changes {
    pub(super) fn push(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) {
        assert!((1..=KEY_MAX).contains(&key.len()), "a change with a key of {} bytes could not be read", key.len());
        assert!(table.0.len() <= usize::from(u8::MAX), "{:?} is too long a name for the journal", table.0);
        self.0.extend([u8::from(value.is_some()), table.0.len() as u8]);
        self.0.extend((key.len() as u16).to_le_bytes());
        self.0.extend((value.map_or(0, <[u8]>::len) as u64).to_le_bytes());
        self.0.extend(table.0.as_bytes());
        self.0.extend(key);
        self.0.extend(value.unwrap_or_default());
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes the latest changes until `len` bytes are left.
    pub(super) fn truncate(&mut self, len: usize) {
        assert!(len <= self.0.len(), "{len} bytes of changes are to be left, of {}", self.0.len());
        self.0.truncate(len);
    }
}

/// Takes the first change off `bytes`. Returns None at the end, or an error if the bytes are damaged.
fn next_change<'a>(bytes: &mut &'a [u8]) -> Result<Option<Change<'a>>, &'static str> {
    const BAD: &str = "a record holds no valid change";
    if bytes.is_empty() {
        return Ok(None);
    }
    let (head, rest) = bytes.split_at_checked(12).ok_or(BAD)?;
    let key_len = usize::from(u16::from_le_bytes([head[2], head[3]]));
    let value_len = u64_at(head, 4);
    let (table, rest) = rest.split_at_checked(head[1].into()).ok_or(BAD)?;
    let (key, rest) = rest.split_at_checked(key_len).ok_or(BAD)?;
    let (value, rest) = usize::try_from(value_len).ok().and_then(|len| rest.split_at_checked(len)).ok_or(BAD)?;
    let table = std::str::from_utf8(table).map_err(|_| BAD)?;
    if !(1..=KEY_MAX).contains(&key_len) || head[0] > 1 || (head[0] == 0 && value_len > 0) {
        return Err(BAD);
    }
    *bytes = rest;
    Ok(Some(Change { table, key, value: (head[0] == 1).then_some(value) }))
}

/// Makes the journal of a new target in the directory, or on the device, `place`.
pub(super) fn format(place: &Path, target: &TargetName, uuid: Uuid) -> Result<(), OsdError> {
    let (path, is_device) = file_of(place, target).map_err(|e| OsdError::io("looking for the journal's place", &e))?;
    let make = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let mut file = if is_device { options.open(&path)? } else { options.create_new(true).open(&path)? };
        if !is_device {
            let zeros = vec![0; 1 << 20];
            for _ in 0..FILE_BYTES >> 20 {
                file.write_all(&zeros)?;
            }
        }
        // Clears the place of the first record, whatever is on the device.
        file.write_all_at(&[0; BLOCK as usize], BLOCK)?;
        file.write_all_at(&first_block(uuid), 0)?;
        file.sync_all()?;
        if is_device { Ok(()) } else { File::open(place)?.sync_all() }
    };
    make().map_err(|e: io::Error| OsdError::io("making the journal", &e))
}

/// The file below a directory, or the device itself; true for a device.
fn file_of(place: &Path, target: &TargetName) -> io::Result<(PathBuf, bool)> {
    let kind = fs::metadata(place)?.file_type();
    match (kind.is_dir(), kind.is_block_device()) {
        (true, _) => Ok((place.join(format!("{target}.journal")), false)),
        (_, true) => Ok((place.to_owned(), true)),
        _ => Err(io::Error::new(ErrorKind::InvalidInput, "neither a directory nor a block device")),
    }
}

fn first_block(uuid: Uuid) -> [u8; BLOCK as usize] {
    let mut block = [0; BLOCK as usize];
    block[..8].copy_from_slice(&FIRST_MAGIC.to_le_bytes());
    block[8..24].copy_from_slice(&uuid.0);
    let sum = fnv_1a_64(&block[..24]);
    block[24..32].copy_from_slice(&sum.to_le_bytes());
    block
}

impl Journal {
    /// Opens the journal of a target, and gives `carry_out` each change, in order, of the records after number `seq`.
    pub(super) fn open(
        place: &Path,
        target: &TargetName,
        uuid: Uuid,
        seq: u64,
        carry_out: &mut dyn FnMut(Change<'_>) -> Result<(), OsdError>,
    ) -> Result<Journal, OsdError> {
        let corrupt = |why: &str| OsdError::corrupt(place, why);
        let (path, _) = file_of(place, target).map_err(|e| OsdError::corrupt(place, e))?;
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let mut file = opened.map_err(|e| OsdError::corrupt(&path, e))?;
        let bytes = file.seek(SeekFrom::End(0)).map_err(|e| OsdError::io("reading the journal's size", &e))?;
        let mut first = [0; BLOCK as usize];
        file.read_exact_at(&mut first, 0).map_err(|e| OsdError::corrupt(&path, e))?;
        if first != first_block(uuid) {
            return Err(corrupt("not the journal of this target"));
        }
        let mut journal = Journal { file, uuid, bytes, at: BLOCK, seq };
        // Records that the index includes come first, if the last round began before the index was flushed.
        let mut expected = None;
        while let Some((number, changes, end)) = journal.read_record()? {
            if *expected.get_or_insert(number) != number || number > journal.seq + 1 {
                break;
            }
            if number > journal.seq {
                let mut rest = &changes[..];
                while let Some(change) = next_change(&mut rest).map_err(corrupt)? {
                    carry_out(change)?;
                }
                journal.seq = number;
            }
            (expected, journal.at) = (Some(number + 1), end);
        }
        Ok(journal)
    }

    /// The record at the current place and its end, if it is whole.
    fn read_record(&self) -> Result<Option<(u64, Vec<u8>, u64)>, OsdError> {
        let failed = |e: io::Error| OsdError::io("reading the journal", &e);
        if self.at + BLOCK > self.bytes {
            return Ok(None);
        }
        let mut head = [0; HEAD];
        self.file.read_exact_at(&mut head, self.at).map_err(failed)?;
        let len = u64_at(&head, 32);
        let room = self.bytes - self.at - HEAD as u64;
        let is_ours = u64_at(&head, 0) == RECORD_MAGIC && head[8..24] == self.uuid.0;
        if !is_ours || u64_at(&head, 48) != fnv_1a_64(&head[..48]) || len > room {
            return Ok(None);
        }
        let mut changes = vec![0; len as usize];
        self.file.read_exact_at(&mut changes, self.at + HEAD as u64).map_err(failed)?;
        if u64_at(&head, 40) != fnv_1a_64(&changes) {
            return Ok(None);
        }
        Ok(Some((u64_at(&head, 24), changes, self.end_of(len))))
    }

    fn end_of(&self, len: u64) -> u64 {
        (self.at + HEAD as u64 + len).next_multiple_of(BLOCK)
    }

    /// Returns whether there is room for these changes.
    pub(super) fn fits(&self, changes: &Changes) -> bool {
        self.end_of(changes.len() as u64) <= self.bytes
    }

    /// Makes the changes durable.
    pub(super) fn append(&mut self, changes: &Changes) -> io::Result<()> {
        let range: Range<u64> = self.at..self.end_of(changes.len() as u64);
        assert!(range.end <= self.bytes, "a record up to {} of {} bytes was not asked for", range.end, self.bytes);
        let mut record = vec![0; (range.end - range.start) as usize];
        record[..8].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
        record[8..24].copy_from_slice(&self.uuid.0);
        for (at, number) in [(24, self.seq + 1), (32, changes.len() as u64), (40, fnv_1a_64(&changes.0))] {
            record[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let sum = fnv_1a_64(&record[..48]);
        record[48..HEAD].copy_from_slice(&sum.to_le_bytes());
        record[HEAD..HEAD + changes.len()].copy_from_slice(&changes.0);
        self.file.write_all_at(&record, range.start)?;
        self.file.sync_data()?;
        (self.at, self.seq) = (range.end, self.seq + 1);
        Ok(())
    }

    /// Number of the last record, which the index includes if it is flushed now.
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// The index durably includes all records: the next record goes to the beginning.
    pub(super) fn restart(&mut self) {
        self.at = BLOCK;
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Prng;
    use tempfile::TempDir;

    const T: Table = Table("t");
    const UUID: Uuid = Uuid([7; 16]);

    fn target() -> TargetName {
        "nacre-OST0000".parse().unwrap()
    }

    fn made() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        format(dir.path(), &target(), UUID).unwrap();
        dir
    }

    fn path(dir: &TempDir) -> PathBuf {
        dir.path().join("nacre-OST0000.journal")
    }

    /// Opens the journal. Returns it with the values of all changes after `seq`.
    fn open(dir: &TempDir, seq: u64) -> (Journal, Vec<Vec<u8>>) {
        let mut seen = Vec::new();
        let journal = Journal::open(dir.path(), &target(), UUID, seq, &mut |change| {
            assert_eq!((change.table, change.key), ("t", &b"key"[..]));
            seen.push(change.value.unwrap_or(b"gone").to_vec());
            Ok(())
        });
        (journal.unwrap(), seen)
    }

    fn changes(value: &[u8]) -> Changes {
        let mut changes = Changes::default();
        changes.push(T, b"key", Some(value));
        changes
    }

    #[test]
    fn what_was_appended_is_carried_out_after_the_number_that_the_index_has() {
        let dir = made();
        let (mut journal, seen) = open(&dir, 0);
        assert!(seen.is_empty());
        for n in 1..=3u8 {
            journal.append(&changes(&vec![n; 5000 * usize::from(n)])).unwrap();
        }
        let mut removal = changes(b"undone");
        removal.truncate(0);
        removal.push(T, b"key", None);
        journal.append(&removal).unwrap();
        drop(journal);
        assert_eq!(open(&dir, 0).1, [vec![1; 5000], vec![2; 10_000], vec![3; 15_000], b"gone".to_vec()]);
        assert_eq!(open(&dir, 3).1, [b"gone".to_vec()]);

        // The next round overwrites the first, and its remains mean nothing.
        let (mut journal, seen) = open(&dir, 4);
        assert!(seen.is_empty());
        journal.restart();
        journal.append(&changes(b"next round")).unwrap();
        assert_eq!(open(&dir, 4).1, [b"next round".to_vec()]);
        journal.append(&changes(b"and on")).unwrap();
        assert_eq!(open(&dir, 4).1, [b"next round".to_vec(), b"and on".to_vec()]);
        assert!(open(&dir, 6).1.is_empty());
    }

    #[test]
    fn a_torn_end_is_passed_over_wherever_it_is_torn() {
        let dir = made();
        let (mut journal, _) = open(&dir, 0);
        journal.append(&changes(b"whole")).unwrap();
        let before = fs::read(path(&dir)).unwrap();
        let at = journal.at as usize;
        journal.append(&changes(&[5; 9000])).unwrap();
        let end = journal.at as usize;
        let after = fs::read(path(&dir)).unwrap();
        let mut prng = Prng::new(5);
        for _ in 0..100 {
            let mut torn = after.clone();
            // Some sectors made it, others not.
            let mut lost = 0;
            for sector in (at..end).step_by(512).filter(|_| prng.one_in(3)) {
                lost += usize::from(torn[sector..sector + 512] != before[sector..sector + 512]);
                torn[sector..sector + 512].copy_from_slice(&before[sector..sector + 512]);
            }
            fs::write(path(&dir), &torn).unwrap();
            assert_eq!(open(&dir, 0).1.len(), if lost > 0 { 1 } else { 2 });
        }
    }

    #[test]
    fn hostile_bytes_are_an_error_or_the_end_and_never_more() {
        let dir = made();
        let (mut journal, _) = open(&dir, 0);
        for n in 0..4 {
            journal.append(&changes(&[n; 300])).unwrap();
        }
        let good = fs::read(path(&dir)).unwrap();
        let mut prng = Prng::new(9);
        for round in 0..300 {
            let mut bad = good.clone();
            for _ in 0..=prng.below(4) {
                let at = prng.below(6 * BLOCK) as usize;
                bad[at] = prng.next_u64() as u8;
            }
            if round % 3 == 0 {
                // A head that is believed, with changes that are not.
                let at = BLOCK as usize;
                let sum = fnv_1a_64(&bad[at + HEAD..at + HEAD + u64_at(&good, at + 32) as usize]);
                bad[at + 40..at + 48].copy_from_slice(&sum.to_le_bytes());
                let sum = fnv_1a_64(&bad[at..at + 48]);
                bad[at + 48..at + HEAD].copy_from_slice(&sum.to_le_bytes());
            }
            bad.truncate(if round % 7 == 0 { prng.below(6 * BLOCK) as usize } else { bad.len() });
            fs::write(path(&dir), &bad).unwrap();
            let mut seen = 0;
            let opened = Journal::open(dir.path(), &target(), UUID, 0, &mut |_| {
                seen += 1;
                Ok(())
            });
            assert!(seen <= 4 || opened.is_err());
        }
    }

    #[test]
    fn the_journal_of_another_target_and_a_lost_one_are_refused() {
        let dir = made();
        let refusal = |uuid| {
            let opened = Journal::open(dir.path(), &target(), uuid, 0, &mut |_| Ok(()));
            opened.err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert!(refusal(Uuid([8; 16])).contains("not the journal of this target"));
        assert!(format(dir.path(), &target(), UUID).is_err(), "there is one");
        fs::remove_file(path(&dir)).unwrap();
        assert!(refusal(UUID).contains("damaged"), "{}", refusal(UUID));
    }

    #[test]
    fn it_takes_what_fits() {
        let dir = made();
        let (journal, _) = open(&dir, 0);
        assert!(journal.fits(&changes(&vec![0; 1000 << 10])));
        assert!(!journal.fits(&changes(&vec![0; 1 << 20])));
    }
}
