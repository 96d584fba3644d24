//! `health_check`, as Lustre has it.

use nacre_base::param::Params;
use nacre_base::param::value::{Drawn, Fields, Value};
use std::fmt::{self, Display};

/// Adds the parameters that every process has.
pub(crate) fn add_params(params: &Params) {
    params.add("version", || format!("nacre: {}", env!("CARGO_PKG_VERSION")));
    let all = params.clone();
    params.add(HEALTH_CHECK, move || health_check(&all));
}

/// Name of the parameter that says whether all targets are healthy, as in Lustre.
pub const HEALTH_CHECK: &str = "health_check";

/// The targets of the process that are not healthy. The reason is in each target's `health`.
fn health_check(params: &Params) -> Drawn {
    // Without a target, nothing can be unhealthy.
    let targets = params.values("*.*.health");
    let ill = targets.iter().filter(|(_, health)| health.text() != Some(nacre_tgt::HEALTHY));
    health_of(ill.map(|(name, _)| name.split('.').nth(1).unwrap_or(name).to_owned()).collect())
}

/// Field of `health_check`: the devices that are not healthy.
const UNHEALTHY: &str = "unhealthy";

/// The `health_check` of a host, from those of its processes.
pub fn health_of_host<'a>(processes: impl IntoIterator<Item = &'a serde_json::Value>) -> Drawn {
    let devices = processes.into_iter().filter_map(|health| health[UNHEALTHY].as_array()).flatten();
    health_of(devices.filter_map(|device| device.as_str().map(str::to_owned)).collect())
}

fn health_of(devices: Vec<String>) -> Drawn {
    let mut fields = Fields::default();
    fields.push("status", if devices.is_empty() { nacre_tgt::HEALTHY } else { "NOT HEALTHY" });
    fields.push(UNHEALTHY, devices);
    Drawn { fields, draw }
}

/// Shows health as Lustre does and exporters parse it: a line for each unhealthy device, and the status.
fn draw(fields: &Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let devices = fields.get(UNHEALTHY).map(Value::items).unwrap_or_default();
    devices.iter().try_for_each(|device| writeln!(f, "device {device} reported unhealthy"))?;
    fields.get("status").map_or(Ok(()), |status| status.fmt(f))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_base::param::value::Reading;

    #[test]
    fn health_check_is_lustres() {
        let params = Params::new();
        let shown = |health: Drawn| health.into_value().to_string();
        assert_eq!(shown(health_check(&params)), "healthy");
        params.add("mgs.MGS.health", || "healthy".to_owned());
        params.add("mdt.l-MDT0000.health", || "it is full".to_owned());
        let ill = health_check(&params);
        assert_eq!(shown(ill.clone()), "device l-MDT0000 reported unhealthy\nNOT HEALTHY");
        let healthy = nacre_diagnosis::json::value(&health_of(Vec::new()).into_value());
        let in_json = nacre_diagnosis::json::value(&ill.clone().into_value());
        assert_eq!(health_of_host([&healthy, &in_json, &healthy]), ill);
        assert_eq!(shown(health_of_host([&healthy, &healthy])), "healthy");
    }
}
