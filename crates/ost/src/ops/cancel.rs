//! LDLM_CANCEL. Data written under a lock is committed before another client can see it (`sync_on_lock_cancel`): if the
//! OST and the writer then crashed, the other client would have seen data that is lost.

use crate::object_service::ObjectService;
use crate::settings::SyncOnLockCancel;
use nacre_base::{Errno, Fid};
use nacre_ptlrpc::{Export, Response, ServerRequest};
use nacre_wire::ldlm::Cancel;
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: Box<ServerRequest>) -> Result<Response, Errno> {
    let cancel: Cancel = request.decode()?;
    before_cancel(ost, &request.export, &cancel.handles).await;
    ost.locks.cancel(&request)
}

/// Commits, if needed, what the client wrote under locks that it gives back.
pub(super) async fn before_cancel(ost: &ObjectService, export: &Export, handles: &[u64]) {
    let written: Vec<Fid> = ost.locks.written_by(export, handles).filter(|fid| must_commit(ost, *fid)).collect();
    commit_if_uncommitted(ost, &written).await;
}

/// Commits, if needed, before a lock goes that the server took for the writes of one request.
pub(super) async fn before_unlock(ost: &ObjectService, fid: Fid) {
    if must_commit(ost, fid) {
        commit_if_uncommitted(ost, &[fid]).await;
    }
}

/// With `Blocking`, writers that come next need no commit: they write beside the data or over it, and after a crash in
/// the order of their transnos as well. If one of them reads uncommitted data, that read waits for the commit
/// (`crate::uncommitted`). Otherwise records that clients append to a file in turns would cost a commit each.
fn must_commit(ost: &ObjectService, fid: Fid) -> bool {
    match ost.settings.sync_on_lock_cancel() {
        SyncOnLockCancel::Never => false,
        SyncOnLockCancel::Blocking => ost.locks.has_waiting_reader(fid),
        SyncOnLockCancel::Always => true,
    }
}

async fn commit_if_uncommitted(ost: &ObjectService, fids: &[Fid]) {
    if ost.objects.any_uncommitted(fids)
        && let Err(error) = ost.target.commit().await
    {
        // The lock goes all the same, because the target has stopped and answers no client.
        tracing::warn!(target = %ost.target.name(), %error, "cannot commit before a lock is given back");
    }
}
