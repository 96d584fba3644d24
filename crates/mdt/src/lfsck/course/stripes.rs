//! Compares files with their objects.

use super::{Course, Looks, Stage, repair_of};
use crate::lfsck::finding::{Finding, Outcome};
use crate::lfsck::object_rules::{self, Mend, StripeFacts};
use crate::lfsck::rules::objects;
use crate::record::{Inode, LastUsed};
use nacre_base::{Errno, Fid, OstIndex};
use nacre_wire::layout::Stripe;
use nacre_wire::lfsck::{LFSCK_OBJECTS_MAX, ObjectAction, ObjectFact, ObjectQuery};
use std::collections::BTreeMap;

impl Course<'_> {
    /// Checks every file's objects.
    pub(super) async fn check_stripes(&mut self) -> Result<(), Errno> {
        self.look(Looks::Stripes);
        let mut after = Vec::new();
        loop {
            let (batch, last) = self.inodes_after(&after).await?;
            let facts = self.facts_of(&batch).await?;
            for (fid, inode) in batch {
                self.check_file(fid, &inode, &facts).await?;
            }
            let Some(last) = last else { return Ok(()) };
            after = last;
            self.pause(Stage::Stripes, &after).await?;
        }
    }

    /// The OSTs' facts about the objects of these files.
    async fn facts_of(&mut self, batch: &[(Fid, Inode)]) -> Result<BTreeMap<(OstIndex, Fid), ObjectFact>, Errno> {
        let mut wanted: BTreeMap<OstIndex, Vec<Fid>> = BTreeMap::new();
        for Stripe { ost, object } in batch.iter().flat_map(|(_, inode)| objects(inode)) {
            wanted.entry(*ost).or_default().push(*object);
        }
        let mut facts = BTreeMap::new();
        for (ost, fids) in wanted {
            let Some(store) = self.osts.get(&ost) else { continue };
            for fids in fids.chunks(LFSCK_OBJECTS_MAX) {
                let query = ObjectQuery { fids: fids.to_vec(), ..ObjectQuery::default() };
                let found = self.query(ost, store, query).await?.unwrap_or_default();
                facts.extend(found.objects.into_iter().map(|fact| ((ost, fact.fid), fact)));
            }
        }
        Ok(facts)
    }

    async fn check_file(
        &mut self,
        file: Fid,
        inode: &Inode,
        facts: &BTreeMap<(OstIndex, Fid), ObjectFact>,
    ) -> Result<(), Errno> {
        let mut found = Vec::new();
        for (index, stripe) in objects(inode).enumerate() {
            let (key, index) = ((stripe.ost, stripe.object), index as u32);
            self.checked.1 += 1;
            if !self.osts.contains_key(&stripe.ost) || self.unreachable.contains(&stripe.ost) {
                continue;
            }
            let object = facts.get(&key);
            let is_anothers = self.is_anothers(file, index, key, object).await?;
            let unknown = LastUsed { seq: 0, oid: 0 };
            let verdicts = object_rules::check_stripe(&StripeFacts {
                file,
                inode,
                index,
                stripe,
                object,
                last: self.used.get(&stripe.ost).cloned().unwrap_or(unknown),
                is_anothers,
                create: self.options.create_objects,
                compare_owner: self.options.compare_owners,
            });
            found.extend(verdicts.into_iter().map(|verdict| (index, stripe.ost, verdict)));
        }
        if found.is_empty() || !self.still_has(file, inode).await? {
            return Ok(());
        }
        for (index, ost, verdict) in found {
            let mut outcome = Outcome::Repaired;
            match verdict.mend {
                Mend::Object(repair) => self.repair_one(ost, repair).await?,
                Mend::NewObject if self.options.is_live => {
                    outcome = Outcome::Left("only with the file system stopped, by nacre fsck");
                }
                Mend::NewObject => self.give_new_object(file, index, ost).await?,
                Mend::Nothing(why) => outcome = Outcome::Left(why),
            }
            self.report(&Finding { kind: verdict.kind, what: verdict.what, outcome });
        }
        Ok(())
    }

    /// True if another stripe keeps an object that two stripes claim: the one that the object names, else the first.
    async fn is_anothers(
        &mut self,
        file: Fid,
        index: u32,
        key: (OstIndex, Fid),
        fact: Option<&ObjectFact>,
    ) -> Result<bool, Errno> {
        let keeper = match self.doubles.get(&key) {
            None => return Ok(false),
            Some(Some(keeper)) => *keeper,
            Some(None) => {
                let named = fact.map_or((file, index), |fact| (fact.parent, fact.stripe_index));
                let inode = self.turn(|m| m.inode(named.0)).await?;
                let stripes: Vec<_> = inode.iter().flat_map(objects).map(|s| (s.ost, s.object)).collect();
                let exact = stripes.get(named.1 as usize).filter(|k| **k == key).map(|_| named);
                let first = || stripes.iter().position(|k| *k == key).map(|i| (named.0, i as u32));
                exact.or_else(first).unwrap_or((file, index))
            }
        };
        self.doubles.insert(key, Some(keeper));
        Ok(keeper != (file, index))
    }

    /// True if the file still has the layout that was checked.
    async fn still_has(&mut self, file: Fid, inode: &Inode) -> Result<bool, Errno> {
        let now = self.turn(|m| m.inode(file)).await?;
        Ok(now.is_some_and(|now| now.layout == inode.layout))
    }

    /// Gives a stripe another object: the next one that would be handed out. No objects are handed out meanwhile, because
    /// the file system is stopped.
    async fn give_new_object(&mut self, file: Fid, index: u32, ost: OstIndex) -> Result<(), Errno> {
        let Some(store) = self.osts.get(&ost) else { return Ok(()) };
        let Some(facts) = self.query(ost, store, ObjectQuery { count: 1, ..ObjectQuery::default() }).await? else {
            return Ok(());
        };
        let used = self.used.get(&ost).filter(|u| u.seq == facts.seq).map_or(0, |u| u.oid);
        let object = |oid| Fid { seq: facts.seq, oid, ver: 0 };
        let free = (used..u32::MAX).map(|oid| oid + 1).find(|oid| !self.claims.contains(ost, object(*oid)));
        let oid = free.ok_or(Errno::ENOSPC)?;
        let object = object(oid);
        let owner = self.turn(|m| Ok(m.inode(file)?.map_or((0, 0), |i| (i.uid, i.gid)))).await?;
        self.repair_one(ost, repair_of(object, ObjectAction::Create, file, index, owner)).await?;
        self.repair_one(ost, repair_of(object, ObjectAction::SetParent, file, index, owner)).await?;
        self.turn(|m| {
            let Some(mut inode) = m.inode(file)? else { return Ok(()) };
            let layout = inode.layout.iter_mut().flat_map(|l| l.components.iter_mut());
            if let Some(stripe) = layout.flat_map(|c| c.stripes.iter_mut()).nth(index as usize) {
                stripe.object = object;
            }
            m.put_inode(file, &inode)?;
            m.put_last_used(ost, &LastUsed { seq: object.seq, oid })
        })
        .await?;
        self.claims.insert(ost, object);
        self.used.insert(ost, LastUsed { seq: object.seq, oid });
        Ok(())
    }
}
