//! `nacre dashboard`: the command line of a page that shows a file system at work. The server is in `server.rs`, the page in plain files
//! beside it, and the numbers come from a [`Source`].

mod files;
#[cfg(debug_assertions)]
mod sample;
mod server;

use crate::watching::{Servers, Watcher};
use nacre_process::daemon;
use server::Server;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

/// Show on a page in the browser what a file system does now, and what holds it up.
///
/// The page begins with one sentence: nothing is wrong, or what is. Below are the findings with their evidence, the rates of the
/// whole file system, and the rates, the latency and the parts of a request's time for each target, client, job and operation.
/// A click on a target shows its last hour and its last day.
///
/// Without --from it watches the processes of this host that run as this user, such as those of `nacre up`.
///
/// The command runs in the foreground until SIGINT or SIGTERM. It prints `ready URL` to standard output once it serves, and logs
/// to standard error. It only reads: nothing on the page changes the file system. The page consists of this program's own files
/// and loads nothing from elsewhere.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Dashboard {
    /// Address of this host and port to serve the page on; port 0 takes any free one.
    ///
    /// On a loopback address only this host can read the page, and only requests to `localhost`, `127.0.0.1` or `[::1]` are
    /// answered, so that a web page from elsewhere cannot read it by a name that it makes point here. On any other address
    /// everybody who can connect may read the names of clients and jobs and all rates: there is no password and no encryption.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9460", value_parser = parse_address)]
    listen: SocketAddr,
    #[command(flatten)]
    servers: Servers,
    /// Directory with now.json and history.json to serve instead of a file system's numbers; for tests of the page
    #[cfg(debug_assertions)]
    #[arg(long, value_name = "DIR", hide = true)]
    sample: Option<std::path::PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  nacre dashboard
      serve http://127.0.0.1:9460/
  ssh -L 9460:127.0.0.1:9460 SERVER nacre dashboard
      read the page of another host; the port must be the same at both ends
  nacre dashboard --from 10.0.0.2:9464,10.0.0.3:9464
      watch the servers of a cluster
  nacre dashboard --listen 10.0.0.1:9460
      let everybody in that network read it";

/// Numbers of a file system, in the form that the page expects. Calls may block: each runs on a thread of its own, and only a few run at
/// the same time.
pub(crate) trait Source: Send + Sync + 'static {
    /// State of the file system: a sentence, findings, totals, targets, clients, jobs and operations. An error is one sentence for
    /// a person.
    fn now(&self) -> Result<serde_json::Value, String>;
    /// Sums of a target by seconds and by minutes. The name comes from outside and may be any text.
    fn history(&self, target: &str) -> Result<serde_json::Value, String>;
}

/// Runs the command until it is told to stop.
pub(crate) fn main(args: Dashboard) -> ExitCode {
    daemon::run(
        async move {
            let source = source(&args)?;
            serve(source, args.listen).await
        },
        "dashboard",
    )
}

/// Serves the page until a signal to stop arrives.
pub(crate) async fn serve(source: Arc<dyn Source>, address: SocketAddr) -> Result<(), String> {
    let server = Server::bind(address).await?;
    daemon::say_ready(format_args!("http://{}/", server.address()));
    if !server.address().ip().is_loopback() {
        tracing::info!("everybody who can connect to {} may read the dashboard", server.address());
    }
    tokio::select! {
        () = server.run(source) => Ok(()),
        () = daemon::stop_signal() => Ok(()),
    }
}

/// The place where the page's numbers come from.
fn source(args: &Dashboard) -> Result<Arc<dyn Source>, String> {
    #[cfg(debug_assertions)]
    if let Some(dir) = &args.sample {
        return Ok(Arc::new(sample::Sample::new(dir)));
    }
    Ok(Arc::new(Watcher::new(args.servers.clone())))
}

impl Source for Watcher {
    fn now(&self) -> Result<serde_json::Value, String> {
        Watcher::now(self)
    }

    fn history(&self, target: &str) -> Result<serde_json::Value, String> {
        Watcher::history(self, target)
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "it is not ADDRESS:PORT, such as 127.0.0.1:9460 or [::1]:9460".to_owned())
}
