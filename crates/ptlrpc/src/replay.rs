//! Answered requests that an import keeps until the server says that their changes are durable, and the order in which
//! a restarted server gets them again. A sans-IO engine; `recover` does the sending.

use crate::message::Incoming;
use bytes::Bytes;
use nacre_base::{Payload, Time};
use nacre_wire::header::Versions;
use nacre_wire::{Lane, Opcode, RpcHeader};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;

/// Callback for when a change is durable, or is known to be lost. It must not wait.
#[derive(Clone)]
pub struct CommitCallback(Arc<dyn Fn(Fate) + Send + Sync>);

impl CommitCallback {
    /// Makes a callback that is called once.
    pub fn new(tell: impl Fn(Fate) + Send + Sync + 'static) -> CommitCallback {
        CommitCallback(Arc::new(tell))
    }

    /// Calls the callback.
    pub fn tell(&self, fate: Fate) {
        (self.0)(fate);
    }
}

impl std::fmt::Debug for CommitCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CommitCallback")
    }
}

/// Outcome of a change that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The change is on the server's disk.
    Durable,
    /// The change is lost: the server lost it and did not make it again, or evicted this client.
    Lost,
}

/// A request as it was sent.
#[derive(Debug)]
pub(crate) struct Replayable {
    pub(crate) opcode: Opcode,
    pub(crate) lane: Lane,
    /// Flags, owner and job; the other fields are filled in when the request is sent.
    pub(crate) header: RpcHeader,
    pub(crate) body: Bytes,
    /// Data to be written, inline or in bulk.
    pub(crate) data: Payload,
    pub(crate) on_commit: Option<CommitCallback>,
}

/// A request that was answered, and whose change is not durable yet.
pub(crate) struct Kept {
    pub(crate) request: Arc<Replayable>,
    pub(crate) xid: u64,
    pub(crate) tag: u16,
    /// Body of the reply: the replay must repeat the decisions in it.
    pub(crate) reply: Bytes,
    /// Versions that the change was based on, from the reply.
    pub(crate) pre_versions: Versions,
}

/// A replay that waits for its reply.
pub(crate) struct Replaying {
    pub(crate) xid: u64,
    pub(crate) export: u64,
    /// Extended by early replies.
    pub(crate) deadline: Time,
    pub(crate) answer: oneshot::Sender<Incoming>,
}

/// The engine. Its books are made for the first request or recovery: most imports of a node never need them.
#[derive(Default)]
pub(crate) struct Replays(Option<Box<Books>>);

struct Books {
    /// Bytes of data in the kept requests of all imports of the node.
    total: Arc<AtomicU64>,
    /// Kept requests, by transno.
    kept: BTreeMap<u64, Kept>,
    /// Bytes of data in the kept requests.
    unstable: u64,
    /// Server instance that gets the replays; none while no recovery is under way.
    instance: Option<u64>,
    /// Transno of the last replay that this instance, or the last one, has answered; 0 if it has answered none.
    answered: u64,
    /// Transno of a replay that was sent and has no answer. The replay may have failed, although later changes of other
    /// clients were committed.
    unanswered: Option<u64>,
    /// The replay that waits for its reply.
    sent: Option<Replaying>,
}

impl Drop for Books {
    fn drop(&mut self) {
        self.total.fetch_sub(self.unstable, Ordering::Relaxed);
    }
}

impl Replays {
    /// The books; the bytes of their requests are also counted in `total`.
    fn books(&mut self, total: &Arc<AtomicU64>) -> &mut Books {
        self.0.get_or_insert_with(|| {
            let (kept, total) = (BTreeMap::new(), total.clone());
            Box::new(Books { total, kept, unstable: 0, instance: None, answered: 0, unanswered: None, sent: None })
        })
    }

    /// Keeps a request that was answered with this transno, and counts its bytes in `total`, too. A request that is answered twice,
    /// because the first reply was lost, is kept once.
    pub(crate) fn keep(&mut self, transno: u64, kept: Kept, total: &Arc<AtomicU64>) {
        let bytes = kept.request.data.len() as u64;
        let books = self.books(total);
        books.unstable += bytes;
        books.total.fetch_add(bytes, Ordering::Relaxed);
        if let Some(before) = books.kept.insert(transno, kept) {
            books.forget(before.request.data.len() as u64);
        }
    }

    /// All changes up to this transno are durable. Returns the callbacks to call.
    #[must_use]
    pub(crate) fn handle_committed(&mut self, upto: u64) -> Vec<CommitCallback> {
        let mut callbacks = Vec::new();
        let Some(books) = &mut self.0 else { return callbacks };
        while let Some(first) = books.kept.first_entry().filter(|e| *e.key() <= upto) {
            let kept = first.remove();
            books.forget(kept.request.data.len() as u64);
            callbacks.extend(kept.request.on_commit.clone());
        }
        books.assert_balanced();
        callbacks
    }

    /// The server could not execute this request again. Returns the callback to call.
    #[must_use]
    pub(crate) fn handle_failed(&mut self, transno: u64) -> Option<CommitCallback> {
        let books = self.0.as_mut()?;
        let kept = books.kept.remove(&transno)?;
        books.forget(kept.request.data.len() as u64);
        books.assert_balanced();
        kept.request.on_commit.clone()
    }

    /// The server will never execute the kept requests again. Returns the callbacks to call.
    #[must_use]
    pub(crate) fn handle_lost(&mut self) -> Vec<CommitCallback> {
        let Some(books) = &mut self.0 else { return Vec::new() };
        books.forget(books.unstable);
        std::mem::take(&mut books.kept).into_values().filter_map(|kept| kept.request.on_commit.clone()).collect()
    }

    /// A server instance waits for replays, perhaps over a second connection; it has kept all changes up to
    /// `committed`. Returns the callbacks to call.
    #[must_use]
    pub(crate) fn begin_recovery(
        &mut self,
        instance: u64,
        committed: u64,
        total: &Arc<AtomicU64>,
    ) -> Vec<CommitCallback> {
        let books = self.books(total);
        if books.instance != Some(instance) {
            books.instance = Some(instance);
            books.answered = 0;
        }
        let heard = books.unanswered.map_or(u64::MAX, |transno| transno - 1);
        self.handle_committed(committed.min(heard))
    }

    /// Starts the next replay. Returns its transno, the transno of the replay before it (0 if there was none), and the
    /// request.
    ///
    /// A replay that the instance has answered is not sent to it again over a second connection. The server saves only the
    /// last reply of each tag, so after its next crash it could not recognise an earlier replay that is durable. Thus only
    /// the last replay can come twice, and the server has its reply.
    pub(crate) fn start_next(&mut self) -> Option<(u64, u64, &Kept)> {
        let books = self.0.as_mut()?;
        let (transno, kept) = books.kept.range(books.answered + 1..).next()?;
        books.unanswered = Some(*transno);
        Some((*transno, books.answered, kept))
    }

    /// The replay is sent. None may wait for its reply.
    pub(crate) fn handle_sent(&mut self, replaying: Replaying) {
        let books = self.0.as_mut().expect("a replay is sent in a recovery");
        let before = books.sent.as_ref().map(|sent| sent.xid);
        assert!(before.is_none(), "xid {} is replayed while {before:?} waits for its answer", replaying.xid);
        books.sent = Some(replaying);
    }

    /// The replay that waits for its reply.
    pub(crate) fn sent(&mut self) -> Option<&mut Replaying> {
        self.0.as_mut()?.sent.as_mut()
    }

    /// Ends the wait for the reply to a replay, if `which` picks it.
    pub(crate) fn take_sent(&mut self, which: impl FnOnce(&Replaying) -> bool) -> Option<Replaying> {
        self.0.as_mut()?.sent.take_if(|sent| which(sent))
    }

    /// The instance has answered the replay.
    pub(crate) fn handle_replayed(&mut self, transno: u64) {
        let books = self.0.as_mut().expect("a replay is answered in a recovery");
        let unanswered = books.unanswered.take();
        assert_eq!(unanswered, Some(transno), "a replay was answered, and another one was the last");
        books.answered = transno;
    }

    /// The recovery is over, or the server has nothing to recover.
    pub(crate) fn end_recovery(&mut self) {
        if let Some(books) = &mut self.0 {
            (books.instance, books.unanswered) = (None, None);
        }
    }

    /// Transno of the last replay that was answered in this recovery, or in the last one; 0 if there was none.
    pub(crate) fn last_replayed(&self) -> u64 {
        self.0.as_ref().map_or(0, |books| books.answered)
    }

    /// Number of kept requests.
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |books| books.kept.len())
    }

    /// Bytes of data that were answered and that the server may still lose.
    pub(crate) fn unstable_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |books| books.unstable)
    }
}

impl Books {
    fn forget(&mut self, bytes: u64) {
        assert!(bytes <= self.unstable, "{bytes} bytes are durable or lost, of {} that are kept", self.unstable);
        self.unstable -= bytes;
        let total = self.total.fetch_sub(bytes, Ordering::Relaxed);
        assert!(bytes <= total, "{bytes} bytes are durable or lost, of {total} that all imports keep");
    }

    /// Panics if bytes are counted although no request is kept.
    fn assert_balanced(&self) {
        assert!(!self.kept.is_empty() || self.unstable == 0, "nothing is kept, and {} bytes of it are", self.unstable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn kept(xid: u64, bytes: usize, told: &Arc<Mutex<Vec<(u64, Fate)>>>) -> Kept {
        let data = Payload::zeroes(bytes);
        let told = told.clone();
        let request = Replayable {
            opcode: Opcode::OstWrite,
            lane: Lane::Io,
            header: RpcHeader::default(),
            body: Bytes::new(),
            data,
            on_commit: Some(CommitCallback::new(move |fate| told.lock().unwrap().push((xid, fate)))),
        };
        Kept { request: Arc::new(request), xid, tag: 0, reply: Bytes::new(), pre_versions: Versions::default() }
    }

    #[test]
    fn what_is_durable_is_let_go_in_order_and_told() {
        let (mut replays, told) = (Replays::default(), Arc::default());
        for (transno, xid) in [(30, 1), (10, 2), (20, 3)] {
            replays.keep(transno, kept(xid, 100, &told), &Arc::default());
        }
        assert_eq!((replays.len(), replays.unstable_bytes()), (3, 300));
        replays.handle_committed(20).into_iter().for_each(|c| c.tell(Fate::Durable));
        assert_eq!(*told.lock().unwrap(), [(2, Fate::Durable), (3, Fate::Durable)]);
        assert_eq!((replays.len(), replays.unstable_bytes()), (1, 100));
        replays.handle_lost().into_iter().for_each(|c| c.tell(Fate::Lost));
        assert_eq!(told.lock().unwrap().last(), Some(&(1, Fate::Lost)));
        assert_eq!((replays.len(), replays.unstable_bytes()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "7 bytes of it are")]
    fn bytes_that_nothing_has_are_found() {
        let mut replays = Replays::default();
        replays.keep(5, kept(1, 10, &Arc::default()), &Arc::default());
        let books = replays.0.as_mut().unwrap();
        (books.unstable, books.total) = (17, Arc::new(AtomicU64::new(17)));
        let _ = replays.handle_committed(5);
    }

    /// Replays everything to the instance, or up to `lost`, during which the connection is lost. Returns what was sent.
    fn replay(replays: &mut Replays, lost: Option<u64>) -> Vec<(u64, u64)> {
        let mut sent = Vec::new();
        while let Some((transno, previous, _)) = replays.start_next() {
            sent.push((transno, previous));
            if lost == Some(transno) {
                break;
            }
            replays.handle_replayed(transno);
        }
        sent
    }

    fn three(told: &Arc<Mutex<Vec<(u64, Fate)>>>) -> Replays {
        let mut replays = Replays::default();
        for (transno, xid) in [(30, 3), (10, 1), (20, 2)] {
            replays.keep(transno, kept(xid, 0, told), &Arc::default());
        }
        replays
    }

    #[test]
    fn they_are_sent_again_in_the_order_of_their_transnos() {
        let mut replays = three(&Arc::default());
        assert!(replays.begin_recovery(2, 5, &Arc::default()).is_empty());
        assert_eq!(replay(&mut replays, None), [(10, 0), (20, 10), (30, 20)]);
    }

    #[test]
    fn an_instance_gets_over_a_second_connection_only_what_it_has_not_answered() {
        let mut replays = three(&Arc::default());
        assert!(replays.begin_recovery(2, 0, &Arc::default()).is_empty());
        assert_eq!(replay(&mut replays, Some(20)), [(10, 0), (20, 10)]);
        assert!(replays.begin_recovery(2, 0, &Arc::default()).is_empty());
        assert_eq!(replay(&mut replays, None), [(20, 10), (30, 20)]);
        assert!(replays.begin_recovery(2, 0, &Arc::default()).is_empty());
        assert_eq!(replay(&mut replays, None), []);
        assert!(replays.begin_recovery(3, 0, &Arc::default()).is_empty(), "the next instance has seen none of them");
        assert_eq!(replay(&mut replays, None), [(10, 0), (20, 10), (30, 20)]);
    }

    #[test]
    fn a_replay_that_was_not_answered_may_have_failed_although_later_changes_are_durable() {
        let told = Arc::default();
        let mut replays = three(&told);
        assert!(replays.begin_recovery(2, 0, &Arc::default()).is_empty());
        replay(&mut replays, Some(20));
        replays.begin_recovery(3, 25, &Arc::default()).into_iter().for_each(|c| c.tell(Fate::Durable));
        assert_eq!(*told.lock().unwrap(), [(1, Fate::Durable)]);
        assert_eq!(replay(&mut replays, None), [(20, 0), (30, 20)]);
    }

    /// Replays that were all answered were sent again over a second connection, and no longer counted as answered.
    #[test]
    fn what_was_answered_once_is_durable_if_the_next_instance_says_so() {
        let mut replays = three(&Arc::default());
        assert!(replays.begin_recovery(2, 0, &Arc::default()).is_empty());
        replay(&mut replays, None);
        assert!(replays.begin_recovery(2, 0, &Arc::default()).is_empty());
        replay(&mut replays, Some(10));
        assert_eq!(replays.begin_recovery(3, 30, &Arc::default()).len(), 3);
        assert_eq!(replay(&mut replays, None), []);
    }

    #[test]
    fn an_answer_that_comes_twice_counts_once() {
        let (mut replays, told) = (Replays::default(), Arc::default());
        replays.keep(5, kept(1, 10, &told), &Arc::default());
        replays.keep(5, kept(1, 10, &told), &Arc::default());
        assert_eq!((replays.len(), replays.unstable_bytes()), (1, 10));
    }
}
