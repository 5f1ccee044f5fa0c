//! Two look-ups in a pod's spec that volumes need: metadata fields, and mount points that lie
//! inside another volume. Pure.

use k8s_openapi::api::core::v1::{Pod, VolumeMount};

use crate::env::downward::format_map;

/// A metadata field, as a downward API volume shows it; volumes know fewer fields than variables.
// k8s: pkg/fieldpath/fieldpath.go ExtractFieldPathAsString
pub fn field(pod: &Pod, path: &str) -> Result<String, String> {
    let meta = &pod.metadata;
    let text = |text: &Option<String>| Ok(text.clone().unwrap_or_default());
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match map {
            "metadata.labels" => meta.labels.as_ref(),
            "metadata.annotations" => meta.annotations.as_ref(),
            _ => return Err(format!("fieldPath {path:?} does not support subscript")),
        };
        return text(&map.and_then(|map| map.get(key)).cloned());
    }
    match path {
        "metadata.labels" => Ok(format_map(meta.labels.as_ref())),
        "metadata.annotations" => Ok(format_map(meta.annotations.as_ref())),
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        _ => Err(format!("unsupported fieldPath: {path}")),
    }
}

/// Paths, relative to the volume, where containers mount other volumes inside it; only the
/// outermost of nested ones.
// k8s: pkg/volume/util/nested_volumes.go getNestedMountpoints
pub(super) fn mount_points(pod: &Pod, volume: &str) -> Vec<String> {
    let spec = pintle_api_types::pod::spec(pod);
    let main = spec.init_containers.iter().flatten().chain(&spec.containers);
    let main = main.map(|c| c.volume_mounts.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| c.volume_mounts.as_ref());
    let mut found: Vec<String> =
        main.chain(ephemeral).flatten().flat_map(|mounts| inside(mounts, volume)).collect();
    found.sort();
    found.dedup();
    found
}

fn inside(mounts: &[VolumeMount], volume: &str) -> Vec<String> {
    let clean = |path: &str| {
        let parts = path.split('/').filter(|p| !p.is_empty() && *p != ".");
        parts.collect::<Vec<_>>().join("/")
    };
    let mut all: Vec<String> = mounts.iter().map(|m| clean(&m.mount_path)).collect();
    all.sort();
    let mut found: Vec<String> = Vec::new();
    for mine in mounts.iter().filter(|m| m.name == volume) {
        let prefix = format!("{}/", clean(&mine.mount_path));
        let mut outer: Vec<&str> = Vec::new();
        for path in all.iter().filter_map(|path| path.strip_prefix(&prefix)) {
            let hidden = |o: &&str| path.strip_prefix(*o).is_some_and(|rest| rest.starts_with('/'));
            if !outer.iter().any(hidden) && path.split('/').all(|part| part != "..") {
                outer.push(path);
            }
        }
        found.extend(outer.into_iter().map(str::to_owned));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Container, PodSpec};

    #[test]
    fn fields_are_read_whole_or_by_key() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".to_owned());
        let pairs = [("app", "x"), ("b", "1\n2")];
        let pairs = pairs.map(|(k, v)| (k.to_owned(), v.to_owned()));
        pod.metadata.labels = Some(pairs.into());
        let table = [
            ("metadata.name", Ok("web")),
            ("metadata.labels", Ok("app=\"x\"\nb=\"1\\n2\"")),
            ("metadata.labels['app']", Ok("x")),
            ("metadata.labels['none']", Ok("")),
            ("metadata.annotations", Ok("")),
            ("spec.nodeName", Err("unsupported fieldPath: spec.nodeName")),
        ];
        for (path, expected) in table {
            let found = field(&pod, path);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{path}");
        }
    }

    #[test]
    fn only_the_outermost_nested_mount_points_are_found() {
        let mount = |name: &str, path: &str| VolumeMount {
            name: name.to_owned(),
            mount_path: path.to_owned(),
            ..VolumeMount::default()
        };
        let mounts = vec![
            mount("cm", "/dir"),
            mount("a", "/dir/nested"),
            mount("b", "/dir/nested/double"),
            mount("c", "/dir/nested-vol"),
            mount("d", "/dir2/x"),
            mount("e", "/dir/./deep/er/"),
        ];
        let container = Container { volume_mounts: Some(mounts), ..Container::default() };
        let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
        let pod = Pod { spec: Some(spec), ..Pod::default() };
        assert_eq!(mount_points(&pod, "cm"), ["deep/er", "nested", "nested-vol"]);
        assert!(mount_points(&pod, "a").contains(&"double".to_owned()));
        assert!(mount_points(&pod, "d").is_empty());
    }
}
