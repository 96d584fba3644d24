//! The devices of a process, as `lctl dl` lists them: whatever parameters are declared for.

use nacre_base::param::Params;
use nacre_base::param::value::Value;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Type of the device, such as `osc`.
    pub kind: String,
    /// Name of the device, such as `nacre-OST0000-osc-MDT0000`.
    pub name: String,
    /// The UUID of a target or a mount.
    pub uuid: String,
    /// False if an administrator has deactivated it; `None` if the device cannot be deactivated.
    pub active: Option<bool>,
    /// The NID that its target is reached at, if it is the client of one.
    pub target_nid: Option<String>,
}

/// Parameters that show where a device's target is.
const TARGET_NID: &[&str] = &["ost_conn_uuid", "mds_conn_uuid"];

/// All devices.
pub(crate) fn list(params: &Params) -> Vec<Device> {
    let declared = params.declarations();
    let names: BTreeSet<(String, String)> = params
        .list("**")
        .iter()
        .filter_map(|(name, _)| {
            let (layer, device) = declared.find(name)?.0.layer_and_device(name)?;
            Some((layer.to_owned(), device.to_owned()))
        })
        .collect();
    let describe = |(kind, name): (String, String)| {
        let value = |parameter: &str| params.value(&format!("{kind}.{name}.{parameter}"));
        let uuid = value("uuid").map_or_else(|| format!("{name}_UUID"), |uuid| uuid.to_string());
        let active = value("active").map(|active| active != Value::Number(0));
        let target_nid = TARGET_NID.iter().find_map(|parameter| value(parameter)).map(|nid| nid.to_string());
        Device { uuid, active, target_nid, kind, name }
    };
    names.into_iter().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_what_has_declared_parameters() {
        let params = Params::new();
        nacre_node::DECLARED.iter().for_each(|table| params.declare(table));
        params.add("osc.a-OST0000-osc-MDT0000.active", || false);
        params.add("osc.a-OST0000-osc-MDT0000.uuid", || "a-OST0000_UUID".to_owned());
        params.add("osc.a-OST0000-osc-MDT0000.ost_conn_uuid", || "10.0.0.1@tcp".to_owned());
        params.add("ldlm.namespaces.filter-a-OST0000_UUID.pool.limit", || 1u64);
        params.add("mgc.MGC10.0.0.1@tcp.state", || "FULL".to_owned());
        let device = |kind: &str, name: &str, uuid: &str| Device {
            kind: kind.to_owned(),
            name: name.to_owned(),
            uuid: uuid.to_owned(),
            active: None,
            target_nid: None,
        };
        let namespace = "filter-a-OST0000_UUID";
        assert_eq!(
            list(&params),
            [
                device("ldlm.namespaces", namespace, "filter-a-OST0000_UUID_UUID"),
                device("mgc", "MGC10.0.0.1@tcp", "MGC10.0.0.1@tcp_UUID"),
                Device {
                    active: Some(false),
                    target_nid: Some("10.0.0.1@tcp".to_owned()),
                    ..device("osc", "a-OST0000-osc-MDT0000", "a-OST0000_UUID")
                },
            ]
        );
    }
}
