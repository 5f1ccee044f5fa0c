//! Defaults and precedence, from whole command lines to the finished configuration.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use super::fields::FIELDS;
use super::types::{CrashLoopBackOff, KubeletConfiguration};
use super::*;
use pintle_api_types::duration::GoDuration;
use pintle_config::flag::FlagTarget;

const RECORDED_CONFIGZ: &str = include_str!("../../../tests/recorded/configz.json");
const RECORDED_FLAGS: &str = include_str!("../../../tests/recorded/flags.txt");
const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// Set by hand for the recording: addresses, ports, paths, credentials, and settings for the
/// recording host (cgroup v1, swap, `-v=1`, a cluster domain).
const SET_BY_HAND: [&str; 20] = [
    "staticPodPath",
    "podLogsDir",
    "address",
    "port",
    "healthzPort",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "authentication.x509.clientCAFile",
    "clusterDNS",
    "clusterDomain",
    "cgroupRoot",
    "failSwapOn",
    "failCgroupV1",
    "volumePluginDir",
    "logging.verbosity",
    "containerRuntimeEndpoint",
    "cgroupDriver",
    "authentication.anonymous.enabled",
    "authentication.webhook.enabled",
    "authorization.mode",
];

fn command(line: &[&str]) -> Result<Command, Vec<ConfigError>> {
    parse(line.iter().map(OsString::from))
}

fn config(line: &[&str]) -> Config {
    let line: Vec<&str> = ["pintle-agent"].into_iter().chain(line.iter().copied()).collect();
    match command(&line) {
        Ok(Command::Run(config)) => *config,
        other => panic!("{line:?} gives {other:?}"),
    }
}

fn errors(line: &[&str]) -> Vec<String> {
    let line: Vec<&str> = ["pintle-agent"].into_iter().chain(line.iter().copied()).collect();
    let errors = command(&line).expect_err("this command line is wrong");
    errors.iter().map(ToString::to_string).collect()
}

fn file(dir: &TempDir, name: &str, body: &str) -> String {
    let path = dir.path().join(name);
    fs::create_dir_all(path.parent().expect("below a folder")).expect("folder");
    fs::write(&path, format!("{HEAD}{body}")).expect("file");
    path.display().to_string()
}

fn temp() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}

/// Every leaf as `path -> value`, so that order and nesting do not matter.
fn leaves(value: &Value) -> Vec<(String, Value)> {
    let at = |path: &str| value.pointer(&format!("/{}", path.replace('.', "/"))).cloned();
    FIELDS.iter().filter_map(|field| Some((field.path.to_owned(), at(field.path)?))).collect()
}

#[test]
fn defaults_are_those_a_real_kubelet_shows() {
    let recorded: Value = serde_json::from_str(RECORDED_CONFIGZ).expect("recording");
    let recorded = leaves(&recorded["kubeletconfig"]);
    let ours = leaves(&serde_json::to_value(KubeletConfiguration::default()).expect("JSON"));
    let set_by_hand = |path: &String| SET_BY_HAND.contains(&path.as_str());
    for (path, value) in recorded.iter().filter(|(path, _)| !set_by_hand(path)) {
        let (_, our) = ours.iter().find(|(name, _)| name == path).expect(path);
        assert_eq!(our, value, "{path}");
    }
    for (path, value) in ours.iter().filter(|(path, _)| !set_by_hand(path)) {
        assert!(recorded.iter().any(|(name, _)| name == path), "{path}: {value} is not recorded");
    }
}

#[test]
fn configz_has_the_kubelets_fields_in_the_kubelets_order() {
    let recorded: Value = serde_json::from_str(RECORDED_CONFIGZ).expect("recording");
    let config: KubeletConfiguration =
        serde_json::from_value(recorded["kubeletconfig"].clone()).expect("typed");
    let ours = serde_json::to_string_pretty(&config).expect("JSON");
    let keys = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| Some(line.split_once("\":")?.0.trim().to_owned())).collect()
    };
    let theirs: Vec<String> =
        keys(RECORDED_CONFIGZ).into_iter().filter(|key| !key.ends_with("kubeletconfig")).collect();
    assert_eq!(keys(&ours), theirs);
    let again: Value = serde_json::from_str(&ours).expect("JSON");
    assert_eq!(again, recorded["kubeletconfig"]);
}

#[test]
fn the_list_of_fields_is_that_of_the_type() {
    let everything = KubeletConfiguration {
        single_process_oom_kill: Some(true),
        max_parallel_image_pulls: Some(1),
        tracing: Some(types::Tracing {
            endpoint: Some(String::new()),
            sampling_rate_per_million: Some(0),
        }),
        user_namespaces: Some(types::UserNamespaces { ids_per_pod: Some(1) }),
        crash_loop_back_off: CrashLoopBackOff::default(),
        ..Default::default()
    };
    // Each listed field must be accepted, and only those: a field the type does not have would
    // silently be ignored by it.
    let listed: BTreeSet<&str> = FIELDS.iter().map(|field| field.path).collect();
    assert_eq!(listed.len(), FIELDS.len(), "a field is listed twice");
    let value = serde_json::to_value(&everything).expect("JSON");
    let mut shown = BTreeSet::new();
    collect("", &value, &mut shown);
    for path in shown.iter().filter(|path| !["kind", "apiVersion"].contains(&path.as_str())) {
        assert!(listed.contains(path.as_str()), "{path} is not listed");
    }
    for field in FIELDS {
        let wrong = field
            .path
            .rsplit('.')
            .fold(wrong_value(field), |inner, key| serde_json::json!({ key: inner }));
        let typed = serde_json::from_value::<KubeletConfiguration>(wrong);
        assert!(typed.is_err(), "{} is not a field of the type", field.path);
    }
}

fn wrong_value(field: &fields::Field) -> Value {
    match field.kind {
        fields::FieldKind::Bool => serde_json::json!("text"),
        _ => serde_json::json!(true),
    }
}

fn collect(prefix: &str, value: &Value, into: &mut BTreeSet<String>) {
    let is_map = fields::find(prefix).is_some();
    match value {
        Value::Object(map) if !is_map && !map.is_empty() => {
            for (key, inner) in map {
                let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                collect(&path, inner, into);
            }
        }
        Value::Object(_) if !is_map => {}
        _ => {
            into.insert(prefix.to_owned());
        }
    }
}

#[test]
fn the_flags_are_those_of_a_real_kubelet_and_a_few_of_our_own() {
    let recorded: BTreeSet<&str> =
        RECORDED_FLAGS.lines().filter_map(|line| line.strip_prefix("--")).collect();
    let all: Vec<&str> = flag_table::flags().map(|flag| flag.name).collect();
    let ours: BTreeSet<&str> = all.iter().copied().collect();
    assert_eq!(all.len(), ours.len(), "a flag is listed twice");
    let kubelets: BTreeSet<&str> =
        ours.into_iter().filter(|name| !name.starts_with("pintle-")).collect();
    assert_eq!(kubelets, recorded);
}

#[test]
fn every_flag_of_a_field_names_a_field_and_no_field_has_two_flags() {
    let mut seen = BTreeSet::new();
    for flag in flag_table::flags() {
        if let FlagTarget::Field(path) = flag.target {
            assert!(fields::find(path).is_some(), "--{} sets {path}", flag.name);
            assert!(seen.insert(path), "{path} has two flags");
        }
    }
}

#[test]
fn without_a_file_the_old_defaults_of_the_command_line_hold() {
    let kubelet = config(&[]).kubelet;
    assert!(kubelet.authentication.anonymous.enabled);
    assert!(!kubelet.authentication.webhook.enabled);
    assert_eq!(kubelet.authorization.mode, modes::AuthorizationMode::AlwaysAllow);
    assert_eq!(kubelet.read_only_port, 10255);

    let dir = temp();
    let kubelet = config(&["--config", &file(&dir, "k.yaml", "")]).kubelet;
    assert_eq!(kubelet, KubeletConfiguration::default());
    assert_eq!(kubelet.read_only_port, 0);
}

#[test]
fn flags_win_over_drop_ins_and_drop_ins_over_the_file() {
    let dir = temp();
    let main = file(&dir, "k.yaml", "maxPods: 1\npodsPerCore: 1\nregistryBurst: 1\n");
    file(&dir, "d/10-a.conf", "podsPerCore: 2\nregistryBurst: 2\n");
    file(&dir, "d/sub/20-b.conf", "registryBurst: 3\n");
    file(&dir, "d/90-ignored.yaml", "maxPods: 99\n");
    let dropins = dir.path().join("d").display().to_string();
    let config = config(&["--config", &main, "--config-dir", &dropins, "--registry-burst=4"]);
    assert_eq!(config.kubelet.max_pods, 1);
    assert_eq!(config.kubelet.pods_per_core, 2);
    assert_eq!(config.kubelet.registry_burst, 4);
    assert!(config.warnings.iter().any(|w| w.contains("90-ignored.yaml")), "{config:?}");
}

#[test]
fn drop_ins_merge_maps_replace_lists_and_delete_with_null() {
    let dir = temp();
    let body = "systemReserved: {cpu: 100m, memory: 1Gi}\nclusterDNS: [10.0.0.1]\nmaxPods: 7\n";
    let main = file(&dir, "k.yaml", body);
    let body = "systemReserved: {cpu: 200m}\nclusterDNS: [10.0.0.2, 10.0.0.3]\nmaxPods: null\n";
    file(&dir, "d/a.conf", body);
    let dropins = dir.path().join("d").display().to_string();
    let kubelet = config(&["--config", &main, "--config-dir", &dropins]).kubelet;
    assert_eq!(kubelet.system_reserved["cpu"], "200m");
    assert_eq!(kubelet.system_reserved["memory"], "1Gi");
    assert_eq!(kubelet.cluster_dns, ["10.0.0.2", "10.0.0.3"]);
    assert_eq!(kubelet.max_pods, 110);
}

#[test]
fn a_drop_in_of_another_kind_stops_the_start() {
    let dir = temp();
    fs::create_dir(dir.path().join("d")).expect("folder");
    fs::write(dir.path().join("d/a.conf"), "maxPods: 1\n").expect("file");
    let found = errors(&["--config-dir", &dir.path().join("d").display().to_string()]);
    assert!(found[0].contains("a.conf") && found[0].contains("apiVersion"), "{found:?}");
}

#[test]
fn feature_gates_of_file_and_flags_add_up_and_flags_win() {
    let dir = temp();
    let main = file(&dir, "k.yaml", "featureGates: {EnvFiles: false, MemoryQoS: true}\n");
    let gates = "--feature-gates=EnvFiles=true,EventedPLEG=true";
    let config = config(&["--config", &main, gates]);
    assert!(config.gates.enabled("EnvFiles"));
    assert!(config.gates.enabled("MemoryQoS"));
    assert!(config.gates.enabled("EventedPLEG"));
    assert_eq!(config.kubelet.feature_gates.len(), 3);
}

#[test]
fn eviction_thresholds_follow_the_merge_setting() {
    let dir = temp();
    let one = "evictionHard: {memory.available: 1Gi}\n";
    let some = config(&["--config", &file(&dir, "a.yaml", one)]).kubelet.eviction_hard;
    assert_eq!(some.len(), 1);
    let merged = format!("{one}mergeDefaultEvictionSettings: true\n");
    let merged = config(&["--config", &file(&dir, "b.yaml", &merged)]).kubelet.eviction_hard;
    assert_eq!(merged.len(), 5);
    assert_eq!(merged["memory.available"], "1Gi");
    let flag = config(&["--eviction-hard=memory.available<2Gi,nodefs.available<5%"]);
    assert_eq!(flag.kubelet.eviction_hard["nodefs.available"], "5%");
    assert_eq!(flag.kubelet.eviction_hard.len(), 2);
    let unset = config(&["--config", &file(&dir, "c.yaml", "evictionHard: null\n")]);
    assert_eq!(unset.kubelet.eviction_hard, defaults::eviction_hard());
}

#[test]
fn default_thresholds_are_those_of_the_file_alone() {
    let dir = temp();
    let empty = file(&dir, "empty.yaml", "");
    file(&dir, "d/a.conf", "evictionHard: {memory.available: 500Mi}\n");
    let drop_ins = dir.path().join("d").display().to_string();
    let both = config(&["--config", &empty, "--config-dir", &drop_ins]).kubelet.eviction_hard;
    assert_eq!((both.len(), &*both["memory.available"]), (5, "500Mi"), "a drop-in changes one");
    let alone = config(&["--config-dir", &drop_ins]).kubelet.eviction_hard;
    assert_eq!(alone.len(), 1, "without a file there is nothing to change");
    assert!(config(&[]).kubelet.eviction_hard.is_empty(), "nor by flags alone");

    let none = file(&dir, "none.yaml", "evictionHard: {}\n");
    assert!(config(&["--config", &none]).kubelet.eviction_hard.is_empty(), "switched off");
    let off = config(&["--config", &empty, "--eviction-hard="]).kubelet.eviction_hard;
    assert!(off.is_empty(), "switched off by the flag");
    let removed = temp();
    file(&removed, "a.conf", "evictionHard: null\n");
    let removed = removed.path().display().to_string();
    let removed = config(&["--config", &empty, "--config-dir", &removed]).kubelet.eviction_hard;
    assert!(removed.is_empty(), "removed by a drop-in");

    let merges = file(&dir, "merges.yaml", "mergeDefaultEvictionSettings: true\n");
    let flag = config(&["--config", &merges, "--eviction-hard=memory.available<1Gi"]);
    assert_eq!(flag.kubelet.eviction_hard.len(), 1, "flags come after what is merged");
    let late = temp();
    file(&late, "a.conf", "mergeDefaultEvictionSettings: true\n");
    let late = late.path().display().to_string();
    let one = file(&dir, "one.yaml", "evictionHard: {memory.available: 1Gi}\n");
    let late = config(&["--config", &one, "--config-dir", &late]).kubelet.eviction_hard;
    assert_eq!(late.len(), 1, "and so do drop-ins");
}

#[test]
fn drop_ins_change_only_the_fields_they_set() {
    let dir = temp();
    let config = |file: Option<&str>, drop_ins: &[(&str, &str)]| {
        let dropped = temp();
        for (name, body) in drop_ins {
            self::file(&dropped, name, body);
        }
        let folder = format!("--config-dir={}", dropped.path().display());
        let file = file.map(|body| format!("--config={}", self::file(&dir, "k.yaml", body)));
        let line: Vec<&str> = file.iter().map(String::as_str).chain([&*folder]).collect();
        self::config(&line).kubelet
    };
    let seconds = GoDuration::from_secs;
    for file in [None, Some("")] {
        let drop_ins = "nodeStatusUpdateFrequency: 20s\nmaxParallelImagePulls: 1\n";
        let kubelet = config(file, &[("a.conf", drop_ins)]);
        assert_eq!(kubelet.node_status_update_frequency, seconds(20));
        assert_eq!(kubelet.node_status_report_frequency, seconds(300));
        assert!(kubelet.serialize_image_pulls);
    }
    let set = "nodeStatusUpdateFrequency: 30s\nmaxParallelImagePulls: 3\n";
    let kubelet = config(Some(set), &[("a.conf", "nodeStatusUpdateFrequency: 20s\n")]);
    assert_eq!(kubelet.node_status_report_frequency, seconds(30), "the file's own default");
    assert!(!kubelet.serialize_image_pulls);
    let again = [
        ("a.conf", "nodeStatusReportFrequency: 0s\nserializeImagePulls: null\n"),
        ("b.conf", "nodeStatusUpdateFrequency: 20s\nmaxParallelImagePulls: 2\n"),
    ];
    let kubelet = config(Some(""), &again);
    assert_eq!(kubelet.node_status_report_frequency, seconds(20), "a drop-in takes it away");
    assert!(!kubelet.serialize_image_pulls);
    self::file(&dir, "c/a.conf", "maxParallelImagePulls: 2\n");
    let found = errors(&["--config-dir", &dir.path().join("c").display().to_string()]);
    assert!(found[0].contains("maxParallelImagePulls"), "pulls are serial: {found:?}");
    let none = Some("enforceNodeAllocatable: []\n");
    assert_eq!(config(none, &[]).enforce_node_allocatable, ["pods"]);
    let kubelet = config(none, &[("a.conf", "enforceNodeAllocatable: []\n")]);
    assert!(kubelet.enforce_node_allocatable.is_empty());
}

#[test]
fn defaults_that_depend_on_other_fields_follow_them() {
    let dir = temp();
    let body = "nodeStatusUpdateFrequency: 20s\nmaxParallelImagePulls: 4\n";
    let config = config(&["--config", &file(&dir, "k.yaml", body)]);
    assert_eq!(config.kubelet.node_status_report_frequency.to_string(), "20s");
    assert!(!config.kubelet.serialize_image_pulls);
    assert_eq!(config.parallel_pulls_max(), Some(4));
}

#[test]
fn defaults_of_features_that_are_switched_off_disappear() {
    let gates = "KubeletCrashLoopBackOffMax=false,KubeletEnsureSecretPulledImages=false";
    let config = config(&["--feature-gates", gates]);
    assert_eq!(config.kubelet.crash_loop_back_off.max_container_restart_period, None);
    let shown = serde_json::to_value(&config.kubelet).expect("JSON");
    assert_eq!(shown.get("imagePullCredentialsVerificationPolicy"), None);
}

#[test]
fn zero_means_not_set_in_a_file_unless_the_api_has_a_pointer() {
    let dir = temp();
    let body = "maxPods: 0\nsyncFrequency: 0s\naddress: ''\nhealthzPort: 0\nresolvConf: ''\n";
    let kubelet = config(&["--config", &file(&dir, "k.yaml", body)]).kubelet;
    assert_eq!(kubelet.max_pods, 110);
    assert_eq!(kubelet.sync_frequency.to_string(), "1m0s");
    assert_eq!(kubelet.address, "0.0.0.0");
    assert_eq!(kubelet.healthz_port, 0);
    assert_eq!(kubelet.resolv_conf, "");
    assert_eq!(config(&["--max-pods=0"]).kubelet.max_pods, 0);
}

#[test]
fn every_nested_structure_is_read_and_shown_again() {
    let dir = temp();
    let body = r#"
logging: {flushFrequency: 2000000000, vmodule: [{filePattern: pod, verbosity: 3}],
          options: {json: {splitStream: true, infoBufferSize: 4Ki}}}
tracing: {samplingRatePerMillion: 100}
registerWithTaints: [{key: a, value: b, effect: NoExecute}]
reservedMemory: [{numaNode: 1, limits: {memory: 1Gi}}]
shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]
memorySwap: {swapBehavior: LimitedSwap}
userNamespaces: {idsPerPod: 65536}
staticPodURLHeader: {X-A: [b, c]}
tlsCurvePreferences: [29]
singleProcessOOMKill: false
"#;
    let kubelet = config(&["--config", &file(&dir, "k.yaml", body)]).kubelet;
    let shown = serde_json::to_value(&kubelet).expect("JSON");
    for (at, expected) in [
        ("/logging/flushFrequency", serde_json::json!("2s")),
        ("/logging/vmodule/0/verbosity", 3.into()),
        ("/logging/options/json/splitStream", true.into()),
        ("/logging/options/json/infoBufferSize", "4Ki".into()),
        ("/tracing", serde_json::json!({ "samplingRatePerMillion": 100 })),
        (
            "/registerWithTaints/0",
            serde_json::json!({ "key": "a", "value": "b", "effect": "NoExecute" }),
        ),
        ("/reservedMemory/0/limits/memory", "1Gi".into()),
        ("/shutdownGracePeriodByPodPriority/0/shutdownGracePeriodSeconds", 5.into()),
        ("/memorySwap/swapBehavior", "LimitedSwap".into()),
        ("/userNamespaces/idsPerPod", 65536.into()),
        ("/staticPodURLHeader/X-A/1", "c".into()),
        ("/tlsCurvePreferences/0", 29.into()),
        ("/singleProcessOOMKill", false.into()),
    ] {
        assert_eq!(shown.pointer(at), Some(&expected), "{at}");
    }
    let again: KubeletConfiguration = serde_json::from_value(shown).expect("typed");
    assert_eq!(again, kubelet);
}

#[test]
fn all_problems_are_reported_at_once_with_file_line_field_value_and_remedy() {
    let dir = temp();
    let body = "maxPods: many\nport: 70000\nfeatureGates: {NoSuch: true}\ncpuCFSQuotaPeriod: 2s\n";
    let path = file(&dir, "k.yaml", body);
    let found = errors(&["--config", &path, "--oom-score-adj=2000", "--hostname-override= "]);
    for (line, said) in [
        ("k.yaml:3", "maxPods (--max-pods) is \"many\""),
        ("k.yaml:4", "port (--port) is 70000: it must be from 1 to 65535; correct it"),
        ("k.yaml:5", "no feature gate of Kubernetes 1.36 is named NoSuch"),
        ("k.yaml:6", "must be from 1ms to 1s"),
        ("", "oomScoreAdj (--oom-score-adj) is 2000"),
        ("", "node name is \" \": it is empty; give --hostname-override=NAME"),
    ] {
        let hit = found.iter().any(|error| error.contains(line) && error.contains(said));
        assert!(hit, "{said:?} at {line:?} is missing in {found:#?}");
    }
    assert_eq!(found.len(), 6, "{found:#?}");
}

#[test]
fn settings_without_effect_are_warned_about_once_and_defaults_never() {
    assert_eq!(config(&[]).warnings, Vec::<String>::new());
    let dir = temp();
    let text = "evictionSoft: {}\ntopologyManagerScope: pod\nhairpinMode: none\n";
    let path = file(&dir, "k.yaml", text);
    let warnings = config(&["--config", &path, "--kubeconfig=/k", "--containerd=x"]).warnings;
    for said in ["topologyManagerScope is set", "hairpinMode is set", "--containerd"] {
        assert_eq!(warnings.iter().filter(|w| w.contains(said)).count(), 1, "{said}: {warnings:?}");
    }
    assert_eq!(warnings.len(), 3, "{warnings:?}");
}

#[test]
fn deprecated_flags_are_reported_in_a_single_line() {
    let said = |line: &[&str]| -> Vec<String> {
        let warnings = config(line).warnings;
        warnings.into_iter().filter(|w| w.starts_with("deprecated flags: ")).collect()
    };
    let line = ["--max-pods=5", "--cluster_domain=x", "--max-pods=6", "--root-dir=/r", "-v=0"];
    let file = "set their fields in the file of --config";
    assert_eq!(said(&line), [format!("deprecated flags: --cluster-domain, --max-pods; {file}")]);
    let [one] = &said(&["--maximum-dead-containers=5"])[..] else { panic!("one sentence") };
    assert_eq!(
        one,
        "deprecated flags: --maximum-dead-containers; Kubernetes is going to remove them"
    );
    let mut kept: Vec<_> = flag_table::flags()
        .filter(|flag| matches!(flag.target, FlagTarget::Field(_)) && flag.deprecated.is_none())
        .map(|flag| flag.name)
        .collect();
    kept.sort_unstable();
    let expected =
        ["fail-cgroupv1", "log-flush-frequency", "provider-id", "seccomp-default", "v", "vmodule"];
    assert_eq!(kept, expected);
}

#[test]
fn dead_containers_cannot_be_younger_than_new() {
    let told = errors(&["--minimum-container-ttl-duration=-1s"]);
    assert!(told[0].contains("cannot be younger"), "{told:?}");
    let age = config(&["--minimum-container-ttl-duration=90s"]).flags.dead_container_age_min;
    assert_eq!(age.as_secs(), 90);
}

#[test]
fn every_flag_is_listed_with_its_value() {
    let config = config(&["--node-ip=10.0.0.1,fd00::1", "--root-dir=/r", "--max-pods=5"]);
    let mut listed = listing::of_fields::<Kubelet>(&config.kubelet);
    listed.extend(config.own_flags);
    for flag in RECORDED_FLAGS.lines().map(|line| line.trim_start_matches("--")) {
        assert!(listed.contains_key(flag), "{flag}");
    }
    for (flag, value) in [
        ("node-ip", "10.0.0.1,fd00::1"),
        ("node-labels", ""),
        ("root-dir", "/r"),
        ("cert-dir", "/var/lib/kubelet/pki"),
        ("maximum-dead-containers", "-1"),
        ("minimum-container-ttl-duration", "0s"),
        ("exit-on-lock-contention", "false"),
        ("housekeeping-interval", "10s"),
        ("pintle-socket", "/r/pintle/agent.sock"),
        ("pintle-flight-recorder", "64Mi"),
        ("max-pods", "5"),
    ] {
        assert_eq!(listed[flag], value, "{flag}");
    }
    // The default of a flag is the same in the table and where it is used.
    let config = self::config(&[]);
    let own = |name: &str| config.own_flags[name].clone();
    let used = &config.flags;
    assert_eq!(own("root-dir"), used.root_dir.display().to_string());
    assert_eq!(own("cert-dir"), used.cert_dir.display().to_string());
    let dead = used.dead_containers_per_container_max.to_string();
    assert_eq!(own("maximum-dead-containers-per-container"), dead);
    assert_eq!(own("maximum-dead-containers"), used.dead_containers_max.to_string());
}

#[test]
fn wrong_feature_gate_does_not_hide_other_config_errors() {
    let dir = temp();
    let body = "featureGates: {AllAlpha: maybe, NoSuch: true}\nmaxPods: -1\nclusterDNS: 10.0.0.1\n";
    let path = file(&dir, "k.yaml", body);
    let found = errors(&["--config", &path]);
    for said in [
        "featureGates.AllAlpha is \"maybe\": it must be true or false",
        "is named NoSuch",
        "maxPods (--max-pods) is -1",
        "clusterDNS (--cluster-dns) is \"10.0.0.1\": it must be a list; write each value on a line",
    ] {
        assert!(found.iter().any(|error| error.contains(said)), "{said}: {found:#?}");
    }
    assert_eq!(found.len(), 4, "{found:#?}");
}

#[test]
fn a_dns_server_that_is_no_address_is_ignored_with_a_warning() {
    let config = config(&["--cluster-dns=10.0.0.1,dns"]);
    assert_eq!(config.cluster_dns().len(), 1);
    let said = |w: &String| w.contains("\"dns\" is not an IP address");
    assert!(config.warnings.iter().any(said), "{config:?}");
}

#[test]
fn a_node_address_that_is_none_is_ignored_with_a_warning() {
    let config = config(&["--node-ip=10.0.0.1,me"]);
    assert_eq!(config.flags.node_ips, [IpAddr::from([10, 0, 0, 1])]);
    let said = |w: &String| w.contains("--node-ip: \"me\" is no IP address");
    assert!(config.warnings.iter().any(said), "{config:?}");
}

#[test]
fn the_kubelets_name_behaves_the_same_but_has_no_commands() {
    let Ok(Command::Run(config)) = command(&["/usr/bin/kubelet", "--max-pods=5"]) else {
        panic!("kubelet runs the daemon");
    };
    assert_eq!(config.kubelet.max_pods, 5);
    assert!(command(&["kubelet", "pods"]).is_err());
    assert!(matches!(command(&["pintle-agent", "pods"]), Ok(Command::Client(_))));
}

#[test]
fn version_is_a_single_line_in_the_kubernetes_format() {
    let Ok(Command::Print(text)) = command(&["kubelet", "--version"]) else {
        panic!("--version prints");
    };
    assert!(text.starts_with("Kubernetes v1.36.") && text.ends_with('\n'), "{text:?}");
    assert_eq!(text.trim_end().lines().count(), 1);
}

#[test]
fn help_names_every_flag() {
    let Ok(Command::Print(text)) = command(&["kubelet", "--help"]) else {
        panic!("--help prints");
    };
    for flag in flag_table::flags() {
        assert!(text.contains(&format!("--{}", flag.name)), "--{}", flag.name);
    }
}

#[test]
fn effective_settings_are_ready_to_use() {
    let config = config(&[
        "--hostname-override=Node-A",
        "--container-runtime-endpoint=unix:///run/c.sock",
        "--read-only-port=0",
        "--root-dir=/data/k",
    ]);
    assert_eq!(config.node_name, "node-a");
    assert_eq!(config.runtime_socket(), PathBuf::from("/run/c.sock"));
    assert_eq!(config.image_socket(), PathBuf::from("/run/c.sock"));
    assert_eq!(config.read_only_address(), None);
    assert_eq!(config.healthz_address().map(|a| a.to_string()), Some("127.0.0.1:10248".into()));
    assert_eq!(config.flags.socket, PathBuf::from("/data/k/pintle/agent.sock"));
    assert!(config.is_standalone());
    assert_eq!(config.parallel_pulls_max(), Some(1));
}
