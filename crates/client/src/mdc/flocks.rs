//! The flock and fcntl locks that programs of this mount hold, to be replayed to a restarted MDT.

use nacre_base::Fid;
use nacre_ldlm::ClientId;
use nacre_ldlm::Extent;
use nacre_ldlm::flock::{FlockSet, Held, Owner};
use nacre_wire::ldlm::{Enqueue, LockKind, LockMode, enqueue_flags};
use std::collections::BTreeMap;

/// Enqueues that grant nothing.
const NOT_A_GRANT: u32 = enqueue_flags::TEST_LOCK | enqueue_flags::WITHDRAW;

/// The locks of one MDT's files: by file and by kind (`true`: flock(2)).
#[derive(Default)]
pub(super) struct HeldFlocks(BTreeMap<(Fid, bool), FlockSet>);

fn owner(owner: u64) -> Owner {
    Owner { client: ClientId(0), owner }
}

fn key(enqueue: &Enqueue) -> (Fid, bool) {
    (enqueue.resource, enqueue.flags & enqueue_flags::FLOCK_BSD != 0)
}

impl HeldFlocks {
    /// Records an enqueue that the MDT granted: a lock, or the end of one.
    pub(super) fn handle_granted(&mut self, enqueue: &Enqueue) {
        let Some(extent) = Extent::new(enqueue.start, enqueue.end).filter(|_| enqueue.flags & NOT_A_GRANT == 0) else {
            return;
        };
        let key = key(enqueue);
        let set = self.0.entry(key).or_default();
        set.grant(owner(enqueue.owner), Held { extent, mode: enqueue.mode, pid: enqueue.pid });
        if set.is_empty() {
            self.0.remove(&key);
        }
    }

    /// An enqueue is about to be sent. flock(2) converts a lock by giving it up first, so the old one may be gone, and somebody
    /// else's, whatever comes of the new one.
    pub(super) fn handle_asked(&mut self, enqueue: &Enqueue) {
        let is_bsd = enqueue.flags & enqueue_flags::FLOCK_BSD != 0;
        if is_bsd && self.held_in(enqueue).iter().any(|(_, mode)| *mode != enqueue.mode) {
            self.handle_granted(&Enqueue { mode: LockMode::Nl, ..enqueue.clone() });
        }
    }

    /// Pieces of the range that `enqueue` asks for, with the mode in which its owner holds each; NL if it does not hold it.
    pub(super) fn held_in(&self, enqueue: &Enqueue) -> Vec<(Extent, LockMode)> {
        let Some(asked) = Extent::new(enqueue.start, enqueue.end) else { return Vec::new() };
        let set = self.0.get(&key(enqueue));
        let held = set.map_or(&[][..], |set| set.held_by(owner(enqueue.owner)));
        let (mut pieces, mut next) = (Vec::new(), Some(asked.start));
        for (part, mode) in held.iter().filter_map(|held| Some((held.extent.intersect(&asked)?, held.mode))) {
            let gap = next.and_then(|start| Extent::new(start, part.start.checked_sub(1)?));
            pieces.extend(gap.map(|gap| (gap, LockMode::Nl)));
            pieces.push((part, mode));
            next = part.end.checked_add(1);
        }
        pieces.extend(next.and_then(|start| Extent::new(start, asked.end)).map(|rest| (rest, LockMode::Nl)));
        pieces
    }

    /// Forgets all locks, because the MDT has dropped them.
    pub(super) fn lose(&mut self) {
        self.0.clear();
    }

    /// The enqueues that take all locks again.
    pub(super) fn replays(&self) -> Vec<Enqueue> {
        let replay = |fid: Fid, is_bsd: bool, owner: Owner, held: Held| Enqueue {
            kind: LockKind::Flock,
            resource: fid,
            mode: held.mode,
            start: held.extent.start,
            end: held.extent.end,
            owner: owner.owner,
            pid: held.pid,
            flags: enqueue_flags::REPLAY
                | enqueue_flags::BLOCK_NOWAIT
                | if is_bsd { enqueue_flags::FLOCK_BSD } else { 0 },
            ..Enqueue::default()
        };
        let sets = self.0.iter();
        sets.flat_map(|((fid, bsd), set)| set.held().map(|(owner, held)| replay(*fid, *bsd, owner, held))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_brought_back_as_it_is_and_nothing_else() {
        let fid = Fid { seq: 1, oid: 1, ver: 0 };
        let ask = |owner, mode, start, end, flags| Enqueue {
            kind: LockKind::Flock,
            resource: fid,
            mode,
            start,
            end,
            owner,
            flags,
            ..Enqueue::default()
        };
        let mut held = HeldFlocks::default();
        held.handle_granted(&ask(1, LockMode::Pw, 0, 99, 0));
        held.handle_granted(&ask(1, LockMode::Nl, 40, 59, 0));
        held.handle_granted(&ask(2, LockMode::Pr, 0, u64::MAX, enqueue_flags::FLOCK_BSD));
        held.handle_granted(&ask(3, LockMode::Pw, 0, 9, enqueue_flags::TEST_LOCK));
        let replays: Vec<_> = held.replays().iter().map(|e| (e.owner, e.mode, e.start, e.end)).collect();
        let expected = [(1, LockMode::Pw, 0, 39), (1, LockMode::Pw, 60, 99), (2, LockMode::Pr, 0, u64::MAX)];
        assert_eq!(replays, expected);
        assert!(held.replays().iter().all(|e| e.flags & enqueue_flags::REPLAY != 0));
        let pieces = |start, end| -> Vec<_> {
            let pieces = held.held_in(&ask(1, LockMode::Pw, start, end, 0));
            pieces.into_iter().map(|(piece, mode)| (piece.start, piece.end, mode)).collect()
        };
        let (pw, nl) = (LockMode::Pw, LockMode::Nl);
        assert_eq!(pieces(0, 39), [(0, 39, pw)]);
        assert_eq!(pieces(30, u64::MAX), [(30, 39, pw), (40, 59, nl), (60, 99, pw), (100, u64::MAX, nl)]);
        assert_eq!(pieces(200, 201), [(200, 201, nl)]);
        held.handle_asked(&ask(1, LockMode::Pr, 0, 9, 0));
        held.handle_asked(&ask(2, LockMode::Pr, 0, u64::MAX, enqueue_flags::FLOCK_BSD));
        assert_eq!(held.replays().len(), 3, "only a flock(2) lock is given up before it is converted");
        held.handle_asked(&ask(2, LockMode::Pw, 0, u64::MAX, enqueue_flags::FLOCK_BSD));
        assert_eq!(held.replays().len(), 2);
        held.handle_granted(&ask(1, LockMode::Nl, 0, u64::MAX, 0));
        held.handle_granted(&ask(2, LockMode::Nl, 0, u64::MAX, enqueue_flags::FLOCK_BSD));
        assert!(held.replays().is_empty() && held.0.is_empty());
    }
}
