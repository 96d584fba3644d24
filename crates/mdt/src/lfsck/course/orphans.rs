//! Objects that files claim, objects that exist, and the repair of objects that no file has.

use super::{BATCH, Course, Looks, ObjectStore, Stage, repair_of};
use crate::lfsck::claims::Claims;
use crate::lfsck::finding::{Finding, Kind};
use crate::lfsck::mend::{Mender, records_after};
use crate::lfsck::object_rules::{self, Fate};
use crate::lfsck::rules::objects;
use crate::record::{Inode, LastUsed};
use crate::tables::{self, DESTROYS};
use nacre_base::{Errno, Fid, OstIndex};
use nacre_wire::attr::mode;
use nacre_wire::layout::{Layout, STRIPE_SIZE_DEFAULT, Stripe};
use nacre_wire::lfsck::{LFSCK_OBJECTS_MAX, ObjectAction, ObjectFact, ObjectFacts, ObjectQuery, ObjectRepair};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most objects without a file that are kept in memory; any further ones become files of their own.
const ORPHANS_MAX: usize = 1 << 20;
/// Most rounds of looking for objects without a file: the second round finds objects that the first has made useless.
const ROUNDS_MAX: usize = 3;
/// Number of ids by which MDT and OST may differ about the last one in use; beyond that, one of the records is wrong.
const IDS_APART_MAX: u32 = 1 << 20;

impl Course<'_> {
    /// Reads which objects files have, and which objects are queued for destruction.
    pub(super) async fn claim(&mut self) -> Result<(), Errno> {
        self.look(Looks::Claims);
        let begun = self.turn(|m| Ok(m.version)).await?;
        self.used = self.last_used().await?;
        let mut most: BTreeMap<OstIndex, Fid> = BTreeMap::new();
        let mut after = Vec::new();
        loop {
            let (batch, last) = self.inodes_after(&after).await?;
            for (_, inode) in batch {
                for Stripe { ost, object } in objects(&inode) {
                    self.checked.1 += 1;
                    if !self.claims.insert(*ost, *object) {
                        self.doubles.insert((*ost, *object), None);
                    }
                    let most = most.entry(*ost).or_insert(*object);
                    *most = (*object).max(*most);
                }
            }
            let Some(last) = last else { break };
            after = last;
            self.pause(Stage::Claims, &after).await?;
        }
        self.claim_destroys(begun).await?;
        for (ost, store) in self.osts {
            self.check_ids(*ost, store, most.get(ost).copied()).await?;
        }
        Ok(())
    }

    /// Reads the queue of destroys: queued objects are neither orphans nor a file's. In a live file system, objects
    /// queued since `begun` may have belonged to a file when it was read.
    async fn claim_destroys(&mut self, begun: u64) -> Result<(), Errno> {
        let (mut after, mut queued) = (Vec::new(), Claims::default());
        let is_live = self.options.is_live;
        loop {
            let records = self.turn(|m| records_after(m.tx, DESTROYS, &after, BATCH)).await?;
            let mut wrong = Vec::new();
            for (key, _) in &records {
                let ost = key.get(..4).and_then(|k| k.try_into().ok()).map(|k| OstIndex(u32::from_be_bytes(k)));
                let transno = key.get(4..12).and_then(|k| k.try_into().ok()).map(u64::from_be_bytes);
                let object = key.get(12..).and_then(Fid::from_key);
                let (Some(ost), Some(transno), Some(object)) = (ost, transno, object) else { continue };
                if is_live && transno >= begun {
                    self.claims.insert(ost, object);
                } else if !queued.insert(ost, object) || !self.claims.insert(ost, object) {
                    wrong.push((key.clone(), ost, object));
                }
            }
            for (key, ost, object) in wrong {
                self.turn(|m| m.delete_record(DESTROYS, &key)).await?;
                let what = format!("object {object} on OST{:04x} is to be destroyed, and is a file's: it stays", ost.0);
                self.report(&Finding::repaired(Kind::WrongDestroy, what));
            }
            let Some((last, _)) = records.into_iter().next_back() else { return Ok(()) };
            after = last;
            self.pause(Stage::Claims, &after).await?;
        }
    }

    /// Makes MDT and OST agree on which ids were handed out. `most`: the highest object of any file.
    async fn check_ids(&mut self, ost: OstIndex, store: &Arc<dyn ObjectStore>, most: Option<Fid>) -> Result<(), Errno> {
        let Some(facts) = self.query(ost, store, ObjectQuery { count: 1, ..ObjectQuery::default() }).await? else {
            return Ok(());
        };
        let used = self.used.get(&ost).filter(|used| used.seq == facts.seq).cloned();
        let used_oid = used.as_ref().map_or(0, |used| used.oid);
        if used_oid > facts.last_id {
            let name = format!("OST{:04x}", ost.0);
            if used_oid - facts.last_id < IDS_APART_MAX {
                let fid = Fid { seq: facts.seq, oid: used_oid, ver: 0 };
                let raise = ObjectRepair { fid, action: ObjectAction::RaiseLastId, ..ObjectRepair::default() };
                self.repair(ost, store, vec![raise]).await?;
                let what = format!("{name} would hand out ids from {} on again: now from {used_oid} on", facts.last_id);
                self.report(&Finding::repaired(Kind::IdsReusable, what));
            } else {
                let oid = facts.last_id;
                let last = LastUsed { seq: facts.seq, oid };
                self.turn(|m| m.put_last_used(ost, &last)).await?;
                self.used.insert(ost, last);
                let what = format!("object {used_oid} of {name} was never handed out: the last is {oid}");
                self.report(&Finding::repaired(Kind::IdsReusable, what));
            }
        }
        let in_use = most.filter(|m| m.seq == facts.seq && m.ver == 0 && m.oid > used_oid && m.oid <= facts.last_id);
        // In a live file system the ids were handed out a moment ago.
        if let Some(most) = in_use.filter(|_| !self.options.is_live) {
            self.turn(|m| m.raise_last_used(ost, most)).await?;
            self.used.insert(ost, LastUsed { seq: most.seq, oid: most.oid });
            let what = format!("objects of OST{:04x} in use, up to {most}, would be destroyed: noted as in use", ost.0);
            self.report(&Finding::repaired(Kind::IdsReusable, what));
        }
        Ok(())
    }

    /// Looks at every object of every OST, and finds those that no file has. If one of them is above the last object
    /// known to be in use, precreated objects below it will never be used: another round handles them.
    pub(super) async fn check_objects(&mut self) -> Result<(), Errno> {
        self.look(Looks::Objects);
        for _ in 0..ROUNDS_MAX {
            self.check_objects_once().await?;
            let used = self.last_used().await?;
            if used == self.used || self.options.is_live {
                break;
            }
            self.used = used;
        }
        Ok(())
    }

    /// The last objects in use, as the MDT has stored them.
    async fn last_used(&mut self) -> Result<BTreeMap<OstIndex, LastUsed>, Errno> {
        let osts: Vec<OstIndex> = self.osts.keys().copied().collect();
        let used = |m: &mut Mender<'_>, ost| Some((ost, tables::last_used(m.tx, ost).ok()??));
        self.turn(|m| Ok(osts.iter().filter_map(|ost| used(m, *ost)).collect())).await
    }

    async fn check_objects_once(&mut self) -> Result<(), Errno> {
        for (ost, store) in self.osts {
            self.check_stray_data(*ost, store).await?;
            let mut after = Fid::ZERO;
            let count = LFSCK_OBJECTS_MAX as u32;
            while let Some(facts) = self.query(*ost, store, ObjectQuery { after, count, fids: Vec::new() }).await? {
                let Some(last) = facts.objects.last().map(|fact| fact.fid) else { break };
                self.checked.1 += facts.objects.len() as u64;
                self.check_page(*ost, store, facts).await?;
                after = last;
                self.pause(Stage::Objects, &after.to_key()).await?;
            }
        }
        for (parent, group) in std::mem::take(&mut self.orphans) {
            self.rescue(parent, group).await?;
            self.pause(Stage::Objects, &parent.to_key()).await?;
        }
        Ok(())
    }

    async fn check_page(
        &mut self,
        ost: OstIndex,
        store: &Arc<dyn ObjectStore>,
        facts: ObjectFacts,
    ) -> Result<(), Errno> {
        let ObjectFacts { seq, last_id, mut objects } = facts;
        let beyond = objects.iter().rev().find(|f| f.fid.seq == seq && f.fid.oid > last_id).map(|f| f.fid);
        let mut repairs = Vec::new();
        if let Some(fid) = beyond {
            repairs.push(ObjectRepair { fid, action: ObjectAction::RaiseLastId, ..ObjectRepair::default() });
            let what = format!("OST{:04x} would hand out ids from {last_id} on again: now from {} on", ost.0, fid.oid);
            self.report(&Finding::repaired(Kind::IdsReusable, what));
        }
        let mut again = Vec::new();
        for (kind, what, repair) in objects.iter().filter_map(|fact| object_rules::check_object(ost, fact)) {
            self.report(&Finding::repaired(kind, what));
            again.push(repair.fid);
            repairs.push(repair);
        }
        self.repair(ost, store, repairs).await?;
        if !again.is_empty() {
            objects.retain(|fact| !again.contains(&fact.fid));
            let query = ObjectQuery { fids: again, ..ObjectQuery::default() };
            objects.extend(self.query(ost, store, query).await?.unwrap_or_default().objects);
        }
        for fact in objects {
            let in_flux = self.options.is_live || self.options.is_recovering;
            let is_unused = object_rules::is_unused(&fact, self.used.get(&ost), in_flux);
            if !self.options.orphans || is_unused || self.claims.contains(ost, fact.fid) {
                continue;
            }
            // Objects that name no file have nothing in common.
            let is_full = self.orphans.len() >= ORPHANS_MAX;
            let group = if fact.parent.is_zero() || is_full { fact.fid } else { fact.parent };
            self.orphans.entry(group).or_default().push((ost, fact));
        }
        Ok(())
    }

    /// Data whose record was lost becomes an object again; other data without a record is a leftover of destroyed
    /// objects.
    async fn check_stray_data(&mut self, ost: OstIndex, store: &Arc<dyn ObjectStore>) -> Result<(), Errno> {
        let Some(facts) = self.query(ost, store, ObjectQuery { count: 1, ..ObjectQuery::default() }).await? else {
            return Ok(());
        };
        for fid in store.stray_data().await? {
            let is_newer = fid.seq == facts.seq && fid.oid > facts.last_id;
            if self.object_changes.contains_key(&(ost, fid)) || !(is_newer || self.claims.contains(ost, fid)) {
                continue;
            }
            let rebuild = ObjectRepair { fid, action: ObjectAction::Rebuild, ..ObjectRepair::default() };
            self.repair(ost, store, vec![rebuild]).await?;
            let what = format!("there is data of object {fid} on OST{:04x}, and no record: made", ost.0);
            self.report(&Finding::repaired(Kind::StrayData, what));
        }
        Ok(())
    }

    /// Repairs objects that no file has, and that name this file.
    async fn rescue(&mut self, parent: Fid, group: Vec<(OstIndex, ObjectFact)>) -> Result<(), Errno> {
        let places: Vec<String> = group.iter().map(|(ost, f)| format!("{} on OST{:04x}", f.fid, ost.0)).collect();
        let objects = format!("no file has object {}", places.join(", "));
        let (inode, is_named) =
            self.turn(|m| Ok((m.inode(parent)?, !tables::links(m.tx, parent, 1)?.is_empty()))).await?;
        let what = match object_rules::fate(&group, inode.as_ref(), is_named) {
            Fate::Destroy => {
                let destroy = |f: &ObjectFact| repair_of(f.fid, ObjectAction::DestroyEmpty, Fid::ZERO, 0, (0, 0));
                for (ost, fact) in &group {
                    self.repair_one(*ost, destroy(fact)).await?;
                }
                format!("{objects}; empty: destroyed")
            }
            Fate::Rebuild(layout) => {
                let (_, first) = &group[0];
                let size = layout.file_size(sizes_in_order(&layout, &group));
                let stripe_size = layout.components[0].stripe_size;
                self.turn(|m| {
                    let new = Inode { uid: first.uid, gid: first.gid, ..m.new_inode(mode::S_IFREG | 0o400) };
                    let file = inode.clone().unwrap_or(new);
                    m.make_file(parent, &Inode { layout: Some(layout.clone()), size, ..file })
                })
                .await?;
                for (ost, fact) in &group {
                    self.claims.insert(*ost, fact.fid);
                }
                let assumed =
                    if group.len() > 1 { format!(" with stripes of {stripe_size} bytes") } else { String::new() };
                format!("{objects}; file {parent} has it again{assumed}")
            }
            Fate::Apart => {
                for (ost, fact) in &group {
                    self.make_file_for(*ost, fact).await?;
                }
                format!("{objects}: a file of its own in lost+found")
            }
        };
        self.report(&Finding::repaired(Kind::OrphanObject, what));
        Ok(())
    }

    /// Creates a file in lost+found that has this object, and nothing else.
    async fn make_file_for(&mut self, ost: OstIndex, fact: &ObjectFact) -> Result<(), Errno> {
        if fact.size == 0 {
            let destroy = repair_of(fact.fid, ObjectAction::DestroyEmpty, Fid::ZERO, 0, (0, 0));
            return self.repair_one(ost, destroy).await;
        }
        let stripe = Stripe { ost, object: fact.fid };
        let layout = object_rules::layout_of(vec![stripe], STRIPE_SIZE_DEFAULT);
        let (of, letter) = if fact.parent.is_zero() { (fact.fid, 'O') } else { (fact.parent, 'C') };
        let file = self
            .turn(|m| {
                let new = m.new_inode(mode::S_IFREG | 0o400);
                let layout = Some(layout.clone());
                m.make_file_for(of, letter, &Inode { uid: fact.uid, gid: fact.gid, size: fact.size, layout, ..new })
            })
            .await?;
        self.claims.insert(ost, fact.fid);
        self.repair_one(ost, repair_of(fact.fid, ObjectAction::SetParent, file, 0, (0, 0))).await
    }
}

/// The sizes of a layout's objects, in the layout's order.
fn sizes_in_order(layout: &Layout, group: &[(OstIndex, ObjectFact)]) -> Vec<u64> {
    let size = |s: &Stripe| group.iter().find(|(o, f)| (*o, f.fid) == (s.ost, s.object)).map_or(0, |(_, f)| f.size);
    layout.stripes().map(|(_, _, stripe)| size(stripe)).collect()
}
