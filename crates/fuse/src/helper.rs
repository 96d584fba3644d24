//! Mounts for users other than root, by fusermount3, the set-user-id program of the package fuse3: it opens /dev/fuse,
//! mounts it on a directory that the user may write to, and passes the descriptor back. An IO edge.
#![allow(clippy::disallowed_methods)] // It runs a program and talks to it over a socket.

use crate::dev::Channel;
use crate::mount::{FuseError, MountOptions, Unmount};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Name of the program.
const PROGRAM: &str = "fusermount3";
/// Environment variable with the number of the socket over which the program sends the descriptor.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";
/// File in which root says whether users may let others into their mounts.
const CONFIGURATION: &str = "/etc/fuse.conf";

/// True if mounting needs the program; root mounts without it.
pub(crate) fn is_needed() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() != 0 }
}

/// Checks that the program and the device exist.
pub(crate) fn check() -> Result<(), FuseError> {
    run(Command::new(PROGRAM).arg("--version"))?;
    Channel::open().map(drop)
}

/// Mounts on `path`. Returns the session's channel.
pub(crate) fn mount(path: &Path, options: &MountOptions, max_read: usize) -> Result<Channel, FuseError> {
    let failed = |error| FuseError::Mount { path: path.into(), error };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let options = options.helper_options(max_read, may_allow_other());
    let mut command = Command::new(PROGRAM);
    command.args(["-o", &options, "--"]).arg(path).env(SOCKET_VARIABLE, theirs.as_raw_fd().to_string());
    let fd = theirs.as_raw_fd();
    // SAFETY: fcntl is async-signal-safe and touches no memory of ours; the descriptor is open until the child has started.
    unsafe {
        command.pre_exec(
            move || if libc::fcntl(fd, libc::F_SETFD, 0) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) },
        );
    }
    let output = run(&mut command)?;
    drop(theirs);
    if !output.status.success() {
        return Err(refused(&format!("mount on {}", path.display()), &output));
    }
    receive_descriptor(&ours).map(Channel::of_helper).map_err(failed)
}

/// Unmounts `path`. Users cannot force an unmount; a lazy one takes its place.
pub(crate) fn unmount(path: &Path, how: Unmount) -> Result<(), FuseError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if how != Unmount::WhenIdle {
        command.arg("-z");
    }
    let output = run(command.arg("--").arg(path))?;
    if output.status.success() { Ok(()) } else { Err(refused(&format!("unmount {}", path.display()), &output)) }
}

fn run(command: &mut Command) -> Result<Output, FuseError> {
    command.stdin(Stdio::null()).output().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => FuseError::Helper(format!(
            "{PROGRAM}, which mounts for users other than root, is not installed: install the package fuse3, or run this as root"
        )),
        _ => FuseError::Helper(format!("cannot run {PROGRAM}: {e}")),
    })
}

fn refused(what: &str, output: &Output) -> FuseError {
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    let hint = if said.contains("/dev/fuse") {
        ". Load the module (modprobe fuse); in a container, pass --device /dev/fuse"
    } else {
        ""
    };
    FuseError::Helper(format!("cannot {what}: {said}{hint}"))
}

fn may_allow_other() -> bool {
    std::fs::read_to_string(CONFIGURATION).unwrap_or_default().lines().any(|line| line.trim() == "user_allow_other")
}

/// Receives the one descriptor that the program sends with a byte of data.
fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = 0u8;
    let mut data = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // Room for one descriptor and its header, aligned as headers must be.
    let mut control = [0u64; 8];
    // SAFETY: all zeros is a valid header without name, data and control.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header leads to buffers of the lengths that it says, which outlive the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled in the header and the control buffer, whose first entry is looked at if there is one. A
    // descriptor's number follows its header, not aligned.
    let fd = unsafe {
        match libc::CMSG_FIRSTHDR(&raw const message).as_ref() {
            Some(h) if h.cmsg_level == libc::SOL_SOCKET && h.cmsg_type == libc::SCM_RIGHTS => {
                libc::CMSG_DATA(h).cast::<RawFd>().read_unaligned()
            }
            _ => return Err(io::Error::other(format!("{PROGRAM} sent no descriptor"))),
        }
    };
    // SAFETY: the kernel has just opened it for this process, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    /// Sends a descriptor as fusermount3 does.
    fn send_descriptor(socket: &UnixStream, fd: RawFd) {
        let mut byte = 0u8;
        let mut data = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut control = [0u64; 8];
        // SAFETY: as in `receive_descriptor`; the control buffer has room for the entry that is written.
        unsafe {
            let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
            message.msg_iov = &raw mut data;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
            assert_eq!(libc::sendmsg(socket.as_raw_fd(), &raw const message, 0), 1);
        }
    }

    #[test]
    fn a_descriptor_arrives() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"hello").unwrap();
        send_descriptor(&a, file.as_raw_fd());
        let mut received = File::from(receive_descriptor(&b).unwrap());
        std::io::Seek::rewind(&mut received).unwrap();
        let mut text = String::new();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn a_message_without_a_descriptor_is_an_error() {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(b"x").unwrap();
        assert!(receive_descriptor(&b).unwrap_err().to_string().contains("sent no descriptor"));
        drop(a);
        assert!(receive_descriptor(&b).is_err());
    }
}
