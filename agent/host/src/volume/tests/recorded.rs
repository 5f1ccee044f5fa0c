//! Compares files and mounts with those of a real kubelet, for every recorded pod.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use pintle_agent_core::volume::mounts::Propagation;
use pintle_api_types::pod::containers;
use serde_json::Value;

use super::*;

fn folder() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/recorded");
    std::env::var_os("PINTLE_RECORDED").map_or(own, PathBuf::from).join("pods")
}

fn recordings() -> Vec<(String, Value)> {
    let entries = fs::read_dir(folder()).expect("a folder of recordings").flatten();
    let json = entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "json"));
    json.map(|path| {
        let text = fs::read_to_string(&path).expect("readable");
        let name = path.file_stem().expect("named").to_string_lossy().into_owned();
        (name, serde_json::from_str(&text).expect("json"))
    })
    .collect()
}

/// One entry of a directory: mode, owner, link target, content.
type Entry = (u32, u64, u64, String, String);

/// `..2026_11_21_02_28_19.4190273970` and its like become `..<version>`.
fn unversioned(text: &str) -> String {
    let part = |p: &str| if p.starts_with("..2") { "..<version>".to_owned() } else { p.to_owned() };
    text.split('/').map(part).collect::<Vec<_>>().join("/")
}

fn is_compared(path: &str) -> bool {
    ["volumes", "plugins", "volume-subpaths"].iter().any(|top| path.split('/').next() == Some(top))
}

fn recorded_entries(recording: &Value) -> BTreeMap<String, Entry> {
    let mut found = BTreeMap::new();
    for entry in recording["pod_dir"].as_array().into_iter().flatten() {
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        let path = text("path");
        if !is_compared(&path) {
            continue;
        }
        let mode = text("mode");
        let mode = mode.rsplit(' ').next().and_then(|m| u32::from_str_radix(m, 8).ok());
        let number = |key: &str| entry[key].as_u64().expect("a number");
        let content = content_of(&path, text("content"));
        let value = (
            mode.expect("a mode"),
            number("uid"),
            number("gid"),
            unversioned(&text("link")),
            content,
        );
        found.insert(unversioned(&path), value);
    }
    found
}

/// Certificates and tokens are not ours to repeat.
fn content_of(path: &str, content: String) -> String {
    match path.rsplit('/').next() {
        Some("ca.crt" | "token") => String::new(),
        _ => {
            let seen = |line: &&str| !line.starts_with("kubernetes.io/config.seen=");
            let last = if content.ends_with('\n') { "\n" } else { "" };
            content.lines().filter(seen).collect::<Vec<_>>().join("\n") + last
        }
    }
}

fn entries_of(root: &Path, dir: &Path, found: &mut BTreeMap<String, Entry>) {
    for entry in fs::read_dir(dir).expect("readable").flatten() {
        let path = entry.path();
        let relative = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
        let meta = fs::symlink_metadata(&path).expect("stat");
        let link = fs::read_link(&path).map(|to| to.to_string_lossy().into_owned());
        let content =
            if meta.is_file() { fs::read_to_string(&path).expect("text") } else { String::new() };
        let mode = meta.permissions().mode() & 0o7777;
        let content = content_of(&relative, content);
        let link = unversioned(&link.unwrap_or_default());
        let value = (mode, meta.uid().into(), meta.gid().into(), link, content);
        found.insert(unversioned(&relative), value);
        if meta.is_dir() {
            entries_of(root, &path, found);
        }
    }
}

/// The first CreateContainer of a container.
fn created<'a>(recording: &'a Value, container: &str) -> Option<&'a Value> {
    recording["cri_calls"].as_array()?.iter().find(|call| {
        call["method"] == "CreateContainer"
            && call["request"]["config"]["metadata"]["name"] == container
    })
}

/// (container path, host path, read-only, propagation) of one container.
fn recorded_mounts(
    recording: &Value,
    container: &str,
) -> Option<Vec<(String, String, bool, String)>> {
    let created = created(recording, container)?;
    let mounts = created["request"]["config"]["mounts"].as_array().cloned().unwrap_or_default();
    let mount = |m: &Value| {
        let text = |key: &str| m[key].as_str().unwrap_or_default().to_owned();
        let readonly = m["readonly"].as_bool().unwrap_or_default();
        (text("container_path"), text("host_path"), readonly, text("propagation"))
    };
    let made_elsewhere =
        |path: &str| path == "/etc/hosts" || path == "/dev/termination-log" || path == "/tlog";
    let mounts = mounts.iter().map(mount).filter(|m| !made_elsewhere(&m.0));
    let mounts = mounts.filter(|m| !m.1.contains("/containers/"));
    Some(mounts.collect())
}

/// The environment that the container was created with; values are bytes, so base64.
fn environment(recording: &Value, container: &str) -> BTreeMap<String, String> {
    use base64::Engine;
    let created = created(recording, container);
    let envs = created.map(|call| &call["request"]["config"]["envs"]);
    let pair = |env: &Value| {
        let value = env["value"].as_str().unwrap_or_default();
        let value = base64::engine::general_purpose::STANDARD.decode(value).ok()?;
        Some((env["key"].as_str()?.to_owned(), String::from_utf8(value).ok()?))
    };
    envs.and_then(Value::as_array).into_iter().flatten().filter_map(pair).collect()
}

/// Hides the folders in which hostPath volumes would be made on the node that runs the test.
fn shield(pod: &Pod, root: &Path) -> Vec<PathBuf> {
    let volumes = pintle_api_types::pod::spec(pod).volumes.iter().flatten();
    let made = volumes
        .filter_map(|v| v.host_path.as_ref())
        .filter(|h| h.type_.as_deref().is_some_and(|kind| kind.ends_with("OrCreate")));
    let mut hidden = Vec::new();
    for source in made {
        let above = Path::new(&source.path).ancestors().find(|dir| dir.is_dir());
        if let Some(dir) = above.filter(|dir| dir.parent().is_some() && !root.starts_with(dir)) {
            crate::volume::mount::tmpfs(dir, Some(1 << 20)).expect("hidden");
            hidden.push(dir.to_owned());
        }
    }
    hidden
}

#[test]
fn directories_modes_owners_links_and_mounts_equal_the_recorded_ones() {
    with_private_mounts(|| {
        for (name, recording) in recordings() {
            if recording["pod_when_seen"].is_null() || recording["pod_dir"].is_null() {
                eprintln!("{name}: no pod or no directory recorded");
                continue;
            }
            compare(&name, &recording);
        }
    });
}

fn compare(name: &str, recording: &Value) {
    let root = tempfile::tempdir().expect("a root");
    let mut pod: Pod = serde_json::from_value(recording["pod_when_seen"].clone()).expect("a pod");
    // As the source stage marks each pod.
    let source = ("kubernetes.io/config.source".to_owned(), "api".to_owned());
    pod.metadata.annotations.get_or_insert_default().extend([source]);
    let hidden = shield(&pod, root.path());
    let volumes = plan(root.path(), &pod);
    let mounted = mount(&volumes);
    let spec = pintle_api_types::pod::spec(&pod);
    let ran = |c: &str| recorded_mounts(recording, c);
    for (_, container) in containers::all(spec) {
        let Some(recorded) = ran(&container.name) else { continue };
        let env = environment(recording, &container.name);
        let planned = volumes.mounts(container, &env, false).expect("planned");
        prepare(&planned).expect("prepared");
        let planned: Vec<_> = planned
            .iter()
            .map(|m| {
                let host = m.host_path.to_string_lossy();
                let host = host.replace(&*root.path().to_string_lossy(), "<root>");
                let propagation = match m.propagation {
                    Propagation::Private => "",
                    Propagation::HostToContainer => "PROPAGATION_HOST_TO_CONTAINER",
                    Propagation::Bidirectional => "PROPAGATION_BIDIRECTIONAL",
                };
                (m.container_path.clone(), host, m.readonly, propagation.to_owned())
            })
            .collect();
        assert_eq!(planned, recorded, "{name}: mounts of {}", container.name);
    }
    let recorded = recorded_entries(recording);
    if !recorded.is_empty() {
        let mut found = BTreeMap::new();
        entries_of(volumes.dirs.pod(), volumes.dirs.pod(), &mut found);
        found.retain(|path, _| is_compared(path));
        assert_eq!(found, recorded, "{name}");
    }
    let events = recording["events"].as_array().into_iter().flatten();
    let failed = events.filter(|e| e["reason"] == "FailedMount");
    let failed: Vec<&str> = failed.filter_map(|e| e["message"].as_str()).collect();
    assert_eq!(mounted.err().unwrap_or_default(), failed, "{name}: events");
    crate::volume::execute::unmount_all(&volumes.dirs).expect("taken away");
    crate::volume::execute::remove_pod_dir(&volumes.dirs).expect("removed");
    assert!(!volumes.dirs.pod().exists());
    for dir in hidden {
        crate::volume::mount::unmount(&dir).expect("shown again");
    }
}
