//! JSON of requests: made comparable, and compared.

use serde_json::Value;

use crate::world::PodRecording;

/// RunPodSandbox, comparable.
pub(crate) fn normal_sandbox(request: &Value, recording: &PodRecording) -> Value {
    let mut request = request.clone();
    sandbox(&mut request["config"], recording);
    without_nulls(request)
}

/// CreateContainer, comparable.
pub(crate) fn normal_container(request: &Value, recording: &PodRecording) -> Value {
    let mut request = request.clone();
    sandbox(&mut request["sandbox_config"], recording);
    let config = &mut request["config"];
    if let Some(envs) = config["envs"].as_array_mut() {
        // Upstream walks a map.
        envs.sort_by_key(|variable| variable["key"].to_string());
    }
    for mount in config["mounts"].as_array_mut().into_iter().flatten() {
        if let Some((dir, file)) = mount["host_path"].as_str().and_then(|p| p.rsplit_once('/'))
            && dir.contains("/containers/")
            && file.len() == 8
            && file.bytes().all(|b| b.is_ascii_hexdigit())
        {
            mount["host_path"] = format!("{dir}/<random>").into();
        }
    }
    if let Some(sizes) = config["linux"]["resources"]["hugepage_limits"].as_array_mut() {
        // The order in which the kernel lists a directory.
        sizes.sort_by_key(|size| size["page_size"].to_string());
    }
    without_nulls(request)
}

fn sandbox(config: &mut Value, recording: &PodRecording) {
    let parent = &mut config["linux"]["cgroup_parent"];
    if let Some(path) = parent.as_str().and_then(|path| path.strip_prefix("/<")) {
        // The placeholder stands for an absolute path.
        *parent = format!("<{path}").into();
    }
    if !config["annotations"]["kubernetes.io/config.seen"].is_null() {
        config["annotations"]["kubernetes.io/config.seen"] = "<time>".into();
    }
    let dns = &mut config["dns_config"];
    for server in dns["servers"].as_array_mut().into_iter().flatten() {
        if server.as_str().is_some_and(|server| !recording.names_server(server)) {
            *server = "<resolver>".into();
        }
    }
    if let Some(options) = dns["options"].as_array_mut() {
        // Upstream walks a map here too.
        options.sort_by_key(ToString::to_string);
    }
}

/// Indexing to change a value leaves nulls where there was nothing.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// The first difference: where, recorded and built.
pub(crate) fn difference(want: &Value, got: &Value) -> Option<String> {
    fn at(path: &str, want: &Value, got: &Value) -> Option<String> {
        match (want, got) {
            (Value::Object(a), Value::Object(b)) => {
                let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
                keys.into_iter().find_map(|key| {
                    let side = |fields: &serde_json::Map<String, Value>| {
                        fields.get(key).cloned().unwrap_or(Value::Null)
                    };
                    at(&format!("{path}.{key}"), &side(a), &side(b))
                })
            }
            (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
                let pairs = a.iter().zip(b).enumerate();
                pairs.into_iter().find_map(|(i, (a, b))| at(&format!("{path}[{i}]"), a, b))
            }
            _ if want == got => None,
            _ => Some(format!("{path}: recorded {want}, built {got}")),
        }
    }
    at("", want, got)
}
