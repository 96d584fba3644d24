//! Glimpses ahead of time: sizes and locks of many objects in one request, but of those that others are writing.

use crate::mount::connection::Caller;
use crate::osc::Osc;
use crate::osc::object::Object;
use futures_util::future::join_all;
use nacre_ptlrpc::CallOptions;
use nacre_wire::Opcode;
use nacre_wire::ldlm::Enqueue;
use nacre_wire::ost::{GLIMPSES_MAX, Glimpse, GlimpseReply};
use std::sync::Arc;
use std::time::Duration;

/// After this time, an operation that needs the size sends its own request.
const DEADLINE: Duration = Duration::from_secs(10);

impl Osc {
    /// Gets locks on objects, and their attributes, where no client writes or writers no longer need their locks. Objects for which that
    /// fails are skipped.
    pub(crate) async fn glimpse_ahead(self: &Arc<Self>, caller: &Caller, objects: &[Arc<Object>]) {
        join_all(objects.chunks(GLIMPSES_MAX).map(|some| self.glimpse_some(caller, some))).await;
    }

    async fn glimpse_some(self: &Arc<Self>, caller: &Caller, objects: &[Arc<Object>]) {
        // A program will soon wait for this, so it must not queue behind data.
        let options = CallOptions { high_priority: true, no_delay: true, deadline: Some(DEADLINE), ..caller.options() };
        let body = Glimpse { fids: objects.iter().map(|o| o.fid).collect() };
        let asking = self.ask();
        let answer = self.connection().call::<GlimpseReply>(Opcode::OstGlimpse, &body, options).await;
        let answers = answer.map(|reply| reply.body.objects).unwrap_or_default();
        let guards = asking.end(|locks, ticket| {
            let granted = objects.iter().zip(&answers).filter_map(|(object, reply)| Some((object, reply.as_ref()?)));
            // An answer that makes no sense counts as none.
            granted
                .filter_map(|(o, reply)| self.take_lock(locks, ticket, o, &Enqueue::default(), reply).ok()?)
                .collect::<Vec<_>>()
        });
        drop(guards);
        self.wake_upkeep();
    }
}
