//! ioctl(2) on files and directories of the mount: see [`crate::ioctl`].

use super::{Door, credentials};
use crate::handler::Context;
use crate::ioctl::{FileControl, flags_to_bytes, xflags_to_bytes};
use crate::request;
use nacre_base::Errno;
use nacre_client::OpenFile;
use nacre_wire::attr::{Attr, SetAttr};
use std::sync::Arc;

impl Door {
    /// Carries out an ioctl. Returns its result, and the bytes for its argument.
    pub(super) async fn control(&self, ctx: &Context, op: &request::Ioctl) -> Result<(i32, Vec<u8>), Errno> {
        let mut answer = Vec::new();
        let result = match FileControl::parse(op.command, &op.data)? {
            FileControl::Sync => self.client.sync().await.map(|()| 0)?,
            FileControl::GetFlags => {
                answer.extend(flags_to_bytes(self.attr(ctx, op).await?.flags));
                0
            }
            FileControl::GetXflags => {
                let attr = self.attr(ctx, op).await?;
                answer.extend(xflags_to_bytes(attr.flags, attr.projid));
                0
            }
            FileControl::SetFlags(flags) => {
                let set = SetAttr { flags: Some(flags), ..SetAttr::default() };
                self.set_flags(ctx, op, set).await.map(|()| 0)?
            }
            FileControl::SetXflags { flags, project } => {
                let before = self.attr(ctx, op).await?;
                let projid = Some(project).filter(|project| *project != before.projid);
                let set = SetAttr { flags: Some(flags), projid, ..SetAttr::default() };
                self.set_flags(ctx, op, set).await.map(|()| 0)?
            }
            FileControl::Advise(advice) => self.client.advise(&*self.open_file(op)?, advice).await? as i32,
            FileControl::GroupUnlock(group) => {
                self.client.group_unlock(&*self.open_file(op)?, group).await.map(|()| 0)?
            }
            FileControl::GroupLock(group) => {
                let file = self.open_file(op)?;
                let nonblock = file.flags() & libc::O_NONBLOCK as u32 != 0;
                tokio::select! {
                    biased;
                    result = self.client.group_lock(&file, group, nonblock) => result.map(|()| 0)?,
                    () = ctx.interrupted() => return Err(Errno::EINTR),
                }
            }
        };
        Ok((result, answer))
    }

    /// The open file that an ioctl is for; ENOTTY for a directory.
    fn open_file(&self, op: &request::Ioctl) -> Result<Arc<OpenFile>, Errno> {
        if op.on_directory { Err(Errno::ENOTTY) } else { self.file(op.handle) }
    }

    async fn attr(&self, ctx: &Context, op: &request::Ioctl) -> Result<Attr, Errno> {
        self.client_for(ctx).await.getattr(&credentials(ctx), self.fid(op.node)?).await
    }

    async fn set_flags(&self, ctx: &Context, op: &request::Ioctl, set: SetAttr) -> Result<(), Errno> {
        self.client_for(ctx).await.setattr(&credentials(ctx), self.fid(op.node)?, set, None).await.map(drop)
    }
}
