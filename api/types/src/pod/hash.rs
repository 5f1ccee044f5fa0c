//! Hashes that either agent must find equal: the container's and the static pod's.
//!
//! The container hash travels in the annotation `io.kubernetes.container.hash` and decides whether
//! a running container still is the one that the spec asks for; it covers name and image only and
//! must equal the Go kubelet's bit for bit, or a takeover would restart every container. The static
//! pod's uid is our own: FNV-1a over 128 bits of the manifest's canonical JSON.

use k8s_openapi::api::core::v1::{Container, Pod};

const FNV32_OFFSET: u32 = 0x811c_9dc5;
const FNV32_PRIME: u32 = 0x0100_0193;
const FNV128_OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const FNV128_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// Hash of a container's name and image.
// k8s: pkg/kubelet/container/helpers.go HashContainer
pub fn container_hash(container: &Container) -> u32 {
    let image = container.image.as_deref().unwrap_or_default();
    let json = format!("{{\"image\":{},\"name\":{}}}", go_json(image), go_json(&container.name));
    let mut hash = fnv32(FNV32_OFFSET, b"([]uint8)[");
    for (index, byte) in json.bytes().enumerate() {
        if index > 0 {
            hash = fnv32(hash, b" ");
        }
        hash = fnv32(hash, byte.to_string().as_bytes());
    }
    fnv32(hash, b"]")
}

/// The container hash as the annotation shows it.
pub fn container_hash_text(container: &Container) -> String {
    format!("{:x}", container_hash(container))
}

/// Uid of a static pod: 32 hex digits over the manifest, the node and where it came from.
/// `origin` is `file:<path>` or `url:<url>`; the node counts for files only, since two nodes may
/// hold the same path but one URL serves many nodes the same pod.
pub fn static_pod_uid(pod: &Pod, node_name: &str, origin: &str) -> String {
    let canonical = serde_json::to_value(pod).map(|value| value.to_string()).unwrap_or_default();
    let mut hash = FNV128_OFFSET;
    if origin.starts_with("file:") {
        hash = fnv128(hash, format!("host:{node_name}").as_bytes());
    }
    hash = fnv128(hash, origin.as_bytes());
    hash = fnv128(hash, b"\0");
    format!("{:032x}", fnv128(hash, canonical.as_bytes()))
}

/// Checksum of a Go string as the kubelet's checkpoints have it.
// k8s: pkg/kubelet/checkpointmanager/checksum/checksum.go New
pub fn go_string_checksum(text: &str) -> u32 {
    fnv32(fnv32(FNV32_OFFSET, b"(string)"), text.as_bytes())
}

fn fnv32(hash: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(FNV32_PRIME))
}

fn fnv128(hash: u128, bytes: &[u8]) -> u128 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(FNV128_PRIME))
}

/// A string as Go's encoding/json writes it: like JSON, with `<`, `>`, `&`, U+2028 and U+2029
/// escaped too.
fn go_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, image: &str) -> Container {
        Container { name: name.into(), image: Some(image.into()), ..Container::default() }
    }

    #[test]
    fn the_container_hash_is_that_of_the_go_kubelet() {
        assert_eq!(container_hash_text(&container("main", "busybox:latest")), "582b8eef");
        assert_eq!(container_hash_text(&container("c", "busybox:latest")), "6047fbf3");
    }

    #[test]
    fn only_name_and_image_change_the_container_hash() {
        let mut other = container("c", "busybox:latest");
        other.command = Some(vec!["sh".into()]);
        assert_eq!(container_hash(&other), container_hash(&container("c", "busybox:latest")));
        assert_ne!(
            container_hash(&container("c", "busybox:1")),
            container_hash(&container("c", "busybox:2"))
        );
    }

    #[test]
    fn strings_are_escaped_as_go_escapes_them() {
        assert_eq!(
            go_json("a<b>&\"\\\n\u{1}\u{2028}é"),
            r#""a\u003cb\u003e\u0026\"\\\n\u0001\u2028é""#
        );
    }

    #[test]
    fn a_static_pods_uid_depends_on_manifest_node_and_path() {
        let pod = Pod::default();
        let mut other = Pod::default();
        other.metadata.name = Some("x".into());
        let uid = static_pod_uid(&pod, "n", "file:/a");
        assert_eq!(uid.len(), 32);
        assert_eq!(uid, static_pod_uid(&pod, "n", "file:/a"));
        assert_ne!(uid, static_pod_uid(&other, "n", "file:/a"));
        assert_ne!(uid, static_pod_uid(&pod, "m", "file:/a"));
        assert_ne!(uid, static_pod_uid(&pod, "n", "file:/b"));
        let url = static_pod_uid(&pod, "n", "url:http://h/p");
        assert_eq!(url, static_pod_uid(&pod, "m", "url:http://h/p"));
    }
}
