//! The kernel's names for inodes: the FID of each node, and how many lookups the kernel holds of it.

use crate::lists::List;
use crate::runs_as::{RunsAs, Told};
use nacre_base::{Fid, FxHashMap};
use parking_lot::Mutex;
use std::sync::Arc;

/// Nodes that the kernel knows. The node of a file is its inode number, and leads back to the FID. So file handles, which
/// the kernel derives from nodes, are valid for as long as the file exists, on this mount and on others. Only FIDs that
/// no file can have may share an inode number; the later one gets another node.
pub(crate) struct Nodes(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    by_node: FxHashMap<u64, Known>,
    by_fid: FxHashMap<Fid, u64>,
}

struct Known {
    fid: Fid,
    lookups: u64,
    use_of_data: UseOfData,
    /// Operations of the kernel's under way that may make the file longer.
    growing: u32,
    /// The largest size that the kernel may believe, since it was last told a complete one.
    size: u64,
    /// The set-id rights with which the kernel may run the file.
    told: Told,
    /// State of the kernel's list, once the inode was opened as a directory.
    list: Option<Box<List>>,
}

/// How programs have used a file's data through handles for direct I/O, from which it shows how the file is to be opened next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UseOfData {
    /// True if a program had it mapped.
    pub(crate) mapped: bool,
    /// Bytes read.
    pub(crate) read: u64,
}

/// The root's node in the kernel.
const ROOT_NODE: u64 = 1;

impl Nodes {
    /// Creates tables with the root alone.
    pub(crate) fn new() -> Nodes {
        let nodes = Nodes(Mutex::default());
        let root = nodes.looked_up(Fid::ROOT);
        assert_eq!(root, ROOT_NODE, "the root's inode number is the kernel's root node");
        nodes
    }

    /// The FID of a node from a file handle, which the kernel may have forgotten.
    pub(crate) fn fid_of_handle(&self, node: u64) -> Option<Fid> {
        self.fid(node).or_else(|| Fid::from_inode(node))
    }

    /// The FID of a node.
    pub(crate) fn fid(&self, node: u64) -> Option<Fid> {
        self.0.lock().by_node.get(&node).map(|k| k.fid)
    }

    /// The node of a FID that the kernel knows, or will know from a reply on its way.
    pub(crate) fn node(&self, fid: Fid) -> Option<u64> {
        self.0.lock().by_fid.get(&fid).copied()
    }

    /// Notes that a program uses a file's data.
    pub(crate) fn used(&self, node: u64, note: impl FnOnce(&mut UseOfData)) {
        if let Some(known) = self.0.lock().by_node.get_mut(&node) {
            note(&mut known.use_of_data);
        }
    }

    /// How programs have used a file's data, and the size that the kernel was told.
    pub(crate) fn use_of_data(&self, node: u64) -> (UseOfData, u64) {
        let tables = self.0.lock();
        tables.by_node.get(&node).map_or_else(Default::default, |known| (known.use_of_data, known.size))
    }

    /// The size to tell the kernel. If `size` is incomplete because an OST is away, this is the larger one of `size` and
    /// the size that the kernel believes: a smaller size would make the kernel drop pages, dirty ones too.
    pub(crate) fn reported_size(&self, node: u64, size: u64, is_complete: bool) -> u64 {
        let mut tables = self.0.lock();
        let Some(known) = tables.by_node.get_mut(&node) else { return size };
        known.size = if is_complete { size } else { size.max(known.size) };
        known.size
    }

    /// An operation of the kernel's begins that may make the file longer; the kernel will know the new size when it is answered.
    pub(crate) fn begin_growth(self: &Arc<Self>, node: u64) -> Growth {
        if let Some(known) = self.0.lock().by_node.get_mut(&node) {
            known.growing += 1;
        }
        Growth(self.clone(), node)
    }

    /// True if a file of `size` bytes is longer than the kernel believes, and not about to believe.
    pub(crate) fn has_grown_to(&self, node: u64, size: u64) -> bool {
        self.0.lock().by_node.get(&node).is_some_and(|known| known.growing == 0 && size > known.size)
    }

    /// A write that ended at `end` was answered: the kernel believes that the file is at least that long.
    pub(crate) fn wrote(&self, node: u64, end: u64) {
        let mut tables = self.0.lock();
        tables.by_node.get_mut(&node).into_iter().for_each(|k| k.size = k.size.max(end));
    }

    /// Notes that the kernel is about to be told the set-id rights of a file.
    pub(crate) fn tell_runs_as(&self, node: u64, runs_as: RunsAs) {
        self.0.lock().by_node.get_mut(&node).into_iter().for_each(|k| k.told.add(runs_as));
    }

    /// The set-id rights with which the kernel may run a file.
    pub(crate) fn told(&self, node: u64) -> Told {
        self.0.lock().by_node.get(&node).map_or(Told::Caller, |k| k.told)
    }

    /// Calls `f` with the state of the kernel's list of a directory; none if the kernel does not know the node.
    pub(crate) fn with_list<T>(&self, node: u64, f: impl FnOnce(&mut List) -> T) -> Option<T> {
        let tables = &mut *self.0.lock();
        tables.by_node.get_mut(&node).map(|k| f(k.list.get_or_insert_default()))
    }

    /// Entries of a directory are about to change. Returns its node, if the kernel may have a list.
    pub(crate) fn invalidate_list(&self, fid: Fid) -> Option<u64> {
        let tables = &mut *self.0.lock();
        let node = *tables.by_fid.get(&fid)?;
        let list = tables.by_node.get_mut(&node)?.list.as_mut()?;
        list.invalidate().then_some(node)
    }

    /// The kernel is told of `fid` once more. Returns its node.
    pub(crate) fn looked_up(&self, fid: Fid) -> u64 {
        let tables = &mut *self.0.lock();
        let node = *tables.by_fid.entry(fid).or_insert_with(|| {
            let mut node = fid.inode();
            let is_file = Fid::from_inode(node) == Some(fid);
            assert!(!is_file || !tables.by_node.contains_key(&node), "{fid} shares its inode number");
            while tables.by_node.contains_key(&node) {
                // These numbers belong to no FID, whatever the addition yields.
                node = node.wrapping_add(1 << 24) | 1 << 63;
            }
            node
        });
        let use_of_data = UseOfData::default();
        let unknown = Known { fid, lookups: 0, use_of_data, growing: 0, size: 0, told: Told::Caller, list: None };
        tables.by_node.entry(node).or_insert(unknown).lookups += 1;
        node
    }

    /// The kernel gives `lookups` back; at zero it has forgotten the node. The root stays.
    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        let tables = &mut *self.0.lock();
        let Some(known) = tables.by_node.get_mut(&node) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 && node != ROOT_NODE {
            tables.by_fid.remove(&known.fid);
            tables.by_node.remove(&node);
        }
    }
}

/// See [`Nodes::begin_growth`].
pub(crate) struct Growth(Arc<Nodes>, u64);

impl Drop for Growth {
    fn drop(&mut self) {
        if let Some(known) = self.0.0.lock().by_node.get_mut(&self.1) {
            // The kernel may have forgotten the node meanwhile, and know it anew.
            known.growing = known.growing.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_live_as_long_as_the_kernel_holds_them() {
        let nodes = Nodes::new();
        let fid = Fid { seq: 0x200000401, oid: 7, ver: 0 };
        let node = nodes.looked_up(fid);
        assert_eq!(nodes.looked_up(fid), node);
        nodes.forget(node, 1);
        assert_eq!((nodes.fid(node), nodes.node(fid)), (Some(fid), Some(node)));
        nodes.used(node, |used| used.mapped = true);
        assert_eq!(nodes.use_of_data(node), (UseOfData { mapped: true, read: 0 }, 0));
        nodes.forget(node, 1);
        assert_eq!((nodes.fid(node), nodes.node(fid), nodes.use_of_data(node).0.mapped), (None, None, false));
        nodes.forget(ROOT_NODE, 5);
        assert_eq!(nodes.fid(ROOT_NODE), Some(Fid::ROOT));
    }

    #[test]
    fn a_handle_leads_to_its_file_when_the_kernel_has_forgotten_the_node() {
        let (nodes, fid) = (Nodes::new(), Fid { seq: 0x200000401, oid: 7, ver: 0 });
        let node = nodes.looked_up(fid);
        nodes.forget(node, 1);
        assert_eq!((nodes.fid(node), nodes.fid_of_handle(node)), (None, Some(fid)));
        assert_eq!(Nodes::new().looked_up(fid), node, "another mount gives it the same node");
        assert_eq!(nodes.fid_of_handle(0), None);
    }

    #[test]
    fn a_size_shrinks_with_knowledge_alone() {
        let nodes = Nodes::new();
        let node = nodes.looked_up(Fid { seq: 0x200000401, oid: 7, ver: 0 });
        assert_eq!(nodes.reported_size(node, 10, false), 10);
        assert_eq!(nodes.reported_size(node, 100, true), 100);
        assert_eq!(nodes.reported_size(node, 10, false), 100);
        nodes.wrote(node, 200);
        assert_eq!(nodes.reported_size(node, 150, false), 200);
        assert_eq!(nodes.reported_size(node, 0, true), 0);
    }

    #[test]
    fn a_file_has_grown_if_the_kernel_has_not_made_it_longer_itself() {
        let nodes = Arc::new(Nodes::new());
        let node = nodes.looked_up(Fid { seq: 0x200000401, oid: 7, ver: 0 });
        nodes.reported_size(node, 100, true);
        assert!(!nodes.has_grown_to(node, 100) && nodes.has_grown_to(node, 101));
        let growth = nodes.begin_growth(node);
        assert!(!nodes.has_grown_to(node, 101), "it may be this write that made it longer");
        nodes.wrote(node, 101);
        drop(growth);
        assert!(!nodes.has_grown_to(node, 101) && nodes.has_grown_to(node, 102));
    }

    #[test]
    fn fids_that_no_file_has_are_nodes_of_their_own() {
        let nodes = Nodes::new();
        let a = Fid { seq: 0x200000400, oid: 5, ver: 1 };
        let b = Fid { seq: a.seq ^ 1 << 40, oid: a.oid ^ 1, ..a };
        assert_eq!(a.inode(), b.inode());
        let node = nodes.looked_up(a);
        assert_ne!(node, nodes.looked_up(b));
        assert_eq!(nodes.fid(node), Some(a));
        nodes.forget(node, 1);
        assert_eq!(nodes.fid_of_handle(node), None);
    }
}
