//! One operation's turn at the running transaction, with its transaction number and its saved reply.

use crate::target::InHand;
use crate::{Target, epoch, reply};
use nacre_base::{Errno, Part, Transno};
use nacre_osd::Transaction;
use nacre_ptlrpc::{Response, ServerRequest};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// An operation that has its turn; reads and writes tables as a [`Transaction`]. Dropping it undoes its changes.
pub struct Operation<'a> {
    target: &'a Target,
    transaction: Box<dyn Transaction>,
    transno: Transno,
    on_commit: Vec<Box<dyn FnOnce() + Send>>,
    /// Dropped after `transaction`, so that after a panic the changes are undone before the target is declared stopped.
    #[expect(dead_code, reason = "held for its drop")]
    in_hand: InHand<'a>,
    /// All other operations wait for the turn to end, so it must not be held over an await. Not being `Send`, it cannot
    /// be.
    not_send: PhantomData<*const ()>,
}

impl<'a> Operation<'a> {
    /// `replayed` is the number of an operation that is replayed.
    pub(crate) fn new(
        target: &'a Target,
        mut transaction: Box<dyn Transaction>,
        replayed: Option<Transno>,
    ) -> Result<Operation<'a>, Errno> {
        let transno = replayed.unwrap_or_else(|| target.next_transno());
        let former = target.former_transnos();
        assert_eq!(replayed.is_some(), transno <= former, "{transno:?}, and earlier starts gave up to {former:?}");
        if replayed.is_none() {
            epoch::reserve(&mut *transaction, transno)?;
        }
        let in_hand = target.in_hand("an operation");
        Ok(Operation { target, transaction, transno, on_commit: Vec::new(), in_hand, not_send: PhantomData })
    }

    /// The operation's number once it is finished: the version of everything that it changes. Undone operations leave
    /// no gap.
    pub fn transno(&self) -> Transno {
        self.transno
    }

    /// Adds a callback for when the operation is durable. [`Target::last_committed`] includes the operation by then,
    /// because a task that the callback wakes may look there at once.
    pub fn on_commit(&mut self, callback: Box<dyn FnOnce() + Send>) {
        self.on_commit.push(callback);
    }

    /// Keeps the changes, and saves the reply in the client's slot: a resent request is answered from there, even after
    /// a crash. Returns the response with its transno set. Fails with EPROTO, undoing the changes, if the slot holds a
    /// reply to this very request: it was executed before, and the slot was not looked up.
    pub fn finish(mut self, request: &ServerRequest, response: Response) -> Result<Response, Errno> {
        let response = Response { transno: self.transno, ..response };
        let (client, tag, xid) = (request.export.client(), request.header.tag, request.header.xid);
        // Only a request that comes again can have been executed before, so the slot is read for no other request.
        if (request.is_resent() || request.is_replay())
            && tag != 0
            && reply::get(&*self.transaction, client, tag)?.is_some_and(|slot| slot.xid == xid)
        {
            let (target, name) = (self.target.name(), request.export.client_name());
            tracing::error!(target = %target, client = %name, xid, tag, "{}: executed twice; undone", request.opcode);
            return Err(Errno::EPROTO);
        }
        reply::put(&mut *self.transaction, client, tag, xid, &response)?;
        self.finish_local();
        Ok(response)
    }

    /// Keeps the changes of an operation that no client asked for. Returns its number.
    pub fn finish_local(mut self) -> Transno {
        self.target.crash_point("tgt.operation.before_finish");
        self.target.keep_transno(self.transno, &mut *self.transaction);
        for callback in std::mem::take(&mut self.on_commit) {
            self.transaction.on_commit(callback);
        }
        self.transaction.finish();
        self.target.crash_point("tgt.operation.after_finish");
        self.transno
    }
}

impl Target {
    /// Waits for a turn at the running transaction. There must be no await before [`Operation::finish`] or the drop,
    /// which undoes; the compiler refuses one, because an operation cannot be sent between threads.
    pub async fn begin(&self) -> Result<Operation<'_>, Errno> {
        Operation::new(self, self.osd().begin().await?, None)
    }

    /// Like [`Target::begin`], for a request of a client. A replay gets the number that it had, and may use the
    /// reserve, because its client was already told that it is done.
    pub async fn begin_for(&self, request: &ServerRequest) -> Result<Operation<'_>, Errno> {
        let replayed = request.is_replay().then_some(Transno(request.header.transno));
        let mut transaction = request.spend(Part::Queue, self.osd().begin()).await?;
        if request.is_replay() {
            transaction.use_reserve();
        }
        Operation::new(self, transaction, replayed)
    }
}

impl Deref for Operation<'_> {
    type Target = dyn Transaction;
    fn deref(&self) -> &Self::Target {
        &*self.transaction
    }
}

impl DerefMut for Operation<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.transaction
    }
}
