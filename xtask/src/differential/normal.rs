//! Values that differ in any two runs, as placeholders: ids, times, addresses, generated names.
//!
//! Pure. First come the known words of this pod, then general patterns. A duration in whole seconds
//! stays, because it is a setting; a duration in fractions was measured.

use regex::Regex;
use serde_json::Value;

/// The placeholders of one pod on one node.
pub(super) struct Normal {
    words: Vec<(String, String)>,
    patterns: Vec<(Regex, &'static str)>,
}

/// Patterns in the order in which they are tried.
const PATTERNS: [(&str, &str); 19] = [
    (r"eyJ[\w-]{20,}\.[\w-]+\.[\w-]*", "<token>"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)", "<time>"),
    (r"\.\.\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d\.\d+", "..<stamp>"),
    (r"\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", "<time>"),
    (r"kube-api-access-[a-z0-9]{5}\b", "kube-api-access-<x>"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
    (r"(containerd://|\b)[0-9a-f]{64}\b", "$1<id>"),
    (r"(/containers/[^/]+/)[0-9a-f]{8}$", "$1<log>"),
    (r"(\.\.?\w*\.)\d{8,}\b", "$1<n>"),
    (r"\b10\.96\.([1-9]\d*\.\d+|0\.([2-9]|[1-9][1-9]|\d{3}))\b", "<service-ip>"),
    (r"\b10\.244\.\d+\.\d+\b", "<pod-ip>"),
    (r"\b10\.200\.0\.1[1-9]\b", "<node-ip>"),
    (r"(<pod-ip>|<node-ip>|127\.0\.0\.1|\[::1\]):\d{5}(->)", "$1:<port>$2"),
    (r"\b\d+(\.\d+)?(ms|µs)\b", "<duration>"),
    (r"\b\d+\.\d+s\b", "<duration>"),
    (r"\b(n1|n2)\b", "<node>"),
    (r"-(n1|n2)_", "-<node>_"),
    (r#""hostId":\d+"#, "\"hostId\":<n>"),
    (r"cni-<uuid>", "<netns>"),
];

impl Normal {
    /// With words of this pod's own, each with its placeholder.
    pub(super) fn new(words: Vec<(String, String)>) -> Self {
        let patterns = PATTERNS.map(|(pattern, placeholder)| {
            (Regex::new(pattern).expect("the patterns are good"), placeholder)
        });
        let words = words.into_iter().filter(|(w, _)| !w.is_empty()).collect();
        Self { words, patterns: patterns.into() }
    }

    /// The text with placeholders.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (word, placeholder) in &self.words {
            text = text.replace(word, placeholder);
        }
        // An image's digest means the same on both nodes, a container's id does not.
        text = text.replace("sha256:", "sha256:_");
        for (pattern, placeholder) in &self.patterns {
            text = pattern.replace_all(&text, *placeholder).into_owned();
        }
        text.replace("sha256:_", "sha256:")
    }

    /// Every text of the value, keys as well; nudges are left out.
    pub(super) fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(all) => all.iter().map(|v| self.value(v)).collect(),
            Value::Object(fields) => {
                let fields = fields.iter().filter(|(key, _)| *key != super::look::NUDGE);
                fields.map(|(k, v)| (self.text(k), self.value(v))).collect()
            }
            other => other.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_vary_between_runs_are_replaced_and_fixed_values_are_kept() {
        let normal = Normal::new(vec![("case-n1".to_owned(), "<ns>".to_owned())]);
        let id = "01ac63810103a1f6188d99f727cc6bfd1245964a48f9a928849841258a3f9514";
        for (text, expected) in [
            ("at 2026-11-21T18:06:52.814546386Z in case-n1", "at <time> in <ns>"),
            ("back-off 20s restarting", "back-off 20s restarting"),
            (
                "pulled in 112ms (1.5s including waiting)",
                "pulled in <duration> (<duration> including waiting)",
            ),
            (&format!("containerd://{id}"), "containerd://<id>"),
            (&format!("box@sha256:{id}"), &format!("box@sha256:{id}")),
            ("node n1, n10", "node <node>, n10"),
            ("/logs/ns_static-n2_uid", "/logs/ns_static-<node>_uid"),
            ("dial 10.244.2.7:80: refused", "dial <pod-ip>:80: refused"),
            ("/p/containers/main/fea9597a", "/p/containers/main/<log>"),
            ("..2026_11_21_18_06_52.123456", "..<stamp>"),
            ("cni-3614e2a2-a474-0072-bceb-68a4169bc6e7", "<netns>"),
        ] {
            assert_eq!(normal.text(text), expected);
        }
    }
}
