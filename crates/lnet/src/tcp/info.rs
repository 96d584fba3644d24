//! Reads the kernel's counts of a TCP connection (`getsockopt(TCP_INFO)`): its packets, those that were lost, its rate, and what held it up.

use crate::lnd::{LinkStatus, SocketStatus};
use nacre_base::Nid;
use socket2::SockRef;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes of the kernel's `struct tcp_info` that are read. The structure only grows at its end, and an older kernel writes fewer bytes.
const LEN: usize = 256;
/// Offset of a byte in it, of which one bit is read.
const APP_LIMITED: usize = 7;
/// Offsets of 32-bit numbers in it.
const SND_MSS: usize = 16;
const RTT_US: usize = 68;
const TOTAL_RETRANS: usize = 100;
const SEGS_OUT: usize = 136;
const SEGS_IN: usize = 140;
/// Offsets of 64-bit numbers. The last three are there since Linux 4.10.
const DELIVERY_RATE: usize = 160;
const BUSY_US: usize = 168;
const RWND_LIMITED_US: usize = 176;
const SNDBUF_LIMITED_US: usize = 184;
/// Since Linux 5.4.
const DSACK_DUPS: usize = 216;
const RCV_OOOPACK: usize = 224;

const _: () = assert!(RCV_OOOPACK + size_of::<u32>() <= LEN, "the last number is read, too");

/// The counts of a connection to `peer`; none if the kernel does not tell them.
pub(super) fn link_status(peer: Nid, socket: &impl AsRawFd) -> Option<LinkStatus> {
    read(socket).map(|info| of_info(peer, &info))
}

/// What is known of a connection of this kind; none if the kernel does not tell.
pub(super) fn socket_status(kind: char, socket: &(impl AsFd + AsRawFd)) -> Option<SocketStatus> {
    let info = read(socket)?;
    let counts = of_info(Nid::LO, &info);
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&info[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    let socket = SockRef::from(socket);
    let name = socket.tcp_congestion().ok()?;
    Some(SocketStatus {
        kind,
        round_trip_us: counts.round_trip_us,
        delivery_rate: long(DELIVERY_RATE),
        is_rate_of_sender: info[APP_LIMITED] & 1 != 0,
        segment_bytes: number(&info, SND_MSS),
        sent: counts.sent,
        resent: counts.resent,
        busy_us: long(BUSY_US),
        receiver_limited_us: long(RWND_LIMITED_US),
        sender_limited_us: long(SNDBUF_LIMITED_US),
        tx_buffer_size: socket.send_buffer_size().ok()? as u64,
        rx_buffer_size: socket.recv_buffer_size().ok()? as u64,
        congestion_control: String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned(),
    })
}

/// The kernel's structure; none if it does not give it.
fn read(socket: &impl AsRawFd) -> Option<[u8; LEN]> {
    let mut info = [0u8; LEN];
    let mut len = LEN as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` is borrowed, and the kernel writes at most `len` bytes to `info`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    (result == 0).then_some(info)
}

/// A 32-bit number.
fn number(info: &[u8; LEN], at: usize) -> u64 {
    u64::from(u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]))
}

/// Picks the counts out of the kernel's structure. Bytes that the kernel did not write are zero.
fn of_info(peer: Nid, info: &[u8; LEN]) -> LinkStatus {
    let number = |at: usize| number(info, at);
    LinkStatus {
        peer,
        sent: number(SEGS_OUT),
        // On a busy machine an acknowledgement may come so late that a packet is sent again which had arrived. The peer says so.
        resent: number(TOTAL_RETRANS).saturating_sub(number(DSACK_DUPS)),
        received: number(SEGS_IN),
        disordered: number(RCV_OOOPACK),
        round_trip_us: number(RTT_US),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_packet_that_was_sent_again_in_vain_was_not_lost() {
        let mut info = [0; LEN];
        for (at, number) in [(TOTAL_RETRANS, 7_u32), (DSACK_DUPS, 5), (RCV_OOOPACK, 3)] {
            info[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        let status = of_info(Nid::LO, &info);
        assert_eq!((status.resent, status.disordered), (2, 3));
        info[DSACK_DUPS] = 9;
        assert_eq!(of_info(Nid::LO, &info).resent, 0);
    }

    #[test]
    fn the_kernel_counts_packets() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(b"packet").unwrap();
        far.read_exact(&mut [0; 6]).unwrap();
        let (sent, received) = (link_status(Nid::LO, &near).unwrap(), link_status(Nid::LO, &far).unwrap());
        assert!(sent.sent >= 2 && received.received >= 2, "{sent:?} {received:?}");
        assert_eq!((sent.resent, received.disordered), (0, 0));
        assert!(link_status(Nid::LO, &listener).is_some() && link_status(Nid::LO, &std::io::stdin()).is_none());
    }
}
