//! Three clients run random operations on a few names at the same time, over a network that delays and reorders. Then a
//! search looks for an order of all operations that explains every answer; if there is none, a cache has lied.

use crate::cluster::{Cluster, TestClient, root, run_seed};
use nacre_base::{Errno, Fid, FxHashSet, Time};
use nacre_lnet::{LinkOptions, SimNetOptions};
use nacre_rt::Rt;
use nacre_wire::attr::{Attr, SetAttr, mode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const CLIENTS: usize = 3;
const OPERATIONS: usize = 30;
const NAMES: u64 = 4;

type Place = (usize, u64);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Deed {
    Lookup(Place, Result<Shown, Errno>),
    Getattr(Fid, Result<Shown, Errno>),
    Make(Place, Result<Fid, Errno>),
    Link(Fid, Place, Result<Shown, Errno>),
    Unlink(Place, Result<(), Errno>),
    Rename(Place, Place, Result<(), Errno>),
    Chmod(Fid, u32, Result<Shown, Errno>),
    Setxattr(Fid, u8, Result<(), Errno>),
    Getxattr(Fid, Result<u8, Errno>),
    List(usize, Vec<(u64, Fid)>),
}

/// The attributes in the answer to stat that the model knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Shown {
    fid: Fid,
    mode: u32,
    nlink: u32,
}

#[derive(Debug, Clone)]
struct Entry {
    client: usize,
    began: Time,
    ended: Time,
    deed: Deed,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Model {
    names: BTreeMap<Place, Fid>,
    /// Mode and extended attribute of each inode.
    inodes: BTreeMap<Fid, (u32, Option<u8>)>,
}

impl Model {
    fn shown(&self, fid: Fid) -> Option<Shown> {
        let nlink = self.names.values().filter(|f| **f == fid).count() as u32;
        let (mode, _) = self.inodes.get(&fid).filter(|_| nlink > 0)?;
        Some(Shown { fid, mode: *mode, nlink })
    }

    /// The MDT may or may not still know an inode without names.
    fn explains(&self, fid: Fid, answer: &Result<Shown, Errno>) -> bool {
        match (self.shown(fid), answer) {
            (Some(shown), Ok(told)) => shown == *told,
            (None, Ok(told)) => told.nlink == 0,
            (shown, Err(_)) => shown.is_none(),
        }
    }

    /// Applies the operation to the model; false if the model could not have given this answer.
    fn step(&mut self, deed: &Deed) -> bool {
        match deed {
            Deed::Lookup(at, answer) => match self.names.get(at) {
                Some(fid) => answer.is_ok() && self.explains(*fid, answer),
                None => *answer == Err(Errno::ENOENT),
            },
            Deed::Getattr(fid, answer) => self.explains(*fid, answer),
            Deed::Make(at, answer) => match answer {
                Ok(fid) => {
                    self.inodes.insert(*fid, (0o600, None));
                    self.names.insert(*at, *fid).is_none()
                }
                Err(e) => *e == Errno::EEXIST && self.names.contains_key(at),
            },
            Deed::Link(fid, at, answer) => match answer {
                Ok(_) => {
                    self.shown(*fid).is_some() && self.names.insert(*at, *fid).is_none() && self.explains(*fid, answer)
                }
                Err(Errno::EEXIST) => self.names.contains_key(at),
                Err(_) => self.shown(*fid).is_none(),
            },
            Deed::Unlink(at, answer) => answer.is_ok() == self.names.remove(at).is_some(),
            Deed::Rename(from, to, answer) => match (self.names.get(from).copied(), answer) {
                (Some(moved), Ok(())) if self.names.get(to) == Some(&moved) => true,
                (Some(moved), Ok(())) => {
                    self.names.remove(from);
                    self.names.insert(*to, moved);
                    true
                }
                (moved, answer) => moved.is_none() && *answer == Err(Errno::ENOENT),
            },
            Deed::Chmod(fid, mode, answer) => {
                self.inodes.get_mut(fid).into_iter().for_each(|i| i.0 = *mode);
                self.explains(*fid, answer)
            }
            Deed::Setxattr(fid, value, answer) => {
                self.inodes.get_mut(fid).into_iter().for_each(|i| i.1 = Some(*value));
                answer.is_ok() || self.shown(*fid).is_none()
            }
            Deed::Getxattr(fid, answer) => match self.shown(*fid) {
                None => true,
                Some(_) => self.inodes[fid].1.ok_or(Errno::ENODATA) == *answer,
            },
            Deed::List(dir, entries) => {
                let here = self.names.iter().filter(|((d, _), _)| d == dir);
                here.map(|((_, n), fid)| (*n, *fid)).eq(entries.iter().copied())
            }
        }
    }
}

/// Searches for an order of all operations that respects time and explains all answers. Each client runs one operation at
/// a time, so a position in each client's history and the model's state are all that the search has to remember.
fn explain(history: &[Entry]) -> Result<(), String> {
    let lanes: Vec<Vec<&Entry>> = (0..CLIENTS).map(|c| history.iter().filter(|e| e.client == c).collect()).collect();
    let mut seen = FxHashSet::default();
    let mut stack = vec![(vec![0; CLIENTS], Model::default())];
    let mut farthest = (0, Vec::new(), Model::default());
    while let Some((at, model)) = stack.pop() {
        let done: usize = at.iter().sum();
        if done == history.len() {
            return Ok(());
        }
        if done >= farthest.0 {
            farthest = (done, at.clone(), model.clone());
        }
        let next: Vec<&Entry> = (0..CLIENTS).filter_map(|c| lanes[c].get(at[c]).copied()).collect();
        let Some(first_end) = next.iter().map(|e| e.ended).min() else { continue };
        for e in next.iter().filter(|e| e.began <= first_end) {
            let mut after = model.clone();
            if after.step(&e.deed) {
                let mut at = at.clone();
                at[e.client] += 1;
                if seen.insert((at.clone(), after.clone())) {
                    stack.push((at, after));
                }
            }
        }
    }
    let (_, at, model) = farthest;
    let next: Vec<String> = (0..CLIENTS).filter_map(|c| lanes[c].get(at[c])).map(|e| format!("{e:?}")).collect();
    let before: Vec<String> =
        (0..CLIENTS).flat_map(|c| lanes[c][at[c].saturating_sub(4)..at[c]].iter()).map(|e| format!("{e:?}")).collect();
    Err(format!("in {model:#?}\nnone of these can be next:\n{}\nafter\n{}", next.join("\n"), before.join("\n")))
}

struct Actor {
    client: TestClient,
    rt: Rt,
    number: usize,
    dirs: [Fid; 2],
    history: Arc<Mutex<Vec<Entry>>>,
    /// FIDs that some client has seen.
    known: Arc<Mutex<Vec<Fid>>>,
}

fn name((_, n): Place) -> Vec<u8> {
    format!("n{n}").into_bytes()
}

fn shown(attr: &Attr) -> Shown {
    Shown { fid: attr.fid, mode: attr.mode & 0o777, nlink: attr.nlink }
}

impl Actor {
    fn below(&self, n: u64) -> u64 {
        self.rt.random() % n
    }

    fn place(&self) -> Place {
        (self.below(2) as usize, self.below(NAMES))
    }

    fn fid(&self) -> Option<Fid> {
        let known = self.known.lock();
        // Mostly a recent one, because inodes of older ones are gone.
        let recent = known.len().min(4) as u64;
        (recent > 0).then(|| known[known.len() - 1 - self.below(recent) as usize])
    }

    async fn act(&self) -> Option<Deed> {
        let (c, cred) = (&self.client, root());
        let dir = |at: Place| self.dirs[at.0];
        let (at, to) = (self.place(), self.place());
        Some(match self.below(20) {
            0..4 => Deed::Lookup(at, c.lookup(&cred, dir(at), &name(at)).await.map(|a| shown(&a))),
            4..7 => {
                let fid = self.fid()?;
                Deed::Getattr(fid, c.getattr(&cred, fid).await.map(|a| shown(&a)))
            }
            7..10 => {
                let made = c.mknod(&cred, dir(at), &name(at), mode::S_IFIFO | 0o600, 0, 0).await;
                made.iter().for_each(|a| self.known.lock().push(a.fid));
                Deed::Make(at, made.map(|a| a.fid))
            }
            10 => {
                let fid = self.fid()?;
                Deed::Link(fid, at, c.link(&cred, fid, dir(at), &name(at)).await.map(|a| shown(&a)))
            }
            11..13 => Deed::Unlink(at, c.unlink(&cred, dir(at), &name(at)).await),
            13..15 => Deed::Rename(at, to, c.rename(&cred, dir(at), &name(at), dir(to), &name(to), 0).await),
            15 => {
                let (fid, mode) = (self.fid()?, 0o600 + self.below(0o100) as u32);
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                Deed::Chmod(fid, mode, c.setattr(&cred, fid, set, None).await.map(|a| shown(&a)))
            }
            16 => {
                let (fid, value) = (self.fid()?, self.below(200) as u8);
                Deed::Setxattr(fid, value, c.setxattr(&cred, fid, b"security.x", &[value], 0).await)
            }
            17 => {
                let fid = self.fid()?;
                Deed::Getxattr(fid, c.getxattr(&cred, fid, b"security.x").await.map(|v| v[0]))
            }
            _ => {
                let with_attr = self.below(2) == 0;
                let page = c.readdir(&cred, self.dirs[at.0], 0, with_attr, 1 << 18).await.unwrap();
                let number = |n: &[u8]| n.strip_prefix(b"n").map(|n| u64::from(n[0] - b'0'));
                let entries = page.entries.iter().filter_map(|e| Some((number(&e.name)?, e.fid)));
                let mut entries: Vec<_> = entries.collect();
                entries.sort_unstable();
                Deed::List(at.0, entries)
            }
        })
    }

    async fn run(self) {
        for _ in 0..OPERATIONS {
            let began = self.rt.now();
            if let Some(deed) = self.act().await {
                let (client, ended) = (self.number, self.rt.now());
                self.history.lock().push(Entry { client, began, ended, deed });
            }
            if self.below(3) == 0 {
                self.rt.sleep(Duration::from_micros(self.below(400_000))).await;
            }
        }
    }
}

fn check(seed: u64) {
    run_seed(seed, move |rt| async move {
        let mut cluster = Cluster::start(&rt, 1).await;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(cluster.client().await);
        }
        let first = &clients[0];
        let make = async |n: &[u8]| first.mkdir(&root(), first.root(), n, 0o755, 0).await.unwrap().fid;
        let dirs = [make(b"a").await, make(b"b").await];
        let link = LinkOptions {
            jitter: Duration::from_micros(300),
            reorder_ppm: 200_000,
            reorder_delay: Duration::from_millis(2),
            ..SimNetOptions::default().link
        };
        cluster.net.set_links(link);
        let (history, known) = (Arc::default(), Arc::default());
        let actors = clients.clone().into_iter().enumerate().map(|(number, client)| {
            let (rt, history, known) = (rt.clone(), Arc::clone(&history), Arc::clone(&known));
            rt.clone().spawn(Actor { client, rt, number, dirs, history, known }.run())
        });
        for actor in actors.collect::<Vec<_>>() {
            actor.await;
        }
        // The attributes that each client has cached of the directories, which all clients changed, are those of the MDT.
        for dir in dirs {
            let stats = [clients[0].stat(dir).await, clients[1].stat(dir).await, clients[2].stat(dir).await];
            clients[0].node.params().set("ldlm.namespaces.*-mdc-*.lru_size", "clear").unwrap();
            rt.sleep(Duration::from_secs(1)).await;
            let truth = clients[0].stat(dir).await;
            assert!(stats.iter().all(|s| *s == truth), "seed {seed}: {stats:?} {truth:?}");
        }
        let history: Vec<Entry> = history.lock().clone();
        assert!(history.len() > CLIENTS * OPERATIONS / 2);
        if let Err(why) = explain(&history) {
            panic!("seed {seed}: {why}");
        }
    });
}

#[test]
fn some_order_explains_every_answer() {
    (1..=200).for_each(check);
}

#[test]
fn the_search_finds_lies() {
    let (f, g) = (Fid { seq: 1, oid: 1, ver: 0 }, Fid { seq: 1, oid: 2, ver: 0 });
    let at = |client, began, ended, deed| Entry { client, began: Time(began), ended: Time(ended), deed };
    let made = at(0, 0, 10, Deed::Make((0, 0), Ok(f)));
    let listed = |began, entries| at(1, began, began + 5, Deed::List(0, entries));
    assert!(explain(&[made.clone(), listed(11, vec![(0, f)])]).is_ok());
    assert!(explain(&[made.clone(), listed(11, vec![])]).is_err());
    assert!(explain(&[made.clone(), listed(3, vec![])]).is_ok(), "they overlap");
    assert!(explain(&[made.clone(), listed(3, vec![(0, f)]), listed(9, vec![])]).is_err(), "it went away again");
    assert!(explain(&[made, listed(11, vec![(0, g)])]).is_err());
}
