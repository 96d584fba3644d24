//! Clients that did not negotiate overstriping would map an overstriped layout wrongly, so they do not get it. They see
//! such files without a layout, and may rename and remove them; opening one, or setting its size or layout, is refused.

use nacre_base::Errno;
use nacre_ptlrpc::Export;
use nacre_wire::connect::connect_flags::OVERSTRIPING;
use nacre_wire::layout::{Component, Layout};
use nacre_wire::mds::{AttrReply, ReintRecord};

/// EOPNOTSUPP if this client must not get the layout.
pub(crate) fn check(export: &Export, layout: Option<&Layout>) -> Result<(), Errno> {
    let overstriped = layout.is_some_and(|l| l.components.iter().any(Component::is_overstriped));
    if overstriped && export.data().flags & OVERSTRIPING == 0 { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
}

/// Removes a layout from a reply that this client must not get.
pub(crate) fn withhold(export: &Export, mut answer: AttrReply) -> AttrReply {
    if check(export, answer.layout.as_ref()).is_err() {
        answer.layout = None;
    }
    answer
}

/// The reply to a change for this client. EOPNOTSUPP, and the change must be undone, if the change only makes sense with
/// the layout.
pub(crate) fn answer_to(export: &Export, record: &ReintRecord, answer: AttrReply) -> Result<AttrReply, Errno> {
    let needs_layout = match record {
        ReintRecord::SetLayout(_) => true,
        ReintRecord::Setattr(r) => r.set.size.is_some(),
        _ => false,
    };
    if needs_layout {
        check(export, answer.layout.as_ref())?;
    }
    Ok(withhold(export, answer))
}
