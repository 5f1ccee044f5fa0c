//! Fills in the fields that a pod omits, as the API server does on create.
//!
//! Input: a decoded pod. Output: the same pod with defaults set and quantities in canonical text,
//! equal to the object that the API server would store. Only sources of static pods need it: pods
//! read from the API have their defaults already. Defaulting twice changes nothing. An empty text
//! counts as omitted, except where the API distinguishes the two.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, DownwardAPIVolumeFile, HTTPGetAction, Lifecycle, LifecycleHandler, Pod,
    PodSecurityContext, PodSpec, Probe, ProjectedVolumeSource, ResourceFieldSelector,
    ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::image_name;
use super::resources::{self, Amounts, Side};
use crate::quantity::{self, Amount};

/// File mode of keys in configMap, secret, downwardAPI and projected volumes.
const VOLUME_MODE_DEFAULT: i32 = 0o644;
/// Life of a projected service account token in seconds.
const TOKEN_SECONDS_DEFAULT: i64 = 3600;

/// Annotations that once held init containers.
// k8s: pkg/apis/core/v1/conversion.go dropInitContainerAnnotations
const FORMER_ANNOTATIONS: [&str; 4] = [
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-container-statuses",
];

/// Sets the defaults of a pod.
// k8s: pkg/apis/core/v1/defaults.go SetDefaults_Pod, SetDefaults_PodSpec
pub fn apply(pod: &mut Pod) {
    let Some(spec) = pod.spec.as_mut() else {
        return;
    };
    template_fields(spec);
    spec.enable_service_links.get_or_insert(true);
    if let Some(annotations) = pod.metadata.annotations.as_mut() {
        annotations.retain(|key, _| !FORMER_ANNOTATIONS.contains(&key.as_str()));
    }
    let host_network = spec.host_network == Some(true);
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        requests_from_limits(container.resources.get_or_insert_default());
        for port in container.ports.iter_mut().flatten() {
            if host_network && port.host_port.unwrap_or(0) == 0 {
                port.host_port = Some(port.container_port);
            }
        }
    }
    pod_level_requests(spec);
    round_up(spec);
}

/// Sets the defaults of the template of a workload's pods: fewer than those of a pod, which gets the
/// others once it is created.
// k8s: pkg/apis/core/v1/defaults.go SetDefaults_PodSpec
pub fn apply_to_template(spec: &mut PodSpec) {
    template_fields(spec);
    round_up(spec);
}

fn template_fields(spec: &mut PodSpec) {
    canonicalise(spec);
    spec_fields(spec);
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        container_fields(container);
        for port in container.ports.iter_mut().flatten() {
            text(&mut port.protocol, "TCP");
        }
    }
    for ephemeral in spec.ephemeral_containers.iter_mut().flatten() {
        let image = ephemeral.image.as_deref().unwrap_or_default();
        text(&mut ephemeral.image_pull_policy, pull_policy_of(image));
        message_fields(
            &mut ephemeral.termination_message_path,
            &mut ephemeral.termination_message_policy,
        );
        ephemeral.resources.get_or_insert_default();
    }
    for volume in spec.volumes.iter_mut().flatten() {
        volume_fields(volume);
    }
}

/// Sets a text that is missing or empty.
fn text(field: &mut Option<String>, default: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(default.to_owned());
    }
}

fn spec_fields(spec: &mut PodSpec) {
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.restart_policy, "Always");
    spec.security_context.get_or_insert_with(PodSecurityContext::default);
    // A negative one is the shortest; validation never sees it.
    // k8s: pkg/apis/core/v1/conversion.go Convert_v1_Pod_To_core_Pod
    let grace = spec.termination_grace_period_seconds.get_or_insert(30);
    if *grace < 0 {
        *grace = 1;
    }
    text(&mut spec.scheduler_name, "default-scheduler");
    // A pod that names one service account field gets the other, as conversion keeps both.
    if spec.service_account_name.as_deref().is_none_or(str::is_empty) {
        spec.service_account_name.clone_from(&spec.service_account);
    }
    spec.service_account.clone_from(&spec.service_account_name);
    for constraint in spec.topology_spread_constraints.iter_mut().flatten() {
        constraint.node_affinity_policy.get_or_insert_with(|| "Honor".to_owned());
        constraint.node_taints_policy.get_or_insert_with(|| "Ignore".to_owned());
    }
}

fn container_fields(container: &mut Container) {
    let image = container.image.as_deref().unwrap_or_default();
    text(&mut container.image_pull_policy, pull_policy_of(image));
    message_fields(
        &mut container.termination_message_path,
        &mut container.termination_message_policy,
    );
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    for probe in probes.into_iter().flatten() {
        probe_fields(probe);
    }
    if let Some(Lifecycle { post_start, pre_stop, .. }) = container.lifecycle.as_mut() {
        for handler in [post_start, pre_stop].into_iter().flatten() {
            handler_fields(handler);
        }
    }
    for variable in container.env.iter_mut().flatten() {
        if let Some(source) = variable.value_from.as_mut() {
            if let Some(field) = source.field_ref.as_mut() {
                text(&mut field.api_version, "v1");
            }
            source.resource_field_ref.iter_mut().for_each(divisor_field);
            if let Some(file) = source.file_key_ref.as_mut() {
                file.optional.get_or_insert(false);
            }
        }
    }
    container.resources.get_or_insert_default();
}

fn message_fields(path: &mut Option<String>, policy: &mut Option<String>) {
    text(path, "/dev/termination-log");
    text(policy, "File");
}

/// `Always` for the tag `latest`, also beside a digest, and for neither tag nor digest, else
/// `IfNotPresent`.
// k8s: pkg/apis/core/v1/defaults.go SetDefaults_Container
pub fn pull_policy_of(image: &str) -> &'static str {
    let Ok(image) = image_name::with_default_tag(image) else { return "IfNotPresent" };
    let name = image.split_once('@').map_or(image.as_str(), |(name, _)| name);
    if name.ends_with(":latest") { "Always" } else { "IfNotPresent" }
}

// k8s: pkg/apis/core/v1/defaults.go SetDefaults_Probe
fn probe_fields(probe: &mut Probe) {
    for (field, default) in [
        (&mut probe.timeout_seconds, 1),
        (&mut probe.period_seconds, 10),
        (&mut probe.success_threshold, 1),
        (&mut probe.failure_threshold, 3),
    ] {
        if field.unwrap_or(0) == 0 {
            *field = Some(default);
        }
    }
    http_fields(probe.http_get.as_mut());
    if let Some(grpc) = probe.grpc.as_mut() {
        grpc.service.get_or_insert_default();
    }
}

fn handler_fields(handler: &mut LifecycleHandler) {
    http_fields(handler.http_get.as_mut());
}

fn http_fields(get: Option<&mut HTTPGetAction>) {
    if let Some(get) = get {
        text(&mut get.path, "/");
        text(&mut get.scheme, "HTTP");
    }
}

/// A limit without a request is its own request.
fn requests_from_limits(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else {
        return;
    };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// Pod-level requests from the containers' requests, else from pod-level limits; a limit of huge
/// pages from those of the containers.
// k8s: pkg/apis/core/v1/defaults.go defaultHugePagePodLimits, defaultPodRequests
fn pod_level_requests(spec: &mut PodSpec) {
    let Some(own) = spec.resources.clone() else { return };
    let (mut limits, mut requests) =
        (resources::amounts(own.limits.as_ref()), resources::amounts(own.requests.as_ref()));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    let is_pages = |name: &str| name.starts_with("hugepages-");
    for (name, amount) in of_containers(spec, Side::Limits) {
        if is_pages(&name) && !requests.contains_key(&name) {
            limits.entry(name).or_insert(amount);
        }
    }
    if !limits.is_empty() {
        for (name, amount) in of_containers(spec, Side::Requests) {
            if resources::supports_pod_level(&name) && !is_pages(&name) {
                requests.entry(name).or_insert(amount);
            }
        }
    }
    for (name, limit) in &limits {
        if resources::supports_pod_level(name) {
            requests.entry(name.clone()).or_insert(*limit);
        }
    }
    let own = spec.resources.get_or_insert_default();
    for (list, amounts) in [(&mut own.requests, requests), (&mut own.limits, limits)] {
        if !amounts.is_empty() {
            let list = list.get_or_insert_default();
            for (name, quantity) in resources::to_quantities(amounts) {
                list.entry(name).or_insert(quantity);
            }
        }
    }
}

fn of_containers(spec: &PodSpec, side: Side) -> Amounts {
    let bare = PodSpec { resources: None, overhead: None, ..spec.clone() };
    let pod = Pod { spec: Some(bare), ..Pod::default() };
    match side {
        Side::Requests => resources::pod_requests(&pod),
        Side::Limits => resources::pod_limits(&pod),
    }
}

// k8s: pkg/apis/core/v1/defaults.go SetDefaults_Volume and the sources' own
fn volume_fields(volume: &mut Volume) {
    if let Some(host_path) = volume.host_path.as_mut() {
        host_path.type_.get_or_insert_default();
    }
    if let Some(config_map) = volume.config_map.as_mut() {
        config_map.default_mode.get_or_insert(VOLUME_MODE_DEFAULT);
    }
    if let Some(secret) = volume.secret.as_mut() {
        secret.default_mode.get_or_insert(VOLUME_MODE_DEFAULT);
    }
    if let Some(downward) = volume.downward_api.as_mut() {
        downward.default_mode.get_or_insert(VOLUME_MODE_DEFAULT);
        downward.items.iter_mut().flatten().for_each(downward_fields);
    }
    if let Some(projected) = volume.projected.as_mut() {
        projected_fields(projected);
    }
    if let Some(image) = volume.image.as_mut() {
        let policy = pull_policy_of(image.reference.as_deref().unwrap_or_default());
        text(&mut image.pull_policy, policy);
    }
    if let Some(iscsi) = volume.iscsi.as_mut() {
        text(&mut iscsi.iscsi_interface, "default");
    }
    if is_without_source(volume) {
        volume.empty_dir = Some(k8s_openapi::api::core::v1::EmptyDirVolumeSource::default());
    }
}

fn projected_fields(projected: &mut ProjectedVolumeSource) {
    projected.default_mode.get_or_insert(VOLUME_MODE_DEFAULT);
    for source in projected.sources.iter_mut().flatten() {
        if let Some(token) = source.service_account_token.as_mut() {
            token.expiration_seconds.get_or_insert(TOKEN_SECONDS_DEFAULT);
        }
        let items = source.downward_api.iter_mut().flat_map(|d| d.items.iter_mut().flatten());
        items.for_each(downward_fields);
    }
}

fn downward_fields(item: &mut DownwardAPIVolumeFile) {
    if let Some(field) = item.field_ref.as_mut() {
        text(&mut field.api_version, "v1");
    }
    item.resource_field_ref.iter_mut().for_each(divisor_field);
}

/// The API stores an unset divisor as 0, which means 1.
fn divisor_field(selector: &mut ResourceFieldSelector) {
    let divisor = selector.divisor.get_or_insert_with(|| Quantity("0".to_owned()));
    canonicalise_large(divisor);
}

/// True for a volume that names no source: it becomes an emptyDir.
fn is_without_source(volume: &Volume) -> bool {
    let fields = serde_json::to_value(volume).ok();
    fields.and_then(|fields| Some(fields.as_object()?.len())) == Some(1)
}

/// Rewrites the quantities that users write by hand into the text the API server stores.
fn canonicalise(spec: &mut PodSpec) {
    resource_lists(spec).for_each(canonicalise_list);
    for volume in spec.volumes.iter_mut().flatten() {
        if let Some(size) = volume.empty_dir.as_mut().and_then(|dir| dir.size_limit.as_mut()) {
            canonicalise_large(size);
        }
    }
}

/// Rounds amounts up to thousandths, after sums were made.
// k8s: pkg/apis/core/v1/defaults.go SetDefaults_ResourceList
fn round_up(spec: &mut PodSpec) {
    for quantity in resource_lists(spec).flat_map(BTreeMap::values_mut) {
        let Some(amount) = Amount::parse(&quantity.0) else { continue };
        let rounded = amount.rounded_to_millis();
        if rounded != amount {
            quantity.0 = rounded.canonical();
        }
    }
}

fn resource_lists(spec: &mut PodSpec) -> impl Iterator<Item = &mut BTreeMap<String, Quantity>> {
    let ephemeral = spec.ephemeral_containers.iter_mut().flatten();
    let requirements = spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
        .filter_map(|container| container.resources.as_mut())
        .chain(ephemeral.filter_map(|container| container.resources.as_mut()))
        .chain(spec.resources.as_mut());
    let lists = requirements.flat_map(|own| [own.requests.as_mut(), own.limits.as_mut()]);
    lists.chain([spec.overhead.as_mut()]).flatten()
}

fn canonicalise_list(list: &mut BTreeMap<String, Quantity>) {
    list.values_mut().for_each(canonicalise_large);
}

fn canonicalise_one(quantity: &mut Quantity) {
    if let Some(amount) = Amount::parse(&quantity.0) {
        quantity.0 = amount.canonical();
    }
}

/// A quantity that is not rounded stays as it was written, unless upstream reads it as a large
/// number.
fn canonicalise_large(quantity: &mut Quantity) {
    if !quantity::is_stored_as_written(&quantity.0) {
        canonicalise_one(quantity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn defaulted(spec: Value) -> Value {
        let mut pod: Pod = serde_json::from_value(json!({ "spec": spec })).expect("a pod");
        apply(&mut pod);
        let once = serde_json::to_value(&pod).expect("json");
        apply(&mut pod);
        assert_eq!(once, serde_json::to_value(&pod).expect("json"), "defaulting twice");
        once["spec"].clone()
    }

    #[test]
    fn a_minimal_pod_gets_the_defaults_of_the_api_server() {
        let got = defaulted(json!({"containers": [{"name": "c", "image": "busybox"}]}));
        let want = json!({
            "containers": [{
                "name": "c", "image": "busybox", "imagePullPolicy": "Always", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"
            }],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {},
            "terminationGracePeriodSeconds": 30
        });
        assert_eq!(got, want);
    }

    #[test]
    fn the_pull_policy_follows_the_tag() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (image, want) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("host:5000/busybox", "Always"),
            ("host:5000/busybox:1.2", "IfNotPresent"),
            ("busybox@sha256:0123", "IfNotPresent"),
            (&format!("busybox:latest@{digest}"), "Always"),
            (&format!("busybox:1@{digest}"), "IfNotPresent"),
            (&format!("busybox@{digest}"), "IfNotPresent"),
            ("Not An Image", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy_of(image), want, "{image}");
        }
    }

    #[test]
    fn probes_ports_and_references_get_their_defaults() {
        let got = defaulted(json!({"hostNetwork": true, "containers": [{
            "name": "c", "image": "i:1", "ports": [{"containerPort": 80}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
            "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"limits": {"cpu": "0.5", "memory": "1024Mi"}}
        }]}));
        let c = &got["containers"][0];
        assert_eq!(c["ports"][0], json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"}));
        assert_eq!(
            c["livenessProbe"],
            json!({"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1,
                   "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3})
        );
        assert_eq!(c["lifecycle"]["preStop"]["httpGet"]["scheme"], "HTTP");
        assert_eq!(c["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
        let both = json!({"cpu": "500m", "memory": "1Gi"});
        assert_eq!(c["resources"], json!({"limits": both, "requests": both}));
    }

    #[test]
    fn volumes_get_modes_types_and_an_empty_dir_without_a_source() {
        let got = defaulted(json!({"containers": [], "volumes": [
            {"name": "h", "hostPath": {"path": "/x"}},
            {"name": "e"},
            {"name": "d", "downwardAPI": {"items": [
                {"path": "n", "fieldRef": {"fieldPath": "metadata.name"}},
                {"path": "m", "resourceFieldRef": {"resource": "limits.memory"}}]}},
            {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
        ]}));
        let volumes = &got["volumes"];
        assert_eq!(volumes[0]["hostPath"]["type"], "");
        assert_eq!(volumes[1]["emptyDir"], json!({}));
        assert_eq!(volumes[2]["downwardAPI"]["defaultMode"], 420);
        assert_eq!(volumes[2]["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"], "v1");
        assert_eq!(volumes[2]["downwardAPI"]["items"][1]["resourceFieldRef"]["divisor"], "0");
        let token = &volumes[3]["projected"]["sources"][0]["serviceAccountToken"];
        assert_eq!(token["expirationSeconds"], 3600);
    }

    #[test]
    fn pod_level_requests_come_from_containers_then_from_pod_level_limits() {
        let got = defaulted(json!({
            "containers": [
                {"name": "a", "image": "i:1", "resources": {"requests": {"cpu": "100m"}}}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}
        }));
        assert_eq!(got["resources"]["requests"], json!({"cpu": "100m", "memory": "1Gi"}));
    }

    #[test]
    fn empty_strings_get_the_same_defaults_as_absent_fields() {
        let empty = defaulted(json!({
            "restartPolicy": "", "dnsPolicy": "", "schedulerName": "", "serviceAccountName": "",
            "terminationGracePeriodSeconds": -5,
            "containers": [{
                "name": "c", "image": "i:1", "imagePullPolicy": "", "terminationMessagePath": "",
                "terminationMessagePolicy": "", "ports": [{"containerPort": 80, "protocol": ""}],
                "readinessProbe": {"httpGet": {"port": 80, "path": "", "scheme": ""},
                                   "timeoutSeconds": 0, "periodSeconds": 0},
                "env": [{"name": "N", "valueFrom": {"fieldRef": {
                    "apiVersion": "", "fieldPath": "metadata.name"}}}]
            }]
        }));
        let left_out = defaulted(json!({
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": "i:1", "ports": [{"containerPort": 80}],
                "readinessProbe": {"httpGet": {"port": 80}},
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
            }]
        }));
        assert_eq!(empty, left_out);
    }

    #[test]
    fn amounts_are_rounded_up_to_thousandths() {
        let got = defaulted(json!({"containers": [
            {"name": "a", "image": "i:1", "resources": {"requests": {"cpu": "0.1234567"}}},
            {"name": "b", "image": "i:1", "resources": {"limits": {"cpu": "1n", "memory": "0.1"}}}
        ], "overhead": {"cpu": "1u"}}));
        assert_eq!(got["containers"][0]["resources"]["requests"]["cpu"], "124m");
        assert_eq!(got["containers"][1]["resources"]["requests"]["cpu"], "1m");
        assert_eq!(got["containers"][1]["resources"]["limits"]["memory"], "100m");
        assert_eq!(got["overhead"]["cpu"], "1m");
    }
}
