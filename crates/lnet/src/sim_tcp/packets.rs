//! The sizes of packets.

/// Bytes of a packet on the link, with the headers of IP and of TCP with timestamps.
pub(super) const PACKET: u64 = 1500;
/// Bytes of the stream in a packet.
pub(super) const PAYLOAD: u64 = 1448;

/// Packets of a range that begins with one.
pub(super) fn packets_in(start: u64, end: u64) -> u64 {
    (end - start).div_ceil(PAYLOAD)
}
