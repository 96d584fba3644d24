//! Signals that are pending for a calling thread, from /proc. An IO edge.
//!
//! The kernel sends INTERRUPT once for a request, and does not say why: a signal, a debugger, or work of its own. While
//! the caller waits for the reply its signals stay pending, so that its status shows them.
#![allow(clippy::disallowed_methods)] // Only the kernel knows a thread's signals, and /proc is how it tells.

/// Signals that are pending for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// No signal that would end a system call.
    Nothing,
    /// A signal that the program may handle.
    Signal,
    /// The program is being killed: by SIGKILL, or by a signal that it does not handle, which the kernel turns into one.
    Kill,
}

/// Stop signals: a stopped call goes on when its program is continued.
const STOPS: u64 = bit(libc::SIGSTOP) | bit(libc::SIGTSTP) | bit(libc::SIGTTIN) | bit(libc::SIGTTOU);

const fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// Returns the signals pending for the thread `tid`. A thread of another PID namespace counts as one with a signal.
pub(crate) fn pending_of(tid: u32) -> Pending {
    let status = std::fs::read(format!("/proc/{tid}/status")).unwrap_or_default();
    parse(&status).unwrap_or(Pending::Signal)
}

fn parse(status: &[u8]) -> Option<Pending> {
    let field = |name: &[u8]| {
        let line = status.split(|b| *b == b'\n').find_map(|l| l.strip_prefix(name))?;
        u64::from_str_radix(std::str::from_utf8(line).ok()?.trim(), 16).ok()
    };
    let pending = (field(b"SigPnd:")? | field(b"ShdPnd:")?) & !field(b"SigBlk:")?;
    Some(match pending {
        p if p & bit(libc::SIGKILL) != 0 => Pending::Kill,
        p if p & !STOPS != 0 => Pending::Signal,
        _ => Pending::Nothing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_read_from_status() {
        let status = |own: &str, shared: &str, blocked: &str| {
            format!("Name:\tx\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n").into_bytes()
        };
        let none = "0000000000000000";
        assert_eq!(parse(&status(none, none, none)), Some(Pending::Nothing));
        assert_eq!(parse(&status("0000000000000100", none, none)), Some(Pending::Kill));
        assert_eq!(parse(&status(none, "0000000000000002", none)), Some(Pending::Signal));
        assert_eq!(parse(&status(none, "0000000000000002", "0000000000000002")), Some(Pending::Nothing));
        assert_eq!(parse(&status(none, "0000000000080000", none)), Some(Pending::Nothing), "SIGTSTP");
        assert_eq!(parse(b"Name:\tx\n"), None);
        assert_eq!(pending_of(std::process::id()), Pending::Nothing);
        assert_eq!(pending_of(u32::MAX), Pending::Signal);
    }
}
