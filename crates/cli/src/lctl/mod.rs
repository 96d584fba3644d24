//! `lctl`: parameters, devices, NIDs and logs of the processes on this host, through their admin sockets. Output and exit codes
//! follow Lustre's tool.

mod ask;
mod devices;
mod lfsck;
mod log;
mod mgs_changes;
mod missing;
mod nodes;
mod params;
mod pcc;

use crate::tool::{self, Command};
use std::ffi::OsString;
use std::process::ExitCode;

const COMMANDS: &[Command] = &[
    Command {
        name: "get_param",
        about: "[-n|-N|-F|-H|-R|-t|-y|--json] PATTERN...: print parameters, such as 'osc.{a,b}-OST000[0-3]*.max*'; -t: only tunable ones",
        run: params::get,
    },
    Command {
        name: "set_param",
        about: "[-n] PATTERN=VALUE...: set parameters of this host's processes; -P [-d] on the MGS's host: have the MGS keep them",
        run: params::set,
    },
    Command {
        name: "list_param",
        about: "[-F] [-R] [-D|-t|-r|-w] [-p] [--json] PATTERN...: print names of parameters; -t: those that configure something",
        run: params::list,
    },
    Command {
        name: "conf_param",
        about: "[-d] FSNAME|TARGET.LAYER.NAME=VALUE: on the MGS's host, have the MGS keep a parameter for a file system",
        run: mgs_changes::conf_param,
    },
    Command {
        name: "replace_nids",
        about: "TARGET NID[,NID...]: on the MGS's host, say where a target is that was moved",
        run: mgs_changes::replace_nids,
    },
    Command { name: "dl", about: "[-t] [--json]: list devices; -t: where their targets are", run: devices::list },
    Command { name: "device_list", about: "the same as dl", run: devices::list },
    Command {
        name: "deactivate",
        about: "DEVICE (or lctl --device DEVICE deactivate): a number or name of dl, of type osc, mdc or osp: fail what needs its target",
        run: |args| devices::set_active(args, false),
    },
    Command { name: "activate", about: "DEVICE: undo deactivate", run: |args| devices::set_active(args, true) },
    Command {
        name: "abort_recovery",
        about: "DEVICE: an MDT or OST stops waiting for clients of its last start, and what they had not synced is lost",
        run: devices::abort_recovery,
    },
    Command { name: "list_nids", about: "[--json]: print this host's NIDs", run: nodes::list_nids },
    Command { name: "route_list", about: "print the routes of this host's processes", run: nodes::route_list },
    Command { name: "show_route", about: "the same as route_list", run: nodes::route_list },
    Command { name: "peer_list", about: "[--json]: print the peers of this host's processes", run: nodes::peer_list },
    Command {
        name: "conn_list",
        about: "[--json]: print the connections of this host's processes, C for small messages, I and O for bulk",
        run: nodes::conn_list,
    },
    Command { name: "which_nid", about: "NID...: print the first that is reachable", run: nodes::which_nid },
    Command { name: "ping", about: "[--json] NID [TIMEOUT_SECONDS]: ask a node for its NIDs", run: nodes::ping },
    Command {
        name: "lfsck_start",
        about: "-M MDT [-t namespace,layout|all] [-n] [-c] [-o] [-s SPEED]: check a running file system",
        run: lfsck::start,
    },
    Command { name: "lfsck_stop", about: "-M MDT: stop that", run: lfsck::stop },
    Command { name: "lfsck_query", about: "[-M MDT] [-w]: how far it is; wait for its end", run: lfsck::query },
    Command {
        name: "pcc",
        about: "add [--size SIZE] MOUNTPOINT DIRECTORY | del MOUNTPOINT DIRECTORY | list [--json] MOUNTPOINT: caches on disk of mounts",
        run: pcc::main,
    },
    Command {
        name: "debug_kernel",
        about: "[--json] [FILE]: print, or write to FILE, the newest log lines of this host's processes, and forget them",
        run: log::print,
    },
    Command { name: "dk", about: "the same as debug_kernel", run: log::print },
    Command { name: "clear", about: "forget these log lines", run: log::clear },
    Command { name: "mark", about: "TEXT: write a line into these logs", run: log::mark },
    Command { name: "barrier", about: "not in Nacre yet; says what to use instead", run: missing::barrier },
    Command { name: "barrier_freeze", about: "the same", run: missing::barrier },
    Command { name: "barrier_thaw", about: "the same", run: missing::barrier },
    Command { name: "barrier_stat", about: "the same", run: missing::barrier },
    Command { name: "barrier_rescan", about: "the same", run: missing::barrier },
    Command { name: "changelog", about: "not in Nacre yet; says what to use instead", run: missing::changelog },
    Command { name: "changelog_register", about: "the same", run: missing::changelog },
    Command { name: "changelog_deregister", about: "the same", run: missing::changelog },
];

/// Runs one command.
pub(crate) fn main(mut args: Vec<OsString>) -> ExitCode {
    // The form that scripts use: `lctl --device N deactivate`.
    if args.len() >= 3 && args[0] == "--device" {
        args.remove(0);
        args.swap(0, 1);
    }
    tool::run("lctl", "parameters, devices and logs of the processes on this host", COMMANDS, args)
}
