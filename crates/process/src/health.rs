//! `health_check`, as Lustre has it.

use nacre_base::param::Params;

/// Adds the parameters that every process has.
pub(crate) fn add_params(params: &Params) {
    params.add("version", || format!("nacre: {}", env!("CARGO_PKG_VERSION")));
    let all = params.clone();
    params.add(HEALTH_CHECK, move || health_check(&all));
}

/// Name of the parameter that says whether all targets are healthy, as in Lustre.
pub const HEALTH_CHECK: &str = "health_check";
const ILL: &str = "NOT HEALTHY";

/// The unhealthy devices, as Lustre prints them and exporters parse them. The reason is in each target's `health`.
fn health_check(params: &Params) -> String {
    // Without a target, nothing can be unhealthy.
    let targets = params.get("*.*.health").unwrap_or_default();
    let ill = targets.iter().filter(|(_, health)| health != nacre_tgt::HEALTHY).map(|(name, _)| {
        let device = name.split('.').nth(1).unwrap_or(name);
        format!("device {device} reported unhealthy")
    });
    health_of(ill.collect())
}

/// The `health_check` of a host, from those of its processes.
pub fn health_of_host<'a>(processes: impl IntoIterator<Item = &'a String>) -> String {
    let lines = processes.into_iter().flat_map(|said| said.lines());
    health_of(lines.filter(|line| ![ILL, nacre_tgt::HEALTHY].contains(line)).map(str::to_owned).collect())
}

fn health_of(mut ill: Vec<String>) -> String {
    if ill.is_empty() {
        return nacre_tgt::HEALTHY.to_owned();
    }
    ill.push(ILL.to_owned());
    ill.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_check_is_lustres() {
        let params = Params::new();
        assert_eq!(health_check(&params), "healthy");
        params.add("mgs.MGS.health", || "healthy".to_owned());
        params.add("mdt.l-MDT0000.health", || "it is full".to_owned());
        let ill = health_check(&params);
        assert_eq!(ill, "device l-MDT0000 reported unhealthy\nNOT HEALTHY");
        let healthy = "healthy".to_owned();
        assert_eq!(health_of_host([&healthy, &ill, &healthy]), ill);
        assert_eq!(health_of_host([&healthy, &healthy]), healthy);
    }
}
