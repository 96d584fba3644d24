//! OST_GLIMPSE: sizes and times of several objects, with locks that keep them true, for a client that will probably want
//! them. Writers are asked whether they still need their locks; an object whose writers do is left out, because what they would say of its
//! size is true for a moment only, and the sender may never use it.

use super::enqueue::attr;
use crate::object_service::ObjectService;
use futures_util::future::join_all;
use nacre_base::{Errno, Fid, Part};
use nacre_ptlrpc::{Response, ServerRequest};
use nacre_wire::ldlm::EnqueueReply;
use nacre_wire::ost::{GLIMPSES_MAX, Glimpse, GlimpseReply};
use std::sync::Arc;
use std::time::Duration;

/// Writers that have not given their locks back after this time are taken to need them. It is enough for one far away, who answers and gives
/// the lock back at the same time.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pauses between two looks at locks that are on their way back; each is twice as long as the one before, up to the last.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// An object that was asked for.
#[derive(Clone, Copy)]
struct Asked {
    /// Its place in the request.
    part: u32,
    fid: Fid,
}

/// Result of a look at an object.
enum Looked {
    Told(EnqueueReply),
    /// A lock of another client is in the way.
    Locked,
    Gone,
}

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let Glimpse { fids } = request.decode()?;
    if fids.len() > GLIMPSES_MAX {
        return Err(Errno::EINVAL);
    }
    let all: Vec<Asked> = (0..).zip(fids).map(|(part, fid)| Asked { part, fid }).collect();
    let mut objects = vec![None; all.len()];
    let locked = look(ost, &request, all, &mut objects).await;
    if !locked.is_empty() {
        let looked = async {
            tokio::select! {
                biased;
                () = look_again(ost, &request, locked, &mut objects) => Ok(()),
                () = request.abandoned() => Err(Errno::ESHUTDOWN),
            }
        };
        request.spend(Part::Locks, looked).await?;
    }
    Ok(Response::new(&GlimpseReply { objects }))
}

/// Notes what can be told of the objects. Returns those that are locked.
async fn look(
    ost: &ObjectService,
    request: &ServerRequest,
    asked: Vec<Asked>,
    objects: &mut [Option<EnqueueReply>],
) -> Vec<Asked> {
    let looked = join_all(asked.iter().map(|one| glimpse(ost, request, *one))).await;
    let mut locked = Vec::new();
    for (one, looked) in asked.into_iter().zip(looked) {
        match looked {
            Looked::Told(reply) => objects[one.part as usize] = Some(reply),
            Looked::Locked => locked.push(one),
            Looked::Gone => {}
        }
    }
    locked
}

/// Looks at the objects again whose writers give their locks back.
async fn look_again(
    ost: &ObjectService,
    request: &ServerRequest,
    locked: Vec<Asked>,
    objects: &mut [Option<EnqueueReply>],
) {
    let rt = ost.target.rt();
    let deadline = rt.now() + PATIENCE;
    let is_idle = |one: &Asked| rt.timeout(PATIENCE, ost.locks.are_writers_idle(request, one.fid));
    let idle = join_all(locked.iter().map(is_idle)).await;
    let mut left: Vec<Asked> =
        locked.into_iter().zip(idle).filter(|(_, idle)| *idle == Ok(true)).map(|(one, _)| one).collect();
    let [mut pause, longest] = PAUSES;
    loop {
        left = look(ost, request, left, objects).await;
        if left.is_empty() || rt.now() >= deadline {
            return;
        }
        rt.sleep(pause).await;
        pause = longest.min(2 * pause);
    }
}

async fn glimpse(ost: &ObjectService, request: &ServerRequest, Asked { part, fid }: Asked) -> Looked {
    // There is no lock on a missing object.
    if ost.objects.find(fid).await.is_err() {
        return Looked::Gone;
    }
    let Some(mut reply) = ost.locks.try_lock_object(request, part, fid) else { return Looked::Locked };
    match attr(ost, fid).await {
        Ok(attr) => reply.attr = Some(attr),
        Err(_) => {
            ost.locks.give_back(&request.export, reply.handle);
            return Looked::Gone;
        }
    }
    Looked::Told(reply)
}
