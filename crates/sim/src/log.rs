//! The log of a simulation: what its nodes log, with the virtual time, and the node that says it.

use std::fmt;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// Prints the log of every simulation from now on to standard error, as far as `filter` lets it pass. Fails if that is not a
/// filter.
pub(crate) fn print(filter: &str) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(filter)?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_timer(VirtualTime);
    // A program that shows a log of its own already keeps it.
    let _ = lines.with_ansi(false).with_writer(std::io::stderr).try_init();
    Ok(())
}

struct VirtualTime;

impl FormatTime for VirtualTime {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        match nacre_rt::current_task() {
            Some((now, scope)) => write!(w, "{:12.6} {scope:<12}", now.as_nanos() as f64 / 1e9),
            None => Ok(()),
        }
    }
}
