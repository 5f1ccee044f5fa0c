//! Facts about itself that a pod refers to: `fieldRef` and `resourceFieldRef`.
//!
//! Used for environment variables here and for downwardAPI volumes elsewhere. Input: the pod, its
//! addresses and the node's facts. Output: text, or an error in the kubelet's words. A limit that
//! is not set is the node's allocatable (or the pod's own limit). Pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, ObjectFieldSelector, Pod, ResourceFieldSelector};

use crate::types::NodeFacts;
use pintle_api_types::pod;
use pintle_api_types::pod::resources::{
    Amounts, Side, of_container, pod_level, supports_pod_level,
};
use pintle_api_types::quantity::Amount;

/// Resources for which an unset limit means the node's allocatable amount.
const DEFAULTED: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Why a reference has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownwardError {
    /// Not `v1`.
    #[error("unsupported pod version: {0}")]
    Version(String),
    /// No such field here.
    #[error("field label not supported: {0}")]
    Field(String),
    /// `['x']` after a field without entries.
    #[error("field label does not support subscript: {0}")]
    Subscript(String),
    /// The same in a volume.
    #[error("fieldPath {0:?} does not support subscript")]
    VolumeSubscript(String),
    /// A field that may be named but has no value here.
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    /// The node has no address yet.
    #[error("host IP unknown; known addresses: []")]
    NoHostAddress,
    /// No such resource.
    #[error("unsupported container resource : {0}")]
    Resource(String),
    /// No such container.
    #[error("container {0} not found")]
    Container(String),
}

/// The value of a `fieldRef` for a variable.
// k8s: pkg/kubelet/kubelet_pods.go podFieldSelectorRuntimeValue
pub fn field(
    reference: &ObjectFieldSelector,
    pod: &Pod,
    pod_ips: &[IpAddr],
    node: &NodeFacts,
) -> Result<String, DownwardError> {
    let version = reference.api_version.as_deref().filter(|version| !version.is_empty());
    if let Some(version) = version.filter(|version| *version != "v1") {
        return Err(DownwardError::Version(version.to_owned()));
    }
    let path = reference.field_path.as_str();
    if let Some((base, key)) = split_subscript(path) {
        return subscripted(pod, path, base, key);
    }
    let spec = pod::spec(pod);
    let ordered = ordered_ips(pod_ips, node);
    Ok(match path {
        "metadata.name" => pod::name(pod).to_owned(),
        "metadata.namespace" => pod::namespace(pod).to_owned(),
        "metadata.uid" => pod::uid(pod).to_string(),
        "metadata.labels" => format_map(pod.metadata.labels.as_ref()),
        "metadata.annotations" => format_map(pod.metadata.annotations.as_ref()),
        "spec.nodeName" | "spec.host" => spec.node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => spec.service_account_name.clone().unwrap_or_default(),
        "status.podIP" => ordered.first().map(ToString::to_string).unwrap_or_default(),
        "status.podIPs" => joined(&ordered),
        "status.hostIP" => node.host_ips.first().ok_or(DownwardError::NoHostAddress)?.to_string(),
        "status.hostIPs" if node.host_ips.is_empty() => return Err(DownwardError::NoHostAddress),
        "status.hostIPs" => joined(&node.host_ips),
        "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
            return Err(DownwardError::FieldPath(path.to_owned()));
        }
        _ => return Err(DownwardError::Field(path.to_owned())),
    })
}

/// A pod's addresses as its status and environment show them: one of each family, that of the first
/// `--node-ip` first.
// k8s: pkg/kubelet/kubelet_pods.go sortPodIPs
pub fn ordered_ips(pod_ips: &[IpAddr], node: &NodeFacts) -> Vec<IpAddr> {
    let v4_first = !node.prefers_v6;
    let of = |v4: bool| pod_ips.iter().find(|ip| ip.is_ipv4() == v4).copied();
    [of(v4_first), of(!v4_first)].into_iter().flatten().collect()
}

fn joined(ips: &[IpAddr]) -> String {
    ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// `metadata.labels['a']` -> (`metadata.labels`, `a`).
// k8s: pkg/fieldpath/fieldpath.go SplitMaybeSubscriptedPath
fn split_subscript(path: &str) -> Option<(&str, &str)> {
    let (base, key) = path.strip_suffix("']")?.split_once("['")?;
    (!base.is_empty()).then_some((base, key))
}

fn subscripted(pod: &Pod, path: &str, base: &str, key: &str) -> Result<String, DownwardError> {
    let map = match base {
        "metadata.annotations" => pod.metadata.annotations.as_ref(),
        "metadata.labels" => pod.metadata.labels.as_ref(),
        _ => return Err(DownwardError::Subscript(path.to_owned())),
    };
    Ok(map.and_then(|map| map.get(key)).cloned().unwrap_or_default())
}

/// `key="value"` lines with Go's quoting, sorted by key.
// k8s: pkg/fieldpath/fieldpath.go FormatMap
pub fn format_map(map: Option<&std::collections::BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(key, value)| format!("{key}={}", go_quote(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A text as Go's strconv.Quote writes it. Characters of newer Unicode versions are printable here
/// and not yet there.
pub fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if u32::from(c) < 0x20 || c == '\u{7f}' => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            c if is_printable(c) => out.push(c),
            c if u32::from(c) < 0x10000 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// Letters, marks, numbers, punctuation, symbols and the space of ASCII, for Go's `IsPrint` and for
/// Rust's own quoting alike; the latter escapes marks as well where a text begins with one.
fn is_printable(c: char) -> bool {
    c.is_ascii() || format!("a{c}").escape_debug().nth(1) == Some(c)
}

/// The value of a `resourceFieldRef`, referenced from `container` (`None` from a volume, where init
/// containers are treated as the others and the pod's own limits do not count).
// k8s: pkg/kubelet/kubelet_pods.go containerResourceRuntimeValue
// k8s: pkg/api/v1/resource/helpers.go ExtractResourceValueByContainerNameAndNodeAllocatable
pub fn resource(
    reference: &ResourceFieldSelector,
    pod: &Pod,
    container: Option<&Container>,
    node: &NodeFacts,
) -> Result<String, DownwardError> {
    let named = reference.container_name.as_deref().unwrap_or_default();
    let spec = pod::spec(pod);
    let of_pod = container.is_some().then_some(pod);
    let (target, defaulted) = match (named, container) {
        ("", Some(own)) => (own, true),
        _ => {
            let main = spec.containers.iter().find(|c| c.name == named).map(|c| (c, true));
            // Upstream leaves the limits of init containers alone when variables ask by name.
            let init = spec.init_containers.iter().flatten().find(|c| c.name == named);
            main.or(init.map(|c| (c, of_pod.is_none())))
                .ok_or_else(|| DownwardError::Container(named.to_owned()))?
        }
    };
    let unknown = || DownwardError::Resource(reference.resource.clone());
    let (side, name) = reference.resource.split_once('.').ok_or_else(unknown)?;
    if !DEFAULTED.contains(&name) && !name.starts_with("hugepages-") {
        return Err(unknown());
    }
    let amount = match side {
        "requests" => of_container(target, Side::Requests).get(name).copied(),
        "limits" if defaulted => limit_or_default(target, of_pod, name, node),
        "limits" => of_container(target, Side::Limits).get(name).copied(),
        _ => return Err(unknown()),
    };
    let divisor = reference.divisor.as_ref().and_then(|divisor| Amount::parse(&divisor.0));
    let divisor = divisor.filter(|d| !d.is_zero()).unwrap_or_else(|| Amount::from_bytes(1));
    Ok(divided(amount.unwrap_or(Amount::ZERO), divisor, name == "cpu"))
}

/// `of_pod`: the pod, where its own limits count.
// k8s: pkg/kubelet/kubelet_resources.go defaultPodLimitsForDownwardAPI
// k8s: pkg/api/v1/resource/helpers.go MergeContainerResourceLimits
fn limit_or_default(
    container: &Container,
    of_pod: Option<&Pod>,
    name: &str,
    node: &NodeFacts,
) -> Option<Amount> {
    let set = |amounts: Amounts| amounts.get(name).copied().filter(|amount| !amount.is_zero());
    let allocatable = || {
        let bytes = |bytes: u64| Amount::from_bytes(i64::try_from(bytes).unwrap_or(i64::MAX));
        match name {
            "cpu" => Some(Amount::from_millis(node.cpu_allocatable_millis.cast_signed())),
            "memory" => Some(bytes(node.memory_allocatable_bytes)),
            "ephemeral-storage" => Some(bytes(node.storage_allocatable_bytes)),
            _ => None,
        }
    };
    let pods_own = || {
        let pod = of_pod.filter(|_| supports_pod_level(name) && DEFAULTED.contains(&name));
        pod.and_then(|pod| set(pod_level(pod::spec(pod), Side::Limits)))
    };
    set(of_container(container, Side::Limits)).or_else(pods_own).or_else(allocatable)
}

/// The amount in units of the divisor, rounded up. Doubles, as upstream, so that even huge values
/// come out alike.
// k8s: pkg/api/v1/resource/helpers.go convertResourceCPUToString
fn divided(amount: Amount, divisor: Amount, in_millis: bool) -> String {
    let of = |amount: Amount| if in_millis { amount.millis() } else { amount.units() } as f64;
    ((of(amount) / of(divisor)).ceil() as i64).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u",
                "labels": {"app": "x", "b": "two"}, "annotations": {"multi": "a\nb\"", "x/y": "z"}},
            "spec": {"nodeName": "n", "serviceAccountName": "sa",
                "containers": [
                    {"name": "c", "resources": {"limits": {"cpu": "300m", "memory": "64Mi",
                        "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "100m", "memory": "33Mi"}}},
                    {"name": "free"}],
                "initContainers": [{"name": "i"}]}
        }))
        .expect("a pod")
    }

    fn node() -> NodeFacts {
        NodeFacts {
            host_ips: vec!["192.0.2.2".parse().expect("v4"), "fd00::2".parse().expect("v6")],
            cpu_allocatable_millis: 1900,
            memory_allocatable_bytes: 1 << 30,
            storage_allocatable_bytes: 2 << 30,
            ..NodeFacts::default()
        }
    }

    fn field_of(path: &str) -> Result<String, DownwardError> {
        let reference = serde_json::from_value(json!({ "fieldPath": path })).expect("a reference");
        let ips = ["fd00::9".parse().expect("v6"), "10.0.0.9".parse().expect("v4")];
        field(&reference, &pod(), &ips, &node())
    }

    #[test]
    fn every_field_of_the_downward_api_has_its_value() {
        let table = [
            ("metadata.name", "p"),
            ("metadata.namespace", "ns"),
            ("metadata.uid", "u"),
            ("metadata.labels['app']", "x"),
            ("metadata.annotations['x/y']", "z"),
            ("metadata.labels['none']", ""),
            ("metadata.labels", "app=\"x\"\nb=\"two\""),
            ("metadata.annotations", "multi=\"a\\nb\\\"\"\nx/y=\"z\""),
            ("spec.nodeName", "n"),
            ("spec.host", "n"),
            ("spec.serviceAccountName", "sa"),
            ("status.podIP", "10.0.0.9"),
            ("status.podIPs", "10.0.0.9,fd00::9"),
            ("status.hostIP", "192.0.2.2"),
            ("status.hostIPs", "192.0.2.2,fd00::2"),
        ];
        for (path, want) in table {
            assert_eq!(field_of(path).as_deref(), Ok(want), "{path}");
        }
    }

    #[test]
    fn pod_ips_start_with_the_node_ip_family_regardless_of_the_node_object() {
        let ips = ["10.0.0.9".parse().expect("v4"), "fd00::9".parse().expect("v6")];
        let mut node = node();
        node.host_ips.reverse();
        for (prefers_v6, want) in [(false, "10.0.0.9,fd00::9"), (true, "fd00::9,10.0.0.9")] {
            node.prefers_v6 = prefers_v6;
            let of = |path: &str| {
                let reference = json!({ "fieldPath": path });
                field(&serde_json::from_value(reference).expect("one"), &pod(), &ips, &node)
            };
            assert_eq!(of("status.podIPs").as_deref(), Ok(want));
            assert_eq!(of("status.podIP").ok().as_deref(), want.split(',').next());
        }
    }

    #[test]
    fn unprintable_characters_are_escaped_as_in_go() {
        let kept = "山田 é e\u{301} \u{fe0f} ñ😀 ~";
        assert_eq!(go_quote(kept), format!("\"{kept}\""));
        for (c, want) in [
            ('\u{1}', "\\x01"),
            ('\u{7f}', "\\x7f"),
            ('\u{80}', "\\u0080"),
            ('\u{a0}', "\\u00a0"),
            ('\u{ad}', "\\u00ad"),
            ('\u{61c}', "\\u061c"),
            ('\u{1680}', "\\u1680"),
            ('\u{2003}', "\\u2003"),
            ('\u{200d}', "\\u200d"),
            ('\u{2028}', "\\u2028"),
            ('\u{205f}', "\\u205f"),
            ('\u{2066}', "\\u2066"),
            ('\u{3000}', "\\u3000"),
            ('\u{e000}', "\\ue000"),
            ('\u{feff}', "\\ufeff"),
            ('\u{fffb}', "\\ufffb"),
            ('\u{e0067}', "\\U000e0067"),
            ('\u{10ffff}', "\\U0010ffff"),
        ] {
            assert_eq!(go_quote(&format!("a{c}")), format!("\"a{want}\""));
        }
    }

    #[test]
    fn unknown_fields_are_refused_in_the_kubelets_words() {
        for (path, want) in [
            ("spec.nope", "field label not supported: spec.nope"),
            ("spec.nodeName['x']", "field label does not support subscript: spec.nodeName['x']"),
            ("status.phase", "unsupported fieldPath: status.phase"),
        ] {
            assert_eq!(field_of(path).expect_err("refused").to_string(), want);
        }
    }

    fn resource_of(reference: Value, own: &str) -> Result<String, DownwardError> {
        let pod = pod();
        let container = pod::containers::find(pod::spec(&pod), own).map(|(_, container)| container);
        let reference = serde_json::from_value(reference).expect("a reference");
        resource(&reference, &pod, container, &node())
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        let table = [
            ("limits.cpu", "1m", "300"),
            ("limits.cpu", "1", "1"),
            ("limits.cpu", "0", "1"),
            ("requests.cpu", "1m", "100"),
            ("limits.memory", "1Mi", "64"),
            ("requests.memory", "1", "34603008"),
            ("requests.memory", "10Mi", "4"),
            ("limits.hugepages-2Mi", "1Mi", "4"),
            ("requests.hugepages-2Mi", "1", "0"),
            ("requests.ephemeral-storage", "1", "0"),
        ];
        for (name, divisor, want) in table {
            let got = resource_of(json!({"resource": name, "divisor": divisor}), "c");
            assert_eq!(got.as_deref(), Ok(want), "{name} / {divisor}");
        }
    }

    #[test]
    fn unset_limit_defaults_to_node_allocatable() {
        let of = |name: &str, container: &str| {
            resource_of(json!({"resource": name, "containerName": container}), "c")
        };
        for (name, want) in [
            ("limits.cpu", "2"),
            ("limits.memory", "1073741824"),
            ("limits.ephemeral-storage", "2147483648"),
            ("limits.hugepages-2Mi", "0"),
            ("requests.cpu", "0"),
        ] {
            assert_eq!(of(name, "free").as_deref(), Ok(want), "{name}");
        }
        assert_eq!(of("limits.cpu", "i").as_deref(), Ok("0"));
        assert_eq!(of("limits.cpu", "none"), Err(DownwardError::Container("none".to_owned())));
        assert_eq!(of("limits.gpu", "c"), Err(DownwardError::Resource("limits.gpu".to_owned())));
        assert_eq!(of("cpu", "c"), Err(DownwardError::Resource("cpu".to_owned())));
    }

    #[test]
    fn downward_volume_shows_the_containers_limit_or_node_allocatable() {
        let mut pod = pod();
        let limits = json!({"limits": {"memory": "512Mi"}});
        let spec = pod.spec.as_mut().expect("a spec");
        spec.resources = serde_json::from_value(limits).expect("resources");
        let main = pod.spec.as_ref().map(|spec| &spec.containers[0]);
        let node_has = "1073741824";
        // (container, as a variable of the first one, in a volume)
        for (name, variable, file) in
            [("c", "67108864", "67108864"), ("free", "536870912", node_has), ("i", "0", node_has)]
        {
            let reference = json!({"resource": "limits.memory", "containerName": name});
            let reference = serde_json::from_value(reference).expect("a reference");
            let of = |from| resource(&reference, &pod, from, &node());
            assert_eq!(
                (of(main).as_deref(), of(None).as_deref()),
                (Ok(variable), Ok(file)),
                "{name}"
            );
        }
    }
}
