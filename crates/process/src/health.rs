//! `health_check`, as Lustre has it.

use nacre_base::param::Params;

/// Adds what every process has.
pub(crate) fn add_params(params: &Params) {
    params.add("version", || format!("nacre: {}", env!("CARGO_PKG_VERSION")));
    let all = params.clone();
    params.add(HEALTH_CHECK, move || health_check(&all));
}

/// Whether all targets are well, as Lustre's.
pub const HEALTH_CHECK: &str = "health_check";
const ILL: &str = "NOT HEALTHY";

/// As Lustre prints it: the devices that are not well, which exporters parse. Why they are not is in their `health`.
fn health_check(params: &Params) -> String {
    // Without a target there is nothing that could be ill.
    let targets = params.get("*.*.health").unwrap_or_default();
    let ill = targets.iter().filter(|(_, health)| health != nacre_tgt::HEALTHY).map(|(name, _)| {
        let device = name.split('.').nth(1).unwrap_or(name);
        format!("device {device} reported unhealthy")
    });
    health_of(ill.collect())
}

/// What `health_check` says of a host, by what it says in each process.
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
