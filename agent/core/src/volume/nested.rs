//! Two look-ups in a pod's spec that volumes need: metadata fields, and mount points that lie
//! inside another volume. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, VolumeMount};

use crate::env::downward::{DownwardError, format_map};

/// A metadata field, as a downward API volume shows it; volumes know fewer fields than variables.
// k8s: pkg/fieldpath/fieldpath.go ExtractFieldPathAsString
pub fn field(pod: &Pod, path: &str) -> Result<String, DownwardError> {
    let meta = &pod.metadata;
    let text = |text: &Option<String>| Ok(text.clone().unwrap_or_default());
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match map {
            "metadata.labels" => meta.labels.as_ref(),
            "metadata.annotations" => meta.annotations.as_ref(),
            _ => return Err(DownwardError::VolumeSubscript(path.to_owned())),
        };
        return text(&map.and_then(|map| map.get(key)).cloned());
    }
    match path {
        "metadata.labels" => Ok(format_map(meta.labels.as_ref())),
        "metadata.annotations" => Ok(format_map(meta.annotations.as_ref())),
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        _ => Err(DownwardError::FieldPath(path.to_owned())),
    }
}

/// The mounts inside one mount path of a container, relative to it. All volumes that are mounted at
/// that path share the list.
pub type Nested = Arc<Vec<String>>;

/// For each volume, the paths inside it at which containers mount other volumes; of nested mounts
/// only the outermost. Each container is visited once for all volumes, and nesting follows from the
/// order of the sorted paths, because a pod may have very many containers and volumes.
// k8s: pkg/volume/util/nested_volumes.go getNestedMountpoints
pub(super) fn mount_points(pod: &Pod) -> HashMap<&str, Vec<Nested>> {
    let spec = pintle_api_types::pod::spec(pod);
    let main = spec.init_containers.iter().flatten().chain(&spec.containers);
    let main = main.map(|c| c.volume_mounts.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| c.volume_mounts.as_ref());
    let mut found: HashMap<&str, Vec<Nested>> = HashMap::new();
    for mounts in main.chain(ephemeral).flatten() {
        add_inside(mounts, &mut found);
    }
    for lists in found.values_mut() {
        lists.sort();
        lists.dedup();
    }
    found
}

fn add_inside<'a>(mounts: &'a [VolumeMount], found: &mut HashMap<&'a str, Vec<Nested>>) {
    let clean = |path: &str| {
        let parts = path.split('/').filter(|p| !p.is_empty() && *p != ".");
        parts.collect::<Vec<_>>().join("/")
    };
    let mut all: Vec<(String, &str)> =
        mounts.iter().map(|m| (clean(&m.mount_path), &*m.name)).collect();
    // Sorted by components: paths inside a mount path directly follow it.
    all.sort_by(|(a, _), (b, _)| a.split('/').cmp(b.split('/')));
    let places: Vec<&[(String, &str)]> = all.chunk_by(|(a, _), (b, _)| a == b).collect();
    let path_of = |place: usize| places[place][0].0.as_str();
    let mut nested: Vec<Vec<String>> = vec![Vec::new(); places.len()];
    // Mount paths that may contain the next one, the innermost last.
    let mut open: Vec<usize> = Vec::new();
    for place in 0..places.len() {
        while let Some(outer) = open.last().copied() {
            let inner = path_of(place).strip_prefix(path_of(outer));
            if let Some(inner) = inner.and_then(|rest| rest.strip_prefix('/')) {
                if inner.split('/').all(|part| part != "..") {
                    nested[outer].push(inner.to_owned());
                }
                break;
            }
            open.pop();
        }
        open.push(place);
    }
    for (place, nested) in places.into_iter().zip(nested).filter(|(_, list)| !list.is_empty()) {
        let nested = Arc::new(nested);
        for (_, volume) in place {
            found.entry(volume).or_default().push(Arc::clone(&nested));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Container, PodSpec};
    use proptest::prelude::*;

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
            let found = field(&pod, path).map_err(|error| error.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{path}");
        }
    }

    fn mount(name: &str, path: &str) -> VolumeMount {
        let (name, mount_path) = (name.to_owned(), path.to_owned());
        VolumeMount { name, mount_path, ..VolumeMount::default() }
    }

    fn mounting(mounts: Vec<VolumeMount>) -> Pod {
        let container = Container { volume_mounts: Some(mounts), ..Container::default() };
        let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
        Pod { spec: Some(spec), ..Pod::default() }
    }

    fn inside(pod: &Pod, volume: &str) -> Vec<String> {
        let lists = mount_points(pod).remove(volume).unwrap_or_default();
        let mut paths: Vec<String> = lists.iter().flat_map(|list| list.to_vec()).collect();
        paths.sort();
        paths.dedup();
        paths
    }

    #[test]
    fn only_the_outermost_nested_mount_points_are_found() {
        let pod = mounting(vec![
            mount("cm", "/dir"),
            mount("a", "/dir/nested"),
            mount("b", "/dir/nested/double"),
            mount("c", "/dir/nested-vol"),
            mount("d", "/dir2/x"),
            mount("e", "/dir/./deep/er/"),
        ]);
        assert_eq!(inside(&pod, "cm"), ["deep/er", "nested", "nested-vol"]);
        assert_eq!(inside(&pod, "a"), ["double"]);
        assert!(inside(&pod, "d").is_empty());
    }

    /// A comparison of each place of each volume with each mount would take many minutes.
    #[test]
    fn many_volumes_at_one_mount_path_share_one_list_of_nested_mount_points() {
        let spelled = |bits: usize| -> String {
            (0..10).map(|at| format!("/{}p", "/".repeat(bits >> at & 1))).collect()
        };
        let outer = (0..1024).map(|bits| mount(&format!("v{bits}"), &spelled(bits)));
        let inner = (0..9000).map(|at| mount("w", &format!("{}/{at}", spelled(0))));
        let pod = mounting(outer.chain(inner).collect());
        let found = mount_points(&pod);
        let [first] = &*found["v0"] else { panic!("one place") };
        assert_eq!((found.len(), first.len()), (1024, 9000));
        assert!(found.values().all(|lists| lists.iter().all(|list| Arc::ptr_eq(list, first))));
    }

    /// The result of upstream's three loops.
    fn plainly(mounts: &[VolumeMount], volume: &str) -> Vec<String> {
        let clean = |path: &str| {
            let parts = path.split('/').filter(|p| !p.is_empty() && *p != ".");
            parts.collect::<Vec<_>>().join("/")
        };
        let mut all: Vec<String> = mounts.iter().map(|m| clean(&m.mount_path)).collect();
        all.sort();
        let mut found: Vec<String> = Vec::new();
        for mine in mounts.iter().filter(|m| m.name == volume) {
            let prefix = format!("{}/", clean(&mine.mount_path));
            let mut outer: Vec<String> = Vec::new();
            for path in all.iter().filter_map(|path| path.strip_prefix(&prefix)) {
                let hidden = outer.iter().any(|outer| path.starts_with(&format!("{outer}/")));
                if !hidden && !outer.iter().any(|o| o == path) && !path.contains("..") {
                    outer.push(path.to_owned());
                }
            }
            found.extend(outer);
        }
        found.sort();
        found.dedup();
        found
    }

    proptest! {
        #[test]
        fn nested_mount_points_equal_the_result_of_upstreams_loops(
            mounts in prop::collection::vec(("[uvw]", r"/{0,2}((a|b|a-|\.|\.\.)/{1,2}){0,4}"), 0..9),
        ) {
            let mounts: Vec<_> = mounts.iter().map(|(name, path)| mount(name, path)).collect();
            let pod = mounting(mounts.clone());
            for volume in ["u", "v", "w"] {
                prop_assert_eq!(inside(&pod, volume), plainly(&mounts, volume));
            }
        }
    }
}
