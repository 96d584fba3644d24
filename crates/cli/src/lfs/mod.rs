//! `lfs`: questions of users about files, space and targets. Works on the mount alone, through extended attributes, so
//! that everybody who may read a file may ask. Output and exit codes follow Lustre's tool.

mod df;
mod dir;
mod fid;
mod fiemap;
mod find;
mod getstripe;
mod ladvise;
mod path;
mod pcc;
mod setstripe;
mod sync;
mod usage;

pub(crate) use path::{get_xattr, mount_of};
pub(crate) use sync::sync_mount;

use crate::tool::{self, Command};
use std::ffi::OsString;
use std::process::ExitCode;

const COMMANDS: &[Command] = &[
    Command {
        name: "setstripe",
        about: "create a file with a layout, or set a directory's default layout",
        run: setstripe::main,
    },
    Command { name: "getstripe", about: "print the layout of files and directories", run: getstripe::main },
    Command { name: "find", about: "find files by name, type, size, time and layout", run: find::main },
    Command { name: "df", about: "print space or inodes of each target", run: df::df },
    Command { name: "osts", about: "list the OSTs", run: df::osts },
    Command { name: "mdts", about: "list the MDTs", run: df::mdts },
    Command { name: "check", about: "ask every target whether it answers", run: df::check },
    Command { name: "mkdir", about: "make a directory on a given MDT", run: dir::mkdir },
    Command { name: "setdirstripe", about: "the same as mkdir", run: dir::mkdir },
    Command { name: "getdirstripe", about: "print on which MDT a directory is", run: dir::getdirstripe },
    Command { name: "path2fid", about: "print the FID of a path", run: fid::path2fid },
    Command { name: "fid2path", about: "print the paths of a FID", run: fid::fid2path },
    Command { name: "fiemap", about: "print where files have space on their OSTs", run: fiemap::main },
    Command { name: "ladvise", about: "tell a file how it will be used", run: ladvise::main },
    Command { name: "pcc", about: "state FILE...: print what the mount's cache on disk has of files", run: pcc::main },
    Command { name: "sync", about: "make all that a mount changed durable", run: sync::main },
    Command { name: "getname", about: "print the name of a mount's file system", run: df::getname },
];

/// Runs one command.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    tool::run(
        "lfs",
        "layouts, space and targets of a mounted file system (lfs COMMAND --help tells more)",
        COMMANDS,
        args,
    )
}
