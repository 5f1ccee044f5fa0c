//! The runtime's facts about itself, from its answers to the node's needs. Pure.

use pintle_cri_v1 as v1;

use crate::cgroup::names::CgroupDriver;
use crate::types::RuntimeHandler;

/// The runtime's facts about itself.
#[derive(Clone, Debug, Default)]
pub struct RuntimeFacts {
    /// Name: `containerd`.
    pub name: String,
    /// Version.
    pub version: String,
    /// Handlers; the one without a name is the default.
    pub handlers: Vec<RuntimeHandler>,
    /// It follows `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// The cgroup driver that it uses, if it reports it.
    pub cgroup_driver: Option<CgroupDriver>,
}

/// The driver of containerd's default handler, from the verbose answer to Status: releases before
/// 2.0 know no RuntimeConfig. `None` for other runtimes and handlers.
pub fn driver_of_info(config: &str) -> Option<(String, CgroupDriver)> {
    let config: serde_json::Value = serde_json::from_str(config).ok()?;
    let containerd = &config["containerd"];
    let name = containerd["defaultRuntimeName"].as_str()?;
    let handler = &containerd["runtimes"][name];
    if handler["runtimeType"].as_str()? != "io.containerd.runc.v2" {
        return None;
    }
    let by_systemd = handler["options"]["SystemdCgroup"].as_bool().unwrap_or(false);
    let driver = if by_systemd { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs };
    Some((name.to_owned(), driver))
}

impl RuntimeFacts {
    /// From the answers to Version, Status and RuntimeConfig.
    pub fn of(
        version: &v1::VersionResponse,
        status: Option<&v1::StatusResponse>,
        config: Option<&v1::RuntimeConfigResponse>,
    ) -> Self {
        let handlers = status.into_iter().flat_map(|s| &s.runtime_handlers).map(|handler| {
            let features = handler.features.as_ref();
            RuntimeHandler {
                name: handler.name.clone(),
                recursive_read_only: features.is_some_and(|f| f.recursive_read_only_mounts),
                user_namespaces: features.is_some_and(|f| f.user_namespaces),
            }
        });
        let linux = config.and_then(|c| c.linux.as_ref());
        let cgroup_driver = linux.map(|linux| match linux.cgroup_driver() {
            v1::CgroupDriver::Systemd => CgroupDriver::Systemd,
            v1::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
        });
        Self {
            name: version.runtime_name.clone(),
            version: version.runtime_version.clone(),
            handlers: handlers.collect(),
            supplemental_groups_policy: status
                .and_then(|status| status.features.as_ref())
                .is_some_and(|features| features.supplemental_groups_policy),
            cgroup_driver,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerd_before_2_0_reports_its_cgroup_driver_in_its_config() {
        let of = |name: &str, kind: &str, options: &str| {
            let handler = format!(r#"{{"runtimeType": "{kind}", "options": {options}}}"#);
            driver_of_info(&format!(
                r#"{{"containerd": {{"defaultRuntimeName": "{name}",
                    "runtimes": {{"runc": {handler}}}}}}}"#
            ))
        };
        let runc = "io.containerd.runc.v2";
        let told = |driver| Some(("runc".to_owned(), driver));
        assert_eq!(of("runc", runc, r#"{"SystemdCgroup": true}"#), told(CgroupDriver::Systemd));
        assert_eq!(of("runc", runc, r#"{"SystemdCgroup": false}"#), told(CgroupDriver::Cgroupfs));
        assert_eq!(of("runc", runc, "null"), told(CgroupDriver::Cgroupfs));
        assert_eq!(of("runc", "io.containerd.kata.v2", "null"), None);
        assert_eq!(of("other", runc, "null"), None);
        assert_eq!(driver_of_info("no JSON"), None);
    }
}
