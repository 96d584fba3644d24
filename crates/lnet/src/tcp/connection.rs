//! One connection after its HELLO: gathers frames into vectored writes, and turns what comes in into messages.
//!
//! **Writing.** A small message that finds the connection quiet is written at once by whoever sends it: no task switch.
//! Messages close after one another are left to the writer task, which gathers all that have come together meanwhile
//! into one system call. A router also writes a large message at once, as far as the socket takes it, while the bytes that it
//! has just read are in the processor's cache.
//!
//! **Credits.** A message keeps its peer's credit after it was written, until the peer says that it has taken it. The peer
//! says so in the header of the next message that it sends: each header carries the number of messages that its sender has
//! taken. If a message asks to hear of it, and the peer has nothing to send, a header goes out alone: at once if credits or a
//! router's buffers are few, and else, for a message that keeps a router's buffer, within 20 ms for all that came meanwhile.
//! Other messages do not ask, so that an idle connection stays silent.
//!
//! **Reading.** Control connections read up to 64 KiB at once into a buffer that belongs to the thread, not to the
//! connection, so that idle connections cost no buffer; small payloads are copied out of it, because a slice would keep
//! the whole buffer alive for as long as a request waits. Payloads from 4 KiB go into page-aligned buffers of their
//! own, on bulk connections straight from the socket: those read only headers ahead.

use super::{BULK_MIN, Shared, info, socket};
use crate::error::LnetError;
use crate::frame::{self, ConnectionType, FrameError, FrameHeader, HEADER_LEN, Telling};
use crate::lnd::{ConnectionStatus, Counter, LinkStatus, Outbound, Receipt, SocketStatus, Untaken};
use crate::message::{Header, Kind, Message, Portal, flip_bit};
use crate::node::LnetNode;
use crate::options::{PEER_CREDITS_MAX, TcpTunables};
use crate::peers::Bringing;
use crate::status::bump;
use bytes::Bytes;
use nacre_base::buf::AlignedBuf;
use nacre_base::{Nid, Payload, Time};
use nacre_rt::{Rt, Task};
use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};

/// An open connection.
pub(super) struct Connection {
    pub(super) peer: Nid,
    pub(super) connection_type: ConnectionType,
    /// Whether this node opened it.
    pub(super) dialed: bool,
    /// How often bytes have arrived, the HELLO included: what a probe of the peer looks at.
    heard: AtomicU64,
    /// Messages of the peer's that were taken.
    taken: AtomicU32,
    /// When the peer has asked to hear what was taken since it was told last: a [`Telling`].
    owes_taken: AtomicU8,
    /// True while the writer task looks at the clock, to tell it within [`TELL_WITHIN`].
    watches_clock: AtomicBool,
    shared: Weak<Shared>,
    /// This node's.
    nid: Nid,
    socket: OwnedWriteHalf,
    outgoing: Mutex<Outgoing>,
    /// Bytes of the messages that were accepted and that the socket has not taken whole.
    unwritten: AtomicUsize,
    /// True once the connection was prepared for a long path.
    is_wide: AtomicBool,
    /// True if the handshake took so long that the path is worth more than one connection. The congestion control may then be one that paces.
    is_for_long_path: AtomicBool,
    /// Rung when there is something for the writer task.
    work: Notify,
    tasks: Mutex<Vec<Task>>,
}

#[derive(Default)]
struct Outgoing {
    queue: VecDeque<Frame>,
    /// Somebody writes to the socket now; all others queue.
    writing: bool,
    /// When the last message was sent; decides who writes the next.
    last: Time,
    closed: bool,
    /// Messages that were accepted, modulo 2^32.
    accepted: u32,
    /// Messages that were written and that the peer has not taken.
    untaken: VecDeque<Untaken>,
    /// Messages that the peer has taken, as it told before this node noted that they were written.
    taken_early: u32,
}

/// A header ready to be written, its message if there is one, and how much of both was.
struct Frame {
    header: [u8; HEADER_LEN],
    out: Option<Outbound>,
    written: usize,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("closed by the peer")]
    ByPeer,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("protocol error: {0}")]
    Protocol(#[from] FrameError),
}

/// Longest delay before this node reports messages that it has taken to a peer that asked for [`Telling::Later`]. One header then reports
/// many messages, while the router that sent them keeps their buffers a little longer.
const TELL_WITHIN: Duration = Duration::from_millis(20);
/// A message within this time of the last one is left to the writer, for gathering.
const QUIET: Duration = Duration::from_micros(10);
/// Slices in one vectored write.
const GATHER_MAX: usize = 128;
/// What a control connection reads at once.
const READ_AHEAD: usize = 64 << 10;
/// A reader that waits for the rest of a large payload is woken when this much of it is there, because each wake-up costs time on
/// the sender's core. On a link of 1 Mbit/s it takes a second to come.
const WAKE_AT: usize = 128 << 10;
/// The most small messages of a connection that may wait for their buffers; then reading stops. It is what a peer has credits
/// for, because a peer that is not read cannot say what it has taken either, and two such peers of a router, with messages
/// for each other, would wait for ever.
const PARKED_MAX: usize = PEER_CREDITS_MAX as usize;
/// What may be left of a read: a header and a small payload, less a byte. More is left only until a message to be passed on
/// has its buffer.
const LEFTOVER_MAX: usize = HEADER_LEN + BULK_MIN;

impl Connection {
    /// A connection that has been introduced. It can be sent to; [`Connection::start`] sets it going.
    pub(super) fn new(
        shared: &Arc<Shared>,
        peer: Nid,
        socket: OwnedWriteHalf,
        connection_type: ConnectionType,
        dialed: bool,
    ) -> Arc<Connection> {
        Arc::new(Connection {
            peer,
            connection_type,
            dialed,
            heard: AtomicU64::new(1),
            taken: AtomicU32::new(0),
            owes_taken: AtomicU8::new(Telling::WithTheNext as u8),
            watches_clock: AtomicBool::new(false),
            shared: Arc::downgrade(shared),
            nid: shared.nid,
            socket,
            outgoing: Mutex::default(),
            unwritten: AtomicUsize::new(0),
            is_wide: AtomicBool::new(false),
            is_for_long_path: AtomicBool::new(false),
            work: Notify::new(),
            tasks: Mutex::default(),
        })
    }

    /// Starts to read and write. Only after the connection is in its peer's list, where a reader that fails looks for it.
    pub(super) fn start(self: &Arc<Self>, shared: &Arc<Shared>, half: OwnedReadHalf) {
        let reader = shared.rt.spawn(run_reader(self.clone(), shared.clone(), half));
        let writer = shared.rt.spawn(run_writer(self.clone(), shared.clone()));
        let mut tasks = self.tasks.lock();
        tasks.extend([reader, writer]);
        if self.outgoing.lock().closed {
            tasks.drain(..).for_each(|t| t.abort());
        }
    }

    /// How often bytes have arrived.
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    pub(super) fn status(&self) -> ConnectionStatus {
        ConnectionStatus { peer: self.peer, interface: self.nid, kind: self.kind(), dialed: self.dialed }
    }

    /// A letter for the type, as [`ConnectionStatus`] has it.
    fn kind(&self) -> char {
        match self.connection_type {
            ConnectionType::Control => 'C',
            ConnectionType::BulkIn => 'I',
            ConnectionType::BulkOut => 'O',
        }
    }

    /// What the kernel knows of the socket; none if it does not tell.
    pub(super) fn socket_status(&self) -> Option<SocketStatus> {
        info::socket_status(self.kind(), self.socket.as_ref())
    }

    /// The kernel's counts of this connection; none if it does not tell them.
    pub(super) fn link_status(&self) -> Option<LinkStatus> {
        info::link_status(self.peer, self.socket.as_ref())
    }

    /// Time from a packet to its acknowledgement; none if the kernel does not tell it.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        let status = self.link_status().filter(|status| status.round_trip_us > 0)?;
        Some(Duration::from_micros(status.round_trip_us))
    }

    /// Lets a whole window of a long path be under way from the beginning, once, unless an administrator has set the size of the buffer.
    pub(super) fn prepare_for_distance(&self, tunables: &TcpTunables) {
        if tunables.rx_buffer_size == 0
            && !self.is_wide.swap(true, Ordering::Relaxed)
            && let Err(e) = socket::widen_receive_buffer(self.socket.as_ref())
        {
            tracing::debug!("{}: the receive buffer of a connection with {} stays as it is: {e}", self.nid, self.peer);
        }
    }

    /// Has the congestion control for a far peer from now on, unless one was set. It is chosen once, by the handshake: connections that got
    /// BBR only after their path had become longer were slow, probably because it begins with the least round trip of the last minutes.
    pub(super) fn pace(&self, tunables: &TcpTunables) {
        self.is_for_long_path.store(true, Ordering::Relaxed);
        if let Err(e) = socket::choose_congestion_control(self.socket.as_ref(), tunables, true) {
            tracing::debug!("{}: a connection with {} keeps its congestion control: {e}", self.nid, self.peer);
        }
    }

    /// Gives the connection the settings in place of those `before`.
    pub(super) fn retune(&self, tunables: &TcpTunables, before: &TcpTunables, timeout: Duration) {
        let is_far = self.is_for_long_path.load(Ordering::Relaxed);
        if let Err(e) = socket::retune(self.socket.as_ref(), tunables, before, timeout, is_far) {
            tracing::info!("{}: a connection with {} keeps settings that were changed: {e}", self.nid, self.peer);
        }
        if before.rx_buffer_size > 0 {
            self.is_wide.store(false, Ordering::Relaxed);
        }
    }

    /// Whether it was opened over a path that is worth more than one connection.
    pub(super) fn is_for_long_path(&self) -> bool {
        self.is_for_long_path.load(Ordering::Relaxed)
    }

    /// Bytes of the messages that wait for the socket.
    pub(super) fn unwritten(&self) -> usize {
        self.unwritten.load(Ordering::Relaxed)
    }

    pub(super) fn is_bulk(&self) -> bool {
        self.connection_type != ConnectionType::Control
    }

    /// Sends a message, or completes it with an error if the connection has ended. `want_bulk` tells the peer that a
    /// bulk connection would have been better.
    pub(super) fn send(&self, out: Outbound, want_bulk: bool) {
        let Some(shared) = self.shared.upgrade() else { return out.complete(Err(LnetError::Shutdown)) };
        let (now, small, is_passed_on) = (out.started, out.payload_len < BULK_MIN, out.is_passed_on());
        let frame = Frame::new(out, &shared, want_bulk, self.tell_taken());
        let mut o = self.outgoing.lock();
        if o.closed {
            drop(o);
            return frame.fail(self.peer);
        }
        o.accepted = o.accepted.wrapping_add(1);
        self.unwritten.fetch_add(frame.len(), Ordering::Relaxed);
        let quiet = now - o.last >= QUIET;
        o.last = now;
        if (small && quiet || is_passed_on && !small) && !o.writing && o.queue.is_empty() {
            o.writing = true;
            drop(o);
            return self.write_at_once(frame);
        }
        o.queue.push_back(frame);
        let wake = !o.writing && o.queue.len() == 1;
        drop(o);
        if wake {
            self.work.notify_one();
        }
    }

    /// Writes one frame from the sender's own context; what the socket does not take is left to the writer task.
    fn write_at_once(&self, mut frame: Frame) {
        let sent = self.socket.try_write_vectored(&frame.slices());
        frame.written += sent.unwrap_or(0); // An error will meet the writer and the reader as well.
        let done = frame.written == frame.len();
        let mut rest = Some(frame);
        let mut o = self.outgoing.lock();
        o.writing = false;
        if !done && !o.closed {
            o.queue.extend(rest.take());
            o.queue.rotate_right(1);
        }
        // The writer may have been woken to say what was taken, and have found this write under way.
        let wake = !o.queue.is_empty() || self.owes_soon();
        drop(o);
        if wake {
            self.work.notify_one();
        }
        match rest {
            Some(frame) if done => self.handle_written(frame),
            Some(frame) => frame.fail(self.peer),
            None => {}
        }
    }

    /// A frame is through: its message is its peer's to take.
    fn handle_written(&self, frame: Frame) {
        let len = frame.len();
        let Some(out) = frame.out else { return };
        self.unwritten.fetch_sub(len, Ordering::Relaxed);
        let mut untaken = Some(out.sent());
        let mut o = self.outgoing.lock();
        let is_taken = o.taken_early > 0;
        if is_taken {
            o.taken_early -= 1;
        } else if !o.closed {
            o.untaken.extend(untaken.take());
        }
        drop(o);
        if is_taken {
            untaken.into_iter().for_each(Untaken::taken);
        }
    }

    /// The peer says that it has taken `taken` messages, and said `before` that it had taken fewer.
    fn handle_told(&self, before: u32, taken: u32) -> Result<(), FrameError> {
        let mut o = self.outgoing.lock();
        let more = taken.wrapping_sub(before);
        if more > o.accepted.wrapping_sub(before) {
            return Err(FrameError::Taken(taken, o.accepted));
        }
        for done in 0..more {
            let Some(untaken) = o.untaken.pop_front() else {
                o.taken_early += more - done;
                break;
            };
            // Other messages may be sent to this peer now.
            MutexGuard::unlocked(&mut o, || untaken.taken());
        }
        Ok(())
    }

    /// How many messages were taken, to be told now.
    fn tell_taken(&self) -> u32 {
        // In this order: what is taken between the two is told now, and perhaps once more.
        self.owes_taken.swap(Telling::WithTheNext as u8, Ordering::AcqRel);
        self.taken.load(Ordering::Acquire)
    }

    fn owes_soon(&self) -> bool {
        self.owes_taken.load(Ordering::Acquire) == Telling::Soon as u8
    }

    /// A header that says what was taken, if it is owed soon.
    fn owed_frame(&self) -> Option<Frame> {
        if !self.owes_soon() {
            return None;
        }
        let nothing = Message::put(self.peer, Portal::RESERVED, 0, Payload::new()).header;
        let header = frame::encode(&FrameHeader {
            header: Header { kind: Kind::Ack, source: self.nid, ..nothing },
            payload_len: 0,
            payload_checksum: None,
            want_bulk: false,
            telling: Telling::WithTheNext,
            taken: self.tell_taken(),
            no_message: true,
        });
        Some(Frame { header, out: None, written: 0 })
    }

    /// Ends the connection. Messages that were not written are completed with an error, and the credits of those that were
    /// not taken come back.
    pub(super) fn close(&self) {
        let (queue, untaken) = {
            let mut o = self.outgoing.lock();
            o.closed = true;
            (std::mem::take(&mut o.queue), std::mem::take(&mut o.untaken))
        };
        let _ = socket2::SockRef::from(self.socket.as_ref()).shutdown(std::net::Shutdown::Both);
        self.tasks.lock().drain(..).for_each(|t| t.abort());
        drop(untaken);
        queue.into_iter().for_each(|frame| frame.fail(self.peer));
    }

    /// Waits for frames and takes them, with the right to write. `tell_at` is the time until which what is owed later may wait.
    async fn next_batch(&self, rt: &Rt, batch: &mut VecDeque<Frame>, tell_at: &mut Option<Time>) {
        loop {
            if tell_at.is_some_and(|at| at <= rt.now()) {
                *tell_at = None;
                // In this order: what is owed from here on begins the time anew.
                self.watches_clock.store(false, Ordering::Release);
                let (later, soon) = (Telling::Later as u8, Telling::Soon as u8);
                let _ = self.owes_taken.compare_exchange(later, soon, Ordering::AcqRel, Ordering::Acquire);
            }
            {
                let mut o = self.outgoing.lock();
                if !o.writing {
                    // A message that waits says it as well, or one that comes next.
                    if o.queue.is_empty() {
                        o.queue.extend(self.owed_frame());
                    }
                    if !o.queue.is_empty() {
                        o.writing = true;
                        std::mem::swap(&mut o.queue, batch);
                        return;
                    }
                }
            }
            if tell_at.is_none() && self.watches_clock.load(Ordering::Acquire) {
                *tell_at = Some(rt.now() + TELL_WITHIN);
            }
            match tell_at {
                Some(at) => drop(rt.timeout_at(*at, self.work.notified()).await),
                None => self.work.notified().await,
            }
        }
    }

    /// Notes that `written` more bytes went out, and which frames are through.
    fn advance(&self, batch: &mut VecDeque<Frame>, mut written: usize) {
        while let Some(frame) = batch.front_mut() {
            let n = written.min(frame.len() - frame.written);
            frame.written += n;
            written -= n;
            if frame.written < frame.len() {
                return;
            }
            if let Some(frame) = batch.pop_front() {
                self.handle_written(frame);
            }
        }
    }

    /// Takes what has been queued meanwhile, or gives up the right to write if that and `batch` are empty.
    fn continue_batch(&self, batch: &mut VecDeque<Frame>) -> bool {
        let mut o = self.outgoing.lock();
        batch.append(&mut o.queue);
        o.writing = !batch.is_empty();
        o.writing
    }
}

impl Counter for Connection {
    fn count_taken(&self, telling: Telling) {
        self.taken.fetch_add(1, Ordering::AcqRel);
        if telling == Telling::WithTheNext {
            return;
        }
        self.owes_taken.fetch_max(telling as u8, Ordering::AcqRel);
        if telling == Telling::Soon || !self.watches_clock.swap(true, Ordering::AcqRel) {
            self.work.notify_one();
        }
    }
}

impl Frame {
    fn new(mut out: Outbound, shared: &Shared, want_bulk: bool, taken: u32) -> Frame {
        let m = &out.message;
        let checked = if m.is_bulk() { shared.checksums.bulk } else { shared.checksums.messages };
        let payload_checksum = (checked && !m.payload.is_empty()).then(|| payload_checksum(&m.payload));
        let payload_len = m.payload.len();
        let mut header = frame::encode(&FrameHeader {
            header: m.header,
            payload_len,
            payload_checksum,
            want_bulk,
            telling: out.telling(),
            taken,
            no_message: false,
        });
        if out.message.damaged && payload_len > 0 {
            out.message.payload = flip_bit(&out.message.payload);
        } else if out.message.damaged {
            header[HEADER_LEN / 2] ^= 1;
        }
        Frame { header, out: Some(out), written: 0 }
    }

    /// Tells the sender of the message that the connection ended before the message was written.
    fn fail(self, peer: Nid) {
        if let Some(out) = self.out {
            out.complete(Err(LnetError::PeerDown(peer)));
        }
    }

    fn len(&self) -> usize {
        HEADER_LEN + self.out.as_ref().map_or(0, |out| out.message.payload.len())
    }

    /// What is still to be written.
    fn remaining(&self) -> impl Iterator<Item = &[u8]> {
        let payload = self.out.as_ref().map(|out| out.message.payload.pieces());
        let pieces = payload.unwrap_or_default().iter().map(|b| &b[..]);
        let mut skip = self.written;
        std::iter::once(&self.header[..]).chain(pieces).filter_map(move |piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            (skipped < piece.len()).then(|| &piece[skipped..])
        })
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        self.remaining().take(GATHER_MAX).map(IoSlice::new).collect()
    }
}

fn payload_checksum(payload: &Payload) -> u32 {
    match payload.pieces() {
        [one] => frame::crc32c(&[one]),
        many => frame::crc32c(&many.iter().map(|b| &b[..]).collect::<Vec<_>>()),
    }
}

async fn run_writer(connection: Arc<Connection>, shared: Arc<Shared>) {
    let Err(e) = write_frames(&connection, &shared.rt).await;
    tracing::info!("{}: connection with {} lost: {e}", shared.nid, connection.peer);
    shared.handle_lost(&connection);
}

async fn write_frames(connection: &Connection, rt: &Rt) -> Result<std::convert::Infallible, io::Error> {
    let (mut batch, mut tell_at) = (VecDeque::new(), None);
    loop {
        connection.next_batch(rt, &mut batch, &mut tell_at).await;
        while connection.continue_batch(&mut batch) {
            match write_some(&connection.socket, &batch) {
                Ok(written) => connection.advance(&mut batch, written),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => connection.socket.writable().await?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// One vectored write of as many frames as fit.
fn write_some(socket: &OwnedWriteHalf, batch: &VecDeque<Frame>) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); GATHER_MAX];
    let mut count = 0;
    for (slot, piece) in slices.iter_mut().zip(batch.iter().flat_map(Frame::remaining)) {
        *slot = IoSlice::new(piece);
        count += 1;
    }
    socket.try_write_vectored(&slices[..count])
}

/// Closes the connection when its reader ends for whatever reason, be it that the node was killed: the peer must see
/// the end even if somebody still holds the node.
struct CloseOnDrop(Arc<Connection>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn run_reader(connection: Arc<Connection>, shared: Arc<Shared>, half: OwnedReadHalf) {
    let _close = CloseOnDrop(connection.clone());
    let mut reader = Reader {
        half,
        connection: connection.clone(),
        leftover: Vec::new(),
        parked: VecDeque::new(),
        told_taken: 0,
        received: 0,
        shared: shared.clone(),
        wakes_at: 1,
    };
    let Err(e) = reader.run().await;
    match e {
        Ended::Protocol(_) => {
            if let Some(node) = shared.node.upgrade() {
                bump(&node.counters.errors);
            }
            tracing::warn!("{}: connection with {} closed: {e}", shared.nid, connection.peer);
        }
        e => tracing::info!("{}: connection with {} lost: {e}", shared.nid, connection.peer),
    }
    shared.handle_lost(&connection);
}

struct Reader {
    half: OwnedReadHalf,
    connection: Arc<Connection>,
    /// The beginning of a frame whose rest has not come: less than a header, or a header and less than its small payload.
    leftover: Vec<u8>,
    /// Messages to be passed on that wait for their buffers. More is read meanwhile, for messages of other purposes would
    /// otherwise wait behind them.
    parked: VecDeque<oneshot::Receiver<()>>,
    /// Messages that the peer has said that it has taken, modulo 2^32.
    told_taken: u32,
    /// Messages that have arrived, modulo 2^32.
    received: u32,
    shared: Arc<Shared>,
    /// The reader is woken when so many bytes are there.
    wakes_at: usize,
}

/// Why no more frames are handled for now.
enum Pause {
    /// A large payload has to come in first.
    Large(Large),
    /// Too many messages to be passed on wait for their buffers: until then nothing more is read from this peer.
    Full(oneshot::Receiver<()>),
}

/// A large payload of which a part has come.
struct Large {
    frame: FrameHeader,
    buf: AlignedBuf,
    filled: usize,
}

impl Reader {
    async fn run(&mut self) -> Result<std::convert::Infallible, Ended> {
        loop {
            let mut pause = std::future::poll_fn(|cx| self.poll_frames(cx)).await?;
            while let Some(reason) = pause.take() {
                pause = match reason {
                    Pause::Large(mut large) => {
                        while large.filled < large.buf.len() {
                            self.wait_for(large.buf.len() - large.filled);
                            match self.half.read(&mut large.buf[large.filled..]).await? {
                                0 => return Err(Ended::ByPeer),
                                n => large.filled += n,
                            }
                            bump(&self.connection.heard);
                        }
                        self.handle_frame(&large.frame, Bytes::from(large.buf))?.map(Pause::Full)
                    }
                    Pause::Full(room) => {
                        // Ends as well if the message is given up.
                        let _ = room.await;
                        let bytes = std::mem::take(&mut self.leftover);
                        self.handle_bytes(&bytes)?
                    }
                };
            }
        }
    }

    /// Has this reader woken when so many bytes are there to be read, or [`WAKE_AT`].
    fn wait_for(&mut self, missing: usize) {
        let wake_at = missing.min(WAKE_AT);
        if wake_at != self.wakes_at && socket::set_wake_at(self.half.as_ref(), wake_at).is_ok() {
            self.wakes_at = wake_at;
        }
    }

    /// Reads once and handles the frames that are complete.
    fn poll_frames(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Pause>, Ended>> {
        with_scratch(|scratch| {
            let have = self.leftover.len();
            scratch[..have].copy_from_slice(&self.leftover);
            let want = if self.connection.is_bulk() { self.missing()? } else { READ_AHEAD };
            let mut space = ReadBuf::new(&mut scratch[have..have + want]);
            let read = Pin::new(&mut self.half).poll_read(cx, &mut space);
            if read.is_pending() {
                // After a large payload. Bytes that came in between wake the reader, too: the kernel looks for them when it is told. Mostly the
                // next header is there already, and it need not be told.
                self.wait_for(1);
            }
            ready!(read)?;
            match space.filled().len() {
                0 => Poll::Ready(Err(Ended::ByPeer)),
                n => {
                    bump(&self.connection.heard);
                    Poll::Ready(self.handle_bytes(&scratch[..have + n]))
                }
            }
        })
    }

    /// Bytes until the header, or the small payload after it, is complete.
    fn missing(&self) -> Result<usize, FrameError> {
        Ok(match self.leftover.first_chunk::<HEADER_LEN>() {
            Some(header) => HEADER_LEN + frame::decode(header)?.payload_len - self.leftover.len(),
            None => HEADER_LEN - self.leftover.len(),
        })
    }

    fn handle_bytes(&mut self, mut bytes: &[u8]) -> Result<Option<Pause>, Ended> {
        self.leftover.clear();
        let mut pause = None;
        while pause.is_none()
            && let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>()
        {
            let frame = frame::decode(header)?;
            let here = rest.len().min(frame.payload_len);
            if frame.payload_len >= BULK_MIN {
                let mut buf = AlignedBuf::for_overwrite(frame.payload_len);
                buf[..here].copy_from_slice(&rest[..here]);
                if here < frame.payload_len {
                    return Ok(Some(Pause::Large(Large { frame, buf, filled: here })));
                }
                pause = self.handle_frame(&frame, Bytes::from(buf))?.map(Pause::Full);
            } else if here < frame.payload_len {
                break;
            } else {
                pause = self.handle_frame(&frame, Bytes::copy_from_slice(&rest[..here]))?.map(Pause::Full);
            }
            bytes = &rest[here..];
        }
        self.leftover.extend_from_slice(bytes);
        Ok(pause)
    }

    /// Returns what to wait for before more is read, if the message is one to be passed on that must wait itself.
    fn handle_frame(
        &mut self,
        frame: &FrameHeader,
        payload: Bytes,
    ) -> Result<Option<oneshot::Receiver<()>>, FrameError> {
        if frame.payload_checksum.is_some_and(|sum| sum != frame::crc32c(&[&payload])) {
            return Err(FrameError::PayloadChecksum);
        }
        self.handle_told(frame.taken)?;
        if frame.no_message {
            return Ok(None);
        }
        self.count_received()?;
        let header = frame.header;
        let (nid, peer) = (self.shared.nid, self.connection.peer);
        let Some(node) = self.node() else { return Ok(None) };
        // The NID whose address was checked, not another that the peer says it has as well, unless it is a gateway of ours or is
        // known to have that NID. One whose connection broke just now is told that it has yet to be asked.
        if node.may_bring(nid, peer, header.source) == Bringing::Forbidden {
            return Err(FrameError::Source(header.source));
        }
        if frame.want_bulk {
            self.shared.handle_want_bulk(peer);
        }
        let message = Message { header, payload: payload.into(), damaged: false, is_answer: false };
        if node.is_local(header.destination) {
            let receipt = Receipt::counted(self.connection.clone(), frame.telling);
            node.handle_message(nid, peer, message, receipt);
            return Ok(None);
        }
        let (taken, mut room) = oneshot::channel();
        let (connection, telling) = (self.connection.clone(), frame.telling);
        let tell = move || {
            connection.count_taken(telling);
            let _ = taken.send(());
        };
        node.handle_message(nid, peer, message, Receipt::new(tell));
        if !waits(&mut room) {
            return Ok(None);
        }
        if frame.payload_len >= BULK_MIN {
            return Ok(Some(room));
        }
        self.parked.push_back(room);
        self.parked.retain_mut(waits);
        Ok(if self.parked.len() < PARKED_MAX { None } else { self.parked.pop_front() })
    }

    /// A peer that sends more than it has credits for could fill this node's memory with messages that nobody takes.
    fn count_received(&mut self) -> Result<(), FrameError> {
        self.received = self.received.wrapping_add(1);
        let untaken = self.received.wrapping_sub(self.connection.taken.load(Ordering::Acquire));
        if untaken > PEER_CREDITS_MAX { Err(FrameError::Credits(untaken)) } else { Ok(()) }
    }

    /// A header came that says how many messages the peer has taken. One that was made earlier may come later.
    fn handle_told(&mut self, taken: u32) -> Result<(), FrameError> {
        let is_news = taken != self.told_taken && taken.wrapping_sub(self.told_taken) <= u32::MAX / 2;
        if is_news {
            self.connection.handle_told(self.told_taken, taken)?;
            self.told_taken = taken;
        }
        Ok(())
    }

    fn node(&self) -> Option<Arc<LnetNode>> {
        self.shared.node.upgrade()
    }
}

/// Whether a message still waits for its buffer.
fn waits(room: &mut oneshot::Receiver<()>) -> bool {
    matches!(room.try_recv(), Err(oneshot::error::TryRecvError::Empty))
}

/// Lends the thread's read buffer. It is taken out while lent, so that even a nested call would find one.
fn with_scratch<T>(f: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! { static SCRATCH: Cell<Option<Box<[u8]>>> = const { Cell::new(None) }; }
    let mut scratch = SCRATCH.take().unwrap_or_else(|| vec![0; READ_AHEAD + LEFTOVER_MAX].into_boxed_slice());
    let result = f(&mut scratch);
    SCRATCH.set(Some(scratch));
    result
}
