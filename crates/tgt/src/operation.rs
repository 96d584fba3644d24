//! One operation's turn at the running transaction, with its transaction number and its saved reply.

use crate::target::InHand;
use crate::{Target, epoch, reply};
use nacre_base::{Errno, Transno};
use nacre_osd::Transaction;
use nacre_ptlrpc::{Response, ServerRequest};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// An operation at its turn; reads and writes tables as a [`Transaction`]. Dropping it undoes what it did.
pub struct Operation<'a> {
    target: &'a Target,
    transaction: Box<dyn Transaction>,
    transno: Transno,
    on_commit: Vec<Box<dyn FnOnce() + Send>>,
    /// After `transaction`, so that what a panic leaves undone is undone when the target is declared stopped.
    #[expect(dead_code, reason = "held for its drop")]
    in_hand: InHand<'a>,
    /// Everybody else waits for the turn to end, so it must not be held over an await: not `Send`, it cannot be.
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

    /// The operation's number, if it is finished: the version of what it changes. Undone operations leave no gap.
    pub fn transno(&self) -> Transno {
        self.transno
    }

    /// Has this done once the operation is durable: when [`Target::last_committed`] says so too, for who is woken by it
    /// may look at once.
    pub fn on_commit(&mut self, callback: Box<dyn FnOnce() + Send>) {
        self.on_commit.push(callback);
    }

    /// Keeps the changes, and with them the reply, in the client's slot: when the request comes again, even after a
    /// crash, it is answered from there. Returns the response with its transno set. EPROTO if it was executed before and its reply
    /// is in the slot: then nobody looked there.
    pub fn finish(mut self, request: &ServerRequest, response: Response) -> Result<Response, Errno> {
        let response = Response { transno: self.transno, ..response };
        let (client, tag, xid) = (request.export.client, request.header.tag, request.header.xid);
        // Only a request that comes again can have been executed, so the slot is read for nobody else.
        if (request.is_resent() || request.is_replay())
            && tag != 0
            && reply::get(&*self.transaction, client, tag)?.is_some_and(|slot| slot.xid == xid)
        {
            let (target, name) = (self.target.name(), &request.export.client_name);
            tracing::error!(target = %target, client = name, xid, tag, "{}: executed twice; undone", request.opcode);
            return Err(Errno::EPROTO);
        }
        reply::put(&mut *self.transaction, client, tag, xid, &response)?;
        self.finish_local();
        Ok(response)
    }

    /// Keeps the changes of an operation that no client asked for.
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
    /// Waits for its turn at the running transaction. From here to [`Operation::finish`] or the drop, which undoes,
    /// there must be no await: an operation cannot be sent between threads, so the compiler refuses one.
    pub async fn begin(&self) -> Result<Operation<'_>, Errno> {
        Operation::new(self, self.osd().begin().await?, None)
    }

    /// The same for a request of a client; one that is replayed gets the number that it had, and may use the reserve, since
    /// its client was already told that it is done.
    pub async fn begin_for(&self, request: &ServerRequest) -> Result<Operation<'_>, Errno> {
        let replayed = request.is_replay().then_some(Transno(request.header.transno));
        let mut transaction = self.osd().begin().await?;
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
