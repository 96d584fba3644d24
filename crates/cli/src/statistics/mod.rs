//! `llstat`, `llobdstat` and `lljobstat`: Lustre's tools that watch statistics. They read the typed values that the processes of this
//! host give through their admin sockets, print what Lustre's tools print, and have `--json` for programs.

mod counted;
pub(crate) mod host;
mod intervals;
pub(crate) mod lljobstat;
pub(crate) mod llobdstat;
pub(crate) mod llstat;
