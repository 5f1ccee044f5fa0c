//! Translations that upstream's library made, the names of the seven plugins, and what is ours.

use k8s_openapi::api::core::v1::{PersistentVolume, Volume};
use serde_json::{Value, json};

use super::{InTree, csi_volume, csi_volume_of_pod, handle_of_pod, handle_of_volume};

/// The file of upstream's answers; without it a sample that is checked in.
const VARIABLE: &str = "PINTLE_TRANSLATION_VECTORS";
const SAMPLE: &str = include_str!("sample.jsonl");
/// Differences that are printed.
const SHOWN: usize = 6;

/// A value without what Go leaves out: null, false, and empty texts, lists and objects.
fn trimmed(value: Value) -> Value {
    let is_kept = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    match value {
        // An empty term stays: it selects nothing. An empty text in a list or a map is a value.
        Value::Array(list) => Value::Array(list.into_iter().map(trimmed).collect()),
        Value::Object(map) => {
            let trim = |(key, value): (String, Value)| match (&*key, value) {
                ("labels" | "annotations" | "volumeAttributes", of_texts) => (key, of_texts),
                (_, value) => (key, trimmed(value)),
            };
            Value::Object(map.into_iter().map(trim).filter(|(_, value)| is_kept(value)).collect())
        }
        other => other,
    }
}

fn answered(line: &Value) -> Result<PersistentVolume, Box<dyn std::error::Error>> {
    if let Some(volume) = line.get("volume") {
        let volume: PersistentVolume = serde_json::from_value(volume.clone()).expect("a volume");
        let name = volume.metadata.name.clone().unwrap_or_default();
        let handle = handle_of_volume(&volume);
        let translated = csi_volume(volume)?;
        assert_eq!(handle.expect("a handle").as_deref(), handle_in(&translated), "{name}");
        return Ok(translated);
    }
    let inline: Volume = serde_json::from_value(line["inline"].clone()).expect("a volume");
    let namespace = line["namespace"].as_str().unwrap_or_default();
    let handle = handle_of_pod(&inline, namespace);
    let translated = csi_volume_of_pod(&inline, namespace)?;
    let none = || format!("could not find in-tree plugin translation logic for {:?}", inline.name);
    let translated = translated.ok_or_else(none)?;
    assert_eq!(handle.expect("a handle").as_deref(), handle_in(&translated), "{}", inline.name);
    Ok(translated)
}

fn handle_in(volume: &PersistentVolume) -> Option<&str> {
    Some(volume.spec.as_ref()?.csi.as_ref()?.volume_handle.as_str())
}

fn difference(line: &Value) -> Option<String> {
    let ours = match answered(line) {
        Ok(volume) => {
            let mut value = serde_json::to_value(volume).expect("JSON");
            let fields = value.as_object_mut().expect("an object");
            fields.retain(|key, _| key != "apiVersion" && key != "kind");
            trimmed(value)
        }
        Err(error) => json!(error.to_string()),
    };
    let theirs = match line.get("error") {
        Some(error) => error.clone(),
        None => trimmed(line["csi"].clone()),
    };
    (ours != theirs).then(|| format!("{line}\n  ours {ours}\n  theirs {theirs}"))
}

#[test]
fn translation_of_a_random_volume_is_upstreams() {
    let given = std::env::var_os(VARIABLE);
    let given = given.map(|path| std::fs::read_to_string(path).expect("the file is there"));
    let text = given.as_deref().unwrap_or(SAMPLE);
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    let differences: Vec<String> = lines.iter().filter_map(difference).collect();
    println!("{} lines, {} differences", lines.len(), differences.len());
    assert!(lines.len() >= 100, "too few lines");
    let shown = &differences[..differences.len().min(SHOWN)];
    assert!(shown.is_empty(), "{}", shown.join("\n"));
}

#[test]
fn plugins_are_listed_in_the_order_in_which_a_csi_node_names_them() {
    let names: Vec<&str> = InTree::ALL.into_iter().map(InTree::plugin).collect();
    assert!(names.is_sorted());
    for plugin in InTree::ALL {
        assert_eq!(InTree::named(plugin.plugin()), Some(plugin));
    }
    assert_eq!(InTree::named("kubernetes.io/rbd"), None);
}

#[test]
fn volume_of_another_plugin_is_unchanged() {
    let volume: PersistentVolume =
        serde_json::from_value(json!({"spec": {"nfs": {"server": "s", "path": "/"}}}))
            .expect("a volume");
    assert_eq!(csi_volume(volume.clone()), Ok(volume));
}

#[test]
fn storage_policy_of_a_pods_vsphere_volume_is_an_attribute() {
    let volume = json!({"name": "v", "vsphereVolume": {
        "volumePath": "[ds] a.vmdk", "storagePolicyName": "gold"}});
    let volume: Volume = serde_json::from_value(volume).expect("a volume");
    let translated = csi_volume_of_pod(&volume, "ns").expect("translated").expect("in-tree");
    let source = translated.spec.and_then(|spec| spec.csi).expect("a source");
    let attributes = source.volume_attributes.expect("attributes");
    assert_eq!(attributes["storagepolicyname"], "gold");
}
