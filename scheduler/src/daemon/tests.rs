//! The command line and the file it names.

use pintle_daemon::program::port::denied;
use pintle_daemon::serve::checks::Checks;
use pintle_daemon::serve::query::Query;
use pintle_daemon::serve::secure::{Denial, RequiredRights, ReviewedObject};
use pintle_scheduler_core::groups::GroupGates;
use pintle_scheduler_core::plugins::dynamicresources::DeviceGates;
use pintle_scheduler_core::testing::{at, node, pod, scheduler_with};

use super::serve::{SchedulerQuery, State};
use super::*;

fn run(args: &[&str]) -> Result<Settings, Vec<String>> {
    let args: Vec<String> = args.iter().map(ToString::to_string).collect();
    match parse(&args, &Registry::default()) {
        Ok(SchedulerAction::Run(settings)) => Ok(*settings),
        Ok(SchedulerAction::Print(text)) => panic!("it prints {text}"),
        Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
    }
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, text).expect("written");
    let shown = path.display().to_string();
    (dir, shown)
}

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

#[test]
fn settings_without_arguments_equal_the_upstream_defaults() {
    let settings = run(&[]).expect("nothing is wrong");
    assert_eq!(settings.process, ProcessSettings::default());
    assert!(settings.process.election.is_on);
    assert_eq!(settings.serving.address, Some("0.0.0.0:10259".parse().expect("an address")));
    assert_eq!(settings.serving.open_paths, ["/healthz", "/readyz", "/livez"]);
    assert_eq!(settings.queue, QueueSettings::default());
    assert_eq!(settings.warnings, Vec::<String>::new());
}

#[test]
fn certificate_is_kept_only_in_memory_without_a_cert_dir() {
    let dir = |args: &[&str]| run(args).expect("nothing is wrong").serving.cert_dir;
    assert_eq!(dir(&[]), None);
    assert_eq!(dir(&["--cert-dir="]), None);
    assert_eq!(dir(&["--cert-dir=/var/lib/x"]), Some(PathBuf::from("/var/lib/x")));
}

#[test]
fn flags_win_over_the_file_but_for_credentials_and_rates() {
    let (_dir, path) = file(&format!(
        "{HEAD}clientConnection: {{kubeconfig: /from/file, qps: 7}}\n\
         leaderElection: {{leaderElect: true, leaseDuration: 20s}}\npodMaxBackoffSeconds: 30\n"
    ));
    let config = format!("--config={path}");
    let args = [&config, "--leader-elect=false", "--kubeconfig=/from/flag", "--kube-api-qps=9"];
    let settings = run(&args).expect("nothing is wrong");
    assert_eq!(settings.process.kubeconfig, Some(PathBuf::from("/from/file")));
    assert!(!settings.process.election.is_on);
    assert_eq!(settings.process.election.timing.lease, Duration::from_secs(20));
    assert_eq!((settings.process.qps, settings.queue.backoff.max.as_secs()), (7.0, 30));
    assert_eq!(settings.configuration["leaderElection"]["leaseDuration"], "20s");
    let settings = run(&["--kube-api-qps=9", "--secure-port=0"]).expect("nothing is wrong");
    assert_eq!((settings.process.qps, settings.serving.address), (9.0, None));
}

#[test]
fn rates_of_zero_are_those_of_upstreams_client() {
    for (flags, expected) in [
        (["--kube-api-qps=0", "--kube-api-burst=0"], Some((5.0, 10))),
        (["--kube-api-qps=0", "--kube-api-burst=3"], Some((5.0, 3))),
        (["--kube-api-qps=-1", "--kube-api-burst=3"], None),
    ] {
        let rate = run(&flags).expect("nothing is wrong").process.rate();
        assert_eq!(rate.map(|rate| (rate.per_second, rate.burst)), expected, "{flags:?}");
    }
}

#[test]
fn printed_configuration_reads_back_as_the_same_settings() {
    let (_dir, path) = file(&format!(
        "{HEAD}parallelism: 4\ndelayCacheUntilActive: true\npodMaxBackoffSeconds: 30\n\
         profiles:\n- schedulerName: mine\n  plugins: {{score: {{disabled: [{{name: '*'}}]}}}}\n\
         extenders:\n- urlPrefix: https://gpu.example\n  filterVerb: filter\n  bindVerb: bind\n  \
         managedResources: [{{name: x.io/gpu, ignoredByScheduler: true}}]\n"
    ));
    let first = run(&[&format!("--config={path}")]).expect("nothing is wrong");
    let (_dir, path) = file(&first.configuration.to_string());
    let second = run(&[&format!("--config={path}")]).expect("nothing is wrong");
    assert_eq!((second.extenders.len(), &second.extenders), (1, &first.extenders));
    assert_eq!((&second.profiles, &second.process), (&first.profiles, &first.process));
    assert_eq!(second.warnings, first.warnings);
    assert_eq!(second.configuration, first.configuration);
    let usual = run(&[]).expect("nothing is wrong").configuration;
    assert_eq!(usual["profiles"], json!([{"schedulerName": "default-scheduler"}]));
    assert_eq!(usual.get("extenders"), None);
}

#[test]
fn each_mistake_in_flags_or_configuration_is_reported_in_one_sentence() {
    let (_dir, path) = file(&format!("{HEAD}podMaxBackofSeconds: 30\n"));
    let wrong = run(&[&format!("--config={path}")]).expect_err("an unknown field");
    assert!(wrong[0].contains("podMaxBackofSeconds") && wrong[0].contains(&path), "{wrong:?}");
    let two = "profiles: [{schedulerName: a}, {schedulerName: a}]\n";
    let (_dir, path) = file(&format!("{HEAD}{two}"));
    let wrong = run(&[&format!("--config={path}")]).expect_err("two profiles of a name");
    assert!(wrong[0].contains("two profiles have the same name"), "{wrong:?}");
    for (arg, word) in [
        ("--no-such-flag", "no-such-flag"),
        ("--secure-port=70000", "secure-port"),
        ("--config=/nowhere/at/all", "/nowhere/at/all"),
        ("--feature-gates=NoSuchGate=true", "NoSuchGate"),
        ("--leader-elect-resource-lock=endpoints", "leases"),
        ("--tls-cert-file=/only/one", "--tls-private-key-file"),
        ("--policy-config-file=x", "profiles"),
        ("--tls-min-version=VersionTLS99", "use VersionTLS12 or VersionTLS13"),
        ("--tls-cipher-suites=TLS_AES_128_GCM_SHA256,FOO", "--tls-cipher-suites is \"FOO\""),
        ("--logging-format=xml", "use text or json"),
        ("--logging-format=", "use text or json"),
    ] {
        let wrong = run(&[arg]).expect_err(arg);
        assert!(wrong.len() == 1 && wrong[0].contains(word), "{arg}: {wrong:?}");
    }
}

#[test]
fn other_lock_kind_is_accepted_without_leader_election() {
    let flags = ["--leader-elect=false", "--leader-elect-resource-lock=endpoints"];
    assert!(!run(&flags).expect("nothing is wrong").process.election.is_on);
}

#[test]
fn tls_settings_are_validated_only_if_a_port_is_served() {
    for arg in ["--tls-min-version=VersionTLS10", "--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA"] {
        run(&[arg]).expect("upstream takes it");
    }
    run(&["--secure-port=0", "--tls-min-version=VersionTLS99"]).expect("nothing is served");
}

#[test]
fn timings_of_the_lease_with_which_two_could_lead_are_refused_by_name_and_value() {
    let lease = |flags: &[&str]| {
        let wrong = run(flags).expect_err("two leaders, or none");
        wrong.join("; ").replace("leaderElection.", "").replace("--leader-elect-", "--")
    };
    let short = ["--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=10s"];
    let said = "leaseDuration (--lease-duration) is 5s: it must be longer than renewDeadline, which \
        is 10s; the defaults are 15s and 10s";
    assert_eq!(lease(&short), said);
    let (_dir, path) =
        file(&format!("{HEAD}leaderElection: {{leaseDuration: 5s, renewDeadline: 10s}}\n"));
    assert_eq!(lease(&[&format!("--config={path}")]), said);
    for (flag, said) in [
        ("lease-duration=0s", "leaseDuration (--lease-duration) is 0s: it must be at least 1s"),
        ("retry-period=0s", "retryPeriod (--retry-period) is 0s: it must be longer than zero"),
        ("retry-period=9s", "renewDeadline (--renew-deadline) is 10s: it must be longer than 1.2"),
    ] {
        let wrong = lease(&[&format!("--leader-elect-{flag}")]);
        assert!(wrong.starts_with(said), "{wrong}");
    }
    // Without leader election these settings are not validated.
    run(&[&short[..], &["--leader-elect=false"]].concat()).expect("no election");
}

#[test]
fn feature_gates_without_effect_are_reported() {
    let settings = run(&["--feature-gates=StorageCapacityScoring=true"]).expect("it is known");
    assert!(settings.warnings.iter().any(|t| t.contains("StorageCapacityScoring")), "{settings:?}");
    run(&["--feature-gates=SchedulerQueueingHints=false"]).expect_err("it is locked");
}

#[test]
fn gates_of_groups_need_each_other() {
    let gates = |text: &str| run(&[&format!("--feature-gates={text}")]);
    let wrong = gates("GangScheduling=true").expect_err("nothing is known of groups");
    assert!(wrong.len() == 1 && wrong[0].contains("GenericWorkload, which is off"), "{wrong:?}");
    let settings = gates("GangScheduling=true,GenericWorkload=true").expect("both are known");
    assert_eq!(settings.groups, Some(GroupGates { gangs: true, ..GroupGates::default() }));
    assert_eq!(settings.warnings, Vec::<String>::new());
    gates("WorkloadAwarePreemption=true,GenericWorkload=true").expect_err("no gang scheduling");
    let all = "WorkloadAwarePreemption=true,GangScheduling=true,GenericWorkload=true";
    let settings = gates(all).expect("all are known");
    let preempting = GroupGates { gangs: true, preemption: true, ..GroupGates::default() };
    assert_eq!((settings.groups, settings.warnings), (Some(preempting), Vec::<String>::new()));
    let settings = gates("GenericWorkload=true").expect("it is known");
    assert_eq!(settings.groups, Some(GroupGates::default()));
    let usual = run(&[]).expect("nothing is asked for");
    assert_eq!((usual.groups, usual.devices), (None, DeviceGates::default()));
}

#[test]
fn each_device_feature_gate_changes_only_its_own_setting() {
    let run = |text: &str| run(&[&format!("--feature-gates={text}")]);
    let off = DeviceGates::default();
    for (text, devices) in [
        ("DRADeviceTaintRules=true", DeviceGates { taint_rules: true, ..off }),
        ("DRAListTypeAttributes=true", DeviceGates { lists: true, ..off }),
        ("DRANodeAllocatableResources=true", DeviceGates { allocatable: true, ..off }),
        ("DRADeviceTaintRules=false,DRAListTypeAttributes=false", off),
    ] {
        let settings = run(text).expect("what it needs is on");
        assert_eq!((settings.devices, settings.warnings), (devices, Vec::<String>::new()));
    }
    let wrong = run("DRADeviceTaintRules=true,DRADeviceTaints=false").expect_err("it needs taints");
    assert!(wrong.len() == 1 && wrong[0].contains("DRADeviceTaints, which is off"), "{wrong:?}");
}

#[test]
fn pages_are_served_as_cbor_only_with_the_feature_gate() {
    for (on, expected) in [(true, Encodings::WithCbor), (false, Encodings::Usual)] {
        let gate = format!("--feature-gates=CBORServingAndStorage={on}");
        assert_eq!(run(&[&gate]).expect("it is known").serving.encodings, expected);
    }
}

#[test]
fn the_gate_of_comparing_tolerations_reaches_each_profile() {
    for on in [true, false] {
        let gate = format!("--feature-gates=TaintTolerationComparisonOperators={on}");
        let settings = run(&[&gate]).expect("it is known");
        assert!(settings.profiles.iter().all(|profile| profile.compares_tolerations == on));
        assert_eq!(settings.warnings, Vec::<String>::new());
    }
}

#[test]
fn fields_without_effect_are_reported() {
    let fields = "parallelism: 4\ndelayCacheUntilActive: true\n";
    let (_dir, path) = file(&format!("{HEAD}{fields}"));
    let warnings = run(&[&format!("--config={path}")]).expect("it is right").warnings;
    for field in ["parallelism", "delayCacheUntilActive"] {
        assert!(warnings.iter().any(|text| text.starts_with(field)), "{warnings:?}");
    }
    let (_dir, path) = file(&format!("{HEAD}percentageOfNodesToScore: 30\nparallelism: 16\n"));
    let settings = run(&[&format!("--config={path}")]).expect("it is right");
    assert_eq!(settings.warnings, Vec::<String>::new());
}

#[test]
fn each_gate_and_flag_stands_once() {
    let mut names: Vec<&str> = gates::GATES.iter().map(|gate| gate.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    let mut flags: Vec<&str> = flags::TABLE.flags().map(|flag| flag.name).collect();
    let count = flags.len();
    flags.sort_unstable();
    flags.dedup();
    assert_eq!(flags.len(), count);
    assert!(usage().contains("--leader-elect"));
}

/// The names that `kube-scheduler --help` of 1.36.3 lists.
#[test]
fn every_flag_of_upstream_is_there_and_ours_are_called_pintle() {
    let theirs: Vec<&str> = include_str!("upstream_flags.txt").lines().collect();
    let ours: Vec<&str> = flags::TABLE.flags().map(|flag| flag.name).collect();
    let missing: Vec<_> = theirs.iter().filter(|name| !ours.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let more: Vec<_> = ours.iter().filter(|name| !theirs.contains(name)).collect();
    assert!(more.iter().all(|name| name.starts_with("pintle-")), "{more:?}");
}

#[test]
fn each_path_of_health_has_upstreams_checks() {
    let (state, _questions) = serve::State::new(&run(&[]).expect("nothing is wrong"));
    let state = std::sync::Arc::new(state);
    state.mark_synced();
    let pages = |elects: bool| {
        let verbose = Query::parse("verbose");
        let page = |(path, checks): (&str, &Checks)| {
            let answer = checks.answer(path, &verbose).expect("its path");
            String::from_utf8_lossy(&answer.body).replace(" ok\n", " ")
        };
        let checks = serve::checks(elects, &state);
        ["/healthz", "/livez", "/readyz"].into_iter().zip(&checks).map(page).collect::<Vec<_>>()
    };
    let readyz = "[+]shutdown [+]sched-handler-sync readyz check passed\n";
    let livez = "[+]ping [+]deciding-thread livez check passed\n".to_owned();
    let healthz = "[+]leaderElection [+]deciding-thread healthz check passed\n".to_owned();
    assert_eq!(pages(true), [healthz, livez.clone(), format!("[+]leaderElection {readyz}")]);
    let healthz = "[+]ping [+]deciding-thread healthz check passed\n".to_owned();
    assert_eq!(pages(false), [healthz, livez, readyz.to_owned()]);
    let [_, livez, _] = serve::checks(true, &state);
    assert!(livez.answer("/livez/leaderElection", &Query::parse("")).is_none());
}

#[test]
fn leader_metric_has_the_upstream_name_for_any_lease_name() {
    let settings = run(&["--leader-elect-resource-name=mine"]).expect("nothing is wrong");
    let (state, _questions) = serve::State::new(&settings);
    state.metrics.leads(true);
    let text = state.metrics.text();
    assert!(text.contains("leader_election_master_status{name=\"kube-scheduler\"} 1"), "{text}");
}

/// The unit's port must differ from that of kube-scheduler, which may run on the same node.
#[test]
fn the_unit_can_run_beside_kube_scheduler() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/pintle-scheduler.service");
    let unit = std::fs::read_to_string(path).expect("it is there").replace("\\\n", " ");
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let args: Vec<&str> = command.split_whitespace().skip(1).collect();
    let settings = run(&args).expect("nothing is wrong");
    let usual = run(&[]).expect("nothing is wrong");
    let port = |settings: &Settings| settings.serving.address.map(|address| address.port());
    assert!(port(&settings).is_some() && port(&settings) != port(&usual), "{command}");
    // It is restarted however often it fails.
    assert!(unit.lines().any(|line| line == "StartLimitIntervalSec=0"));
}

#[test]
fn denied_request_gets_a_status_object() {
    let path = "/a<b>&'c".to_owned();
    let wanted = RequiredRights { verb: "get", objects: vec![ReviewedObject::Path(path.clone())] };
    let said = |denial| denied(denial, &wanted, &path);
    let answer = said(Denial::Unauthenticated);
    let body = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","#;
    let body = body.to_owned() + r#""reason":"Unauthorized","code":401}"# + "\n";
    assert_eq!((answer.status, &*answer.content_type), (401, "application/json"));
    assert_eq!(answer.body, body);
    let answer = said(Denial::Forbidden { user: "system:anonymous".to_owned() });
    let said: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let message =
        "forbidden: User \"system:anonymous\" cannot get path \"/a&lt;b&gt;&amp;'c\"".to_owned();
    assert_eq!((answer.status, &said["message"]), (403, &json!(message)));
    assert_eq!((&said["reason"], &said["details"]), (&json!("Forbidden"), &json!({})));
    assert!(String::from_utf8_lossy(&answer.body).contains(r"\u0026lt;b\u0026gt;\u0026amp;"));
}

#[test]
fn assumed_pods_count_as_pods() {
    let (state, _questions) = serve::State::new(&run(&[]).expect("nothing is wrong"));
    state.metrics.counts(|_| 0, [3, 10, 2]);
    let text = state.metrics.text();
    for (kind, count) in [("nodes", 3), ("pods", 12), ("assumed_pods", 2)] {
        let line = format!("scheduler_cache_size{{type=\"{kind}\"}} {count}");
        assert!(text.contains(&line), "{line}\nis not in\n{text}");
    }
}

#[tokio::test]
async fn explain_request_with_a_missing_or_unknown_pod_gets_a_one_line_error() {
    let (state, mut questions) = State::new(&run(&[]).expect("defaults"));
    let mut scheduler = scheduler_with(vec![node("n", "1"), pod("p", "2")]);
    let not_waiting = "default/nobody does not wait for a node\n";
    for (query, status, text) in [
        ("", 400, "which pod? ask for ?pod=NAMESPACE/NAME\n"),
        ("pod=p", 400, "which pod? ask for ?pod=NAMESPACE/NAME\n"),
        ("pod=default/p&node=", 400, "which node? ask for &node=NAME\n"),
        ("pod=default/nobody&node=n", 404, not_waiting),
        ("pod=default/p&node=m", 404, "there is no node \"m\"\n"),
        (
            "pod=default/p&node=n",
            200,
            "\nn: no, Insufficient cpu (NodeResourcesFit); to fit there: ",
        ),
        (
            "pod=default/p",
            200,
            "default/p has no node.\nIt is tried when its turn comes; 0 attempts.\n",
        ),
    ] {
        let query = Query::parse(query);
        let answer = async {
            if status == 400 {
                return;
            }
            let question = questions.recv().await.expect("it is asked");
            let SchedulerQuery::Explain { pod, node, answer } = question else {
                panic!("{question:?}");
            };
            answer.send(scheduler.explain(&pod, node.as_deref(), at(0))).expect("it waits");
        };
        let (answered, ()) = tokio::join!(state.explain(&query, None), answer);
        let body = String::from_utf8(answered.body.to_vec()).expect("text");
        assert_eq!(answered.status, status, "{body}");
        assert!(body.contains(text) && (status == 200 || body == text), "{body}");
    }
    assert!(questions.try_recv().is_err(), "invalid queries reach no scheduler");
}
