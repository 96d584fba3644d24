//! The device at one end of a link.

use super::failure::{Failure, Tried};
use super::netns::Netns;
use super::sys;
use crate::link::MTU;
use crate::plan::Address;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;

/// Packets that wait in a device until the emulator reads them. TCP sends a whole window at once, and the device drops what does not
/// fit; a window of this many packets is 15 MB.
const UNREAD_PACKETS_MAX: u32 = 10_000;

/// A TUN device in a network namespace. It vanishes when this is dropped.
pub(crate) struct Tun {
    pub(crate) file: File,
    name: String,
    netns: Netns,
}

impl Tun {
    /// Makes the device, gives it its addresses and turns it on.
    pub(crate) fn open(netns: Netns, name: &str, addresses: &[Address]) -> Result<Tun, Failure> {
        let file = netns.run(|| {
            let file = sys::make_tun(name).map_err(|error| explain(error, name, netns.name()))?;
            configure(name, addresses)?;
            Ok(file)
        })?;
        Ok(Tun { file, name: name.to_owned(), netns })
    }

    /// Packets that the kernel sent to the device and nobody read in time.
    pub(crate) fn missed(&self) -> Result<u64, Failure> {
        self.netns.run(|| {
            // The file shows the namespace of the thread that reads it. That of the process would be another one.
            let path = "/proc/thread-self/net/dev";
            let text = fs::read_to_string(path).tried(|| format!("reading {path}"))?;
            Ok(missed_in(&text, &self.name).unwrap_or(0))
        })
    }
}

impl fmt::Display for Tun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` in `{}`", self.name, self.netns.name())
    }
}

fn explain(error: io::Error, name: &str, netns: &str) -> Failure {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Failure(format!(
            "/dev/net/tun cannot be opened ({error}): this kernel has no TUN devices, or the container hides them; run the program \
             where they are"
        )),
        Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) => Failure(format!(
            "the device `{name}` cannot be made in `{netns}` ({error}): another device has the name; end the other program, or choose \
             another --name"
        )),
        _ => Failure::of(&format!("making the device `{name}` in `{netns}`"), &error),
    }
}

fn configure(name: &str, addresses: &[Address]) -> Result<(), Failure> {
    // Without addresses of version 6 the kernel shall not send anything of that version: it would be counted.
    let quiet = if addresses.iter().all(|address| address.ip.is_ipv4()) { "1" } else { "0" };
    let path = Path::new("/proc/sys/net/ipv6/conf").join(name).join("disable_ipv6");
    if path.exists() {
        fs::write(&path, quiet).tried(|| format!("writing {}", path.display()))?;
    }
    ip(&format!("link set dev {name} mtu {MTU} txqueuelen {UNREAD_PACKETS_MAX} addrgenmode none"))?;
    for Address { ip: address, prefix } in addresses {
        ip(&format!("address add {address}/{prefix} dev {name}"))?;
    }
    ip(&format!("link set dev {name} up"))
}

/// Runs `ip` in the namespace of the calling thread.
fn ip(command: &str) -> Result<(), Failure> {
    let output = Command::new("ip").args(command.split(' ')).output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure("the program `ip` is missing; install the package iproute2".to_owned()),
        _ => Failure(format!("`ip {command}` could not be started: {error}")),
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure(format!("`ip {command}` failed: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// The column of dropped packets that were to be sent, in the kernel's table of devices.
fn missed_in(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::missed_in;

    #[test]
    fn missed_packets_are_found_in_the_kernels_table() {
        let table = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame \
                     compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 \
                     13 14 15 16\n  wan0: 1 2 3 4 5 6 7 8 9 10 11 77 13 14 15 16\n";
        assert_eq!(missed_in(table, "wan0"), Some(77));
        assert_eq!(missed_in(table, "wan"), None);
    }
}
