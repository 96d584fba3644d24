//! What Linux does with the answers of a FUSE server, as far as the client's rules for the page cache rest on it. Each
//! test is such a fact; a kernel on which it does not hold fails the test. The server is made by hand and answers as a
//! test says: nothing of the product takes part. Needs root and /dev/fuse, and says so if they are missing.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // A test of the kernel needs files, threads and real time.

mod client;
mod messages;
mod model;
mod server;

use client::{Client, Handle};
use messages::{init, opcode};
use nacre_fuse::reply::OpenFlags;
use server::{A, B, FILL, Mount, PAGE, Seen, Setup};
use std::thread;
use std::time::Duration;

const CACHED: OpenFlags = OpenFlags::KEEP_CACHE;
const DIRECT: OpenFlags = OpenFlags::DIRECT_IO;

/// Window in which something must not happen. A fact that fails shows itself within a millisecond.
const QUIET: Duration = Duration::from_millis(300);

/// Opens the file with a handle of this kind.
fn open_as(mount: &Mount, client: &mut Client<'_>, open_flags: OpenFlags) -> Handle {
    mount.change(|state| state.open_flags = open_flags);
    client.open("a")
}

/// Two clients of a mount: one with a handle whose reads come from the page cache, one with a handle for direct I/O of the same file.
fn cached_and_direct(mount: &Mount) -> [(Client<'_>, Handle); 2] {
    [CACHED, DIRECT].map(|open_flags| {
        let mut client = Client::new(mount);
        let file = open_as(mount, &mut client, open_flags);
        (client, file)
    })
}

/// Another client of the file system changes the file's size, and this kernel hears of it.
fn resize_elsewhere(mount: &Mount, len: usize) {
    mount.change(|state| state.a.resize(len, FILL));
    mount.inval_inode(A, 0, 0).unwrap();
}

/// Calls `notify` while requests are held, sees that it neither returns nor causes a WRITE, answers the requests, and
/// returns what it returned then.
fn waits_for_release<T: Send>(mount: &Mount, notify: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let notifying = scope.spawn(notify);
        // The only way to see that nothing happens is to wait.
        thread::sleep(QUIET);
        assert!(!notifying.is_finished(), "the notification does not wait");
        assert_eq!(mount.take_seen(opcode::WRITE), []);
        mount.release();
        notifying.join().unwrap()
    })
}

fn read_of(node: u64, offset: usize, size: usize) -> Seen {
    Seen { opcode: opcode::READ, node, offset, size }
}

#[test]
fn a_size_change_under_way_holds_the_files_writes_back() {
    for open_flags in [CACHED, DIRECT] {
        let mount = Mount::new(open_flags);
        let (mut writer, mut truncater) = (Client::new(&mount), Client::new(&mount));
        let file = writer.open("a");
        let mapping = writer.map(file, PAGE, libc::MAP_SHARED);
        let other = truncater.open("a");
        writer.store(mapping, 7);

        mount.hold(&[opcode::SETATTR]);
        truncater.begin_truncate(other, 2 * PAGE);
        mount.wait_for(opcode::SETATTR, 1);
        waits_for_release(&mount, || mount.inval_inode(A, 0, 0)).unwrap();
        assert_eq!(truncater.end(), 0);
        mount.wait_for(opcode::WRITE, 1);
        let written = mount.contents(A);
        assert_eq!((written[0], written.len()), (7, 2 * PAGE));
    }
}

#[test]
fn mapped_pages_are_written_only_when_a_background_slot_is_free() {
    const SLOTS: usize = 4;
    let mount = Mount::with(CACHED, Setup { max_background: SLOTS as u16, ..Setup::default() });
    let (mut writer, mut reader) = (Client::new(&mount), Client::new(&mount));
    let file = writer.open("a");
    let mapping = writer.map(file, PAGE, libc::MAP_SHARED);
    writer.store(mapping, 7);
    let other = reader.open("b");
    mount.take_seen(opcode::READ);

    mount.hold(&[opcode::READ]);
    for i in 0..SLOTS {
        // One page far from the others, so that each call sends one READ.
        reader.read_ahead(other, i << 17, PAGE);
    }
    mount.wait_for(opcode::READ, SLOTS);
    waits_for_release(&mount, || mount.inval_inode(A, 0, 0)).unwrap();
    assert_eq!(mount.take_seen(opcode::WRITE).len(), 1);
    assert_eq!(mount.contents(A)[0], 7);
}

#[test]
fn a_store_past_the_kernels_size_is_clipped_in_silence() {
    for open_flags in [CACHED, DIRECT] {
        let mount = Mount::new(open_flags);
        mount.change(|state| state.a.truncate(100));
        let mut writer = Client::new(&mount);
        let file = writer.open("a");
        let mapping = writer.map(file, PAGE, libc::MAP_SHARED);

        resize_elsewhere(&mount, 110);
        writer.store(mapping + 99, 7);
        writer.store(mapping + 105, 7);
        assert_eq!(writer.sync(mapping, PAGE), 0, "msync knows of no failure");
        let clipped = Seen { opcode: opcode::WRITE, node: A, offset: 0, size: 100 };
        assert_eq!(mount.take_seen(opcode::WRITE), [clipped]);
        let written = mount.contents(A);
        assert_eq!((written[99], written[105]), (7, FILL));
    }
}

#[test]
fn a_mapping_beyond_the_kernels_size_faults_until_somebody_asks_for_the_size() {
    for open_flags in [CACHED, DIRECT] {
        let mount = Mount::new(open_flags);
        mount.change(|state| state.a.truncate(100));
        let mut first = Client::new(&mount);
        let file = first.open("a");

        resize_elsewhere(&mount, 2 * PAGE);
        let mapping = first.map(file, 2 * PAGE, libc::MAP_SHARED);
        assert_eq!(first.store_or_die(mapping + PAGE, 7), Some(libc::SIGBUS));

        let mut second = Client::new(&mount);
        let file = second.open("a");
        let mapping = second.map(file, 2 * PAGE, libc::MAP_SHARED);
        second.stat("a");
        assert_eq!(second.store_or_die(mapping + PAGE, 7), None);
        assert_eq!(second.sync(mapping, 2 * PAGE), 0);
        assert_eq!(mount.contents(A)[PAGE], 7);
    }
}

#[test]
fn a_read_of_several_pages_that_fails_is_repeated_for_the_page_asked_for() {
    for open_flags in [CACHED, DIRECT] {
        let mount = Mount::new(open_flags);
        mount.change(|state| state.long_reads_fail = true);
        mount.change(|state| state.a[5000] = 42);
        let mut client = Client::new(&mount);
        let file = client.open("a");
        let mapping = client.map(file, 1 << 20, libc::MAP_SHARED);
        assert_eq!(client.load(mapping + 5000), 42);
        let reads = mount.take_seen(opcode::READ);
        assert!(reads[0].size > PAGE && reads[0].offset + reads[0].size > 5000, "not a window: {reads:?}");
        assert_eq!(reads[1..], [read_of(A, PAGE, PAGE)]);
    }

    let mount = Mount::new(CACHED);
    mount.change(|state| state.long_reads_fail = true);
    let mut client = Client::new(&mount);
    let file = client.open("b");
    assert_eq!(client.read(file, 16 * PAGE, 2 * PAGE), (2 * PAGE as i64, FILL));
    let reads = mount.take_seen(opcode::READ);
    assert!(reads[0].size > PAGE && reads[0].offset == 16 * PAGE, "not several pages: {reads:?}");
    assert_eq!(reads[1..], [read_of(B, 16 * PAGE, PAGE), read_of(B, 17 * PAGE, PAGE)]);
}

#[test]
fn an_invalidation_succeeds_although_the_write_it_caused_failed() {
    for open_flags in [CACHED, DIRECT] {
        let mount = Mount::new(open_flags);
        let mut client = Client::new(&mount);
        let file = client.open("a");
        let mapping = client.map(file, PAGE, libc::MAP_SHARED);
        client.store(mapping, 7);

        mount.change(|state| state.writes_fail = true);
        mount.inval_inode(A, 0, 0).unwrap();
        assert_eq!(mount.take_seen(opcode::WRITE).len(), 1);
        mount.take_seen(opcode::READ);
        assert_eq!(client.load(mapping), FILL, "the store is gone");
        assert!(!mount.take_seen(opcode::READ).is_empty());
    }
}

#[test]
fn a_short_read_is_filled_to_the_old_size_if_attributes_were_dropped_meanwhile() {
    for (init_flags, count) in [(0, PAGE as i64), (init::AUTO_INVAL_DATA, 10)] {
        let mount = Mount::with(CACHED, Setup { init_flags, ..Setup::default() });
        let mut client = Client::new(&mount);
        let file = client.open("a");

        resize_elsewhere(&mount, 10);
        mount.hold(&[opcode::READ]);
        client.begin_read(file, 0, PAGE);
        mount.wait_for(opcode::READ, 1);
        // It hears of a further change.
        mount.inval_inode(A, -1, 0).unwrap();
        mount.release();
        assert_eq!(client.end_read(), (count, FILL), "flags {init_flags:#x}");
        assert_eq!(client.read(file, 0, PAGE), (count, FILL), "flags {init_flags:#x}, read again");
    }
}

#[test]
fn an_invalidation_of_an_unknown_name_waits_for_a_listing_under_way() {
    let mount = Mount::with(OpenFlags::NONE, Setup { init_flags: init::DO_READDIRPLUS, ..Setup::default() });
    let mut client = Client::new(&mount);
    let directory = client.open_as(".", libc::O_RDONLY | libc::O_DIRECTORY);
    mount.hold(&[opcode::READDIR, opcode::READDIRPLUS]);
    client.begin_list(directory);
    mount.wait_for(opcode::READDIRPLUS, 1);
    let unknown = waits_for_release(&mount, || mount.inval_entry("unknown"));
    assert_eq!(unknown.unwrap_err().raw_os_error(), Some(libc::ENOENT));
    assert_eq!(client.end(), 0);
}

#[test]
fn whether_close_sends_a_flush_is_fixed_at_open() {
    let mount = Mount::new(DIRECT | OpenFlags::NOFLUSH);
    let mut client = Client::new(&mount);
    let without = client.open("a");
    let with = open_as(&mount, &mut client, DIRECT);
    // close(2) returns after the answer to its FLUSH, so what it sends has arrived by then.
    for (file, flushes) in [(without, 0), (with, 1), (without, 0)] {
        let duplicate = client.duplicate(file);
        client.close(duplicate);
        assert_eq!(mount.take_seen(opcode::FLUSH).len(), flushes);
    }
}

#[test]
fn pages_are_kept_from_one_open_to_the_next_if_open_says_so() {
    for (open_flags, kept) in [(CACHED, true), (OpenFlags::NONE, false)] {
        let mount = Mount::new(open_flags);
        let mut client = Client::new(&mount);
        for opened in 0..3 {
            let file = client.open("a");
            assert_eq!(client.read(file, 0, 4 * PAGE), (4 * PAGE as i64, FILL));
            assert_eq!(mount.take_seen(opcode::READ).is_empty(), kept && opened > 0, "{open_flags:?}, open {opened}");
            client.close(file);
        }
    }
}

#[test]
fn an_invalidated_range_is_read_again_and_the_rest_is_not() {
    let mount = Mount::new(CACHED);
    let mut client = Client::new(&mount);
    let file = client.open("a");
    client.read(file, 0, 16 * PAGE);
    mount.take_seen(opcode::READ);

    mount.change(|state| state.a.fill(9));
    // The range begins and ends within a page: pages that it only touches go too.
    mount.inval_inode(A, 4 * PAGE as i64 + 10, 2 * PAGE as i64).unwrap();
    for (page, byte) in [(0, FILL), (3, FILL), (7, FILL), (15, FILL)] {
        assert_eq!(client.read(file, page * PAGE, PAGE), (PAGE as i64, byte), "page {page}");
        assert_eq!(mount.take_seen(opcode::READ), [], "page {page}");
    }
    for page in [6, 5, 4] {
        assert_eq!(client.read(file, page * PAGE, PAGE), (PAGE as i64, 9), "page {page}");
        assert_eq!(mount.take_seen(opcode::READ), [read_of(A, page * PAGE, PAGE)]);
    }
}

#[test]
fn a_direct_write_drops_the_pages_that_it_overlaps() {
    let mount = Mount::new(CACHED);
    let mut client = Client::new(&mount);
    let [cached, direct] = [CACHED, DIRECT].map(|open_flags| open_as(&mount, &mut client, open_flags));
    client.read(cached, 0, 4 * PAGE);
    mount.take_seen(opcode::READ);

    client.write(direct, PAGE, 7);
    assert_eq!(client.read(cached, PAGE, 10), (10, 7), "the cached handle sees the write");
    assert_eq!(mount.take_seen(opcode::READ), [read_of(A, PAGE, PAGE)]);
    client.read(cached, 0, PAGE);
    client.read(cached, 2 * PAGE, 2 * PAGE);
    assert_eq!(mount.take_seen(opcode::READ), [], "other pages stay");
}

#[test]
fn a_page_filled_while_a_direct_write_is_under_way_is_dropped_when_it_is_answered() {
    let mount = Mount::new(CACHED);
    let [(mut reader, cached), (mut writer, direct)] = cached_and_direct(&mount);
    mount.hold(&[opcode::WRITE]);
    writer.begin_write(direct, PAGE, 7);
    mount.wait_for(opcode::WRITE, 1);
    assert_eq!(reader.read(cached, PAGE, 10), (10, FILL), "the server has not written yet");
    mount.take_seen(opcode::READ);
    mount.release();
    assert_eq!(writer.end(), 1);
    assert_eq!(reader.read(cached, PAGE, 10), (10, 7));
    assert_eq!(mount.take_seen(opcode::READ).len(), 1);
}

#[test]
fn a_direct_write_waits_for_a_page_that_is_being_filled() {
    let mount = Mount::new(CACHED);
    let [(mut reader, cached), (mut writer, direct)] = cached_and_direct(&mount);
    mount.hold(&[opcode::READ]);
    reader.begin_read(cached, PAGE, 10);
    mount.wait_for(opcode::READ, 1);
    writer.begin_write(direct, PAGE, 7);
    // The only way to see that nothing happens is to wait.
    thread::sleep(QUIET);
    assert_eq!(mount.take_seen(opcode::WRITE), []);
    mount.release();
    // The page may be dropped before the reader has copied it; then it is read once more.
    assert_eq!(reader.end_read().0, 10);
    assert_eq!(writer.end(), 1);
    assert_eq!(reader.read(cached, PAGE, 10), (10, 7));
}

#[test]
fn mapping_a_direct_handle_drops_the_files_pages() {
    // For a client that lets the kernel keep pages: each such mmap(2) costs the inode its whole cache, cached handles too.
    for kind in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        let mount = Mount::new(CACHED);
        let mut client = Client::new(&mount);
        let [cached, direct] = [CACHED, DIRECT].map(|open_flags| open_as(&mount, &mut client, open_flags));
        client.read(cached, 0, 4 * PAGE);
        client.read(cached, 0, 4 * PAGE);
        mount.take_seen(opcode::READ);
        client.map(direct, PAGE, kind);
        client.read(cached, 2 * PAGE, PAGE);
        assert_eq!(mount.take_seen(opcode::READ), [read_of(A, 2 * PAGE, PAGE)]);
    }
}

#[test]
fn a_private_mapping_of_a_direct_handle_reads_through_the_page_cache() {
    // For a client: such a mapping is no exception. Its pages need the same locks and the same notifications as a shared
    // one's; only what its program stored is the program's own, and is neither written nor dropped.
    let mount = Mount::new(CACHED);
    let mut client = Client::new(&mount);
    let [cached, direct] = [CACHED, DIRECT].map(|open_flags| open_as(&mount, &mut client, open_flags));
    let mapping = client.map(direct, 2 * PAGE, libc::MAP_PRIVATE);
    assert_eq!(client.load(mapping), FILL);
    assert!(!mount.take_seen(opcode::READ).is_empty());
    client.read(cached, 0, PAGE);
    assert_eq!(mount.take_seen(opcode::READ), [], "the mapping's page serves the cached handle");
    client.store(mapping + PAGE, 7);

    mount.change(|state| state.a.fill(9));
    assert_eq!(client.load(mapping), FILL, "nobody has told the kernel");
    mount.inval_inode(A, 0, 0).unwrap();
    assert_eq!(client.load(mapping), 9);
    assert!(!mount.take_seen(opcode::READ).is_empty());
    assert_eq!(
        (client.load(mapping + PAGE), client.load(mapping + PAGE + 1)),
        (7, FILL),
        "a copy of the program's own"
    );
    assert_eq!(mount.take_seen(opcode::WRITE), []);
}
