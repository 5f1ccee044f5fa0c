//! The kubelet's readers of files and ours, asked about the same generated files.
//!
//! Input: manifests, kubelet configurations, kubeconfigs, Docker's configurations and
//! configurations of credential providers. Upstream's readers run in a program of their own
//! (`tests/upstream/vectors/reading.go`): the kubelet's own decoding, defaulting and validation,
//! fed a file a line; for a kubeconfig it prints the client's configuration. Both must decode equal
//! objects, or both refuse the file; each intended difference has a row in `EXCEPTIONS` and in
//! docs/COMPAT.md. `PINTLE_READING_CASES` sets the number of files, `PINTLE_SEED` the first seed.

mod compare;
mod generate;
mod material;
mod render;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use k8s_openapi::ByteString;
use pintle_agent_core::image::keyring::{self, Login};
use pintle_agent_core::source::SourceKind;
use pintle_agent_core::source::manifest::decode_pod;
use pintle_agent_core::source::static_pod::ManifestOrigin;
use pintle_agent_runtime::image::provider;
use pintle_api::Access;
use pintle_api_types::ids::UnixNanos;
use pintle_api_types::yaml::{self, ReadLimits};
use serde_json::{Value, json};

use self::compare::{
    Verdict, bare_configuration, bare_logins, bare_pod, bare_providers, differences, meagre,
};
use self::generate::File;
use crate::vectors::{ask, number};

/// Files in CI.
const CASES: u64 = 6_000;
/// Differences that are worth printing.
const SHOWN: usize = 10;
/// Of sixteen files, what each is.
const KINDS: [&str; 16] = [
    "json",
    "pod",
    "kubelet",
    "kubeconfig",
    "pod",
    "docker",
    "kubelet",
    "pod",
    "kubeconfig",
    "pod",
    "providers",
    "pod",
    "dockercfg",
    "kubelet",
    "pod",
    "providers",
];
/// Kinds with fields that come from upstream's types.
const SHAPED: [&str; 4] = ["pod", "kubelet", "kubeconfig", "providers"];

/// Intended differences: the row of docs/COMPAT.md, and parts of the readers' messages.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    ("A manifest whose `uid` is no plain name", &["metadata.uid: Invalid value"]),
    (
        "A kubeconfig with which no request can succeed is refused at the start",
        &[
            "only ours refuses it: server: ",
            "only ours refuses it: exec.interactiveMode: a daemon has no terminal",
            "only ours refuses it: as: impersonate-",
            "only ours refuses it: proxy-url: ",
            // Of files: data is refused by both.
            "only ours refuses it: client-certificate: ",
            "only ours refuses it: client-key: ",
        ],
    ),
    (
        "a quantity beyond 10^28 is capped there",
        &[
            "\"83e2010\", expected a quantity",
            "\"12e34567\", expected a quantity",
            "available: 83e2010",
            "available: 12e34567",
        ],
    ),
    (
        "validation of affinity, topology spread, scheduling groups, resource claims, block devices, \
         managed fields",
        &[
            "metadata.managedFields",
            "spec.affinity",
            "spec.schedulingGroup",
            "seLinuxChangePolicy",
            "resources.claims",
            "hostProcess",
            "volumeDevices",
            "topologySpreadConstraints",
            "spec.overhead",
            "windowsOptions",
            ".vsphereVolume",
            ".rbd",
            ".cephfs",
            ".glusterfs",
            ".azureDisk",
            ".azureFile",
            ".awsElasticBlockStore",
            ".gcePersistentDisk",
            ".cinder",
            ".fc",
            ".flexVolume",
            ".flocker",
            ".gitRepo",
            ".photonPersistentDisk",
            ".portworxVolume",
            ".quobyte",
            ".scaleIO",
            ".storageos",
            ".iscsi",
            ".csi",
            ".ephemeral.",
        ],
    ),
];

/// The shapes of the kinds, printed by the Go program.
static SHAPES: OnceLock<Vec<Value>> = OnceLock::new();

fn shape(kind: &str) -> &'static Value {
    let shapes = SHAPES.get_or_init(|| {
        let mut found = Vec::new();
        let question = |seed: u64| {
            let name = SHAPED[seed as usize];
            json!({"kind": "shape", "text": ByteString(name.into())})
        };
        ask("reading-vectors", 0..SHAPED.len() as u64, question, |line| {
            let answer: Value = serde_json::from_str(line).expect("an answer");
            found.push(answer["object"].clone());
        });
        found.push(generate::docker_shape());
        found
    });
    let kind = if kind == "json" { "pod" } else { kind };
    // Those of Docker are the last.
    let at = SHAPED.iter().position(|shaped| *shaped == kind).unwrap_or(SHAPED.len());
    let shape = &shapes[at];
    if kind == "dockercfg" { &shape["fields"]["auths"] } else { shape }
}

/// The kind of a seed's file, and the file.
fn file(seed: u64) -> (&'static str, File) {
    let kind = KINDS[(seed % KINDS.len() as u64) as usize];
    (kind, generate::file(seed, kind, shape(kind)))
}

fn question(seed: u64) -> Value {
    let (kind, file) = file(seed);
    json!({"kind": kind, "text": ByteString(file.bytes), "folder": material::folder()})
}

fn bare(kind: &str, object: Value) -> Value {
    match kind {
        "pod" => bare_pod(object),
        "kubelet" => bare_configuration(object),
        "kubeconfig" => meagre(object),
        "docker" | "dockercfg" => bare_logins(object),
        "providers" => bare_providers(object),
        _ => object,
    }
}

fn ours(kind: &str, bytes: &[u8]) -> Verdict {
    let read = match kind {
        "json" => {
            let limits = ReadLimits { depth_max: 100, nodes_max: 100_000, replayed_max: 20_000 };
            let read = yaml::read_yaml(bytes, &limits).map_err(|error| error.to_string());
            read.map(|document| document.value.into())
        }
        "kubelet" => {
            let read = pintle_agent_config::read_alone(bytes);
            read.map(|config| json!(config)).map_err(|errors| format!("{errors:?}"))
        }
        "kubeconfig" => kubeconfig(bytes).map_err(|error| error.to_string()),
        "docker" => {
            keyring::logins_of_config_json(bytes).map(logins).map_err(|error| error.to_string())
        }
        "dockercfg" => {
            keyring::logins_of_dockercfg(bytes).map(logins).map_err(|error| error.to_string())
        }
        "providers" => provider::read_alone(bytes)
            .map_err(|error| error.to_string())
            .map(|all| json!({"providers": all})),
        _ => {
            let place = "/manifest".to_owned();
            let origin =
                ManifestOrigin { kind: SourceKind::File, place, changed_at: UnixNanos::NEVER };
            let read = decode_pod(bytes, &origin, "node").map_err(|error| error.to_string());
            read.map(|pod| json!(pod))
        }
    };
    match read {
        Ok(object) => Verdict::Read(bare(kind, object)),
        Err(why) => Verdict::Refused(why),
    }
}

/// Contents of a kubeconfig, which lies in the folder of the test's keys, as a client reads it.
fn kubeconfig(bytes: &[u8]) -> anyhow::Result<Value> {
    let path = Path::new(material::folder()).join("kubeconfig");
    std::fs::write(&path, bytes).expect("written");
    let prefix = format!("kubeconfig {}: ", path.display());
    match Access::read(&path) {
        Ok(access) => Ok(access.contents()),
        Err(error) => Err(anyhow::Error::msg(error.to_string().replace(&prefix, ""))),
    }
}

/// Logins in the form of upstream's type.
fn logins(logins: BTreeMap<String, Login>) -> Value {
    let entry = |(registry, login): (String, Login)| {
        let fields = json!({"username": login.auth.username, "password": login.auth.password,
            "email": login.email});
        (registry, fields)
    };
    Value::Object(logins.into_iter().map(entry).collect())
}

fn theirs(kind: &str, line: &str) -> Verdict {
    let answer: Value = serde_json::from_str(line).expect("an answer");
    match answer["error"].as_str() {
        Some(why) => Verdict::Refused(why.to_owned()),
        None => Verdict::Read(bare(kind, answer["object"].clone())),
    }
}

/// The difference, unless it is an intended one.
fn difference(kind: &str, theirs: &Verdict, ours: &Verdict) -> Option<String> {
    let found = match (theirs, ours) {
        (Verdict::Refused(_), Verdict::Refused(_)) => return None,
        (Verdict::Read(theirs), Verdict::Read(ours)) => {
            differences(kind, theirs, ours).into_iter().next()?
        }
        (Verdict::Refused(why), Verdict::Read(_)) => format!("only the kubelet refuses it: {why}"),
        (Verdict::Read(_), Verdict::Refused(why)) => format!("only ours refuses it: {why}"),
    };
    let mut parts = EXCEPTIONS.iter().flat_map(|(_, parts)| *parts);
    if parts.any(|part| found.contains(part)) { None } else { Some(found) }
}

#[test]
fn every_file_is_read_as_the_kubelet_reads_it() {
    let cases = number("PINTLE_READING_CASES", CASES);
    let first = number("PINTLE_SEED", 1);
    let (mut seed, mut read, mut found) = (first, 0, Vec::new());
    ask("reading-vectors", first..first + cases, question, |line| {
        let (kind, file) = file(seed);
        let (theirs, ours) = (theirs(kind, line), ours(kind, &file.bytes));
        read += u64::from(matches!(ours, Verdict::Read(_)));
        if let Some(difference) = difference(kind, &theirs, &ours) {
            let text = String::from_utf8_lossy(&file.bytes).into_owned();
            found.push(format!("PINTLE_SEED={seed} {difference}\n{text}"));
        }
        seed += 1;
    });
    println!("{cases} files, {read} of them read, {} differences", found.len());
    found.truncate(SHOWN);
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(read * 10 > cases, "most files are refused: {read} of {cases} are read");
}

#[test]
fn every_allowed_difference_has_a_row_in_the_compat_document() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/COMPAT.md");
    let document = std::fs::read_to_string(path).expect("docs/COMPAT.md");
    for (row, _) in EXCEPTIONS {
        assert!(document.contains(row), "no row says: {row}");
    }
}
