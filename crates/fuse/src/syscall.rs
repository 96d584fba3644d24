//! The system call of a thread that waits for a reply: the kernel sends the same request for attributes whether a program
//! called stat(2) or permissions must be checked for something else. An IO edge: reads /proc.
#![allow(clippy::disallowed_methods)] // Reads /proc/TID/syscall.

use nacre_rt::Rt;
use std::time::Duration;

/// System calls for which the kernel asks for attributes, if at all, only to check permissions: they return no size.
const CHECKING: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
];

/// Further such calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const CHECKING_HERE: &[i64] = &[
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_access,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_unlink,
    libc::SYS_link,
];
#[cfg(not(target_arch = "x86_64"))]
const CHECKING_HERE: &[i64] = &[];

/// System calls that change a file's owner.
const CHOWN: &[i64] = &[libc::SYS_fchown, libc::SYS_fchownat];
#[cfg(target_arch = "x86_64")]
const CHOWN_HERE: &[i64] = &[libc::SYS_chown, libc::SYS_lchown];
#[cfg(not(target_arch = "x86_64"))]
const CHOWN_HERE: &[i64] = &[];

/// Longest wait for a thread that has sent its request and does not sleep yet.
const FALLS_ASLEEP_MAX: Duration = Duration::from_secs(1);
/// Pause between two looks at such a thread.
const FALLS_ASLEEP_POLL: Duration = Duration::from_millis(1);

/// Returns whether the thread is in a system call that returns no size to its program; false if that cannot be known, as
/// for a thread in another PID namespace.
pub(crate) async fn needs_no_size(rt: &Rt, tid: u32) -> bool {
    call_of(rt, || read(tid)).await.is_some_and(only_checks)
}

/// Returns whether the thread is in chown(2) or a similar call; false if that cannot be known.
pub(crate) async fn changes_owner(rt: &Rt, tid: u32) -> bool {
    call_of(rt, || read(tid)).await.is_some_and(is_chown)
}

/// Contents of /proc/TID/syscall; none if there is no such thread.
fn read(tid: u32) -> Option<String> {
    if tid == 0 {
        return None;
    }
    std::fs::read_to_string(format!("/proc/{tid}/syscall")).ok()
}

/// Number of the system call in which a thread waits. The kernel hands a request over before the requesting thread sleeps, and says
/// nothing but "running" about a thread that does not sleep, so it is asked again until the thread does.
async fn call_of(rt: &Rt, read: impl Fn() -> Option<String>) -> Option<i64> {
    let give_up = rt.now() + FALLS_ASLEEP_MAX;
    loop {
        let text = read()?;
        if text.trim_end() != "running" || rt.now() >= give_up {
            return number(&text);
        }
        rt.sleep(FALLS_ASLEEP_POLL).await;
    }
}

/// The file begins with the number of the call, if the thread is in one.
fn number(text: &str) -> Option<i64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

fn only_checks(number: i64) -> bool {
    CHECKING.contains(&number) || CHECKING_HERE.contains(&number)
}

fn is_chown(number: i64) -> bool {
    CHOWN.contains(&number) || CHOWN_HERE.contains(&number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Time;
    use nacre_rt::Sim;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A `touch` of a file whose OST was away once waited for that OST: its thread did not sleep yet when the door looked what
    /// it was doing, and was taken for one that called stat(2).
    #[test]
    fn a_thread_that_does_not_sleep_yet_is_looked_at_again() {
        let mut sim = Sim::new(1);
        let rt = sim.rt();
        let (found, waited) = sim.block_on(Time(u64::MAX), async move {
            let looks = AtomicU32::new(0);
            let sleeps_at_last = || {
                let running = looks.fetch_add(1, Ordering::Relaxed) < 3;
                Some(if running { "running\n".into() } else { format!("{} 0x7f00\n", libc::SYS_utimensat) })
            };
            let found = call_of(&rt, sleeps_at_last).await;
            let begin = rt.now();
            assert_eq!(call_of(&rt, || Some("running\n".into())).await, None);
            assert_eq!(call_of(&rt, || None).await, None);
            (found, rt.now().since(begin))
        });
        assert_eq!(found, Some(libc::SYS_utimensat));
        assert_eq!(waited, FALLS_ASLEEP_MAX);
    }

    #[test]
    fn only_known_calls_need_no_size() {
        let call = |n: i64| number(&format!("{n} 0x7f00 0x10 0x0 0x0 0x0 0x0 0x7ffc 0x7f11"));
        assert!([libc::SYS_openat, libc::SYS_lgetxattr].iter().all(|n| call(*n).is_some_and(only_checks)));
        assert!(![libc::SYS_statx, libc::SYS_newfstatat].iter().any(|n| call(*n).is_some_and(only_checks)));
        assert_eq!(["running", "", "-1 0x7f00 0x7f11"].map(|text| number(text).is_some_and(only_checks)), [false; 3]);
    }

    #[test]
    fn calls_that_change_owners_are_known() {
        assert!(is_chown(libc::SYS_fchownat) && !is_chown(libc::SYS_fchmodat) && !is_chown(libc::SYS_fallocate));
        assert!(read(0).is_none() && read(u32::MAX).is_none());
    }
}
