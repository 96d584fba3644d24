//! Explains the end of the process when a page of a mapped file cannot be read. That is not an error that a call
//! returns, but SIGBUS, and LMDB reads its file so. The process ends with a sentence that names the file, because
//! nobody knows which locks are held at that point.

use std::sync::Once;

/// Makes the process say why it ends. Must be called before a file is mapped.
pub(super) fn explain() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: sigaction is plain data for which zero is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle as *const () as usize;
        // The second signal, which comes as soon as the handler returns, ends the process.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
        // SAFETY: a live structure, and a handler that calls nothing but open, read, write and close.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    });
}

extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands over a live structure, which has an address for this signal.
    let address = unsafe { (*info).si_addr() } as u64;
    let mut search = Search::new(address);
    read_maps(|byte| search.take(byte));
    say(b"ERROR a page of a file that is mapped into memory could not be read: ");
    say(search.found().unwrap_or(b"it is not known of which one"));
    say(b". The disk of a target has failed, and the server ends with all its targets. What was acknowledged is kept: look into \
          the kernel's log for what the disk has, mend it, and start the server again.\n");
}

fn say(text: &[u8]) {
    // SAFETY: a live buffer of the given length. Nothing can be done if it fails.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// Reads the process's mappings, without the memory allocator.
fn read_maps(mut take: impl FnMut(u8)) {
    // SAFETY: a valid C string.
    let fd = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    let mut buf = [0u8; 1024];
    loop {
        // SAFETY: a live buffer of the given length; a descriptor that is not open is an error.
        let got = unsafe { libc::read(fd, buf.as_mut_ptr().cast(), buf.len()) };
        let Some(bytes) = usize::try_from(got).ok().filter(|n| *n > 0).and_then(|n| buf.get(..n)) else { break };
        bytes.iter().for_each(|byte| take(*byte));
    }
    // SAFETY: the descriptor is ours.
    unsafe { libc::close(fd) };
}

/// Longest name that is printed whole.
const NAME_MAX: usize = 512;

/// Looks for the file that is mapped at an address, in lines `start-end rwxp offset dev inode /name` taken byte by byte.
struct Search {
    address: u64,
    /// The line's first and second number, as far as they were read.
    range: [u64; 2],
    /// Index of the number that is being read; 2 after both.
    at: usize,
    name: [u8; NAME_MAX],
    len: usize,
    is_name: bool,
    is_found: bool,
}

impl Search {
    fn new(address: u64) -> Search {
        let (range, name) = ([0; 2], [0; NAME_MAX]);
        Search { address, range, at: 0, name, len: 0, is_name: false, is_found: false }
    }

    fn take(&mut self, byte: u8) {
        if self.is_found {
            return;
        }
        match byte {
            b'\n' => {
                let holds = (self.range[0]..self.range[1]).contains(&self.address);
                if holds && self.len > 0 {
                    self.is_found = true;
                } else {
                    (self.range, self.at, self.len, self.is_name) = ([0; 2], 0, 0, false);
                }
            }
            b'-' if self.at == 0 => self.at = 1,
            b' ' if self.at == 1 => self.at = 2,
            _ if self.at < 2 => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                self.range[self.at] = self.range[self.at] << 4 | u64::from(digit);
            }
            _ if self.is_name || byte == b'/' => {
                self.is_name = true;
                if let Some(place) = self.name.get_mut(self.len) {
                    (*place, self.len) = (byte, self.len + 1);
                }
            }
            _ => {}
        }
    }

    fn found(&self) -> Option<&[u8]> {
        self.name.get(..self.len).filter(|_| self.is_found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_file_at_an_address_is_found() {
        let maps = b"1000-2000 r-xp 00000000 08:01 9 /bin/a\n\
                     2000-3000 rw-p 00000000 00:00 0 \n\
                     3000-5000 r--s 00001000 08:01 7 /t/mdt 0/index/data.mdb\n";
        let file_at = |address| {
            let mut search = Search::new(address);
            maps.iter().for_each(|byte| search.take(*byte));
            search.found().map(<[u8]>::to_vec)
        };
        assert_eq!(file_at(0x4fff).as_deref(), Some(&b"/t/mdt 0/index/data.mdb"[..]));
        assert_eq!(file_at(0x1000).as_deref(), Some(&b"/bin/a"[..]));
        assert_eq!((file_at(0x2000), file_at(0x5000), file_at(0)), (None, None, None));
    }

    /// A truncated file acts on its mapping as a disk does that cannot be read.
    #[test]
    fn a_page_that_cannot_be_read_ends_the_process_with_the_name_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.mdb");
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(4096).unwrap();
        let (none, len) = (std::ptr::null_mut(), 4096);
        // SAFETY: a new mapping of an open file.
        let page = unsafe { libc::mmap(none, len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(page, libc::MAP_FAILED);
        file.set_len(0).unwrap();
        let (mut said, says) = std::io::pipe().unwrap();
        // SAFETY: the child calls nothing but what signal handlers may call, and ends by its signal.
        let child = unsafe { libc::fork() };
        if child == 0 {
            explain();
            // SAFETY: both descriptors are open; the page is mapped, and reading it is what is tried.
            unsafe {
                libc::dup2(says.as_raw_fd(), 2);
                page.cast::<u8>().read_volatile();
                libc::_exit(0)
            }
        }
        drop(says);
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        let mut status = 0;
        // SAFETY: a child of ours and a live number; then the mapping that was made above.
        unsafe {
            libc::waitpid(child, &raw mut status, 0);
            libc::munmap(page, len);
        }
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "{status}");
        assert!(text.contains(path.to_str().unwrap()), "{text}");
    }
}
