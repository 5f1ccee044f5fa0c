//! Order, precedence, look-ups and refusals of a container's environment.

use super::*;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

#[derive(Default)]
struct VariableSources {
    maps: BTreeMap<String, ConfigMap>,
    secrets: BTreeMap<String, Secret>,
    services: Option<Vec<Service>>,
    files: BTreeMap<(String, String), EnvFile>,
}

impl EnvSources for VariableSources {
    fn config_map(&self, _: &str, name: &str) -> Result<&ConfigMap, LookupError> {
        self.maps.get(name).ok_or(LookupError::NotFound)
    }
    fn secret(&self, _: &str, name: &str) -> Result<&Secret, LookupError> {
        self.secrets.get(name).ok_or(LookupError::NotFound)
    }
    fn services(&self) -> Option<&[Service]> {
        self.services.as_deref()
    }
    fn env_file(&self, volume: &str, path: &str) -> Option<&EnvFile> {
        self.files.get(&(volume.to_owned(), path.to_owned()))
    }
}

fn sources() -> VariableSources {
    let map = ConfigMap {
        data: Some([("k1", "v1"), ("k2", "v2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
        ..ConfigMap::default()
    };
    let secret = Secret {
        data: Some([("user".to_owned(), ByteString(b"bob".to_vec()))].into()),
        ..Secret::default()
    };
    let service = json!({"metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443}]}});
    let file = |values: &[(&str, Option<&str>)]| {
        let values =
            values.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)));
        EnvFile { host_path: "/host/f".to_owned(), values: values.collect() }
    };
    VariableSources {
        maps: [("cm".to_owned(), map)].into(),
        secrets: [("sec".to_owned(), secret)].into(),
        services: Some(vec![serde_json::from_value(service).expect("a service")]),
        files: [
            (
                ("v".to_owned(), "f".to_owned()),
                file(&[("K", Some("from file")), ("L", Some("x")), ("no", None), ("Z", None)]),
            ),
            (("v".to_owned(), "bad".to_owned()), file(&[])),
        ]
        .into(),
    }
}

fn pod() -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"},
        "spec": {"containers": [], "enableServiceLinks": true}}))
    .expect("a pod")
}

fn run(env: Value, from: Value, sources: &VariableSources) -> Result<Environment, EnvError> {
    let container = json!({"name": "c", "env": env, "envFrom": from});
    let container = serde_json::from_value(container).expect("a container");
    let (pod, node) = (pod(), NodeFacts::default());
    let ctx = EnvContext { pod: &pod, pod_ips: &[], node: &node, sources, env_files: true };
    environment(&container, &ctx)
}

fn own(environment: &Environment) -> Vec<(&str, &str)> {
    let all = environment.variables().iter().map(|(n, v)| (n.as_str(), v.as_str()));
    all.filter(|(name, _)| !name.starts_with("KUBERNETES_")).collect()
}

#[test]
fn variables_come_in_declared_order_and_later_ones_win_in_place() {
    let from =
        json!([{"configMapRef": {"name": "cm"}, "prefix": "P_"}, {"secretRef": {"name": "sec"}}]);
    let env = json!([
        {"name": "A", "value": "one"},
        {"name": "P_k1", "value": "again"},
        {"name": "B", "value": "$(A)-$(P_k2)-$$(A)-$(LATER)"},
        {"name": "LATER", "value": "x"},
        {"name": "A", "value": "two"},
        {"name": "EMPTY"}
    ]);
    let got = run(env, from, &sources()).expect("an environment");
    let want = [
        ("P_k1", "again"),
        ("P_k2", "v2"),
        ("user", "bob"),
        ("A", "two"),
        ("B", "one-v2-$(A)-$(LATER)"),
        ("LATER", "x"),
        ("EMPTY", ""),
    ];
    assert_eq!(own(&got), want);
}

#[test]
fn a_secret_that_is_no_text_reaches_the_container_byte_for_byte() {
    let mut sources = sources();
    let raw = vec![0xff, 0x00, 0x80, b'x'];
    let data = Some([("key".to_owned(), ByteString(raw.clone()))].into());
    sources.secrets.insert("raw".to_owned(), Secret { data, ..Secret::default() });
    let reference = json!({"secretKeyRef": {"name": "raw", "key": "key"}});
    let env =
        json!([{"name": "ONE", "valueFrom": reference}, {"name": "two_key", "value": "text"}]);
    let from = json!([{"secretRef": {"name": "raw"}, "prefix": "two_"},
        {"secretRef": {"name": "raw"}, "prefix": "three_"}]);
    let got = run(env, from, &sources).expect("an environment");
    let values: BTreeMap<&str, &[u8]> = got.values().collect();
    assert_eq!(values["ONE"], raw);
    assert_eq!(values["three_key"], raw);
    assert_eq!(values["two_key"], b"text", "a text in its place");
}

#[test]
fn service_variables_can_be_overridden_and_referenced() {
    let env = json!([
        {"name": "URL", "value": "https://$(KUBERNETES_SERVICE_HOST)"},
        {"name": "KUBERNETES_SERVICE_PORT", "value": "1"}
    ]);
    let got = run(env, json!([]), &sources()).expect("an environment");
    assert_eq!(got.value("URL"), Some("https://10.96.0.1"));
    assert_eq!(got.value("KUBERNETES_SERVICE_PORT"), Some("1"));
    assert_eq!(got.value("KUBERNETES_SERVICE_HOST"), Some("10.96.0.1"));
    assert_eq!(
        got.variables().last().map(|(n, _)| n.as_str()),
        Some("KUBERNETES_PORT_443_TCP_ADDR")
    );
}

#[test]
fn absent_optional_source_omits_the_variable() {
    let from = json!([{"configMapRef": {"name": "no", "optional": true}},
        {"secretRef": {"name": "no", "optional": true}}]);
    let of = |field: &str, name: &str, key: &str| {
        let key = json!({"name": name, "key": key, "optional": true});
        json!({"name": "X", "valueFrom": { field: key }})
    };
    let env = json!([
        of("configMapKeyRef", "no", "k"),
        of("configMapKeyRef", "cm", "no"),
        of("secretKeyRef", "no", "k"),
        of("secretKeyRef", "sec", "no"),
        {"name": "X", "valueFrom": {"fileKeyRef":
            {"volumeName": "v", "path": "f", "key": "no", "optional": true}}}
    ]);
    let got = run(env, from, &sources()).expect("an environment");
    assert_eq!(own(&got), []);
}

#[test]
fn absent_required_source_fails_with_the_kubelets_message() {
    let of = |field: &str, name: &str, key: &str| {
        let key = json!({"name": name, "key": key});
        json!([{"name": "X", "valueFrom": { field: key }}])
    };
    let file = |path: &str, volume: &str, key: &str| {
        let reference = json!({"volumeName": volume, "path": path, "key": key});
        json!([{"name": "X", "valueFrom": {"fileKeyRef": reference}}])
    };
    for (env, want) in [
        (of("configMapKeyRef", "nope", "x"), "configmap \"nope\" not found"),
        (of("secretKeyRef", "nope", "x"), "secret \"nope\" not found"),
        (of("configMapKeyRef", "cm", "x"), "couldn't find key x in ConfigMap ns/cm"),
        (of("secretKeyRef", "sec", "x"), "couldn't find key x in Secret ns/sec"),
        (file("f", "none", "K"), "cannot find the volume \"none\" referenced by FileKeyRef"),
        (file("bad", "v", "K"), "couldn't parse env file"),
        (file("f", "v", "Z"), "environment variable key \"Z\" not found in file \"/host/f\""),
    ] {
        let error = run(env, json!([]), &sources()).expect_err(want).to_string();
        assert_eq!(error, want);
    }
}

#[test]
fn files_of_variables_are_read_and_listed_beforehand() {
    let taken = |key: &str| {
        let reference = json!({"volumeName": "v", "path": "f", "key": key});
        json!({"name": key, "valueFrom": {"fileKeyRef": reference}})
    };
    let env = json!([taken("K"), taken("L"), taken("K")]);
    let container: Container =
        serde_json::from_value(json!({"name": "c", "env": env})).expect("a container");
    let keys = BTreeSet::from(["K".to_owned(), "L".to_owned()]);
    assert_eq!(files_needed(&container), BTreeMap::from([(("v", "f"), keys)]), "each file once");
    let environment = run(env, json!([]), &sources()).expect("ok");
    assert_eq!(own(&environment), [("K", "from file"), ("L", "x")]);
}

#[test]
fn without_an_api_server_references_fail_and_services_are_none() {
    let (mut pod, node) = (pod(), NodeFacts::default());
    let env = |sources: &dyn EnvSources, pod: &Pod, env: Value| {
        let container = serde_json::from_value(json!({"name": "c", "env": env})).expect("ok");
        let ctx = EnvContext { pod, pod_ips: &[], node: &node, sources, env_files: true };
        environment(&container, &ctx).map_err(|error| error.to_string())
    };
    let reference =
        json!([{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]);
    assert_eq!(
        env(&NoSources, &pod, reference),
        Err("couldn't get configMap ns/m, no kubeClient defined".to_owned())
    );
    assert_eq!(env(&NoSources, &pod, json!([])).map(|e| e.variables().len()), Ok(0));
    // Services not listed yet: pods of the API wait, static ones do not.
    let unsynced = VariableSources::default();
    assert!(env(&unsynced, &pod, json!([])).is_err());
    let source = [(pod::ANNOTATION_SOURCE.to_owned(), "file".to_owned())];
    pod.metadata.annotations = Some(source.into());
    assert!(env(&unsynced, &pod, json!([])).is_ok());
}

/// Made all the same, this takes more memory than there is.
#[test]
fn expansion_of_variable_references_is_limited_to_16_mib() {
    let long = "environment variables, command and arguments have more than 16 MiB with what their \
                references stand for";
    let chain = |length: usize| -> Value {
        let next = |at: usize| match at {
            0 => json!({"name": "A0", "value": "x".repeat(10)}),
            _ => json!({"name": format!("A{at}"), "value": format!("$(A{})", at - 1).repeat(10)}),
        };
        (0..length).map(next).collect()
    };
    let short = run(chain(6), json!([]), &sources()).expect("it is short");
    assert_eq!(short.value("A5").map(str::len), Some(1_000_000));
    let error = run(chain(14), json!([]), &sources()).expect_err("it is long");
    assert_eq!(error.to_string(), long);
    let words = |bytes: usize| vec!["y".repeat(bytes - 10), "$(A0)".to_owned()];
    let fill = |words: Vec<String>| short.expand(&words, &mut short.room());
    let filled = fill(words(short.room())).expect("it fits");
    assert_eq!(filled.concat().len(), short.room());
    assert_eq!(fill(words(short.room() + 1)), Err(EnvError::TooLong));
}

#[test]
fn object_imported_with_many_prefixes_counts_once_per_prefix() {
    let mut sources = sources();
    let data = [("k".to_owned(), "x".repeat(1 << 20))].into();
    sources.maps.insert("big".to_owned(), ConfigMap { data: Some(data), ..ConfigMap::default() });
    let from = |count: usize| -> Value {
        let one = |at| json!({"prefix": format!("p{at}"), "configMapRef": {"name": "big"}});
        (0..count).map(one).collect()
    };
    assert_eq!(own(&run(json!([]), from(15), &sources).expect("it fits")).len(), 15);
    assert_eq!(run(json!([]), from(5000), &sources), Err(EnvError::TooLong));
}
