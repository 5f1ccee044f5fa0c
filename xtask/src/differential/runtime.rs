//! The runtime's records of a pod: the configurations that the agent sent with its requests.
//!
//! containerd stores each sandbox's and container's CRI configuration as it came, so that no proxy
//! has to listen between agent and runtime.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::observe::Subject;
use crate::shell::capture;

/// The pod's containers, dead ones too.
pub(super) struct Containers {
    /// By name and attempt.
    pub(super) configs: Value,
    /// Ids and names, the sandbox as `sandbox`.
    pub(super) names: Vec<(String, String)>,
}

/// Asks the node's containerd with its program `ctr`.
pub(super) fn containers(
    ctr: &dyn Fn() -> Result<Command>,
    subject: &Subject,
) -> Result<Containers> {
    let ctr = |args: &[&str]| -> Result<String> {
        capture(ctr()?.args(["-n", "k8s.io", "containers"]).args(args))
    };
    let of_pod = format!("labels.\"io.kubernetes.pod.uid\"=={}", subject.uid);
    let (mut configs, mut names) = (json!({}), Vec::<(String, String)>::new());
    for id in ctr(&["ls", "-q", &of_pod])?.lines().map(str::trim) {
        // A container that is removed meanwhile is not compared.
        let Ok(text) = ctr(&["info", id]) else { continue };
        let info: Value = serde_json::from_str(&text).context("read what ctr prints")?;
        let (name, config) = config(&info)?;
        // A second one of the same name and attempt is an error, so both are shown.
        let same = names.iter().filter(|(_, known)| is_of(known, &name)).count();
        let name = if same == 0 { name } else { format!("{name} ({})", same + 1) };
        names.push((id.to_owned(), name.clone()));
        configs[name] = config;
    }
    Ok(Containers { configs, names })
}

/// Returns whether it is the name, or the name with the number of a further one.
fn is_of(known: &str, name: &str) -> bool {
    known.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
}

/// The name and the configuration of one.
fn config(info: &Value) -> Result<(String, Value)> {
    let extensions = info["Extensions"].as_object().context("a container has extensions")?;
    let metadata = extensions.iter().find(|(key, _)| key.ends_with(".metadata"));
    let (kind, metadata) = metadata.context("a container of the CRI has metadata")?;
    let bytes = decode(metadata["value"].as_str().unwrap_or_default())?;
    let metadata: Value = serde_json::from_slice(&bytes).context("read the metadata")?;
    let metadata = &metadata["Metadata"];
    let mut config = metadata["Config"].clone();
    let attempt = config["metadata"]["attempt"].as_u64().unwrap_or_default();
    let name = if kind.contains("sandbox") {
        config["runtime_handler"] = metadata["RuntimeHandler"].clone();
        "sandbox".to_owned()
    } else {
        config["stop_signal"] = metadata["StopSignal"].clone();
        config["metadata"]["name"].as_str().unwrap_or_default().to_owned()
    };
    sort_variables(&mut config);
    Ok((format!("{name}#{attempt}"), config))
}

/// The kubelet sends variables in any order.
fn sort_variables(config: &mut Value) {
    if let Some(envs) = config["envs"].as_array_mut() {
        envs.sort_by_key(|e| super::flat::show(&e["key"]));
    }
}

/// Base64 with padding.
fn decode(text: &str) -> Result<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => 64,
        };
        ensure!(six < 64, "{c} is no digit of base64");
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        for (text, expected) in [("", ""), ("YQ==", "a"), ("YWI=", "ab"), ("YWJj", "abc")] {
            assert_eq!(decode(text).expect("good"), expected.as_bytes());
        }
        assert!(decode("a b").is_err());
    }

    #[test]
    fn a_container_is_called_by_its_name_and_attempt() {
        // {"Metadata":{"Config":{"metadata":{"name":"a","attempt":2}}}}
        let value =
            "eyJNZXRhZGF0YSI6eyJDb25maWciOnsibWV0YWRhdGEiOnsibmFtZSI6ImEiLCJhdHRlbXB0IjoyfX19fQ==";
        let info =
            json!({"Extensions": {"io.cri-containerd.container.metadata": {"value": value}}});
        assert_eq!(config(&info).expect("good").0, "a#2");
    }
}
