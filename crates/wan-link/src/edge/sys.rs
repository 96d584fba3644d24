//! System calls that the standard library lacks.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;
use std::time::Duration;

/// `TUNSETIFF` of linux/if_tun.h.
const SET_DEVICE: u64 = 0x4004_54ca;
/// The lowest priority of real time: above all programs that did not ask for real time themselves.
const REAL_TIME_PRIORITY: libc::c_int = 1;
/// The priority of a thread that may not have real time.
const NICE: libc::c_int = -10;
/// The kernel may end a sleep so much later, if the thread has no real time, for which the kernel is exact.
const TIMER_SLACK_NANOS: libc::c_ulong = 20_000;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The number of bytes, or none if the call would have to wait.
fn check_count(result: isize) -> io::Result<Option<usize>> {
    if let Ok(count) = usize::try_from(result) {
        return Ok(Some(count));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}

/// Moves the calling thread to the network namespace that `file` stands for.
pub(crate) fn enter_netns(file: &File) -> io::Result<()> {
    // SAFETY: a valid descriptor.
    check(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Moves the calling thread to a new network namespace.
pub(crate) fn unshare_netns() -> io::Result<()> {
    // SAFETY: a plain integer.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// Makes a TUN device without packet headers and without offloads in the calling thread's network namespace. The device lives as long
/// as the file, which does not block.
pub(crate) fn make_tun(name: &str) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: ifreq is plain data for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    assert!(name.len() < request.ifr_name.len(), "the name was checked");
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: a valid descriptor and a live request, whose name ends with a zero.
    check(unsafe { libc::ioctl(file.as_raw_fd(), SET_DEVICE as _, &raw mut request) })?;
    Ok(file)
}

/// Reads without waiting. None if there is nothing to read.
pub(crate) fn read(file: &impl AsRawFd, into: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: a valid descriptor, and room for as many bytes as it says.
    check_count(unsafe { libc::read(file.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) })
}

/// Writes without waiting. None if there is no room.
pub(crate) fn write(file: &impl AsRawFd, bytes: &[u8]) -> io::Result<Option<usize>> {
    // SAFETY: a valid descriptor, and as many live bytes as it says.
    check_count(unsafe { libc::write(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })
}

/// Waits until one of the files can be read or `timeout` has passed. Returns which of them can be read, or are at their end.
pub(crate) fn wait<const N: usize>(files: [BorrowedFd<'_>; N], timeout: Option<Duration>) -> io::Result<[bool; N]> {
    let mut polled = files.map(|file| libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    let limit = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), |limit| limit as *const libc::timespec);
    // SAFETY: live structures, as many as it says, and no mask of signals.
    match check(unsafe { libc::ppoll(polled.as_mut_ptr(), N as libc::nfds_t, limit, std::ptr::null()) }) {
        Ok(_) => Ok(polled.map(|polled| polled.revents != 0)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok([false; N]),
        Err(error) => Err(error),
    }
}

/// A file that one thread makes readable to wake another.
pub(crate) fn make_event() -> io::Result<File> {
    // SAFETY: plain integers.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Keeps these signals from ending the process. They are read from the file instead. It must be called before
/// other threads start.
pub fn catch_signals(signals: &[libc::c_int]) -> io::Result<File> {
    // SAFETY: sigset_t is plain data for which zero is a valid value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a live set.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in signals {
        // SAFETY: a live set and the number of a signal.
        check(unsafe { libc::sigaddset(&raw mut set, *signal) })?;
    }
    // SAFETY: a live set; the old one is not asked for.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if blocked != 0 {
        return Err(io::Error::from_raw_os_error(blocked));
    }
    // SAFETY: a live set.
    let fd = check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) })?;
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The next signal that has come, if any.
pub(crate) fn read_signal(file: &File) -> io::Result<Option<libc::c_int>> {
    let mut bytes = [0u8; size_of::<libc::signalfd_siginfo>()];
    let read = read(file, &mut bytes)?;
    // The first field of the structure is the number of the signal.
    Ok(read.filter(|count| *count == bytes.len()).map(|_| i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
}

/// Makes the calling thread prompt: it runs before the programs that use the link, because they would take its lateness for a slow
/// link, and its timers are right to a few microseconds. A nice value alone does not do it: a busy machine then delays packets by
/// milliseconds. Without the right to it the thread goes on as it is, and the counters show how late it was.
pub fn be_prompt() {
    // SAFETY: sched_param is plain data for which zero is a valid value.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = REAL_TIME_PRIORITY;
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: a live structure; zero is the calling thread.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const param) } < 0 {
        // SAFETY: plain integers; zero is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    }
    // SAFETY: plain integers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NANOS) };
}

/// Keeps the memory of the process from being swapped out, so that a machine short of memory does not delay packets. Without the
/// right to it nothing changes.
pub fn stay_in_memory() {
    // SAFETY: plain integers. Pages are locked when they are first used, so that unused stacks take no memory.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) };
}

/// Keeps the machine's processors from sleeping deeply as long as the file is open. Waking one up takes a virtual machine up to a
/// millisecond, several times in each round trip. None without the right to it.
pub(crate) fn keep_processors_awake() -> Option<File> {
    let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency").ok()?;
    // The longest time, in microseconds, that waking up may take.
    file.write_all(&0i32.to_ne_bytes()).ok()?;
    Some(file)
}

/// Processor time of a thread that was not joined yet.
pub(crate) fn thread_cpu<T>(thread: &JoinHandle<T>) -> Duration {
    let mut clock = 0;
    // SAFETY: the thread was not joined, so its handle is valid; the clock is live.
    let found = unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t() as libc::pthread_t, &raw mut clock) };
    if found == 0 { clock_time(clock) } else { Duration::ZERO }
}

/// Processor time of the process.
pub(crate) fn process_cpu() -> Duration {
    clock_time(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Time that a clock shows; zero if its thread has ended.
fn clock_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live structure.
    match check(unsafe { libc::clock_gettime(clock, &raw mut time) }) {
        Ok(_) => Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
        Err(_) => Duration::ZERO,
    }
}
