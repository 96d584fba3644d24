//! Advice for a whole file: group locks on all its objects, locks ahead of time, data to be fetched or dropped.

use super::{Lov, Part, Striped, lock_each};
use crate::lov::plan::{self, StripeMap};
use crate::mount::connection::Caller;
use crate::osc::advice::LockAhead;
use crate::osc::locks::{HeldUp, LockGuard, Wanted};
use crate::osc::write::extent;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use nacre_base::Errno;
use nacre_ldlm::RangeSet;
use nacre_wire::layout::Stripe;
use nacre_wire::ldlm::{LockMode, enqueue_flags};
use nacre_wire::ost::BRW_SIZE_DEFAULT;
use std::ops::Range;

/// Read RPCs under way for one range that will be read.
const PREFETCHES_MAX: usize = 8;

impl Lov {
    /// Takes a group's lock on each object, in the order of the stripes: all or none, and none is held while an OST is away
    /// ([`lock_each`]). EAGAIN if it would have to wait for
    /// another group and may not.
    pub(crate) async fn lock_group(
        &self,
        caller: &Caller,
        file: &Striped,
        group: u64,
        nonblock: bool,
    ) -> Result<Vec<LockGuard>, Errno> {
        let flags = if nonblock { enqueue_flags::GROUP_NOWAIT } else { 0 };
        let wanted = Wanted { flags, ..Wanted::of_group(group) };
        let mut parts = Vec::new();
        for (index, stripe, map) in file.stripes() {
            parts.push(self.part(&file.state, index, &stripe, || map, 0..u64::MAX).await?);
        }
        let wanted = &wanted;
        let lock = |part: &Part| {
            let (osc, object) = (part.osc.clone(), part.object.clone());
            async move { osc.lock(caller, &object, wanted).await.map(Some) }
        };
        Ok(lock_each(&parts, lock).await?.expect("every part gets a lock"))
    }

    /// Requests locks on exactly a range, a lock for each object, for reading or writing; see [`LockAhead`].
    pub(crate) async fn lock_ahead(
        &self,
        caller: &Caller,
        file: &Striped,
        mode: LockMode,
        range: &Range<u64>,
    ) -> Result<LockAhead, Errno> {
        let mut all = Vec::new();
        for (index, stripe, map) in file.stripes() {
            let Some(range) = object_range(&map, range) else { continue };
            let part = self.part(&file.state, index, &stripe, || map, range).await?;
            all.push(part.osc.lock_ahead(caller, &part.object, mode, &part.range)?);
        }
        let any = |found| all.contains(&found);
        Ok(match any(LockAhead::Sent) || all.is_empty() {
            true => LockAhead::Sent,
            false if any(LockAhead::Different) => LockAhead::Different,
            false => LockAhead::Same,
        })
    }

    /// Fetches the size of a part's object if it matters for the part, because other members of the group may make the
    /// object longer.
    pub(super) async fn refresh(&self, caller: &Caller, file: &Striped, part: &Part) -> Result<(), Errno> {
        let beyond_end = || part.range.end > part.object.state.lock().size();
        if file.locking.group != 0 && beyond_end() { part.osc.refresh(caller, &part.object).await } else { Ok(()) }
    }

    /// Fetches the sizes of all objects of a file under a group lock.
    pub(crate) async fn refresh_all(&self, caller: &Caller, file: &Striped) -> Result<(), Errno> {
        match file.locking.group {
            0 => Ok(()),
            _ => {
                self.lock_objects(HeldUp::Nothing, caller, file, LockMode::Pr, |_, _| Some(0..u64::MAX)).await.map(drop)
            }
        }
    }

    /// Writes back dirty bytes and forgets a range, together with unused locks that cover nothing else.
    pub(crate) async fn drop_cached(&self, file: &Striped, range: &Range<u64>) {
        let drop = |(_, stripe, map): (usize, Stripe, StripeMap)| async move {
            let Some(range) = object_range(&map, range) else { return };
            let Some(osc) = self.targets.known_osc(stripe.ost) else { return };
            if let Some(object) = osc.known_object(stripe.object) {
                osc.drop_cached(&object, &range).await;
            }
        };
        join_all(file.stripes().map(drop).collect::<Vec<_>>()).await;
    }

    /// A future that fetches a range into the cache, up to `bytes_max` bytes of it; the caller runs it in the background.
    pub(crate) async fn prefetch(
        &self,
        caller: &Caller,
        file: &Striped,
        range: &Range<u64>,
        bytes_max: u64,
    ) -> Result<impl Future<Output = ()> + Send + use<>, Errno> {
        let end = range.end.min(self.glimpse_size(caller, file).await?);
        let len = end.saturating_sub(range.start).min(bytes_max);
        let brw_size = |ost| self.targets.known_osc(ost).map_or(BRW_SIZE_DEFAULT.into(), |osc| osc.brw_size());
        let mut parts = Vec::new();
        for io in plan::cut(&file.layout, range.start, len, brw_size) {
            let of = Stripe { ost: io.ost, object: io.object };
            let range = io.offset..io.offset + io.len as u64;
            parts.push(
                self.part(&file.state, io.stripe, &of, || plan::stripe_map(&file.layout, io.stripe), range).await?,
            );
        }
        let (caller, locking) = (*caller, file.locking);
        let fetch = move |part: Part| async move {
            let wanted = locking.wanted(LockMode::Pr, RangeSet::single(extent(&part.range)));
            if let Ok(guard) = part.osc.lock(&caller, &part.object, &wanted).await {
                // A program that reads the range later gets the error.
                let _ = part.osc.read(&guard, &part.object, &caller, part.range.clone()).await;
            }
        };
        Ok(stream::iter(parts).map(fetch).buffer_unordered(PREFETCHES_MAX).for_each(|()| async {}))
    }
}

/// The part of an object that lies in a range of the file, up to the object's end if the range goes to the file's end.
fn object_range(map: &StripeMap, range: &Range<u64>) -> Option<Range<u64>> {
    let part = map.object_range(range)?;
    Some(if range.end == u64::MAX { part.start..u64::MAX } else { part })
}
