//! LDLM_CANCEL. What was written under a lock and is not committed is committed before another client can see it
//! (`sync_on_lock_cancel`): should the OST crash then, and the writer with it, what was seen would be gone.

use crate::object_service::ObjectService;
use crate::settings::SyncOnLockCancel;
use nacre_base::{Errno, Fid};
use nacre_ptlrpc::{Export, Response, ServerRequest};
use nacre_wire::ldlm::Cancel;
use std::sync::Arc;

pub(crate) async fn handle(ost: &Arc<ObjectService>, request: ServerRequest) -> Result<Response, Errno> {
    let cancel: Cancel = request.decode()?;
    before_cancel(ost, &request.export, &cancel.handles).await;
    ost.locks.cancel(&request)
}

/// The client gives these locks back: commits what it wrote under them, if it must be.
pub(super) async fn before_cancel(ost: &ObjectService, export: &Export, handles: &[u64]) {
    let written: Vec<Fid> = ost.locks.written_by(export, handles).filter(|fid| must_commit(ost, *fid)).collect();
    commit_if_uncommitted(ost, &written).await;
}

/// A lock that the server took for the writes of one request is about to go.
pub(super) async fn before_unlock(ost: &ObjectService, fid: Fid) {
    if must_commit(ost, fid) {
        commit_if_uncommitted(ost, &[fid]).await;
    }
}

/// Writers who come next see nothing of it: they write beside it or over it, in the order of their transnos after a crash as
/// well. If one of them reads what is not committed, that read waits for the commit (`crate::uncommitted`). Records that
/// clients append to a file in turns would cost a commit each otherwise.
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
        // The lock goes all the same: the target has stopped, and answers nobody any more.
        tracing::warn!(target = %ost.target.name(), %error, "cannot commit before a lock is given back");
    }
}
