//! The system call of a thread that waits for a reply: the kernel sends the same request for attributes whether a program
//! called stat(2) or permissions must be checked for something else. An IO edge: reads /proc.
#![allow(clippy::disallowed_methods)] // Reads /proc/TID/syscall.

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

/// True if the thread is in a system call that returns no size to its program. False if that cannot be known, as for a
/// thread in another PID namespace.
pub(crate) fn needs_no_size(tid: u32) -> bool {
    is_in(tid, only_checks)
}

/// True if the thread is in chown(2) or a similar call. False if that cannot be known.
pub(crate) fn changes_owner(tid: u32) -> bool {
    is_in(tid, is_chown)
}

fn is_in(tid: u32, accept: fn(i64) -> bool) -> bool {
    tid != 0
        && std::fs::read_to_string(format!("/proc/{tid}/syscall")).is_ok_and(|text| number(&text).is_some_and(accept))
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

    #[test]
    fn only_known_calls_need_no_size() {
        let call = |n: i64| number(&format!("{n} 0x7f00 0x10 0x0 0x0 0x0 0x0 0x7ffc 0x7f11"));
        assert!([libc::SYS_openat, libc::SYS_lgetxattr].iter().all(|n| call(*n).is_some_and(only_checks)));
        assert!(![libc::SYS_statx, libc::SYS_newfstatat].iter().any(|n| call(*n).is_some_and(only_checks)));
        assert_eq!(["running", "", "-1 0x7f00 0x7f11"].map(|text| number(text).is_some_and(only_checks)), [false; 3]);
        assert!(!needs_no_size(0));
    }

    #[test]
    fn calls_that_change_owners_are_known() {
        assert!(is_chown(libc::SYS_fchownat) && !is_chown(libc::SYS_fchmodat) && !is_chown(libc::SYS_fallocate));
        assert!(!changes_owner(0) && !changes_owner(u32::MAX));
    }
}
