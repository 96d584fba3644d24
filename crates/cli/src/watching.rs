//! Reads the values that the processes of this host, or servers elsewhere, show now, for `nacre top` and the dashboard. `nacre_diagnosis`
//! interprets them.

use crate::statistics::host;
use nacre_diagnosis::{PATTERNS, Picture, Values, Watch};
use nacre_process::admin::side_by_side;
use nacre_process::metrics;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// Several readers within this time get the same answer.
const SAME_FOR: Duration = Duration::from_millis(900);
/// Time between the first two pictures.
const FIRST_SPAN: Duration = Duration::from_secs(1);

/// Advice for a host without servers.
pub(crate) const FROM_HINT: &str = "Servers on other hosts are named with --from ADDRESS:PORT,..., where ADDRESS:PORT is that of their option --metrics";

/// Servers to be watched.
#[derive(clap::Args, Debug, Clone, Default)]
pub(crate) struct Servers {
    /// Watch the servers whose metrics are at ADDRESS:PORT (option --metrics of `nacre mds` and `nacre oss`), instead of the processes of
    /// this host
    #[arg(long = "from", value_name = "ADDRESS:PORT", value_delimiter = ',')]
    from: Vec<String>,
}

/// Watches servers.
pub(crate) struct Watcher {
    servers: Servers,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watch: Watch,
    latest: Option<(Instant, Value)>,
}

impl Watcher {
    pub(crate) fn new(servers: Servers) -> Watcher {
        Watcher { servers, state: Mutex::default() }
    }

    /// True if the processes of this host are watched, and not servers that were named.
    pub(crate) fn is_local(&self) -> bool {
        self.servers.from.is_empty()
    }

    /// Reports on the last seconds. The first call takes a second.
    pub(crate) fn now(&self) -> Result<Value, String> {
        // Others wait: they get the answer of the one that reads.
        let mut state = self.state.lock();
        if let Some((at, latest)) = &state.latest
            && at.elapsed() < SAME_FOR
        {
            return Ok(latest.clone());
        }
        if state.latest.is_none() {
            state.watch.handle_picture(self.read()?);
            std::thread::sleep(FIRST_SPAN);
        }
        state.watch.handle_picture(self.read()?);
        let report = state.watch.report().ok_or("the clock of this host was set back; try again")?.to_json();
        state.latest = Some((Instant::now(), report.clone()));
        Ok(report)
    }

    /// Reads a target's history: its requests in each second of the last hour, and in each minute of the last day.
    pub(crate) fn history(&self, target: &str) -> Result<Value, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if target.is_empty() || !target.chars().all(is_plain) {
            return Err(format!("{target:?} is not the name of a target"));
        }
        let (all, unread) = self.histories(target)?;
        let found = all.into_iter().next().map(|(_, value)| value);
        let why =
            || unread.into_values().next().unwrap_or(format!("no server that is watched has the target {target}"));
        found.ok_or_else(why)
    }

    /// The histories of the targets whose names match, and the processes and servers that could not be read, with the reason.
    pub(crate) fn histories(&self, pattern: &str) -> Result<(Values, BTreeMap<String, String>), String> {
        let patterns = ["obdfilter", "mdt"].map(|layer| format!("{layer}.{pattern}.history"));
        let (processes, unread) = self.values(&patterns.each_ref().map(String::as_str))?;
        Ok((processes.into_iter().flatten().collect(), unread))
    }

    fn read(&self) -> Result<Picture, String> {
        let (processes, unread) = self.values(PATTERNS)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Picture { unread, ..Picture::new(now.as_secs_f64(), &processes) })
    }

    /// The values that each process shows, and the processes and servers that could not be read, with the reason. Fails if there is nothing
    /// to show.
    fn values(&self, patterns: &[&str]) -> Result<(Vec<Values>, BTreeMap<String, String>), String> {
        if self.is_local() {
            host::values_by_process(patterns).map_err(|why| format!("{why}. {FROM_HINT}"))
        } else {
            self.values_by_server(patterns)
        }
    }

    fn values_by_server(&self, patterns: &[&str]) -> Result<(Vec<Values>, BTreeMap<String, String>), String> {
        let (mut all, mut unread) = (Vec::new(), BTreeMap::new());
        let outcomes = side_by_side(&self.servers.from, |server| read_server(server, patterns));
        for (server, outcome) in self.servers.from.iter().zip(outcomes) {
            match outcome {
                Ok(values) => all.push(values),
                Err(why) => drop(unread.insert(server.clone(), why)),
            }
        }
        match unread.values().next() {
            Some(why) if all.is_empty() => Err(why.clone()),
            _ => Ok((all, unread)),
        }
    }
}

fn read_server(server: &str, patterns: &[&str]) -> Result<Values, String> {
    let failed = |why: String| format!("cannot read what {server} shows: {why}");
    let body = metrics::fetch(server, &format!("/values?{}", patterns.join("&"))).map_err(failed)?;
    serde_json::from_slice::<Values>(&body).map_err(|e| failed(e.to_string()))
}
