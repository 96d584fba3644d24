//! Reads the kernel's counts of a TCP connection (`getsockopt(TCP_INFO)`): its packets, and those that were lost.

use crate::lnd::LinkStatus;
use nacre_base::Nid;
use std::os::fd::AsRawFd;

/// Bytes of the kernel's `struct tcp_info` that are read. The structure only grows at its end, and an older kernel writes fewer bytes.
const LEN: usize = 256;
/// Offsets of 32-bit numbers in it.
const RTT_US: usize = 68;
const TOTAL_RETRANS: usize = 100;
const SEGS_OUT: usize = 136;
const SEGS_IN: usize = 140;
/// Since Linux 5.4.
const DSACK_DUPS: usize = 216;
const RCV_OOOPACK: usize = 224;

const _: () = assert!(RCV_OOOPACK + size_of::<u32>() <= LEN, "the last number is read, too");

/// The counts of a connection to `peer`; none if the kernel does not tell them.
pub(super) fn link_status(peer: Nid, socket: &impl AsRawFd) -> Option<LinkStatus> {
    let mut info = [0u8; LEN];
    let mut len = LEN as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` is borrowed, and the kernel writes at most `len` bytes to `info`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    (result == 0).then(|| of_info(peer, &info))
}

/// Picks the counts out of the kernel's structure. Bytes that the kernel did not write are zero.
fn of_info(peer: Nid, info: &[u8; LEN]) -> LinkStatus {
    let number = |at: usize| u64::from(u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]));
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
