//! One script of system calls, run on the real kernel and on the model of it that the simulator uses: both must return the same to
//! programs, and ask the server for the same.

use crate::client::{Client, Handle};
use crate::messages::{init, opcode};
use crate::server::{A, FILL, Mount, PAGE, Seen, Setup};
use crate::{CACHED, DIRECT, open_as};
use async_trait::async_trait;
use bytes::Bytes;
use nacre_base::{Errno, Time};
use nacre_kernel_model::{Attributes, File, Kernel, Opened, Server};
use nacre_rt::Sim;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A system call, an access to the mapping, or something that happens at the server.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Opens the file for reading and writing. The first two opens make handles 0 and 1.
    Open {
        direct: bool,
    },
    /// Maps three pages through handle 0.
    Map,
    Load(usize),
    Store(usize, u8),
    Sync,
    Read(usize, usize),
    Write(usize, usize, u8),
    Truncate(usize),
    Stat,
    /// The kernel is told to forget attributes and all pages.
    Forget,
    /// Another client changes the size, and the kernel is told.
    Resize(usize),
    LongReadsFail(bool),
    WritesFail(bool),
}

const SCRIPT: &[Step] = {
    use Step::*;
    &[
        Open { direct: false },
        Read(0, 0),
        Read(0, 8),
        Forget,
        Read(0, 0),
        Open { direct: true },
        Read(0, 0),
        Write(1, 8, 5),
        Read(0, 8),
        Read(1, 8),
        Map,
        Load(8),
        Store(16, 7),
        Load(16),
        Read(0, 16),
        Read(1, 16),
        Store(24, 8),
        Sync,
        Sync,
        Forget,
        Load(24),
        Store(24, 9),
        Forget,
        Resize(96),
        Load(0),
        Load(96),
        Stat,
        Store(8, 3),
        Sync,
        Resize(3 * PAGE),
        Stat,
        Load(0),
        Load(PAGE),
        Forget,
        LongReadsFail(true),
        Load(0),
        LongReadsFail(false),
        Forget,
        Load(0),
        WritesFail(true),
        Store(0, 4),
        Sync,
        WritesFail(false),
        Sync,
        Truncate(PAGE),
        Load(0),
        Read(0, 0),
        Store(40, 1),
        Truncate(2 * PAGE),
        Load(40),
        Load(PAGE),
    ]
};

/// What a step returned, and the requests that it caused.
type Outcome = (i64, Vec<(u32, usize, usize)>);

/// Requests that both sides must send.
const COMPARED: [u32; 4] = [opcode::READ, opcode::WRITE, opcode::GETATTR, opcode::SETATTR];

#[test]
fn the_model_does_what_the_kernel_does() {
    let (real, model) = (run_on_the_kernel(), run_on_the_model());
    for (n, step) in SCRIPT.iter().enumerate() {
        assert_eq!(model[n], real[n], "step {n}, {step:?}: the model, and the kernel");
    }
}

fn run_on_the_kernel() -> Vec<Outcome> {
    let setup = Setup { init_flags: init::AUTO_INVAL_DATA, ..Setup::default() };
    let mount = Mount::with(CACHED, setup);
    mount.change(|state| state.a.truncate(PAGE));
    let mut client = Client::new(&mount);
    let (mut handles, mut mapping) = (Vec::<Handle>::new(), 0);
    let outcome = |step: &Step| {
        let result = match *step {
            Step::Open { direct } => {
                let handle = open_as(&mount, &mut client, if direct { DIRECT } else { CACHED });
                handles.push(handle);
                0
            }
            Step::Map => {
                mapping = client.map(handles[0], 3 * PAGE, libc::MAP_SHARED);
                0
            }
            Step::Load(at) => client.load(mapping + at).into(),
            Step::Store(at, byte) => {
                client.store(mapping + at, byte);
                0
            }
            Step::Sync => client.sync(mapping, 3 * PAGE),
            Step::Read(handle, at) => client.read(handles[handle], at, 1).1.into(),
            Step::Write(handle, at, byte) => {
                client.write(handles[handle], at, byte);
                0
            }
            Step::Truncate(len) => {
                client.begin_truncate(handles[1], len);
                client.end()
            }
            Step::Stat => {
                client.stat("a");
                0
            }
            Step::Forget => mount.inval_inode(A, 0, 0).map(|()| 0).unwrap(),
            Step::Resize(len) => {
                mount.change(|state| state.a.resize(len, FILL));
                mount.inval_inode(A, 0, 0).map(|()| 0).unwrap()
            }
            Step::LongReadsFail(fail) => {
                mount.change(|state| state.long_reads_fail = fail);
                0
            }
            Step::WritesFail(fail) => {
                mount.change(|state| state.writes_fail = fail);
                0
            }
        };
        let mut seen = Vec::new();
        mount.change(|state| seen = state.take_all_seen());
        (result, compared(seen))
    };
    SCRIPT.iter().map(outcome).collect()
}

fn compared(seen: Vec<Seen>) -> Vec<(u32, usize, usize)> {
    let compared = seen.into_iter().filter(|seen| COMPARED.contains(&seen.opcode));
    compared.map(|seen| (seen.opcode, seen.offset, seen.size)).collect()
}

/// The server of the other tests, as far as the script needs it.
struct Simple(Mutex<SimpleState>);

struct SimpleState {
    bytes: Vec<u8>,
    long_reads_fail: bool,
    writes_fail: bool,
    seen: Vec<Seen>,
    handles: u64,
    direct: bool,
}

impl Simple {
    fn see(&self, opcode: u32, offset: u64, size: u64) -> std::sync::MutexGuard<'_, SimpleState> {
        let mut state = self.0.lock().unwrap();
        state.seen.push(Seen { opcode, node: A, offset: offset as usize, size: size as usize });
        state
    }
}

fn attributes(state: &SimpleState) -> Attributes {
    Attributes { size: state.bytes.len() as u64, mtime: (0, 0), valid: Duration::from_secs(3600) }
}

#[async_trait]
impl Server for Simple {
    async fn get_attr(&self, _: u64) -> Result<Attributes, Errno> {
        Ok(attributes(&self.see(opcode::GETATTR, 0, 0)))
    }
    async fn set_size(&self, _: u64, _: u64, size: u64) -> Result<Attributes, Errno> {
        let mut state = self.see(opcode::SETATTR, 0, 0);
        state.bytes.resize(size as usize, 0);
        Ok(attributes(&state))
    }
    async fn open(&self, _: u64, _: u32) -> Result<Opened, Errno> {
        let mut state = self.see(opcode::OPEN, 0, 0);
        state.handles += 1;
        Ok(Opened { handle: state.handles, direct: state.direct, keeps: !state.direct })
    }
    async fn read(&self, _: u64, _: u64, offset: u64, size: u64, _: bool) -> Result<Bytes, Errno> {
        let state = self.see(opcode::READ, offset, size);
        if state.long_reads_fail && size as usize > PAGE {
            return Err(Errno::EAGAIN);
        }
        let end = state.bytes.len().min((offset + size) as usize);
        Ok(Bytes::copy_from_slice(&state.bytes[end.min(offset as usize)..end]))
    }
    async fn write(&self, _: u64, _: u64, offset: u64, data: Bytes, _: bool) -> Result<usize, Errno> {
        let mut state = self.see(opcode::WRITE, offset, data.len() as u64);
        if state.writes_fail {
            return Err(Errno::EIO);
        }
        let (start, end) = (offset as usize, offset as usize + data.len());
        let len = state.bytes.len().max(end);
        state.bytes.resize(len, 0);
        state.bytes[start..end].copy_from_slice(&data);
        Ok(data.len())
    }
    async fn flush(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }
    async fn fsync(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }
    async fn release(&self, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }
}

fn run_on_the_model() -> Vec<Outcome> {
    let mut sim = Sim::new(1);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(1000), async move {
        let (bytes, seen) = (vec![FILL; PAGE], Vec::new());
        let state = SimpleState { bytes, long_reads_fail: false, writes_fail: false, seen, handles: 0, direct: false };
        let server = Arc::new(Simple(Mutex::new(state)));
        let kernel = Kernel::new(&rt, server.clone(), 1);
        let told = attributes(&server.0.lock().unwrap());
        kernel.looked_up(A, told);
        let (mut files, mut outcomes) = (Vec::<File>::new(), Vec::new());
        for step in SCRIPT {
            let result = match *step {
                Step::Open { direct } => {
                    server.0.lock().unwrap().direct = direct;
                    files.push(kernel.open(A, libc::O_RDWR as u32).await.unwrap());
                    0
                }
                Step::Map => {
                    kernel.map(&files[0]).await;
                    0
                }
                Step::Load(at) => kernel.load(&files[0], at as u64, |value| value as u8).await.unwrap().into(),
                Step::Store(at, byte) => {
                    kernel.store(&files[0], at as u64, byte.into(), || ()).await.unwrap();
                    0
                }
                Step::Sync => kernel.sync(&files[0]).await.map_or_else(|error| -i64::from(error.0), |()| 0),
                Step::Read(handle, at) => kernel.read(&files[handle], at as u64, 1).await.unwrap()[0].into(),
                Step::Write(handle, at, byte) => {
                    kernel.write(&files[handle], at as u64, Bytes::copy_from_slice(&[byte])).await.unwrap();
                    0
                }
                Step::Truncate(len) => kernel.truncate(&files[1], len as u64).await.map(|()| 0).unwrap(),
                Step::Stat => kernel.stat(&files[0]).await.map(|_| 0).unwrap(),
                Step::Forget => kernel.inval_inode(A, 0, 0).await.map(|()| 0).unwrap(),
                Step::Resize(len) => {
                    server.0.lock().unwrap().bytes.resize(len, FILL);
                    kernel.inval_inode(A, 0, 0).await.map(|()| 0).unwrap()
                }
                Step::LongReadsFail(fail) => {
                    server.0.lock().unwrap().long_reads_fail = fail;
                    0
                }
                Step::WritesFail(fail) => {
                    server.0.lock().unwrap().writes_fail = fail;
                    0
                }
            };
            let seen = std::mem::take(&mut server.0.lock().unwrap().seen);
            outcomes.push((result, compared(seen)));
        }
        outcomes
    })
}
