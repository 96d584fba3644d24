//! Coherence: four clients make random changes and remember what they learn under their locks. Whatever one of them
//! believes under a lock agrees with the tables at every step.

use super::super::name;
use super::cluster::*;
use super::holder::*;
use crate::mdt::Mdt;
use crate::tables;
use nacre_base::fault::{Fault, FaultAction};
use nacre_base::{Errno, Fid, Prng, Time};
use nacre_rt::{Rt, Sim};
use nacre_wire::Opcode;
use nacre_wire::attr::{Attr, Credentials, SetAttr, mode};
use nacre_wire::layout::Layout;
use nacre_wire::ldlm::inode_bits::{LAYOUT, LOOKUP, PERM, UPDATE};
use nacre_wire::mds::open_flags::{O_CREAT, O_RDWR, O_TRUNC};
use nacre_wire::mds::*;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

const CLIENTS: u64 = 4;
const STEPS: usize = 400;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Lock under which something is believed: as long as the bit is held and was not lost since.
#[derive(Clone, Copy)]
struct Under {
    fid: Fid,
    bit: u64,
    losses: u64,
}

/// A directory and a name in it.
type Name = (Fid, &'static str);

#[derive(Default)]
struct Beliefs {
    attrs: BTreeMap<Fid, (Attr, Option<Layout>, Vec<Under>)>,
    names: BTreeMap<Name, (Option<Fid>, Vec<Under>)>,
    listings: BTreeMap<Fid, (Vec<(String, Fid)>, Under)>,
}

struct Player {
    holder: Holder,
    beliefs: Mutex<Beliefs>,
    /// True while a change of its own is under way, which makes its beliefs uncertain.
    busy: Mutex<bool>,
}

struct Game {
    rt: Rt,
    mdt: Arc<Mdt>,
    players: Vec<Player>,
    /// Every inode that ever existed.
    fids: Mutex<Vec<Fid>>,
    /// Number of beliefs that were compared with the tables.
    compared: Mutex<usize>,
    succeeded: Mutex<usize>,
}

/// The number of losses of each bit at the time a player sent a request.
struct Since(BTreeMap<(Fid, u64), u64>);

impl Player {
    /// The present numbers, for all inodes of the game.
    fn since(&self, fids: &[Fid]) -> Since {
        let inner = self.holder.state.inner.lock();
        let bits = [LOOKUP, UPDATE, PERM, LAYOUT];
        Since(fids.iter().flat_map(|f| bits.map(|b| ((*f, b), inner.losses(*f, b)))).collect())
    }

    fn holds(&self, under: &Under) -> bool {
        let inner = self.holder.state.inner.lock();
        inner.bits(under.fid) & under.bit != 0 && inner.losses(under.fid, under.bit) == under.losses
    }

    fn under(since: &Since, fid: Fid, bits: u64) -> Vec<Under> {
        let each = [LOOKUP, UPDATE, PERM, LAYOUT].into_iter().filter(|b| bits & b != 0);
        each.map(|bit| Under { fid, bit, losses: since.0.get(&(fid, bit)).copied().unwrap_or(0) }).collect()
    }

    fn learn_attr(&self, since: &Since, reply: &AttrReply) {
        let bits = reply.lock.as_ref().map_or(0, |l| l.bits);
        let under = Self::under(since, reply.attr.fid, bits);
        self.beliefs.lock().attrs.insert(reply.attr.fid, (reply.attr.clone(), reply.layout.clone(), under));
    }

    /// Learns the inode that a name leads to, under the lock on the directory and under that on the inode.
    fn learn_name(&self, since: &Since, parent: Fid, n: &'static str, to: Option<Fid>, child_bits: u64) {
        let mut under = Self::under(since, parent, UPDATE);
        under.extend(to.into_iter().flat_map(|fid| Self::under(since, fid, child_bits & LOOKUP)));
        // A lock that comes later does not vouch for what was learnt before.
        under.retain(|u| self.holds(u));
        self.beliefs.lock().names.insert((parent, n), (to, under));
    }

    /// Learns where names lead, one after the other, and the directories that came ahead.
    fn learn_lookup(&self, since: &Since, asked: &GetattrName, reply: &LookupReply) {
        let (mut directory, mut found) = (asked.parent, reply.found.as_ref());
        let further = reply.below.iter().map(|below| below.found.as_ref());
        for (n, next) in std::iter::once(&asked.name).chain(&asked.below).zip(std::iter::once(found).chain(further)) {
            found = next;
            found.iter().for_each(|f| self.learn_attr(since, f));
            let n = NAMES.iter().find(|known| known.as_bytes() == &n[..]).unwrap();
            let bits = found.and_then(|f| f.lock.as_ref()).map_or(0, |l| l.bits);
            self.learn_name(since, directory, n, found.map(|f| f.attr.fid), bits);
            directory = found.map_or(Fid::ZERO, |f| f.attr.fid);
        }
        reply.pages.iter().for_each(|p| self.learn_page(since, p.fid, &p.page));
    }

    /// Learns the entries of a directory.
    fn learn_page(&self, since: &Since, directory: Fid, page: &ReadpageReply) {
        page.entries.iter().filter_map(|e| e.attr.as_ref()).for_each(|a| self.learn_attr(since, a));
        let entry = |e: &DirEntry| (String::from_utf8_lossy(&e.name).into_owned(), e.fid);
        let entries = page.entries[2..].iter().map(entry).collect();
        let under = Self::under(since, directory, UPDATE)[0];
        if page.end && self.holds(&under) {
            self.beliefs.lock().listings.insert(directory, (entries, under));
        }
    }

    /// Forgets inodes that the player changed itself, because no callback comes for that.
    fn forget(&self, fids: &[Fid]) {
        let mut beliefs = self.beliefs.lock();
        for fid in fids {
            beliefs.attrs.remove(fid);
            beliefs.listings.remove(fid);
        }
    }

    /// Compares the beliefs with the tables. Returns how many there were.
    fn check(&self, tx: &dyn nacre_osd::Transaction, what: &str) -> usize {
        let beliefs = self.beliefs.lock();
        let mut compared = 0;
        for (fid, (attr, layout, under)) in &beliefs.attrs {
            let inode = tables::inode(tx, *fid).unwrap();
            for under in under.iter().filter(|u| self.holds(u)) {
                compared += 1;
                match (&inode, under.bit) {
                    (Some(i), UPDATE) => assert_eq!(*attr, i.attr(*fid), "{what}"),
                    (Some(i), PERM) => assert_eq!((attr.mode, attr.uid), (i.mode, i.uid), "{what}"),
                    (Some(i), LAYOUT) => assert_eq!(*layout, i.layout, "{what}"),
                    (None, UPDATE) => panic!("{what}: {fid} is gone"),
                    _ => {}
                }
            }
        }
        for ((parent, n), (to, under)) in beliefs.names.iter().filter(|(_, (_, u))| u.iter().any(|u| self.holds(u))) {
            compared += 1;
            let entry = tables::dirent(tx, *parent, n.as_bytes()).unwrap();
            let by: Vec<_> = under.iter().filter(|u| self.holds(u)).map(|u| (u.fid, u.bit)).collect();
            assert_eq!(*to, entry.map(|e| e.fid), "{what}: {parent}/{n} by {by:?}");
        }
        for (directory, (entries, _)) in beliefs.listings.iter().filter(|(_, (_, u))| self.holds(u)) {
            compared += 1;
            let mut found = Vec::new();
            tables::scan_dirents(tx, *directory, 0, &mut |_, n, e| {
                found.push((String::from_utf8_lossy(n).into_owned(), e.fid));
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(*entries, found, "{what}: entries of {directory}");
        }
        compared
    }
}

impl Game {
    /// Checks at a turn of its own, when no operation is half done.
    async fn check(&self, what: &str) {
        let operation = self.mdt.target().begin().await.unwrap();
        for player in self.players.iter().filter(|p| !*p.busy.lock()) {
            *self.compared.lock() += player.check(&*operation, what);
        }
    }

    async fn play(self: Arc<Game>, at: usize, seed: u64) {
        let mut prng = Prng::new(seed * 100 + at as u64);
        let player = &self.players[at];
        for step in 0..STEPS {
            player.holder.set_manners(*prng.pick(&[Manners::GivesBack, Manners::Converts]));
            *player.busy.lock() = true;
            let what = format!("seed {seed} player {at} step {step}");
            let done = self.step(player, &mut prng).await;
            *player.busy.lock() = false;
            *self.succeeded.lock() += usize::from(done.is_ok());
            self.check(&what).await;
            self.rt.sleep(std::time::Duration::from_micros(prng.below(2000))).await;
        }
    }

    fn fid(&self, prng: &mut Prng) -> Fid {
        let fids = self.fids.lock();
        // Mostly recent ones.
        if prng.one_in(3) { fids[prng.below(4) as usize % fids.len()] } else { *prng.pick(&fids) }
    }

    async fn step(&self, player: &Player, prng: &mut Prng) -> Result<(), Errno> {
        match prng.below(10) {
            0..5 => self.look(player, prng).await,
            _ => self.change(player, prng).await,
        }
    }

    async fn look(&self, player: &Player, prng: &mut Prng) -> Result<(), Errno> {
        let since = player.since(&self.fids.lock());
        let (fid, n) = (self.fid(prng), *prng.pick(&NAMES));
        let want = *prng.pick(&[0, ATTR, ATTR, LOOKUP, UPDATE, PERM | LAYOUT]);
        let want_parent = *prng.pick(&[0, UPDATE, UPDATE]);
        match prng.below(3) {
            0 => {
                let body = Getattr { fid, want, ..Getattr::default() };
                let locks = |r: &AttrReply| of_attr(r).collect();
                let (reply, believed) = player.holder.ask(Opcode::MdsGetattr, &body, locks).await?;
                if believed {
                    player.learn_attr(&since, &reply);
                }
            }
            1 => {
                let further = *prng.pick(&NAMES);
                let below = if prng.one_in(2) { vec![name(further)] } else { Vec::new() };
                let ahead = *prng.pick(&[0, READPAGE_MAX]);
                let body = GetattrName {
                    parent: fid,
                    name: name(n),
                    want,
                    want_parent,
                    below,
                    ahead,
                    ..GetattrName::default()
                };
                let locks = |r: &LookupReply| of_lookup(fid, r);
                let (reply, believed) = player.holder.ask(Opcode::MdsGetattrName, &body, locks).await?;
                if believed {
                    player.learn_lookup(&since, &body, &reply);
                }
            }
            _ => {
                let (max_bytes, with_attr) = (READPAGE_MAX, true);
                let body = Readpage { fid, max_bytes, with_attr, want, want_parent, ..Readpage::default() };
                let locks = |r: &ReadpageReply| of_page(fid, r);
                let (reply, believed) = player.holder.ask(Opcode::MdsReadpage, &body, locks).await?;
                if believed {
                    player.learn_page(&since, fid, &reply);
                }
            }
        }
        Ok(())
    }

    async fn change(&self, player: &Player, prng: &mut Prng) -> Result<(), Errno> {
        let since = player.since(&self.fids.lock());
        let (parent, n) = (self.fid(prng), *prng.pick(&NAMES));
        let (fid, child) = (self.fid(prng), player.holder.client.new_fid());
        let want = *prng.pick(&[0, ATTR]);
        let attr = match prng.below(9) {
            0 => return self.open(player, &since, (parent, n, child, want), prng).await,
            1 | 2 => return self.rename(player, &since, (parent, n), (fid, *prng.pick(&NAMES)), prng).await,
            3 => {
                let (mode, mdt_index) = (mode::S_IFDIR | 0o755, u32::MAX);
                let r = ReintCreate { parent, name: name(n), child, mode, mdt_index, ..ReintCreate::default() };
                let reply = self.reint(player, want, ReintRecord::Create(r)).await?;
                self.fids.lock().push(child);
                player.learn_name(&since, parent, n, Some(child), reply.lock.as_ref().map_or(0, |l| l.bits));
                player.forget(&[parent]);
                reply
            }
            4 => {
                let r = ReintLink { fid, parent, name: name(n) };
                let reply = self.reint(player, want, ReintRecord::Link(r)).await?;
                player.learn_name(&since, parent, n, Some(fid), 0);
                player.forget(&[parent]);
                reply
            }
            5 | 6 => {
                let r = ReintUnlink { parent, name: name(n), directory: prng.one_in(2) };
                let reply = self.reint(player, want, ReintRecord::Unlink(r)).await?;
                player.learn_name(&since, parent, n, None, 0);
                player.forget(&[parent]);
                reply
            }
            7 => {
                let value = Some(name(n));
                let r = ReintSetxattr { fid, name: "user.a".to_owned(), value, flags: 0 };
                self.reint(player, want, ReintRecord::Setxattr(r)).await?
            }
            _ => {
                let set = SetAttr { mode: Some(0o700 | prng.below(64) as u32), ..SetAttr::default() };
                let r = ReintSetattr { fid, set, handle: 0 };
                self.reint(player, want, ReintRecord::Setattr(r)).await?
            }
        };
        player.forget(&[attr.attr.fid]);
        player.learn_attr(&since, &attr);
        Ok(())
    }

    async fn reint(&self, player: &Player, want: u64, record: ReintRecord) -> Result<AttrReply, Errno> {
        let body = Reint { cred: Credentials::root(), now: self.rt.wall(), want, record };
        let locks = |r: &AttrReply| of_attr(r).collect();
        let (mut reply, believed) = player.holder.ask(Opcode::MdsReint, &body, locks).await?;
        if !believed {
            reply.lock = None;
        }
        Ok(reply)
    }

    async fn open(
        &self,
        player: &Player,
        since: &Since,
        (parent, n, child, want): (Fid, &'static str, Fid, u64),
        prng: &mut Prng,
    ) -> Result<(), Errno> {
        let flags = *prng.pick(&[O_RDWR, O_RDWR | O_CREAT, O_RDWR | O_CREAT | O_TRUNC]);
        let now = self.rt.wall();
        let body = Open { parent, name: name(n), child, flags, mode: 0o644, now, want, ..Open::default() };
        let locks = |r: &OpenReply| r.lock.iter().map(|l| (r.attr.fid, l.clone())).collect();
        let (reply, believed) = player.holder.ask(Opcode::MdsOpen, &body, locks).await?;
        let fid = reply.attr.fid;
        if reply.created {
            self.fids.lock().push(fid);
            player.forget(&[parent]);
        }
        let lock = reply.lock.filter(|_| believed);
        player.learn_name(since, parent, n, Some(fid), lock.as_ref().map_or(0, |l| l.bits));
        let size_blocks = prng.one_in(2).then(|| (prng.below(100), 1));
        let close = Close { fid, handle: reply.handle, size_blocks, ..Close::default() };
        player.holder.ask::<()>(Opcode::MdsClose, &close, |()| Vec::new()).await?;
        player.forget(&[fid]);
        if size_blocks.is_none() {
            player.learn_attr(since, &AttrReply { attr: reply.attr, layout: reply.layout, lock });
        }
        Ok(())
    }

    async fn rename(
        &self,
        player: &Player,
        since: &Since,
        old: (Fid, &'static str),
        new: (Fid, &'static str),
        prng: &mut Prng,
    ) -> Result<(), Errno> {
        let flags = *prng.pick(&[0, 0, 2]);
        let (old_name, new_name) = (name(old.1), name(new.1));
        let r = ReintRename { old_parent: old.0, old_name, new_parent: new.0, new_name, flags };
        let body = Reint { cred: Credentials::root(), now: self.rt.wall(), want: 0, record: ReintRecord::Rename(r) };
        let (reply, _) = player.holder.ask(Opcode::MdsReint, &body, |_: &RenameReply| Vec::new()).await?;
        let Some(moved) = reply.moved else { return Ok(()) };
        let replaced = reply.replaced.map(|a| a.fid);
        player.forget(&[old.0, new.0, moved.fid]);
        player.forget(replaced.as_slice());
        player.learn_name(since, old.0, old.1, replaced.filter(|_| flags == 2), 0);
        player.learn_name(since, new.0, new.1, Some(moved.fid), 0);
        Ok(())
    }
}

/// Runs a game. Returns how many beliefs were compared, how many steps succeeded, and how many callbacks came.
fn game(seed: u64) -> (usize, usize, usize) {
    let mut sim = Sim::new(seed);
    let rt = sim.rt();
    sim.block_on(Time::from_secs(3600), async move {
        let cluster = Cluster::start(&rt, 1).await;
        if !seed.is_multiple_of(4) {
            cluster.server.params.set("ldlm.namespaces.mdt-*.ctime_age_limit", "0").unwrap();
        }
        let maker = cluster.client(9);
        let mut fids = vec![Fid::ROOT];
        for n in ["one", "two", "three"] {
            fids.push(maker.mkdir(Fid::ROOT, n).await.unwrap().attr.fid);
        }
        let player = |i| Player { holder: cluster.holder(i + 1), beliefs: Mutex::default(), busy: Mutex::new(false) };
        let game = Arc::new(Game {
            rt: rt.clone(),
            mdt: cluster.server.mdt.clone(),
            players: (0..CLIENTS).map(player).collect(),
            fids: Mutex::new(fids),
            compared: Mutex::new(0),
            succeeded: Mutex::new(0),
        });
        let faults = cluster.faults.clone();
        let clock = rt.clone();
        let noise = rt.spawn(async move {
            // Few enough that no player waits for its reply until it is evicted.
            for _ in 0..4 {
                clock.sleep(std::time::Duration::from_millis(100)).await;
                faults.arm("rpc.reply.drop", Fault::once(FaultAction::Drop));
            }
        });
        let players = (0..game.players.len()).map(|at| rt.spawn(game.clone().play(at, seed))).collect::<Vec<_>>();
        futures_util::future::join_all(players).await;
        noise.abort();
        cluster.faults.clear();
        for player in &game.players {
            player.holder.give_back_all().await;
        }
        rt.sleep(secs(2)).await;
        assert_eq!(cluster.server.mdt.lock_counts(), (0, 0), "seed {seed}");
        assert_eq!(cluster.server.mdt.open_count(), 0, "seed {seed}");
        assert_eq!(cluster.param("ldlm.namespaces.mdt-*.lock_timeouts"), "0", "seed {seed}");
        let callbacks = game.players.iter().map(|p| p.holder.callbacks().len()).sum();
        let (compared, succeeded) = (*game.compared.lock(), *game.succeeded.lock());
        (compared, succeeded, callbacks)
    })
}

#[test]
fn what_a_client_believes_under_a_lock_is_what_the_tables_say() {
    for seed in 1..=8 {
        let (compared, succeeded, callbacks) = game(seed);
        assert!(compared > 10_000 && succeeded > 400 && callbacks > 100, "{seed}: {compared} {succeeded} {callbacks}");
    }
}
