//! ioctl(2) on files and directories of the mount: see [`crate::ioctl`].

use super::{Door, credentials};
use crate::handler::Context;
use crate::ioctl::{FileControl, flags_to_bytes, xflags_to_bytes};
use crate::request;
use nacre_base::Errno;
use nacre_wire::attr::{Attr, SetAttr};

impl Door {
    /// Does what an ioctl asks for: its result, and what its argument will point to.
    pub(super) async fn control(&self, ctx: &Context, op: &request::Ioctl) -> Result<(i32, Vec<u8>), Errno> {
        let control = FileControl::parse(op.command, &op.data)?;
        let nothing = |result: i32| (result, Vec::new());
        match control {
            FileControl::Sync => return self.client.sync().await.map(|()| nothing(0)),
            FileControl::GetFlags => {
                return self.attr(ctx, op).await.map(|attr| (0, flags_to_bytes(attr.flags).to_vec()));
            }
            FileControl::GetXflags => {
                let to_bytes = |attr: Attr| xflags_to_bytes(attr.flags, attr.projid).to_vec();
                return self.attr(ctx, op).await.map(|attr| (0, to_bytes(attr)));
            }
            FileControl::SetFlags(flags) => {
                let set = SetAttr { flags: Some(flags), ..SetAttr::default() };
                return self.set_flags(ctx, op, set).await.map(|()| nothing(0));
            }
            FileControl::SetXflags { flags, project } => {
                let before = self.attr(ctx, op).await?;
                let projid = Some(project).filter(|project| *project != before.projid);
                let set = SetAttr { flags: Some(flags), projid, ..SetAttr::default() };
                return self.set_flags(ctx, op, set).await.map(|()| nothing(0));
            }
            _ if op.on_directory => return Err(Errno::ENOTTY),
            _ => {}
        }
        let file = self.file(op.handle)?;
        let result = match control {
            FileControl::Advise(advice) => self.client.advise(&file, advice).await.map(|result| result as i32),
            FileControl::GroupUnlock(group) => self.client.group_unlock(&file, group).await.map(|()| 0),
            FileControl::GroupLock(group) => {
                let nonblock = file.flags() & libc::O_NONBLOCK as u32 != 0;
                tokio::select! {
                    biased;
                    result = self.client.group_lock(&file, group, nonblock) => result.map(|()| 0),
                    () = ctx.interrupted() => Err(Errno::EINTR),
                }
            }
            _ => unreachable!("done above"),
        };
        result.map(nothing)
    }

    async fn attr(&self, ctx: &Context, op: &request::Ioctl) -> Result<Attr, Errno> {
        self.client.getattr(&credentials(ctx), self.fid(op.node)?).await
    }

    async fn set_flags(&self, ctx: &Context, op: &request::Ioctl, set: SetAttr) -> Result<(), Errno> {
        self.client.setattr(&credentials(ctx), self.fid(op.node)?, set, None).await.map(drop)
    }
}
