//! From flags to the settings of loops.
//!
//! Input: the flags that were given. Output: [`LoopSettings`]. A flag that was not given has the
//! default of its table. Pure.

use std::path::PathBuf;
use std::time::Duration;

use pintle_api_types::duration::GoDuration;
use pintle_config::given::GivenFlags;
use pintle_controllers_core::names::CONTROLLERS;
use pintle_controllers_core::settings::{
    AutoscalerSettings, EndpointSettings, LoopSettings, NodeIpamSettings, NodeSettings,
    SignerFiles, SigningSettings, VolumeSettings,
};
use serde_json::Value;

use super::flags::TABLE;

/// Reads values of flags; those that were not given have the default of the table.
#[derive(Clone, Copy)]
pub(super) struct FlagReader<'a>(pub(super) &'a GivenFlags);

impl FlagReader<'_> {
    pub(super) fn duration(self, name: &str) -> Duration {
        let text = self.text(name);
        text.parse::<GoDuration>().map(GoDuration::to_std).unwrap_or_default()
    }

    pub(super) fn int(self, name: &str) -> i32 {
        match self.0.value(name).and_then(Value::as_i64) {
            Some(number) => i32::try_from(number).unwrap_or(i32::MAX),
            None => default(name).parse().unwrap_or(0),
        }
    }

    pub(super) fn float(self, name: &str) -> f64 {
        let given = self.0.value(name).and_then(Value::as_f64);
        given.unwrap_or_else(|| default(name).parse().unwrap_or(0.0))
    }

    pub(super) fn bool(self, name: &str) -> bool {
        let given = self.0.value(name).and_then(Value::as_bool);
        given.unwrap_or_else(|| default(name) == "true")
    }

    pub(super) fn text(self, name: &str) -> String {
        let given = self.0.value(name).and_then(Value::as_str);
        given.unwrap_or_else(|| default(name)).to_owned()
    }

    pub(super) fn path(self, name: &str) -> Option<PathBuf> {
        self.0.text(name).map(PathBuf::from)
    }

    pub(super) fn texts(self, name: &str) -> Option<Vec<String>> {
        let all = self.0.value(name)?.as_array()?;
        Some(all.iter().filter_map(|text| Some(text.as_str()?.to_owned())).collect())
    }
}

fn default(name: &str) -> &'static str {
    TABLE.find(name).expect("only flags of the table are read").default
}

/// All settings of loops.
pub(super) fn loops(read: &FlagReader<'_>) -> LoopSettings {
    let workers = CONTROLLERS.iter().map(|one| {
        let flag = Some(one.workers_flag).filter(|flag| !flag.is_empty());
        let given = flag.map(|flag| u32::try_from(read.int(flag)).unwrap_or(0));
        (one.name, given.unwrap_or(one.workers))
    });
    LoopSettings {
        workers: workers.collect(),
        min_resync_period: read.duration("min-resync-period"),
        terminated_pod_gc_threshold: read.int("terminated-pod-gc-threshold"),
        enable_garbage_collector: read.bool("enable-garbage-collector"),
        namespace_sync_period: read.duration("namespace-sync-period"),
        resource_quota_sync_period: read.duration("resource-quota-sync-period"),
        legacy_token_clean_up_period: read.duration("legacy-service-account-token-clean-up-period"),
        service_account_key: read.path("service-account-private-key-file"),
        root_ca: read.path("root-ca-file"),
        autoscaler: autoscaler(read),
        endpoints: endpoints(read),
        nodes: nodes(read),
        node_ipam: node_ipam(read),
        signing: signing(read),
        volumes: volumes(read),
    }
}

fn autoscaler(read: &FlagReader<'_>) -> AutoscalerSettings {
    let time = |name: &str| read.duration(&format!("horizontal-pod-autoscaler-{name}"));
    AutoscalerSettings {
        sync_period: time("sync-period"),
        downscale_stabilization: time("downscale-stabilization"),
        tolerance: read.float("horizontal-pod-autoscaler-tolerance"),
        cpu_initialization_period: time("cpu-initialization-period"),
        initial_readiness_delay: time("initial-readiness-delay"),
    }
}

fn endpoints(read: &FlagReader<'_>) -> EndpointSettings {
    EndpointSettings {
        endpoints_batch_period: read.duration("endpoint-updates-batch-period"),
        slices_batch_period: read.duration("endpointslice-updates-batch-period"),
        mirroring_batch_period: read.duration("mirroring-endpointslice-updates-batch-period"),
        max_per_slice: read.int("max-endpoints-per-slice"),
        mirroring_max_per_subset: read.int("mirroring-max-endpoints-per-subset"),
    }
}

fn nodes(read: &FlagReader<'_>) -> NodeSettings {
    NodeSettings {
        monitor_period: read.duration("node-monitor-period"),
        monitor_grace_period: read.duration("node-monitor-grace-period"),
        startup_grace_period: read.duration("node-startup-grace-period"),
        eviction_rate: read.float("node-eviction-rate"),
        secondary_eviction_rate: read.float("secondary-node-eviction-rate"),
        unhealthy_zone_threshold: read.float("unhealthy-zone-threshold"),
        large_cluster_size_threshold: read.int("large-cluster-size-threshold"),
    }
}

fn node_ipam(read: &FlagReader<'_>) -> NodeIpamSettings {
    NodeIpamSettings {
        allocate: read.bool("allocate-node-cidrs"),
        cluster_cidr: read.text("cluster-cidr"),
        service_cidr: read.text("service-cluster-ip-range"),
        mask_size: read.int("node-cidr-mask-size"),
        mask_size_ipv4: read.int("node-cidr-mask-size-ipv4"),
        mask_size_ipv6: read.int("node-cidr-mask-size-ipv6"),
    }
}

/// The files of a signer, or those for all signers.
// k8s: cmd/kube-controller-manager/app/certificates.go getKubeletServingSignerFiles ..
fn signing(read: &FlagReader<'_>) -> SigningSettings {
    let files = |signer: &str| {
        let certificate = read.path(&format!("cluster-signing{signer}-cert-file"))?;
        let key = read.path(&format!("cluster-signing{signer}-key-file"))?;
        Some(SignerFiles { certificate, key })
    };
    let or_all = |signer: &str| files(signer).or_else(|| files(""));
    SigningSettings {
        duration: read.duration("cluster-signing-duration"),
        kubelet_serving: or_all("-kubelet-serving"),
        kubelet_client: or_all("-kubelet-client"),
        apiserver_client: or_all("-kube-apiserver-client"),
        legacy_unknown: or_all("-legacy-unknown"),
    }
}

fn volumes(read: &FlagReader<'_>) -> VolumeSettings {
    VolumeSettings {
        binder_sync_period: read.duration("pvclaimbinder-sync-period"),
        dynamic_provisioning: read.bool("enable-dynamic-provisioning"),
        attach_sync_period: read.duration("attach-detach-reconcile-sync-period"),
        is_attach_sync_off: read.bool("disable-attach-detach-reconcile-sync"),
        is_force_detach_off: read.bool("disable-force-detach-on-timeout"),
    }
}
