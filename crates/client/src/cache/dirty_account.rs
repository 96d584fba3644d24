//! The client's half of grants, one for each OST: no byte becomes dirty without a promise of space for its block. The
//! server's half is `tgt::grant`.
//!
//! Grant is in one of these places: available, kept for dirty bytes (their *charge*, whole blocks), with a write under
//! way, or lost and not yet reported. A write takes its exact bytes of the server's promise when the server gets it;
//! what was kept for the rest of its blocks is lost when it is over, for the device has used it.

use nacre_wire::ost::GrantReport;

/// The most grant that is ever wanted: what the server gives one client, less some.
const WANTED_MAX: u64 = (2 << 30) - (256 << 20);

/// Grant of one OST, in bytes.
#[derive(Debug, Default)]
pub(crate) struct DirtyAccount {
    /// What the server has promised, less the bytes of writes sent.
    held: u64,
    /// Charge of dirty bytes.
    dirty: u64,
    /// Charge of the writes under way.
    writing: u64,
    /// Bytes of the writes under way: `writing - writing_bytes` is still part of `held`.
    writing_bytes: u64,
    /// Lost since the last report.
    dropped: u64,
    /// Bound of `dirty + writing`.
    dirty_max: u64,
    /// What the server is asked for in total.
    wanted: u64,
    /// Counts connections: what is known of a promise ends with its connection.
    connection: u64,
}

/// A write under way.
#[must_use = "the grant stays with the write until it is told how it ended"]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    charge: u64,
    bytes: u64,
    dropped: u64,
    connection: u64,
}

impl DirtyAccount {
    /// Bounds: `dirty_max` bytes dirty or being written (`max_dirty_mb`), and RPCs of `rpc_bytes`, `rpcs_in_flight` at
    /// once, that decide how much grant is wanted.
    pub(crate) fn set_limits(&mut self, dirty_max: u64, rpc_bytes: u64, rpcs_in_flight: u64) {
        self.dirty_max = dirty_max;
        self.wanted = rpc_bytes.saturating_mul(rpcs_in_flight.saturating_add(1)).max(dirty_max).min(WANTED_MAX);
    }

    /// What a connect request says is held.
    pub(crate) fn told_at_connect(&self) -> u64 {
        // What writes under way take may not have been taken, and a request sent again takes nothing.
        self.held + self.writing_bytes
    }

    /// Connected, again perhaps: the client's grant is now `granted`. Dirty bytes may exceed it: they should be written
    /// soon, and compete for space.
    pub(crate) fn handle_connected(&mut self, granted: u64) {
        self.held = granted.saturating_sub(self.writing_bytes);
        self.dropped = 0;
        self.connection += 1;
    }

    /// Whether bytes that need `charge` (see `ObjectCache::grant_needed`) may become dirty.
    pub(crate) fn can_dirty(&self, charge: u64) -> bool {
        charge <= self.available() && charge <= self.dirty_max.saturating_sub(self.dirty_and_writing())
    }

    /// Whether waiting may help: something is dirty or under way, whose reply may bring grant or whose end makes room.
    /// If not, the write has to go out at once, without grant.
    pub(crate) fn may_get_more(&self, charge: u64) -> bool {
        charge <= self.dirty_max && self.dirty_and_writing() > 0
    }

    /// Bytes became dirty, with this charge.
    pub(crate) fn took(&mut self, charge: u64) {
        self.dirty += charge;
    }

    /// Dirty bytes were dropped; their grant is available again.
    pub(crate) fn freed(&mut self, charge: u64) {
        self.dirty -= charge;
    }

    /// A write of `bytes`, for which `charge` was kept, is about to be sent: its report. Both are 0 for a write that
    /// was never dirty, which goes without grant; all extents of others are FROM_GRANT.
    pub(crate) fn send(&mut self, charge: u64, bytes: u64) -> (GrantReport, Sent) {
        assert!(bytes <= charge && charge <= self.dirty, "{bytes} of {charge}: {self:?}");
        self.dirty -= charge;
        self.writing += charge;
        self.writing_bytes += bytes;
        // The server takes what is there, and the rest from free space.
        self.held = self.held.saturating_sub(bytes);
        let dropped = std::mem::take(&mut self.dropped);
        let report = GrantReport { dirty: self.dirty_and_writing(), undirty: self.wanted, grant: self.held, dropped };
        (report, Sent { charge, bytes, dropped, connection: self.connection })
    }

    /// The write succeeded and its reply brought `granted`.
    pub(crate) fn written(&mut self, sent: Sent, granted: u64) {
        self.end(&sent);
        self.lose(sent.charge - sent.bytes);
        self.held += granted;
    }

    /// The write failed; `charge_again` (at most its charge) is kept for those of its bytes that are dirty again.
    pub(crate) fn failed(&mut self, sent: Sent, charge_again: u64) {
        assert!(charge_again <= sent.charge, "{charge_again} again of {sent:?}");
        self.end(&sent);
        self.dirty += charge_again;
        if sent.connection == self.connection {
            // The server gives back what it took, and has not seen the report.
            self.held += sent.bytes;
            self.dropped += sent.dropped;
        }
    }

    /// Gives back what is available beyond `keep`, with the next report.
    pub(crate) fn shrink(&mut self, keep: u64) {
        self.lose(self.available().saturating_sub(keep));
    }

    /// Grant held, in bytes: for the parameters and for the owner's decision to shrink.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Grant that nothing is kept for.
    pub(crate) fn available(&self) -> u64 {
        self.held.saturating_sub(self.dirty + self.writing - self.writing_bytes)
    }

    /// Charge of dirty bytes and of writes under way.
    pub(crate) fn dirty_and_writing(&self) -> u64 {
        self.dirty + self.writing
    }

    fn end(&mut self, sent: &Sent) {
        self.writing -= sent.charge;
        self.writing_bytes -= sent.bytes;
    }

    fn lose(&mut self, bytes: u64) {
        let lost = bytes.min(self.held);
        self.held -= lost;
        self.dropped += lost;
    }
}
