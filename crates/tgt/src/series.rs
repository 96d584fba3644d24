//! Numbers that the metrics output shows of a target's parameters with fields: its health and recovery, and where the time of its requests
//! went.

use nacre_base::Part;
use nacre_base::param::series::{Series, busiest, fields, number};
use nacre_base::param::value::{Field, Value};

/// `health`: 1 if nothing is wrong.
pub(crate) fn health(health: &Value) -> Vec<Series> {
    vec![Series::gauge("healthy", i128::from(health.text() == Some(crate::target::HEALTHY)))]
}

/// `recovery_status`: 1 while a recovery is under way, the time that it may still take, and the clients that the last one evicted.
pub(crate) fn recovery_status(status: &Value) -> Vec<Series> {
    let phase = status.field("status").and_then(Value::text).unwrap_or_default();
    let is_over = ["INACTIVE", "COMPLETE"].contains(&phase);
    // The end of a recovery is shown as completed and known clients.
    let completed = status.field("completed_clients").and_then(Value::text).and_then(|text| text.split_once('/'));
    let of_end =
        completed.and_then(|(completed, known)| Some(known.parse::<i128>().ok()? - completed.parse::<i128>().ok()?));
    let evicted = of_end.unwrap_or_else(|| number(status, "evicted_clients"));
    vec![
        Series::gauge("recovering", i128::from(!is_over)),
        Series::gauge("recovery_time_remaining", number(status, "time_remaining")).in_unit("s"),
        Series::gauge("recovery_evicted_clients", evicted),
    ]
}

/// `time_parts`: requests and their time by operation and part. Of the busiest clients and jobs, the parts are added up.
pub(crate) fn time_parts(parts: &Value) -> Vec<Series> {
    let mut all = Vec::new();
    for operation in parts.field("operations").map(fields).unwrap_or_default() {
        let name = &*operation.name;
        all.push(Series::counter("time_parts_requests", number(&operation.value, "requests")).of("operation", name));
        all.extend(Part::AT_SERVERS.iter().map(|part| {
            let micros = number(&operation.value, part.name());
            Series::counter("time_parts", micros).in_unit("us").of("operation", name).of("part", part.name())
        }));
    }
    for client in parts.field("clients").map(busiest).unwrap_or_default() {
        let text = |field: &str| client.value.field(field).and_then(Value::text).unwrap_or_default();
        // Several mounts of a host have one name and one NID.
        let labels = [("client", text("name")), ("nid", text("nid")), ("uuid", &client.name)];
        all.extend(of_use(["client_requests", "client_time", "client_read", "client_write"], &labels, client));
    }
    for job in parts.field("jobs").map(busiest).unwrap_or_default() {
        all.extend(of_use(["job_requests", "job_time", "job_read", "job_write"], &[("job", &*job.name)], job));
    }
    all
}

fn of_use(metrics: [&'static str; 4], labels: &[(&'static str, &str)], used: &Field) -> Vec<Series> {
    let micros = Part::AT_SERVERS.iter().map(|part| number(&used.value, part.name())).sum();
    let numbers = [
        number(&used.value, "requests"),
        micros,
        number(&used.value, "read_bytes"),
        number(&used.value, "write_bytes"),
    ];
    let units = ["", "us", "bytes", "bytes"];
    let labelled = |one: Series| labels.iter().fold(one, |one, (label, value)| one.of(label, *value));
    let all = metrics.into_iter().zip(numbers).zip(units);
    all.map(|((metric, number), unit)| labelled(Series::counter(metric, number).in_unit(unit))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::value::{Fields, Reading};

    fn used(requests: u64, device: u64, written: u64) -> Fields {
        let mut fields = Fields::default();
        fields.push("requests", requests);
        fields.push("write_bytes", written);
        fields.push("device", device);
        fields
    }

    fn within(
        name: &'static str,
        key: &'static str,
        mut value: Fields,
        more: &[(&'static str, &'static str)],
    ) -> Fields {
        more.iter().for_each(|(name, text)| value.push(*name, *text));
        let (mut inner, mut outer) = (Fields::default(), Fields::default());
        inner.push(key, value);
        outer.push(name, inner);
        outer
    }

    fn text(all: &[Series]) -> Vec<String> {
        let labels =
            |one: &Series| one.labels.iter().map(|(name, value)| format!(" {name}={value}")).collect::<String>();
        all.iter()
            .filter(|one| one.value != 0)
            .map(|one| format!("{}{} {}", one.metric, labels(one), one.value))
            .collect()
    }

    #[test]
    fn time_is_shown_by_operation_and_part_and_of_clients_and_jobs_in_all() {
        let operations = time_parts(&within("operations", "write", used(3, 5000, 9), &[]).into_value());
        assert_eq!(
            text(&operations),
            ["time_parts_requests operation=write 3", "time_parts operation=write part=device 5000"]
        );
        assert_eq!(operations.len(), 1 + Part::AT_SERVERS.len());
        let jobs = time_parts(&within("jobs", "dd.0", used(3, 5000, 9), &[]).into_value());
        assert_eq!(text(&jobs), ["job_requests job=dd.0 3", "job_time job=dd.0 5000", "job_write job=dd.0 9"]);
        let named = [("name", "n1"), ("nid", "1@tcp")];
        let clients = time_parts(&within("clients", "uuid", used(3, 5000, 0), &named).into_value());
        let labels = "client=n1 nid=1@tcp uuid=uuid";
        assert_eq!(text(&clients), [format!("client_requests {labels} 3"), format!("client_time {labels} 5000")]);
    }

    #[test]
    fn a_recovery_is_under_way_until_it_is_complete() {
        let status = |phase: &'static str, name: &'static str, clients: &'static str| {
            let mut fields = Fields::default();
            fields.push("status", phase);
            fields.push(name, clients);
            text(&recovery_status(&fields.into_value()))
        };
        assert_eq!(status("INACTIVE", "", ""), [""; 0]);
        assert_eq!(status("WAITING_FOR_CLIENTS", "connected_clients", "1/3"), ["recovering 1"]);
        assert_eq!(status("COMPLETE", "completed_clients", "1/3"), ["recovery_evicted_clients 2"]);
    }
}
