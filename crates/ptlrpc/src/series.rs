//! Numbers that the metrics output shows of parameters with fields: those of imports, and the request buffers of a node.

use nacre_base::Part;
use nacre_base::param::series::{Series, fields, number};
use nacre_base::param::value::Value;

/// `state`: 1 if requests can be sent, or if there was nothing to send for so long that the connection was given up.
pub(crate) fn state(state: &Value) -> Vec<Series> {
    let name = state.field("current_state").and_then(Value::text).unwrap_or_default();
    vec![Series::gauge("connected", i128::from(["NEW", "FULL", "IDLE"].contains(&name)))]
}

/// `import`: requests under way, and counts of requests that were not answered in time, of attempts to connect, and of evictions.
pub(crate) fn import(import: &Value) -> Vec<Series> {
    let Some(import) = import.field("import") else { return Vec::new() };
    let of = |group: &str, name: &str| import.field(group).map_or(0, |group| number(group, name));
    vec![
        Series::gauge("requests_in_flight", of("rpcs", "inflight")),
        Series::counter("request_timeouts", of("rpcs", "timeouts")),
        Series::counter("connection_attempts", of("connection", "connection_attempts")),
        Series::counter("evictions", of("connection", "generation")),
    ]
}

/// `time_parts` of an import: its requests, and their time by part.
pub(crate) fn time_parts(parts: &Value) -> Vec<Series> {
    let by_part = Part::ALL
        .iter()
        .map(|part| Series::counter("time_parts", number(parts, part.name())).in_unit("us").of("part", part.name()));
    let requests = Series::counter("time_parts_requests", number(parts, "requests"));
    [requests].into_iter().chain(by_part).collect()
}

/// `req_buffers`: by lane, requests that have a buffer, and those that wait for one.
pub(crate) fn req_buffers(buffers: &Value) -> Vec<Series> {
    let of_lane = |metric, number| move |lane: &str| Series::gauge(metric, number).of("lane", lane);
    let all = fields(buffers).iter().flat_map(|lane| {
        let (used, waiting) = (number(&lane.value, "used"), number(&lane.value, "waiting"));
        [of_lane("req_buffers_used", used)(&lane.name), of_lane("req_buffers_waiting", waiting)(&lane.name)]
    });
    all.collect()
}

/// `eager_memory`: memory in use, and bytes that were kept and thrown away.
pub(crate) fn eager_memory(memory: &Value) -> Vec<Series> {
    vec![
        Series::gauge("eager_memory_used", number(memory, "used")).in_unit("bytes"),
        Series::counter("eager_kept", number(memory, "kept")).in_unit("bytes"),
        Series::counter("eager_refused", number(memory, "refused")).in_unit("bytes"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::value::{Fields, Reading};

    #[test]
    fn an_import_is_connected_while_it_is_full_or_has_nothing_to_do() {
        let connected = |name: &'static str| {
            let mut fields = Fields::default();
            fields.push("current_state", name);
            state(&fields.into_value())[0].value
        };
        let states = ["NEW", "FULL", "IDLE", "DISCONN", "CONNECTING", "REPLAY", "EVICTED", "CLOSED"];
        assert_eq!(states.map(connected), [1, 1, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn numbers_are_found_where_the_parameters_have_them() {
        let (mut rpcs, mut inner, mut outer) = (Fields::default(), Fields::default(), Fields::default());
        rpcs.push("timeouts", 3u64);
        inner.push("rpcs", rpcs);
        outer.push("import", inner);
        let timeouts = import(&outer.into_value());
        assert!(timeouts.contains(&Series::counter("request_timeouts", 3)), "{timeouts:?}");
        let (mut lane, mut lanes) = (Fields::default(), Fields::default());
        lane.push("waiting", 5u64);
        lanes.push("io", lane);
        let waiting = req_buffers(&lanes.into_value());
        assert!(waiting.contains(&Series::gauge("req_buffers_waiting", 5).of("lane", "io")), "{waiting:?}");
    }
}
