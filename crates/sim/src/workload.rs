//! Random work of several clients on one tree, each step checked against the POSIX model. Steps run one after another,
//! each on a client drawn at random, so each client must see the changes of all others; the network may do anything
//! meanwhile.

use crate::cluster::Cluster;
use crate::model::{Inode, Model, ROOT, Stat};
use nacre_base::{Errno, Fid, OstIndex, Payload, Prng};
use nacre_client::OpenFile;
use nacre_client::fallocate_mode::{KEEP_SIZE, PUNCH_HOLE};
use nacre_client::open_flags::{O_APPEND, O_CREAT, O_DIRECTORY, O_EXCL, O_RDONLY, O_RDWR};
use nacre_wire::attr::{Attr, Credentials, SetAttr, mode};
use nacre_wire::layout::{ComponentSpec, LayoutSpec, STRIPE_SIZE_MIN};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of a run.
pub struct Workload {
    cluster: Arc<Cluster>,
    prng: Prng,
    model: Model,
    fids: BTreeMap<Inode, Fid>,
    open: Vec<Open>,
    cred: Credentials,
    /// True if targets have little room: operations that take space may be refused with ENOSPC, and then change nothing.
    may_be_full: bool,
    /// The last steps, printed when one fails.
    log: Vec<String>,
}

struct Open {
    client: usize,
    file: Arc<OpenFile>,
    inode: Inode,
    append: bool,
    /// True if a full target cut a write short: the next fsync or close reports that, once.
    owes_error: bool,
}

/// Largest file: a few stripes.
const FILE_MAX: u64 = 600 << 10;
/// Files open at a time.
const OPEN_MAX: usize = 12;
/// Number of different names in a directory, so few that they collide.
const NAMES: u64 = 7;

impl Workload {
    /// Creates work on `cluster` that `seed` determines.
    pub fn new(cluster: Arc<Cluster>, seed: u64) -> Workload {
        let fids = [(ROOT, Fid::ROOT)].into_iter().collect();
        let (prng, model, cred) = (Prng::new(seed), Model::default(), Credentials::root());
        Workload { cluster, prng, model, fids, open: Vec::new(), cred, may_be_full: false, log: Vec::new() }
    }

    /// Sets whether targets have little room.
    pub(crate) fn with_little_room(self, little: bool) -> Workload {
        Workload { may_be_full: little, ..self }
    }

    /// Takes `count` steps. Panics where the file system differs from the model.
    pub async fn run(&mut self, count: u32) {
        for _ in 0..count {
            self.step().await;
        }
    }

    async fn step(&mut self) {
        match self.prng.below(100) {
            0..9 => self.create().await,
            9..14 => self.mkdir().await,
            14..16 => self.symlink().await,
            16..19 => self.link().await,
            19..25 => self.unlink().await,
            25..28 => self.rmdir().await,
            28..35 => self.rename().await,
            35..45 => self.stat().await,
            45..50 => self.readdir().await,
            50..56 => self.open_file().await,
            56..61 => self.close_file().await,
            61..76 => self.write().await,
            76..88 => self.read().await,
            88..92 => self.truncate().await,
            92..94 => self.punch().await,
            94..96 => self.chmod().await,
            96..98 => self.xattr().await,
            _ => self.fsync().await,
        }
    }

    /// Makes everything durable, so that crashes may not take it away.
    pub async fn sync_all(&mut self) {
        self.note("sync all".into());
        // Every client syncs for itself: a client that has not synced its changes must not count on them after a crash.
        for client in 0..self.cluster.client_count() {
            let client = self.cluster.client(client).clone();
            for (path, inode) in self.model.walk() {
                let kind = self.model.stat(inode).kind;
                if kind == 'l' {
                    continue;
                }
                let flags = if kind == 'd' { O_RDONLY | O_DIRECTORY } else { O_RDONLY };
                let file = client.open(&self.cred, self.fids[&inode], flags).await.expect("what has a name opens");
                let synced = client.fsync(&file, false).await;
                synced.unwrap_or_else(|e| panic!("fsync of {}: {e}", show(&path)));
                client.release(file).await.expect("release");
            }
        }
        for o in &self.open {
            self.cluster.client(o.client).fsync(&o.file, false).await.expect("fsync of an open file");
        }
    }

    /// Compares the whole tree and every byte, through every client.
    pub async fn check_all(&mut self) {
        for client in 0..self.cluster.client_count() {
            for (path, inode) in self.model.walk() {
                let path = String::from_utf8_lossy(&path).into_owned();
                self.compare_stat(client, inode, &path).await;
                match self.model.stat(inode).kind {
                    'f' => self.compare_data(client, inode, &path).await,
                    'd' => self.compare_names(client, inode).await,
                    _ => {}
                }
            }
        }
    }

    /// Closes every open file.
    pub async fn close_all(&mut self) {
        while !self.open.is_empty() {
            self.close_file().await;
        }
    }

    fn note(&mut self, text: String) {
        if self.log.len() >= 60 {
            self.log.remove(0);
        }
        let step = format!("{:?} {text}", self.cluster.rt().now());
        tracing::debug!("step: {step}");
        self.log.push(step);
    }

    fn fail(&self, text: String) -> ! {
        panic!("{text}\nlast steps:\n  {}", self.log.join("\n  "));
    }

    /// Checks that both succeeded with the same value, or failed with the same error.
    fn compare<T: PartialEq + std::fmt::Debug>(&self, got: Result<T, Errno>, want: Result<T, Errno>) {
        if got != want {
            self.fail(format!("the file system says {got:?}, POSIX says {want:?}"));
        }
    }

    /// True if the answer is ENOSPC and may be, in which case nothing was changed. It may replace another error that
    /// POSIX has for the call, because POSIX does not say which of two errors is returned.
    fn is_refused<T>(&self, got: &Result<T, Errno>) -> bool {
        self.may_be_full && matches!(got, Err(Errno::ENOSPC))
    }

    fn any_client(&mut self) -> usize {
        self.prng.below(self.cluster.client_count() as u64) as usize
    }

    fn any_name(&mut self) -> Vec<u8> {
        format!("n{}", self.prng.below(NAMES)).into_bytes()
    }

    fn any_dir(&mut self) -> Inode {
        let dirs: Vec<_> =
            self.model.walk().into_iter().map(|(_, i)| i).filter(|i| self.model.stat(*i).kind == 'd').collect();
        *self.prng.pick(&dirs)
    }

    fn any_linked(&mut self) -> Inode {
        let all = self.model.walk();
        self.prng.pick(&all).1
    }

    fn any_layout(&mut self) -> Option<LayoutSpec> {
        let mut c =
            ComponentSpec { end: u64::MAX, stripe_size: STRIPE_SIZE_MIN, stripe_offset: -1, ..Default::default() };
        match self.prng.below(5) {
            0 => return None,
            1 => c.stripe_count = 1,
            2 => c.stripe_count = -1,
            3 => {
                c.stripe_count = self.prng.range(2, 9) as i32;
                c.overstripe = true;
            }
            _ => c.osts = vec![OstIndex(0); self.prng.range(1, 4) as usize],
        }
        c.overstripe |= c.osts.len() > 1;
        Some(LayoutSpec { components: vec![c] })
    }

    async fn create(&mut self) {
        let (c, dir, name, layout) = (self.any_client(), self.any_dir(), self.any_name(), self.any_layout());
        let exclusive = if self.prng.one_in(2) { O_EXCL } else { 0 };
        self.note(format!("client {c}: create {} in {dir}, exclusive {exclusive:#x}, {layout:?}", show(&name)));
        let flags = O_CREAT | O_RDWR | exclusive;
        let client = self.cluster.client(c).clone();
        let got = client.create(&self.cred, self.fids[&dir], &name, flags, 0o644, 0, layout).await;
        if self.model.lookup(dir, &name).is_err() && self.is_refused(&got) {
            return;
        }
        let want = match self.model.lookup(dir, &name) {
            Ok(_) if exclusive != 0 => Err(Errno::EEXIST),
            Ok(i) => match self.model.stat(i).kind {
                'f' => Ok(i),
                'd' => Err(Errno::EISDIR),
                _ => Err(Errno::ELOOP),
            },
            Err(_) => self.model.create(dir, &name, 0o644),
        };
        match (got, want) {
            (Ok((attr, file)), Ok(inode)) => {
                self.learn(inode, &attr);
                self.keep_open(c, file, inode, false).await;
            }
            (Err(got), Err(want)) => self.compare::<()>(Err(got), Err(want)),
            (got, want) => self.fail(format!("create gives {:?}, POSIX {want:?}", got.map(|(a, _)| a))),
        }
    }

    /// Checks that the FID of a node never changes and belongs to no other node.
    fn learn(&mut self, inode: Inode, attr: &Attr) {
        let known = *self.fids.entry(inode).or_insert(attr.fid);
        if known != attr.fid {
            self.fail(format!("node {inode} was {known}, now it is {}", attr.fid));
        }
    }

    async fn keep_open(&mut self, client: usize, file: Arc<OpenFile>, inode: Inode, append: bool) {
        self.open.push(Open { client, file, inode, append, owes_error: false });
        if self.open.len() > OPEN_MAX {
            self.close_file().await;
        }
    }

    async fn made(&mut self, got: Result<Attr, Errno>, want: Result<Inode, Errno>) {
        match (got, want) {
            (Ok(attr), Ok(inode)) => self.learn(inode, &attr),
            (got, want) => self.compare(got.map(|_| ()), want.map(|_| ())),
        }
    }

    async fn mkdir(&mut self) {
        let (c, dir, name) = (self.any_client(), self.any_dir(), self.any_name());
        self.note(format!("client {c}: mkdir {} in {dir}", show(&name)));
        let got = self.cluster.client(c).mkdir(&self.cred, self.fids[&dir], &name, 0o755, 0).await;
        if self.is_refused(&got) {
            return;
        }
        let want = self.model.mkdir(dir, &name, 0o755);
        self.made(got, want).await;
    }

    async fn symlink(&mut self) {
        let (c, dir, name, target) = (self.any_client(), self.any_dir(), self.any_name(), self.any_name());
        self.note(format!("client {c}: symlink {} in {dir}", show(&name)));
        let got = self.cluster.client(c).symlink(&self.cred, self.fids[&dir], &name, &target).await;
        if self.is_refused(&got) {
            return;
        }
        let want = self.model.symlink(dir, &name, &target);
        self.made(got, want).await;
    }

    async fn link(&mut self) {
        let (c, dir, name, inode) = (self.any_client(), self.any_dir(), self.any_name(), self.any_linked());
        self.note(format!("client {c}: link {inode} as {} in {dir}", show(&name)));
        let got = self.cluster.client(c).link(&self.cred, self.fids[&inode], self.fids[&dir], &name).await;
        if self.is_refused(&got) {
            return;
        }
        let want = self.model.link(inode, dir, &name);
        // A directory and a taken name are both errors; which one is reported first is not specified.
        let either = |e| if e == Errno::EEXIST { Errno::EPERM } else { e };
        self.compare(got.map(|_| ()).map_err(either), want.map_err(either));
    }

    async fn unlink(&mut self) {
        let (c, dir, name) = (self.any_client(), self.any_dir(), self.any_name());
        self.note(format!("client {c}: unlink {} in {dir}", show(&name)));
        let got = self.cluster.client(c).unlink(&self.cred, self.fids[&dir], &name).await;
        let want = self.model.unlink(dir, &name);
        self.compare(got, want);
    }

    async fn rmdir(&mut self) {
        let (c, dir, name) = (self.any_client(), self.any_dir(), self.any_name());
        self.note(format!("client {c}: rmdir {} in {dir}", show(&name)));
        let got = self.cluster.client(c).rmdir(&self.cred, self.fids[&dir], &name).await;
        let want = self.model.rmdir(dir, &name);
        self.compare(got, want);
    }

    async fn rename(&mut self) {
        let (c, from, to) = (self.any_client(), self.any_dir(), self.any_dir());
        let (old, new) = (self.any_name(), self.any_name());
        self.note(format!("client {c}: rename {} in {from} to {} in {to}", show(&old), show(&new)));
        let client = self.cluster.client(c).clone();
        let got = client.rename(&self.cred, self.fids[&from], &old, self.fids[&to], &new, 0).await;
        if self.is_refused(&got) {
            return;
        }
        let want = self.model.rename(from, &old, to, &new);
        // POSIX allows either error for a directory in the way that is not empty, or an ancestor.
        let either = |e| if matches!(e, Errno::EEXIST | Errno::EISDIR) { Errno::ENOTEMPTY } else { e };
        self.compare(got.map_err(either), want.map_err(either));
    }

    async fn stat(&mut self) {
        let (c, dir, name) = (self.any_client(), self.any_dir(), self.any_name());
        self.note(format!("client {c}: lookup {} in {dir}", show(&name)));
        let got = self.cluster.client(c).lookup(&self.cred, self.fids[&dir], &name).await;
        let want = self.model.lookup(dir, &name);
        if let (Ok(attr), Ok(inode)) = (&got, &want) {
            self.learn(*inode, attr);
        }
        self.compare(got.map(|a| to_stat(&a)), want.map(|i| self.model.stat(i)));
        if let Some(inode) = self.model.lookup(dir, &name).ok().filter(|i| self.model.stat(*i).kind == 'l') {
            let got = self.cluster.client(c).readlink(&self.cred, self.fids[&inode]).await;
            self.compare(got.map(|t| t.to_vec()), self.model.readlink(inode));
        }
    }

    async fn readdir(&mut self) {
        let (c, dir) = (self.any_client(), self.any_dir());
        self.note(format!("client {c}: readdir {dir}"));
        self.compare_names(c, dir).await;
    }

    async fn compare_names(&mut self, client: usize, dir: Inode) {
        let mut names = Vec::new();
        let mut cookie = 0;
        let fid = self.fids[&dir];
        // Small replies, so that a listing takes several.
        let max_bytes = self.prng.range(200, 2000) as u32;
        loop {
            let client = self.cluster.client(client).clone();
            let reply = match client.readdir(&self.cred, fid, cookie, false, max_bytes).await {
                Ok(r) => r,
                Err(e) => self.fail(format!("readdir of {dir}: {e}")),
            };
            for e in &reply.entries {
                if e.cookie <= cookie {
                    self.fail(format!("cookie {} after {cookie}", e.cookie));
                }
                cookie = e.cookie;
                if !matches!(&e.name[..], b"." | b"..") {
                    names.push((e.name.to_vec(), kind_of(e.file_type)));
                }
            }
            if reply.end {
                break;
            }
            if reply.entries.is_empty() {
                self.fail("an empty answer that is not the last".into());
            }
        }
        names.sort();
        self.compare(Ok(names), self.model.readdir(dir));
    }

    async fn compare_stat(&mut self, client: usize, inode: Inode, path: &str) {
        self.note(format!("client {client}: getattr {path}"));
        let got = self.cluster.client(client).getattr(&self.cred, self.fids[&inode]).await;
        self.compare(got.map(|a| to_stat(&a)), Ok(self.model.stat(inode)));
    }

    async fn compare_data(&mut self, client: usize, inode: Inode, path: &str) {
        self.note(format!("client {client}: read all of {path}"));
        let client = self.cluster.client(client).clone();
        let file = match client.open(&self.cred, self.fids[&inode], O_RDONLY).await {
            Ok(f) => f,
            Err(e) => self.fail(format!("open of {path}: {e}")),
        };
        let got = client.read(&file, 0, FILE_MAX as usize * 2).await;
        client.release(file).await.expect("release");
        self.compare_bytes(got, self.model.read(inode, 0, FILE_MAX as usize * 2));
    }

    fn compare_bytes(&self, got: Result<Payload, Errno>, want: Result<Vec<u8>, Errno>) {
        let got = got.map(|p| p.to_bytes());
        match (&got, &want) {
            (Ok(g), Ok(w)) if g[..] == w[..] => {}
            (Ok(g), Ok(w)) => {
                let differs = |at: &usize| g.get(*at) != w.get(*at);
                let at = || (0..g.len().max(w.len())).filter(differs);
                let (first, last) = (at().next().unwrap_or(0), at().next_back().unwrap_or(0));
                let zeroes = at().filter(|at| g.get(*at) == Some(&0)).count();
                self.fail(format!(
                    "{} bytes read, {} expected; of bytes {first} to {last}, {} differ, and {zeroes} of them are zeroes",
                    g.len(),
                    w.len(),
                    at().count()
                ));
            }
            _ => self.compare(got.map(|b| b.to_vec()), want),
        }
    }

    async fn open_file(&mut self) {
        let (c, inode) = (self.any_client(), self.any_linked());
        let append = self.prng.one_in(4);
        let flags = O_RDWR | if append { O_APPEND } else { 0 };
        self.note(format!("client {c}: open {inode} with {flags:#x}"));
        let got = self.cluster.client(c).open(&self.cred, self.fids[&inode], flags).await;
        match (got, self.model.stat(inode).kind) {
            (Ok(file), 'f') => self.keep_open(c, file, inode, append).await,
            (Err(Errno::EISDIR), 'd') | (Err(Errno::ELOOP), 'l') => {}
            (got, kind) => self.fail(format!("open of a node of kind {kind} gives {:?}", got.map(|_| ()))),
        }
    }

    fn any_open(&mut self) -> Option<usize> {
        let n = self.open.len() as u64;
        (n > 0).then(|| self.prng.below(n) as usize)
    }

    async fn close_file(&mut self) {
        if let Some(at) = self.any_open() {
            self.close_at(at).await;
        }
    }

    async fn close_at(&mut self, at: usize) {
        let o = self.open.swap_remove(at);
        self.note(format!("client {}: close {}", o.client, o.inode));
        let client = self.cluster.client(o.client).clone();
        let flushed = client.flush(&o.file).await;
        let expected = if o.owes_error { Err(Errno::ENOSPC) } else { Ok(()) };
        self.compare(flushed, expected);
        let released = client.release(o.file).await;
        self.compare(released, Ok(()));
    }

    fn any_range(&mut self) -> (u64, usize) {
        let len = match self.prng.below(4) {
            0 => self.prng.range(1, 100),
            1 => self.prng.range(1, 20_000),
            2 => self.prng.range(1, 200_000),
            _ => 65536,
        };
        let mut offset = self.prng.below(FILE_MAX - len);
        if self.prng.one_in(2) {
            offset &= !0xfff;
        }
        (offset, len as usize)
    }

    async fn write(&mut self) {
        let Some(at) = self.any_open() else { return };
        let (offset, len) = self.any_range();
        let start = self.prng.next_u64();
        let bytes: Vec<u8> = (0..len as u64).map(|i| (start.wrapping_add(i.wrapping_mul(31)) >> 3) as u8).collect();
        let (client, inode, append) = (self.open[at].client, self.open[at].inode, self.open[at].append);
        let size = self.model.stat(inode).size;
        if append && size + len as u64 > FILE_MAX * 2 {
            return;
        }
        self.note(format!("client {client}: write {len} at {offset} of {inode}, append {append}"));
        let payload = Payload::from(bytes.clone());
        let got = self.cluster.client(client).clone().write(&self.open[at].file, offset, payload).await;
        match got {
            Ok(some) if self.may_be_full && some < len => {
                self.open[at].owes_error = true;
                return self.learn_part(at, offset, &bytes, some).await;
            }
            Err(Errno::ENOSPC) if self.may_be_full => return self.learn_part(at, offset, &bytes, 0).await,
            got => self.compare(got, Ok(len)),
        }
        let done = if append { self.model.append(inode, &bytes) } else { self.model.write(inode, offset, &bytes) };
        done.expect("an open file");
    }

    /// Learns the effect of a write on a full target: `done` bytes were written, and an unspecified part of the others.
    /// Nothing else has changed.
    async fn learn_part(&mut self, at: usize, offset: u64, bytes: &[u8], done: usize) {
        let Open { client, inode, append, .. } = self.open[at];
        let size = self.model.stat(inode).size;
        let begin = if append { size } else { offset } as usize;
        let end = begin + bytes.len();
        self.note(format!("client {client}: {done} of {} bytes written at {begin} of {inode}", bytes.len()));
        let read =
            self.cluster.client(client).clone().read(&self.open[at].file, 0, 2 * FILE_MAX as usize + (1 << 20)).await;
        let found = match read {
            Ok(found) => found.to_bytes(),
            Err(e) => self.fail(format!("read after ENOSPC: {e}")),
        };
        let least = if done > 0 { size.max((begin + done) as u64) } else { size } as usize;
        if !(least..=end.max(size as usize)).contains(&found.len()) {
            self.fail(format!(
                "{} bytes, after {size} were there and {done} of {begin}..{end} were written",
                found.len()
            ));
        }
        let mut before = self.model.read(inode, 0, size as usize).expect("an open file");
        before.resize(found.len(), 0);
        for (i, (now, old)) in found.iter().zip(&before).enumerate() {
            let new = i.checked_sub(begin).and_then(|i| bytes.get(i));
            let is_written = i < begin + done && new.is_some();
            if !(new == Some(now) || !is_written && now == old) {
                self.fail(format!("byte {i} is neither the old nor the new one"));
            }
        }
        self.model.write(inode, 0, &found).expect("an open file");
    }

    async fn read(&mut self) {
        let Some(at) = self.any_open() else { return };
        let (offset, len) = self.any_range();
        let (client, inode) = (self.open[at].client, self.open[at].inode);
        self.note(format!("client {client}: read {len} at {offset} of {inode}"));
        let got = self.cluster.client(client).clone().read(&self.open[at].file, offset, len).await;
        self.compare_bytes(got, self.model.read(inode, offset, len));
    }

    async fn truncate(&mut self) {
        let (c, inode, size) = (self.any_client(), self.any_linked(), self.prng.below(FILE_MAX));
        if self.model.stat(inode).kind != 'f' {
            return;
        }
        self.note(format!("client {c}: truncate {inode} to {size}"));
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let got = self.cluster.client(c).setattr(&self.cred, self.fids[&inode], set, None).await;
        let want = self.model.truncate(inode, size).map(|()| self.model.stat(inode));
        self.compare(got.map(|a| to_stat(&a)), want);
    }

    async fn punch(&mut self) {
        let Some(at) = self.any_open() else { return };
        let (offset, len) = self.any_range();
        let (client, inode) = (self.open[at].client, self.open[at].inode);
        self.note(format!("client {client}: punch {len} at {offset} of {inode}"));
        let mode = PUNCH_HOLE | KEEP_SIZE;
        let got = self.cluster.client(client).clone().fallocate(&self.open[at].file, mode, offset, len as u64).await;
        self.compare(got, self.model.clone().punch(inode, offset, len as u64));
        self.model.punch(inode, offset, len as u64).expect("an open file");
    }

    async fn chmod(&mut self) {
        let (c, inode) = (self.any_client(), self.any_linked());
        if self.model.stat(inode).kind == 'l' {
            return;
        }
        let mode = self.prng.below(0o1000) as u32;
        self.note(format!("client {c}: chmod {inode} to {mode:o}"));
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let got = self.cluster.client(c).setattr(&self.cred, self.fids[&inode], set, None).await;
        self.model.chmod(inode, mode);
        self.compare(got.map(|a| to_stat(&a)), Ok(self.model.stat(inode)));
    }

    async fn xattr(&mut self) {
        let (c, inode) = (self.any_client(), self.any_linked());
        if self.model.stat(inode).kind == 'l' {
            return;
        }
        let (name, fid) = (format!("user.x{}", self.prng.below(3)), self.fids[&inode]);
        if self.prng.one_in(2) {
            let value = vec![7; self.prng.range(1, 300) as usize];
            self.note(format!("client {c}: set {name} of {inode}"));
            let got = self.cluster.client(c).setxattr(&self.cred, fid, name.as_bytes(), &value, 0).await;
            if self.is_refused(&got) {
                return;
            }
            self.compare(got, Ok(()));
            self.model.set_xattr(inode, &name, &value);
        } else {
            self.note(format!("client {c}: get {name} of {inode}"));
            let got = self.cluster.client(c).getxattr(&self.cred, fid, name.as_bytes()).await;
            self.compare(got.map(|v| v.to_vec()), self.model.get_xattr(inode, &name));
        }
    }

    async fn fsync(&mut self) {
        let Some(at) = self.any_open() else { return };
        let client = self.open[at].client;
        self.note(format!("client {client}: fsync {}", self.open[at].inode));
        let got = self.cluster.client(client).clone().fsync(&self.open[at].file, false).await;
        let owes_error = std::mem::take(&mut self.open[at].owes_error);
        self.compare(got, if owes_error { Err(Errno::ENOSPC) } else { Ok(()) });
    }
}

fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn kind_of(file_type: u32) -> char {
    match file_type & mode::S_IFMT {
        mode::S_IFDIR => 'd',
        mode::S_IFLNK => 'l',
        _ => 'f',
    }
}

fn to_stat(a: &Attr) -> Stat {
    let kind = kind_of(a.mode);
    let size = if kind == 'd' { 0 } else { a.size };
    Stat { kind, nlink: a.nlink, mode: a.mode & 0o7777, size }
}
