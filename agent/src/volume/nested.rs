//! Two look-ups in a pod's spec that volumes need: metadata fields, and mount points that lie
//! inside another volume. Pure.

use k8s_openapi::api::core::v1::{Pod, VolumeMount};

/// A metadata field, as a downward API volume shows it.
// k8s: pkg/fieldpath/fieldpath.go ExtractFieldPathAsString
pub(super) fn field(pod: &Pod, path: &str) -> Result<String, String> {
    let meta = &pod.metadata;
    let labels = || meta.labels.iter().flatten();
    let annotations = || meta.annotations.iter().flatten();
    let lookup = |key: &str, mut pairs: Box<dyn Iterator<Item = (&String, &String)> + '_>| {
        pairs.find(|(k, _)| *k == key).map(|(_, v)| v.clone()).unwrap_or_default()
    };
    if let Some((path, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        return match path {
            "metadata.labels" => Ok(lookup(key, Box::new(labels()))),
            "metadata.annotations" => Ok(lookup(key, Box::new(annotations()))),
            _ => Err(format!("fieldPath \"{path}['{key}']\" does not support subscript")),
        };
    }
    match path {
        "metadata.labels" => Ok(lines(labels())),
        "metadata.annotations" => Ok(lines(annotations())),
        "metadata.name" => Ok(meta.name.clone().unwrap_or_default()),
        "metadata.namespace" => Ok(meta.namespace.clone().unwrap_or_default()),
        "metadata.uid" => Ok(meta.uid.clone().unwrap_or_default()),
        _ => Err(format!("unsupported fieldPath: {path}")),
    }
}

/// `key="value"` lines, sorted by key, the value quoted as Go quotes it.
// k8s: pkg/fieldpath/fieldpath.go FormatMap
fn lines<'a>(pairs: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let lines: Vec<String> = pairs.map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    lines.join("\n")
}

/// Go's `strconv.Quote`: printable Unicode as it is, the rest escaped.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0b' => out.push_str("\\v"),
            '\x0c' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            c if (c as u32) < 0x80 => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if is_printable(c) => out.push(c),
            c if (c as u32) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push('"');
    out
}

/// What Go calls printable beyond ASCII, as far as the standard library can tell: neither a
/// control character nor a space nor one of the invisible format characters.
fn is_printable(c: char) -> bool {
    let invisible = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fdd0}'..='\u{fdef}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
        | '\u{fffe}'..='\u{ffff}' | '\u{e000}'..='\u{f8ff}' | '\u{e0000}'..='\u{10ffff}');
    !c.is_control() && !c.is_whitespace() && !invisible
}

/// Paths, relative to the volume, where containers mount other volumes inside it; only the
/// outermost of nested ones.
// k8s: pkg/volume/util/nested_volumes.go getNestedMountpoints
pub(super) fn mount_points(pod: &Pod, volume: &str) -> Vec<String> {
    let spec = crate::pod::spec(pod);
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
            if !outer.iter().any(|o| hidden(&o)) && path.split('/').all(|part| part != "..") {
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
    fn map_values_are_quoted_as_go_quotes_them() {
        let table = [
            ("plain", "\"plain\""),
            ("a\nb", "\"a\\nb\""),
            ("tab\t\"q\" \\", "\"tab\\t\\\"q\\\" \\\\\""),
            ("\x01\x7f", "\"\\x01\\x7f\""),
            ("grün 日本", "\"grün 日本\""),
            ("\u{200b}\u{a0}", "\"\\u200b\\u00a0\""),
        ];
        for (value, expected) in table {
            assert_eq!(quoted(value), expected);
        }
    }

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
