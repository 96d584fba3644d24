//! Supplementary groups of a calling process, from /proc. An IO edge.
#![allow(clippy::disallowed_methods)] // Only the kernel knows a process's groups, and /proc is how it tells.

/// The groups, or none if the process is gone.
pub(crate) fn of_process(pid: u32) -> Vec<u32> {
    // The thread's own status, because a thread may have other groups than its process.
    let status = std::fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    parse(&status)
}

fn parse(status: &[u8]) -> Vec<u32> {
    let line = status.split(|b| *b == b'\n').find_map(|l| l.strip_prefix(b"Groups:"));
    let text = std::str::from_utf8(line.unwrap_or_default()).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|g| g.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_status() {
        assert_eq!(parse(b"Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t1\n"), [4, 24, 1000]);
        assert!(parse(b"Name:\tx\n").is_empty());
        assert!(of_process(u32::MAX).is_empty());
    }
}
