//! The parameters of the latest requests of a service: the requests in Lustre's format, as in `ost.OSS.ost_io.req_history`, and their number.

use crate::Target;
use crate::service::Statistics;
use nacre_base::param::declared::{Declared, Kind, number};
use nacre_base::{Time, Timestamp};
use nacre_ptlrpc::{HISTORY_MAX, PastRequest};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

const MAX: Kind = number(0, HISTORY_MAX as i64);

/// The parameters of these services: layer and name.
macro_rules! declare {
    ($(($layer:literal, $service:literal)),*) => {
        &[
            $(
                Declared::text(
                    &[$layer],
                    concat!($service, ".req_history"),
                    "The latest requests: number, target, client, xid, length, phase, time of arrival, how long it took, and by how \
                     much that was less than its client would have waited.",
                ),
                Declared::shown(
                    &[$layer],
                    concat!($service, ".req_buffer_history_len"),
                    Kind::Gauge,
                    "Requests that req_history has.",
                )
                .metric(concat!($service, "_remembered_requests")),
                Declared::kept(
                    &[$layer],
                    concat!($service, ".req_buffer_history_max"),
                    MAX,
                    "1024",
                    "Requests that req_history has at most.",
                )
                .in_unit("requests"),
            )*
        ]
    };
}

/// All declarations.
pub const REQUEST_HISTORY_PARAMS: &[Declared] = declare!(
    ("ost", "ost"),
    ("ost", "ost_create"),
    ("ost", "ost_io"),
    ("mds", "mdt"),
    ("mds", "mdt_readpage"),
    ("mgs", "mgs")
);

/// Registers the parameters of a service, which all its targets of this node share.
pub(crate) fn register(target: &Target, service: &'static str, statistics: &'static [Statistics]) {
    let histories = target.node().keep_histories(service, statistics.iter().map(|statistics| statistics.only));
    let params = target.params();
    for (place, Statistics { name, .. }) in statistics.iter().enumerate() {
        let (shown, rt) = (histories.clone(), target.rt().clone());
        params.add(format!("{name}.req_history"), move || text(&shown.requests(place), rt.now(), rt.wall()));
        let counted = histories.clone();
        params.add(format!("{name}.req_buffer_history_len"), move || counted.len_of(place));
        let (shown, set): (_, Arc<_>) = (histories.clone(), histories.clone());
        params.add_rw(
            format!("{name}.req_buffer_history_max"),
            move || shown.max_of(place),
            move |text| {
                let max = text.trim().parse().ok().filter(|max| *max <= HISTORY_MAX);
                set.set_max_of(place, max.ok_or_else(|| format!("{text:?} is not a number from 0 to {HISTORY_MAX}"))?);
                Ok(())
            },
        );
    }
}

/// A line for each request, as Lustre prints them. A request that is not complete has taken the time until now.
fn text(requests: &[(u64, PastRequest)], now: Time, wall: Timestamp) -> String {
    let mut text = String::new();
    for (number, request) in requests {
        let PastRequest { target, client, xid, length, opcode, phase, arrived, deadline, took } = request;
        let took = took.unwrap_or_else(|| now.since(*arrived));
        let (at, ended) = (before(wall, now.since(*arrived)), *arrived + took);
        // Lustre counts in whole seconds; a request that ended in time has a negative number.
        let late = ended.since(*deadline).as_secs() as i64 - deadline.since(ended).as_secs() as i64;
        // Writing to a String cannot fail. 12345 is the process that Lustre's NIDs name.
        let _ = writeln!(
            text,
            "{number}:{target}:12345-{client}:x{xid}:{length}:{}:{}.{:06}:{}.{:06}s({late:+}.0s) opc {}",
            phase.name(),
            at.secs,
            at.nanos / 1000,
            took.as_secs(),
            took.subsec_micros(),
            *opcode as u16,
        );
    }
    text
}

/// The time of day some time before another.
fn before(wall: Timestamp, ago: Duration) -> Timestamp {
    let nanos = i128::from(wall.secs) * 1_000_000_000 + i128::from(wall.nanos) - ago.as_nanos() as i128;
    Timestamp { secs: nanos.div_euclid(1_000_000_000) as i64, nanos: nanos.rem_euclid(1_000_000_000) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::Nid;
    use nacre_ptlrpc::RequestPhase;
    use nacre_wire::Opcode;

    #[test]
    fn requests_are_shown_as_lustre_shows_them() {
        let answered = PastRequest {
            target: "a-OST0000".into(),
            client: Nid::sim(7),
            xid: 1_799,
            length: 488,
            opcode: Opcode::OstWrite,
            phase: RequestPhase::Complete,
            arrived: Time::from_secs(100),
            deadline: Time::from_secs(110),
            took: Some(Duration::from_micros(1_000_123)),
        };
        let waits =
            PastRequest { phase: RequestPhase::New, took: None, deadline: Time::from_secs(101), ..answered.clone() };
        let wall = Timestamp { secs: 1_795_231_226, nanos: 500_000_000 };
        assert_eq!(
            text(&[(41, answered), (42, waits)], Time::from_secs(104), wall),
            "41:a-OST0000:12345-7@sim:x1799:488:Complete:1795231222.500000:1.000123s(-8.0s) opc 4\n\
             42:a-OST0000:12345-7@sim:x1799:488:New:1795231222.500000:4.000000s(+3.0s) opc 4\n"
        );
    }
}
