//! `nacre mgs`: a management server, whose configuration is in its own target, or in etcd together with other management servers.

use crate::network::NetworkArgs;
use crate::servers::{self, Role, Serve};
use nacre_base::{Nid, TargetName, Uuid};
use nacre_etcd::{EtcdAddress, EtcdOptions, EtcdStore, Login};
use nacre_node::{ServeError, TargetSpec};
use nacre_process::{Listen, MetricsAddress, NodeProcess, daemon, host_name};
use nacre_tgt::TargetError;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Run a management server in the foreground: logs go to standard error, and `ready NID` to standard output once it serves. Its
/// configuration is in DIR, or in an etcd that any number of management servers share
#[derive(clap::Args, Debug)]
pub(crate) struct Mgs {
    #[command(flatten)]
    network: NetworkArgs,
    /// Address to serve metrics on (HTTP, /metrics); port 0 takes any free one. Everybody who can connect may read them
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    metrics: MetricsAddress,
    #[command(flatten)]
    config: ConfigArgs,
    /// Directory formatted with `nacre mkfs --mgs`
    #[arg(required_unless_present = "config", conflicts_with = "config")]
    dir: Option<PathBuf>,
}

/// Where the configuration is, if not in a target.
#[derive(clap::Args, Debug)]
struct ConfigArgs {
    /// Keep the configuration in this etcd, such as etcd://10.0.0.1,10.0.0.2,10.0.0.3: its members, with ports if they are not
    /// 2379, and perhaps /PREFIX, below which the keys are. Use it together with --listen
    #[arg(long, value_name = "etcd://HOST[:PORT],...[/PREFIX]")]
    config: Option<EtcdAddress>,
    /// Connect to etcd with TLS, and check its certificate by the authorities in this file (PEM)
    #[arg(long, value_name = "FILE", requires = "config")]
    config_ca: Option<PathBuf>,
    /// Certificate (PEM) to show to etcd
    #[arg(long, value_name = "FILE", requires = "config_ca", requires = "config_key")]
    config_cert: Option<PathBuf>,
    /// Key (PEM) of that certificate
    #[arg(long, value_name = "FILE", requires = "config_cert")]
    config_key: Option<PathBuf>,
    /// File with the user of etcd and its password, as USER:PASSWORD
    #[arg(long, value_name = "FILE", requires = "config")]
    config_user: Option<PathBuf>,
}

/// Pause before an etcd that does not answer at the start is asked again.
const START_PAUSE: Duration = Duration::from_secs(1);

/// Runs the server until it is told to stop.
pub(crate) fn main(args: Mgs) -> ExitCode {
    let Mgs { network, metrics, config, dir } = args;
    match config.config.clone() {
        Some(address) => daemon::run(serve_shared(network, metrics, config, address), "mgs"),
        None => servers::main(Role::Mgs, Serve { network, metrics, dirs: dir.into_iter().collect() }),
    }
}

async fn serve_shared(
    network: NetworkArgs,
    metrics: MetricsAddress,
    config: ConfigArgs,
    address: EtcdAddress,
) -> Result<(), String> {
    let options = config.options(address)?;
    let connections = network.connections(Nid::TCP_PORT, || Listen::of_labels(&[]))?;
    let process = NodeProcess::start("mgs", connections, metrics).await?;
    let node = process.node();
    let store = Arc::new(EtcdStore::new(options, node.rt().random())?);
    let spec = TargetSpec { host: host_name(), ..TargetSpec::new(TargetName::mgs(), Uuid::default(), Vec::new()) };
    let started = tokio::select! {
        started = start(&process, store, spec) => started,
        () = daemon::stop_signal() => Err("stopped before it served".to_owned()),
    };
    if started.is_ok() {
        daemon::say_ready(process.nid());
        daemon::stop_signal().await;
    }
    node.stop().await;
    started
}

/// Serves as soon as etcd answers.
async fn start(process: &NodeProcess, store: Arc<EtcdStore>, spec: TargetSpec) -> Result<(), String> {
    let mut last = String::new();
    loop {
        match process.node().serve_shared(store.clone(), spec.clone()).await {
            Ok(()) => return Ok(()),
            Err(ServeError::Target(error @ TargetError::StoreAway(_))) => {
                let error = format!("{store:?}: {error}. The MGS asks again until it answers");
                if error != last {
                    tracing::warn!("{error}");
                    last = error;
                }
                tokio::time::sleep(START_PAUSE).await;
            }
            Err(ServeError::Target(error @ TargetError::Store(_))) => return Err(format!("{store:?}: {error}")),
            Err(error) => return Err(error.to_string()),
        }
    }
}

impl ConfigArgs {
    fn options(&self, address: EtcdAddress) -> Result<EtcdOptions, String> {
        let read = |path: &Option<PathBuf>| path.as_deref().map(read).transpose();
        let (ca, certificate, key) = (read(&self.config_ca)?, read(&self.config_cert)?, read(&self.config_key)?);
        let login = read(&self.config_user)?.map(|text| login(&text)).transpose()?;
        Ok(EtcdOptions { address, ca, identity: certificate.zip(key), login })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The user and the password in the text of a file.
fn login(text: &[u8]) -> Result<Login, String> {
    let text = String::from_utf8_lossy(text);
    let (user, password) = text.trim_end_matches(['\n', '\r']).split_once(':').unwrap_or_default();
    if user.is_empty() || password.is_empty() {
        return Err("the file of --config-user must be one line, USER:PASSWORD".into());
    }
    Ok(Login { user: user.to_owned(), password: password.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_may_have_colons_and_blanks() {
        let Login { user, password } = login(b"nacre:a b:c \n").unwrap();
        assert_eq!((user.as_str(), password.as_str()), ("nacre", "a b:c "));
        for bad in ["", "nacre", "nacre:", ":x", "\n"] {
            assert!(login(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
