//! Fetches sizes of files that programs will probably ask for.

use super::{Lov, StripeMap};
use crate::mount::connection::Caller;
use futures_util::future::join_all;
use nacre_base::Fid;
use nacre_wire::layout::Layout;
use std::collections::BTreeMap;

impl Lov {
    /// Fetches the attributes of the files' objects, and locks on them unless another client holds a conflicting lock.
    /// Sends few requests, all at the same time. [`Lov::glimpse`] requests the rest.
    pub(crate) async fn glimpse_ahead(&self, caller: &Caller, files: &[(Fid, Layout)]) {
        let mut objects = BTreeMap::new();
        for (fid, layout) in files {
            let file = self.file(*fid);
            for (component, number, stripe) in layout.stripes() {
                // Targets that are away, or not known yet, are skipped, because readdir does not wait for them.
                let Some(osc) = self.targets.known_osc(stripe.ost).filter(|osc| !osc.connection().is_away()) else {
                    continue;
                };
                let object = osc.object(stripe.object);
                object.set_place(&file, || StripeMap::new(&layout.components[component], number));
                if osc.known_attr(&object).is_none() {
                    objects.entry(stripe.ost.0).or_insert_with(|| (osc, Vec::new())).1.push(object);
                }
            }
        }
        join_all(objects.values().map(|(osc, objects)| osc.glimpse_ahead(caller, objects))).await;
    }
}
