//! Open handles: which client (by the cookie of its export) has which inode open. Volatile: after a restart of the MDT
//! clients open their files again.

use nacre_base::{Errno, Fid};
use nacre_wire::mds::open_flags as flags;
use std::collections::BTreeMap;

/// Most handles that one client may have.
pub const HANDLES_PER_CLIENT_MAX: usize = 1 << 20;

/// An open handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenHandle {
    /// FID of the open inode.
    pub fid: Fid,
    /// Flags of open(2).
    pub flags: u32,
}

impl OpenHandle {
    /// True if the inode was opened for writing.
    pub fn is_writable(&self) -> bool {
        matches!(self.flags & flags::O_ACCMODE, flags::O_WRONLY | flags::O_RDWR)
    }
}

/// All open handles of one MDT.
#[derive(Debug)]
pub struct OpenHandles {
    clients: BTreeMap<u64, BTreeMap<u64, OpenHandle>>,
    /// Number of handles that each client has of each inode.
    counts: BTreeMap<(Fid, u64), Count>,
    next: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    all: usize,
    writable: usize,
}

impl OpenHandles {
    /// Creates an empty table. Another `instance` of the MDT uses other numbers, so that its handles are never taken for
    /// ours.
    pub fn new(instance: u64) -> OpenHandles {
        OpenHandles { clients: BTreeMap::new(), counts: BTreeMap::new(), next: (instance << 40) + 1 }
    }

    /// Opens an inode. Returns the handle's number. ENFILE if the client has too many.
    pub fn open(&mut self, client: u64, fid: Fid, flags: u32) -> Result<u64, Errno> {
        let handles = self.clients.entry(client).or_default();
        if handles.len() >= HANDLES_PER_CLIENT_MAX {
            return Err(Errno::ENFILE);
        }
        let number = self.next;
        self.next += 1;
        self.insert(client, number, OpenHandle { fid, flags });
        Ok(number)
    }

    /// Opens an inode that a client had open as `number` before a restart of the MDT. ENFILE if the client has too many.
    pub fn reopen(&mut self, client: u64, number: u64, fid: Fid, flags: u32) -> Result<(), Errno> {
        let handles = self.clients.entry(client).or_default();
        if handles.contains_key(&number) {
            return Ok(());
        }
        if handles.len() >= HANDLES_PER_CLIENT_MAX {
            return Err(Errno::ENFILE);
        }
        self.insert(client, number, OpenHandle { fid, flags });
        Ok(())
    }

    fn insert(&mut self, client: u64, number: u64, handle: OpenHandle) {
        // Clients choose numbers, too: a client that chose our next number loses its own handle.
        if let Some(replaced) = self.clients.entry(client).or_default().insert(number, handle) {
            self.uncount(replaced, client);
        }
        let count = self.counts.entry((handle.fid, client)).or_default();
        count.all += 1;
        count.writable += usize::from(handle.is_writable());
        assert!(count.writable <= count.all, "{client:#x} has {} open: {count:?}", handle.fid);
    }

    /// A client's handle.
    pub fn get(&self, client: u64, number: u64) -> Option<OpenHandle> {
        self.clients.get(&client)?.get(&number).copied()
    }

    /// Closes a handle. Returns it, if the client has such a handle.
    pub fn close(&mut self, client: u64, number: u64) -> Option<OpenHandle> {
        let handles = self.clients.get_mut(&client)?;
        let closed = handles.remove(&number)?;
        if handles.is_empty() {
            self.clients.remove(&client);
        }
        self.uncount(closed, client);
        self.assert_counted();
        Some(closed)
    }

    /// Closes all of a client's handles. Returns the inodes that no client has open any more.
    pub fn close_all(&mut self, client: u64) -> Vec<Fid> {
        let handles = self.clients.remove(&client).unwrap_or_default();
        let mut unused = Vec::new();
        for handle in handles.values() {
            self.uncount(*handle, client);
            if !self.is_open(handle.fid) {
                unused.push(handle.fid);
            }
        }
        self.assert_counted();
        unused
    }

    /// True if any client has the inode open.
    pub fn is_open(&self, fid: Fid) -> bool {
        self.counts.range((fid, 0)..=(fid, u64::MAX)).next().is_some()
    }

    /// Number of clients that have the inode open for writing.
    pub fn writers(&self, fid: Fid) -> usize {
        self.counts.range((fid, 0)..=(fid, u64::MAX)).filter(|(_, count)| count.writable > 0).count()
    }

    /// True if the client has the inode open.
    pub fn has_open(&self, client: u64, fid: Fid) -> bool {
        self.counts.contains_key(&(fid, client))
    }

    /// Number of handles.
    pub fn len(&self) -> usize {
        self.counts.values().map(|count| count.all).sum()
    }

    /// True if there is no handle.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    fn uncount(&mut self, handle: OpenHandle, client: u64) {
        let key = (handle.fid, client);
        let Some(count) = self.counts.get_mut(&key) else { panic!("{handle:?} of {client:#x} was not counted") };
        let writable = usize::from(handle.is_writable());
        assert!(count.all > 0 && count.writable >= writable, "{handle:?} of {client:#x} is one of {count:?}");
        (count.all, count.writable) = (count.all - 1, count.writable - writable);
        assert!(count.writable <= count.all, "{client:#x} has {} open: {count:?}", handle.fid);
        if count.all == 0 {
            self.counts.remove(&key);
        }
    }

    /// Clients with handles are counted, and only those.
    fn assert_counted(&self) {
        let (clients, counts) = (self.clients.len(), self.counts.len());
        assert!(clients <= counts && (clients > 0 || counts == 0), "{clients} clients have handles, {counts} counts");
    }

    /// Panics if the counts differ from the handles. Visits every handle.
    pub fn assert_sound(&self) {
        self.assert_counted();
        let mut found = BTreeMap::<(Fid, u64), (usize, usize)>::new();
        for (client, handles) in &self.clients {
            assert!(!handles.is_empty(), "{client:#x} has no handles, and is not forgotten");
            for handle in handles.values() {
                let count = found.entry((handle.fid, *client)).or_default();
                *count = (count.0 + 1, count.1 + usize::from(handle.is_writable()));
            }
        }
        let counted = self.counts.iter().map(|(key, count)| (*key, (count.all, count.writable)));
        assert!(found.into_iter().eq(counted), "handles of each inode and client, and as counted: {:?}", self.counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 1;
    const B: u64 = 2;
    const F: Fid = Fid { seq: 9, oid: 1, ver: 0 };

    #[test]
    fn an_inode_is_open_until_its_last_handle_is_closed() {
        let mut o = OpenHandles::new(3);
        let (a, b) = (o.open(A, F, flags::O_RDWR).unwrap(), o.open(B, F, 0).unwrap());
        assert!(o.get(A, a).unwrap().is_writable());
        let again = o.open(A, F, flags::O_WRONLY).unwrap();
        assert_eq!(o.writers(F), 1, "clients, not handles");
        o.close(A, again);
        assert_eq!(o.writers(F), 1);
        assert_eq!(o.close(A, b), None, "another client's handle");
        o.assert_sound();
        assert_eq!(o.close(A, a).unwrap().fid, F);
        assert_eq!((o.close(A, a), o.writers(F)), (None, 0));
        assert!(o.is_open(F));
        assert_eq!(o.close_all(B), [F]);
        assert!(o.is_empty());
        assert_ne!(OpenHandles::new(4).open(A, F, 0).unwrap(), a, "instances share no handles");
    }

    #[test]
    fn a_client_that_chooses_the_next_number_keeps_nothing_open_by_it() {
        let mut o = OpenHandles::new(3);
        let next = o.open(A, F, 0).unwrap() + 1;
        o.reopen(A, next, Fid { oid: 2, ..F }, flags::O_RDWR).unwrap();
        assert_eq!(o.open(A, F, 0), Ok(next));
        assert_eq!(o.len(), 2);
        o.assert_sound();
        assert_eq!(o.close_all(A), [F]);
        assert!(o.is_empty());
    }

    #[test]
    #[should_panic(expected = "and as counted")]
    fn a_handle_that_is_not_counted_is_a_defect() {
        let mut o = OpenHandles::new(3);
        o.open(A, F, 0).unwrap();
        o.counts.entry((F, A)).or_default().all += 1;
        o.assert_sound();
    }
}
