//! The driver under the flags of upstream's host-path driver, as the suites' manifests write them.
//!
//! Pure. Input: those flags. Output: our own settings, with the capabilities that the host-path
//! driver has under the same flags. Flags without a meaning here are ignored.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser as _;

use crate::go_flags::GoFlags;
use crate::settings::{Feature, Segment, Settings};

/// Where the manifests mount the folder of volumes.
const STATE: &str = "/csi-data-dir";
/// The label of the driver's topology.
const TOPOLOGY: &str = "topology.hostpath.csi/node";

/// The settings that the flags stand for.
///
/// # Errors
/// A flag that the driver needs is missing, or a number is none.
pub fn settings(flags: &GoFlags) -> Result<Settings> {
    let text = |name: &str| flags.value(name).with_context(|| format!("--{name} is missing"));
    let name = text("drivername")?.to_owned();
    let endpoint = text("endpoint")?.trim_start_matches("unix://");
    // Drivers of several tests run at once on one folder; each has its own part of it.
    let state = PathBuf::from(flags.value("statedir").unwrap_or(STATE)).join(&name);
    let usual = Settings::try_parse_from([
        "hostpathplugin".as_ref(),
        "--endpoint".as_ref(),
        endpoint.as_ref(),
        "--state".as_ref(),
        state.as_os_str(),
    ])?;
    let node_id = text("nodeid")?.to_owned();
    let is_bound = flags.is_on("enable-topology", true);
    let topology = Segment { key: TOPOLOGY.to_owned(), value: node_id.clone() };
    let limit = flags.value("maxvolumespernode").or_else(|| flags.value("attach-limit"));
    let mutable = flags.value("accepted-mutable-parameter-names").unwrap_or_default();
    Ok(Settings {
        name,
        node_id,
        max_volumes: limit.unwrap_or("0").parse()?,
        topology: is_bound.then_some(topology).into_iter().collect(),
        mutable_parameter: mutable.split(',').map(str::to_owned).collect(),
        without: absent(flags),
        traces: true,
        ..usual
    })
}

/// Capabilities that the host-path driver does not have.
fn absent(flags: &GoFlags) -> Vec<Feature> {
    let attach = (!flags.is_on("enable-attach", false)).then_some(Feature::Attach);
    let topology = (!flags.is_on("enable-topology", true)).then_some(Feature::Topology);
    let expand = flags.is_on("disable-controller-expansion", false);
    let expand = expand.then_some(Feature::ControllerExpand);
    // The kubelet gives files to a pod's group, which is what the suites test.
    attach.into_iter().chain(topology).chain(expand).chain([Feature::MountGroup]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_manifests_become_settings() {
        let flags = [
            "--drivername=hostpath.csi.k8s.io",
            "--v=5",
            "--endpoint=unix:///csi/csi.sock",
            "--nodeid=n1",
            "--drivername=csi-hostpath-7",
            "--maxvolumespernode=10",
            "--check-volume-lifecycle=true",
            "--accepted-mutable-parameter-names=a,b",
        ];
        let settings = settings(&GoFlags::read(flags)).expect("settings");
        assert_eq!(settings.name, "csi-hostpath-7");
        assert_eq!(settings.endpoint, PathBuf::from("/csi/csi.sock"));
        assert_eq!(settings.state, PathBuf::from("/csi-data-dir/csi-hostpath-7"));
        assert_eq!((settings.node_id.as_str(), settings.max_volumes), ("n1", 10));
        assert_eq!(settings.mutable_parameter, ["a", "b"]);
        assert_eq!(settings.segments(), [(TOPOLOGY.to_owned(), "n1".to_owned())].into());
        assert!(!settings.has(Feature::Attach) && !settings.has(Feature::MountGroup));
        assert!(settings.has(Feature::Snapshots) && settings.has(Feature::Topology));
    }

    #[test]
    fn driver_without_a_name_is_refused() {
        let flags = GoFlags::read(["--endpoint=/csi/csi.sock", "--nodeid=n1"]);
        let error = settings(&flags).expect_err("no name");
        assert_eq!(error.to_string(), "--drivername is missing");
    }
}
