//! Mounts the null file system until it is unmounted: `null MOUNTPOINT [cached]`.

use nacre_fuse::reply::OpenFlags;
use nacre_fuse::{FuseError, MountOptions};
use nacre_nullfs::{self as null, NullOptions};
use nacre_rt::Rt;
use std::path::PathBuf;

#[tokio::main]
async fn main() -> Result<(), FuseError> {
    let mut args = std::env::args().skip(1);
    let mountpoint = PathBuf::from(args.next().unwrap_or_else(|| {
        eprintln!("usage: null MOUNTPOINT [cached]");
        std::process::exit(2)
    }));
    let mut options = NullOptions::default();
    if args.next().as_deref() == Some("cached") {
        options.open_flags = OpenFlags::NOFLUSH;
    }
    let mount_options = MountOptions { source: "null".into(), ..MountOptions::default() };
    let session = null::mount(Rt::production(), &mountpoint, mount_options, options).await?;
    println!("mounted on {}; unmount with: umount {0}", session.mountpoint().display());
    session.wait_unmounted().await;
    Ok(())
}
