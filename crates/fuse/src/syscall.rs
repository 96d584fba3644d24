//! What a thread that waits for an answer is doing: the kernel asks for attributes in the same words whether a program called
//! stat(2) or permissions must be checked before something else. An IO edge: reads /proc.
#![allow(clippy::disallowed_methods)] // Reads /proc/TID/syscall.

/// System calls for which attributes are asked for, if at all, to check permissions: who calls them learns no size.
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

/// The same that only this architecture has.
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

/// Whether the thread is in a system call that tells its program no size. False if that cannot be known, as for a thread in
/// another PID namespace.
pub(crate) fn needs_no_size(tid: u32) -> bool {
    tid != 0 && std::fs::read_to_string(format!("/proc/{tid}/syscall")).is_ok_and(|text| only_checks(&text))
}

/// The file begins with the number of the call, if the thread is in one.
fn only_checks(text: &str) -> bool {
    let number = text.split_ascii_whitespace().next().and_then(|word| word.parse::<i64>().ok());
    number.is_some_and(|number| CHECKING.contains(&number) || CHECKING_HERE.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_calls_need_no_size() {
        let call = |number: i64| format!("{number} 0x7f00 0x10 0x0 0x0 0x0 0x0 0x7ffc 0x7f11");
        assert!(only_checks(&call(libc::SYS_openat)) && only_checks(&call(libc::SYS_lgetxattr)));
        assert!(!only_checks(&call(libc::SYS_statx)) && !only_checks(&call(libc::SYS_newfstatat)));
        assert!(!only_checks("running") && !only_checks("") && !only_checks("-1 0x7f00 0x7f11"));
        assert!(!needs_no_size(0));
    }
}
