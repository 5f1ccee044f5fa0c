//! Files that people and templates might write, from a seed.
//!
//! Input: a seed, and the shape of a file's type as the Go program prints it. Output: bytes. A file
//! is a valid one with fields added, removed and changed, written in any of YAML's styles, and now
//! and then damaged.

use pintle_api_types::rng::Rng;
use serde_json::{Map, Value, json};

use super::{material, render};

/// Levels of a generated value.
const DEPTH_MAX: usize = 6;

/// Scalars that some readers parse as another type; as strings they stay strings.
pub(crate) const ODD: [&str; 56] = [
    "",
    " ",
    "~",
    "null",
    "Null",
    "yes",
    "No",
    "on",
    "OFF",
    "y",
    "n",
    "true",
    "True",
    "TRUE",
    "False",
    "0",
    "-0",
    "+1",
    "07",
    "08",
    "0400",
    "0o400",
    "0O17",
    "0x1F",
    "-0x1",
    "0b11",
    "1_000",
    "_1",
    "1__0",
    ".5",
    "5.",
    "1.0",
    "-1.5",
    "1e3",
    "1E+2",
    "1e-7",
    "83e2010",
    "12e34567",
    "1e21",
    ".inf",
    "-.INF",
    ".nan",
    "1:30",
    "190:20:30",
    "2001-12-14",
    "2001-12-14T21:59:43.10Z",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "<<",
    "=",
    "a: b",
    "# no",
    "\u{e9}\u{4e2d}\u{1F600}",
    "line\nbreak\n",
    "tab\there",
];

/// Words for a field, by the end of its name.
const WORDS: &[(&str, &[&str])] = &[
    ("current-context", &["c", "x", ""]),
    ("cluster", &["k", "x", ""]),
    ("user", &["u", "x", ""]),
    (
        "server",
        &[
            "https://10.0.0.1",
            "http://a.example/x?y=1#z",
            "a.example:80",
            "[::1]:6443",
            "https://u:p@a/",
            "a/b",
            "ftp://a",
            "",
        ],
    ),
    ("proxy-url", &["http://a:1", "socks5://a", "a:1", "ftp://a", ""]),
    ("certificate-authority", &["ca.crt", "none", ""]),
    ("client-certificate", &["client.crt", "ca.crt", "none", ""]),
    ("client-key", &["client.key", "token", "none", ""]),
    ("tokenFile", &["token", "empty", "none", ""]),
    ("command", &["plugin", "bin/plugin", "/bin/plugin", ""]),
    ("interactiveMode", &["Never", "IfAvailable", "Always", "x", ""]),
    ("auth", &["dTpw", "dTpw\n", "dTpwOnc=", " dTpw", "dTo=", "dQ==", "eA", "8DpY", "%", ""]),
    ("matchImages", &["*.example", "a.example/b", "*", "a b", "https://a", "a:x", "%", ""]),
    ("cacheType", &["Token", "ServiceAccount", "x", ""]),
    ("Keys", &["a.example/b", "A", "a b", ""]),
    ("restartPolicy", &["Always", "OnFailure", "Never", ""]),
    ("dnsPolicy", &["ClusterFirst", "Default", "ClusterFirstWithHostNet", ""]),
    ("PullPolicy", &["Always", "IfNotPresent", "Never", ""]),
    ("pullPolicy", &["Always", "IfNotPresent", "Never", ""]),
    ("protocol", &["TCP", "UDP", "SCTP", ""]),
    ("scheme", &["HTTP", "HTTPS", ""]),
    ("MessagePolicy", &["File", "FallbackToLogsOnError", ""]),
    ("MessagePath", &["/dev/termination-log", "/tmp/x", ""]),
    ("operator", &["Exists", "Equal", ""]),
    ("effect", &["NoSchedule", "NoExecute", "PreferNoSchedule", ""]),
    ("medium", &["", "Memory", "HugePages"]),
    ("mountPropagation", &["None", "HostToContainer", "Bidirectional"]),
    ("image", &["busybox", "busybox:latest", "busybox:1", "a/b@sha256:0", "Bad Image", ""]),
    ("fieldPath", &["metadata.name", "status.podIP", "metadata.labels['a']", "spec.x", ""]),
    ("resource", &["limits.cpu", "requests.memory", "limits.hugepages-2Mi", "cpu", ""]),
    (
        "apiVersion",
        &[
            "v1",
            "",
            "v2",
            "/v1",
            "client.authentication.k8s.io/v1",
            "client.authentication.k8s.io/v1beta1",
            "client.authentication.k8s.io/v1alpha1",
            "credentialprovider.kubelet.k8s.io/v1",
            "credentialprovider.kubelet.k8s.io/v1alpha1",
        ],
    ),
    ("Path", &["/a", "a/b", "../x", "/", "", "/a:b", "/a//b"]),
    ("path", &["/a", "a/b", "../x", "/", "", "a:b"]),
    ("ip", &["10.0.0.1", "::1", "010.0.0.1", "x", ""]),
    ("IP", &["10.0.0.1", "::", "127.0.0.1", "1.2.3", ""]),
    ("namespace", &["default", "case", "Not-Good", ""]),
    ("name", &["a", "web", "b-1", "A_b", "x.y", "", "main"]),
    ("Name", &["a", "web", "b-1", "A_b", "x.y", ""]),
    ("key", &["a", "example.com/a", "bad key", ""]),
    ("devicePath", &["/dev/a", "/dev/b", ""]),
    ("subPath", &["a", "a/b", "..", "/a", ""]),
    ("cgroupDriver", &["cgroupfs", "systemd", "x", ""]),
    ("mode", &["Webhook", "AlwaysAllow", "None", ""]),
    ("hairpinMode", &["promiscuous-bridge", "hairpin-veth", "none", "x", ""]),
    ("Policy", &["none", "static", "None", "Static", "best-effort", "Delete", ""]),
    ("topologyManagerScope", &["container", "pod", "x", ""]),
    ("format", &["text", "json", ""]),
    ("type", &["", "Directory", "File", "RuntimeDefault", "Unconfined", "Localhost"]),
];

/// A generated file.
pub(crate) struct File {
    pub(crate) bytes: Vec<u8>,
}

/// The file of a seed.
pub(crate) fn file(seed: u64, kind: &str, shape: &Value) -> File {
    let mut rng = Rng::new(seed);
    let mut value = base(kind, &mut rng);
    // A file with few mistakes shows more than one that is refused for three reasons.
    for _ in 0..*rng.pick(&[0_u64, 1, 1, 2, 3]) {
        change(&mut value, shape, &mut rng);
    }
    let is_json = kind.starts_with("docker") && !rng.chance(3);
    let text = if is_json { value.to_string() } else { render::text(&value, &mut rng) };
    let mut bytes = text.into_bytes();
    if rng.chance(10) {
        damage(&mut bytes, &mut rng);
    }
    File { bytes: encode(bytes, &mut rng) }
}

fn base(kind: &str, rng: &mut Rng) -> Value {
    match kind {
        "kubelet" => json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local", "maxPods": 110,
            "syncFrequency": "1m0s", "failCgroupV1": false, "evictionHard": {"memory.available": "100Mi"},
            "authentication": {"anonymous": {"enabled": false}, "webhook": {"cacheTTL": "0s"}},
        }),
        "kubeconfig" => kubeconfig(rng),
        "docker" => json!({"auths": logins(rng), "credsStore": "x"}),
        "dockercfg" => logins(rng),
        "providers" => providers(rng),
        _ => pod(rng),
    }
}

/// A kubeconfig with one of several kinds of credentials.
fn kubeconfig(rng: &mut Rng) -> Value {
    let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "bin/plugin",
        "args": ["a"], "env": [{"name": "A", "value": "1"}], "interactiveMode": "Never"});
    let user = match rng.range(0, 7) {
        0 => json!({"token": "t"}),
        1 => json!({"tokenFile": "token"}),
        2 => json!({"client-certificate": "client.crt", "client-key": "./client.key"}),
        3 => json!({"client-certificate-data": material::certificate(),
            "client-key-data": material::key()}),
        4 => json!({"exec": exec}),
        5 => json!({"username": "u", "password": "p"}),
        _ => json!({"token": "t", "as": "jane", "as-groups": ["a"]}),
    };
    let trust = match rng.range(0, 4) {
        0 => json!({"insecure-skip-tls-verify": true, "server": "https://10.0.0.1:6443"}),
        1 => json!({"certificate-authority": "x/../ca.crt", "server": "https://a.example/x"}),
        2 => json!({"server": "10.0.0.1:8080"}),
        _ => json!({"certificate-authority-data": material::certificate(),
            "server": "https://10.0.0.1:6443/"}),
    };
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "clusters": [{"name": "k", "cluster": trust}],
        "users": [{"name": "u", "user": user}],
    })
}

/// Logins by registry.
fn logins(rng: &mut Rng) -> Value {
    let mut logins = json!({"reg.example": {"auth": "dTpw"}});
    if rng.chance(50) {
        logins["https://index.docker.io/v1/"] =
            json!({"username": "u", "password": "p", "email": "e"});
    }
    logins
}

/// The fields of Docker's configuration, of which upstream's types have decoders of their own.
pub(crate) fn docker_shape() -> Value {
    let fields = ["auth", "username", "password", "email", "Auth", "EMAIL", "u\u{17f}ername"];
    let entry: Map<String, Value> =
        fields.iter().map(|field| ((*field).to_owned(), json!("string"))).collect();
    json!({"fields": {"auths": {"map": {"fields": entry}}, "Auths": {"map": {"fields": entry}},
        "credHelpers": {"map": "string"}}})
}

fn providers(rng: &mut Rng) -> Value {
    let version = *rng.pick(&["v1", "v1", "v1", "v1beta1", "v1alpha1"]);
    let mut provider = json!({"name": "p", "matchImages": ["*.example", "a.example:5000/x"],
        "defaultCacheDuration": "1h", "apiVersion": "credentialprovider.kubelet.k8s.io/v1"});
    if rng.chance(50) {
        provider["args"] = json!(["get"]);
        provider["env"] = json!([{"name": "A", "value": "1"}]);
    }
    if version == "v1" && rng.chance(50) {
        provider["tokenAttributes"] = json!({"serviceAccountTokenAudience": "a",
            "cacheType": "Token", "requireServiceAccount": true,
            "requiredServiceAccountAnnotationKeys": ["a.example/b"]});
    }
    json!({"apiVersion": format!("kubelet.config.k8s.io/{version}"),
        "kind": "CredentialProviderConfig", "providers": [provider]})
}

/// A pod of which most fields are used.
fn pod(rng: &mut Rng) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "web"}, "annotations": {"note": "text"}},
        "spec": {"containers": [{"name": "main", "image": "busybox:1"}]},
    });
    let container = &mut pod["spec"]["containers"][0];
    if rng.chance(50) {
        container["command"] = json!(["sh", "-c", "sleep 1"]);
        container["env"] = json!([{"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]);
        container["resources"] = json!({"limits": {"cpu": "1", "memory": "64Mi"},
            "requests": {"cpu": "0.1234567"}});
        container["ports"] = json!([{"name": "http", "containerPort": 80}]);
    }
    if rng.chance(50) {
        container["readinessProbe"] = json!({"httpGet": {"port": "http"}, "periodSeconds": 5});
        container["livenessProbe"] = json!({"tcpSocket": {"port": 80}});
        container["lifecycle"] = json!({"preStop": {"exec": {"command": ["true"]}}});
        container["securityContext"] = json!({"runAsUser": 1000, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}});
        container["ports"] = json!([{"name": "http", "containerPort": 80}]);
    }
    let spec = &mut pod["spec"];
    if rng.chance(50) {
        spec["volumes"] = json!([{"name": "e", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "h", "hostPath": {"path": "/tmp", "type": "Directory"}},
            {"name": "d", "downwardAPI": {"defaultMode": 256, "items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}, "mode": 288}]}}]);
        spec["containers"][0]["volumeMounts"] = json!([{"name": "e", "mountPath": "/e"},
            {"name": "d", "mountPath": "/d", "readOnly": true}]);
    }
    if rng.chance(30) {
        spec["initContainers"] =
            json!([{"name": "init", "image": "busybox", "restartPolicy": "Always"}]);
        spec["tolerations"] = json!([{"operator": "Exists", "effect": "NoSchedule"}]);
        spec["securityContext"] =
            json!({"fsGroup": 1, "sysctls": [{"name": "net.a", "value": "1"}]});
        spec["hostAliases"] = json!([{"ip": "10.0.0.1", "hostnames": ["a.b"]}]);
        spec["dnsConfig"] =
            json!({"nameservers": ["1.1.1.1"], "options": [{"name": "ndots", "value": "2"}]});
        spec["terminationGracePeriodSeconds"] = json!(5);
    }
    pod
}

/// Puts a field in somewhere, or changes or removes one.
fn change(value: &mut Value, shape: &Value, rng: &mut Rng) {
    match value {
        Value::Object(entries) => change_map(entries, shape, rng),
        Value::Array(items) if !items.is_empty() && rng.chance(80) => {
            let at = rng.range(0, items.len() as u64) as usize;
            change(&mut items[at], &shape["list"], rng);
        }
        Value::Array(items) => items.push(any(&shape["list"], "", 0, rng)),
        other => *other = any(shape, "", 0, rng),
    }
}

fn change_map(entries: &mut Map<String, Value>, shape: &Value, rng: &mut Rng) {
    let mut keys: Vec<String> = entries.keys().cloned().collect();
    // Such a change hides all others, because the whole file is refused, so it is rare.
    if !rng.chance(5) {
        keys.retain(|key| !["apiVersion", "kind", "name", "image"].contains(&key.as_str()));
    }
    let is_root = entries.contains_key("kind");
    if !keys.is_empty() && rng.chance(if is_root { 92 } else { 65 }) {
        let key = rng.pick(&keys);
        let below = below(shape, key);
        match entries.get_mut(key) {
            Some(inner @ (Value::Object(_) | Value::Array(_))) if rng.chance(90) => {
                return change(inner, &below, rng);
            }
            _ if rng.chance(10) => {
                entries.remove(key);
            }
            _ => {
                entries.insert(key.clone(), any(&below, key, 0, rng));
            }
        }
        return;
    }
    let key = match shape["fields"].as_object() {
        Some(fields) if !fields.is_empty() && rng.chance(95) => {
            let names: Vec<&String> = fields.keys().collect();
            (*rng.pick(&names)).clone()
        }
        _ => word("key", rng),
    };
    let key = if rng.chance(2) { key.to_uppercase() } else { key };
    let value = any(&below(shape, &key), &key, 0, rng);
    entries.insert(key, value);
}

fn below(shape: &Value, key: &str) -> Value {
    match &shape["map"] {
        Value::Null => shape["fields"][key].clone(),
        value => value.clone(),
    }
}

/// A value of a shape, or now and then of another.
fn any(shape: &Value, key: &str, depth: usize, rng: &mut Rng) -> Value {
    if rng.chance(4) {
        return Value::Null;
    }
    if rng.chance(4) || depth > DEPTH_MAX {
        return rng
            .pick(&[json!({}), json!([]), json!(""), json!(1), json!(true), json!(1.5)])
            .clone();
    }
    match shape.as_str() {
        Some("bool") => json!(rng.chance(50)),
        Some("int") => int(rng),
        Some("float") => {
            rng.pick(&[json!(0.5), json!(1), json!(0), json!(-1.25), json!(1e30)]).clone()
        }
        Some("quantity") => quantity(rng),
        Some("duration") => duration(rng),
        Some("time") => rng.pick(&[json!("2020-01-01T00:00:00Z"), json!("2020-01-01")]).clone(),
        Some("intOrString") => {
            rng.pick(&[json!(80), json!("http"), json!("80"), json!(0), json!("")]).clone()
        }
        Some("bytes") => bytes(rng),
        Some(_) => json!(word(key, rng)),
        None => collection(shape, key, depth, rng),
    }
}

fn collection(shape: &Value, key: &str, depth: usize, rng: &mut Rng) -> Value {
    if let Some(fields) = shape["fields"].as_object() {
        let names: Vec<&String> = fields.keys().collect();
        let mut entries = Map::new();
        if names.is_empty() {
            // Anything may be there.
            return rng.pick(&[json!({"a": 1}), json!("a"), json!([1.5]), json!(true)]).clone();
        }
        for _ in 0..rng.range(0, 4) {
            let name = *rng.pick(&names);
            entries.insert(name.clone(), any(&fields[name], name, depth + 1, rng));
        }
        return Value::Object(entries);
    }
    let count = rng.range(0, 3);
    if !shape["list"].is_null() {
        return (0..count).map(|_| any(&shape["list"], key, depth + 1, rng)).collect();
    }
    let keys =
        ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "a", "example.com/a", "x y", "1"];
    let entries = (0..count).map(|_| {
        let value = any(&shape["map"], key, depth + 1, rng);
        ((*rng.pick(&keys)).to_owned(), value)
    });
    Value::Object(entries.collect())
}

fn bytes(rng: &mut Rng) -> Value {
    let texts = ["aGk=", "", "%", "aGk", "aG\nk=", "aGl=", " aGk="];
    match rng.range(0, 4) {
        0 => json!(material::certificate()),
        1 => json!(material::key()),
        2 => json!([104, 105]),
        _ => json!(rng.pick(&texts)),
    }
}

fn int(rng: &mut Rng) -> Value {
    let numbers =
        [0, 1, 2, 10, 30, 80, 256, 420, 8080, 65535, 65536, -1, i64::from(i32::MAX), i64::MAX];
    let other = rng.range(0, 1000);
    if rng.chance(30) { json!(other) } else { json!(rng.pick(&numbers)) }
}

fn quantity(rng: &mut Rng) -> Value {
    let texts = [
        "1",
        "0",
        "100m",
        "0.1234567",
        "1n",
        "1.5Gi",
        "64Mi",
        "1e3",
        "1E2",
        "2k",
        " 1 ",
        "",
        "-1",
        "x",
        "1.1",
        ".5",
        "5.",
        "+1",
        "12e-1",
        "1000000Ki",
        "0.5Ki",
        "1e15",
        "100u",
    ];
    match rng.range(0, 6) {
        0 => json!(rng.range(0, 4)),
        1 => json!(0.5),
        _ => json!(rng.pick(&texts)),
    }
}

fn duration(rng: &mut Rng) -> Value {
    let texts =
        ["0s", "10s", "1m", "1h30m", "-5s", "1.5s", "100ms", "1", "", "0", "x", "1d", "1us"];
    if rng.chance(5) { json!(10) } else { json!(rng.pick(&texts)) }
}

fn word(key: &str, rng: &mut Rng) -> String {
    let words = WORDS.iter().find(|(end, _)| key.ends_with(end)).map(|(_, words)| *words);
    match words {
        Some(words) if rng.chance(80) => (*rng.pick(words)).to_owned(),
        _ if rng.chance(60) => {
            (*rng.pick(&["a", "b-1", "x.y", "example.com", "/a", "1"])).to_owned()
        }
        _ => (*rng.pick(&ODD)).to_owned(),
    }
}

/// Cuts, doubles or pastes something.
fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.range(0, bytes.len() as u64 + 1) as usize;
    let end = (at + rng.range(0, 12) as usize).min(bytes.len());
    let pastes: [&[u8]; 24] = [
        b"",
        b"\t",
        b" ",
        b"\n",
        b":",
        b": ",
        b"- ",
        b"#",
        b"'",
        b"\"",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b"&a ",
        b"*a ",
        b"!!str ",
        b"|\n",
        b"\r\n",
        b"\xc2\x85",
        b"\xff",
        b"\0",
        b"---\n",
    ];
    let paste = match rng.range(0, 4) {
        0 => bytes[at..end].repeat(2),
        _ => rng.pick(&pastes).to_vec(),
    };
    let end = if rng.chance(50) { end } else { at };
    bytes.splice(at..end, paste);
}

fn encode(bytes: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
    let Ok(text) = String::from_utf8(bytes.clone()) else { return bytes };
    match rng.range(0, 40) {
        0 => [0xef, 0xbb, 0xbf].into_iter().chain(bytes).collect(),
        1 => {
            [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
        }
        2 => {
            [0xfe, 0xff].into_iter().chain(text.encode_utf16().flat_map(u16::to_be_bytes)).collect()
        }
        3 => text.replace('\n', "\r\n").into_bytes(),
        _ => bytes,
    }
}
