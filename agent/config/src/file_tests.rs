//! Reading files: leniency, positions, paths, hostile input.

use proptest::prelude::*;

use std::path::Path;

use serde_json::Value;

use super::ConfigError;
use super::any_json::any_json;
use super::fields::FIELDS;
use super::kubelet::Kubelet;
use super::types::{API_VERSION, KIND};
use pintle_config::file::{self, Document, FILE_BYTES_MAX};

fn parse(bytes: &[u8], shown: &str, folder: &Path) -> Result<Document, ConfigError> {
    file::parse::<Kubelet>(bytes, shown, folder)
}

fn read(path: &Path) -> Result<Document, ConfigError> {
    file::read::<Kubelet>(path)
}

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn read_text(body: &str) -> Result<Document, ConfigError> {
    parse(format!("{HEAD}{body}").as_bytes(), "k.yaml", Path::new("/etc/kubernetes"))
}

fn document(body: &str) -> Document {
    read_text(body).unwrap_or_else(|error| panic!("{body:?}: {error}"))
}

#[test]
fn json_is_read_like_yaml() {
    let text =
        format!("{{\"apiVersion\": \"{API_VERSION}\", \"kind\": \"{KIND}\",\n \"maxPods\": 5}}");
    let document = parse(text.as_bytes(), "k.json", Path::new("/")).expect("JSON");
    assert_eq!(document.tree["maxPods"], 5);
    assert_eq!(document.places["maxPods"], "k.json:2");
}

#[test]
fn unknown_fields_are_ignored_with_a_warning_that_names_line_and_likely_field() {
    let document = document("maxPodz: 5\nauthentication:\n  webhok: {enabled: true}\n");
    assert_eq!(document.tree.get("maxPodz"), None);
    let [first, second] = document.warnings.as_slice() else { panic!("{:?}", document.warnings) };
    assert!(first.contains("authentication.webhok"), "{first}");
    assert!(second.contains("k.yaml:3: unknown field maxPodz"), "{second}");
    assert!(second.contains("did you mean maxPods?"), "{second}");
}

#[test]
fn repeated_field_is_tolerated_with_a_warning_and_its_last_value_is_used() {
    let document = document("maxPods: 5\nmaxPods: 6\n");
    assert_eq!(document.tree["maxPods"], 6);
    assert!(document.warnings[0].contains("the last one is used"), "{:?}", document.warnings);
    assert!(document.warnings[0].starts_with("k.yaml:4: "), "{:?}", document.warnings);
}

#[test]
fn syntax_errors_name_file_and_line() {
    let error = read_text("maxPods: [1\n").expect_err("not YAML").to_string();
    assert!(error.starts_with("k.yaml:4: "), "{error}");
}

#[test]
fn empty_files_other_kinds_and_other_versions_are_refused() {
    for (text, said) in [
        ("", "the file is empty"),
        (" \n", "the file is empty"),
        ("kind: KubeletConfiguration\n", "write apiVersion: kubelet.config.k8s.io/v1beta1"),
        ("apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\n", "apiVersion"),
        ("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: Pod\n", "kind is \"Pod\""),
        ("- 1\n", "k.yaml:1"),
        ("text", "k.yaml:1"),
    ] {
        let error = parse(text.as_bytes(), "k.yaml", Path::new("/")).expect_err(text).to_string();
        assert!(error.contains(said), "{text:?}: {error}");
    }
    let error = parse(b"\xff", "k.yaml", Path::new("/")).expect_err("bytes").to_string();
    assert!(error.contains("UTF-8"), "{error}");
}

#[test]
fn relative_paths_are_resolved_against_the_files_folder() {
    let body = "staticPodPath: manifests\nresolvConf: ''\ntlsCertFile: /abs\n\
                authentication: {x509: {clientCAFile: ../pki/ca.crt}}\nclusterDomain: rel\n";
    let tree = document(body).tree;
    assert_eq!(tree["staticPodPath"], "/etc/kubernetes/manifests");
    assert_eq!(tree["resolvConf"], "");
    assert_eq!(tree["tlsCertFile"], "/abs");
    assert_eq!(tree["authentication"]["x509"]["clientCAFile"], "/etc/pki/ca.crt");
    assert_eq!(tree["clusterDomain"], "rel");
}

#[test]
fn yaml_1_1_booleans_are_read() {
    let tree = document("failSwapOn: no\nenableServer: On\nclusterDomain: \"no\"\n").tree;
    assert_eq!(tree["failSwapOn"], false);
    assert_eq!(tree["enableServer"], true);
    assert_eq!(tree["clusterDomain"], "no");
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("k.yaml");
    let file = std::fs::File::create(&path).expect("file");
    file.set_len(FILE_BYTES_MAX + 1).expect("sparse file");
    let error = read(&path).expect_err("too large").to_string();
    assert!(error.contains("more than the 1048576 allowed"), "{error}");
}

#[test]
fn hostile_nesting_and_aliases_are_refused() {
    let deep_list = "[".repeat(200_000);
    let deep_map = "{a: ".repeat(100_000);
    let aliases = (1..40).fold("a0: &a0 [x, x]\n".to_owned(), |text, n| {
        format!("{text}a{n}: &a{n} [*a{}, *a{}]\n", n - 1, n - 1)
    });
    for body in [deep_list, deep_map, aliases] {
        assert!(read_text(&format!("tracing: \n{body}")).is_err());
        assert!(read_text(&body).is_err());
    }
}

#[test]
fn nulls_are_zero_values_but_for_durations() {
    let load = |body: &str| crate::read_alone(format!("{HEAD}{body}").as_bytes());
    let config = load("maxPods: ~\nclusterDNS: [~]\n").expect("valid");
    assert_eq!((config.max_pods, config.cluster_dns), (110, vec![String::new()]));
    for body in ["syncFrequency: ~\n", "authentication: {webhook: {cacheTTL: }}\n", "maxPods: ''\n"]
    {
        let errors = load(body).expect_err(body);
        assert!(errors[0].to_string().starts_with("file:3: "), "{errors:?}");
    }
    assert!(load("cpuCFSQuotaPeriod: ~\n").is_ok(), "a pointer");
    let errors = load("authentication: {webhook: []}\n").expect_err("a list");
    assert!(errors[0].to_string().contains("authentication.webhook"), "{errors:?}");
}

proptest! {
    #[test]
    fn no_bytes_make_the_loader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        crate::fuzz_load(&bytes);
    }

    #[test]
    fn no_values_in_known_fields_make_the_loader_panic(
        field in prop::sample::select(FIELDS),
        value in any_json(2),
    ) {
        let nested =
            field.path.rsplit('.').fold(value, |inner, key| serde_json::json!({ key: inner }));
        let mut text = serde_json::json!({ "apiVersion": API_VERSION, "kind": KIND });
        if let (Value::Object(text), Value::Object(nested)) = (&mut text, nested) {
            text.extend(nested);
        }
        crate::fuzz_load(text.to_string().as_bytes());
    }

    #[test]
    fn no_text_below_the_head_makes_the_loader_panic(
        body in "[a-zA-Z:{}\\[\\]&*!|>'\"#\n -]{0,80}",
    ) {
        crate::fuzz_load(format!("{HEAD}{body}").as_bytes());
    }
}
