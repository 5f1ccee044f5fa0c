//! The command line, beside what a real kube-controller-manager lists.

use super::*;

fn run(args: &[&str]) -> Result<Options, Vec<String>> {
    let args: Vec<String> = args.iter().map(ToString::to_string).collect();
    match parse(&args) {
        Ok(ManagerAction::Run(options)) => Ok(*options),
        Ok(ManagerAction::Print(text)) => panic!("it prints {text}"),
        Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
    }
}

/// The flags of a kube-controller-manager 1.36.3 with their defaults.
#[test]
fn flags_and_defaults_are_those_of_a_real_manager() {
    let theirs: BTreeMap<String, &str> = include_str!("upstream_flags.txt")
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, default)| (name.replace('_', "-"), default))
        .collect();
    let shown = |flag: &pintle_config::flag::Flag| match flag.default {
        "" => flag.kind.zero(),
        default => default,
    };
    let of_upstream = |flag: &&pintle_config::flag::Flag| !flags::OWN.contains(&flag.name);
    let ours: BTreeMap<String, &str> = flags::TABLE
        .flags()
        .filter(of_upstream)
        .map(|flag| (flag.name.to_owned(), shown(flag)))
        .collect();
    let names = |flags: &BTreeMap<String, &str>| flags.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&theirs));
    for (name, default) in &theirs {
        // Texts of Go's types for what is empty or zero.
        let same = ours[name] == *default
            || (["", "[]", "0"].contains(default) && ["", "[]", "0"].contains(&ours[name]));
        assert!(same, "--{name} is {default:?} there, {:?} here", ours[name]);
    }
}

#[test]
fn settings_without_flags_are_the_defaults() {
    let options = run(&[]).expect("nothing is wrong");
    assert_eq!(options.loops, LoopSettings::default());
    assert_eq!(options.serving.address, Some("0.0.0.0:10257".parse().expect("an address")));
    assert_eq!(options.serving.lookup, Some(Tolerates::Nothing));
    assert_eq!(options.election, Election::on(COMPONENT));
    assert_eq!(options.rate.map(|rate| (rate.per_second, rate.burst)), Some((20.0, 30)));
    assert_eq!(options.shutdown_timeout, Duration::from_secs(10));
    assert_eq!(options.warnings, Vec::<String>::new());
    assert!(!options.uses_accounts);
}

#[test]
fn flags_reach_settings_and_configuration() {
    let options = run(&[
        "--concurrent-gc-syncs=3",
        "--node-eviction-rate=0.5",
        "--controllers=*,-podgc",
        "--cluster-signing-cert-file=/a",
        "--cluster-signing-key-file=/b",
        "--concurrent_rc_syncs=9",
    ]);
    let options = options.expect("nothing is wrong");
    assert_eq!(options.loops.workers("garbage-collector-controller"), 3);
    assert_eq!(options.loops.workers("replicationcontroller-controller"), 9);
    assert_eq!(options.loops.nodes.eviction_rate, 0.5);
    let signer = options.loops.signing.legacy_unknown.expect("files for all signers");
    assert_eq!(signer.key, PathBuf::from("/b"));
    let shown = &options.configuration;
    assert_eq!(shown["GarbageCollectorController"]["ConcurrentGCSyncs"], 3);
    assert_eq!(shown["Generic"]["Controllers"][1], "-pod-garbage-collector-controller");
    assert_eq!(options.flags["concurrent-gc-syncs"], "3");
}

#[test]
fn each_mistake_is_reported_in_one_sentence() {
    for (args, word) in [
        (&["--no-such-flag"][..], "no-such-flag"),
        (&["--concurrent-job-syncs=0"], "--concurrent-job-syncs is 0: it must be at least 1"),
        (&["--max-endpoints-per-slice=1001"], "choose 1 to 1000"),
        (&["--cloud-provider=aws"], "use external, or remove it"),
        (&["--cidr-allocator-type=CloudAllocator"], "use RangeAllocator"),
        (&["--service-cluster-ip-range=a,b,c"], "more than two ranges"),
        (
            &["--cluster-signing-kubelet-client-key-file=/k"],
            "give --cluster-signing-kubelet-client-cert-file too",
        ),
        (&["--root-ca-file=/nowhere/at/all"], "--root-ca-file is /nowhere/at/all"),
        (&["--service-account-private-key-file=/dev/null"], "the file has no private key in PEM"),
        (&["--leader-elect-resource-lock=endpoints"], "only leases are supported"),
        (&["--leader-elect-renew-deadline=20s"], "--leader-elect-lease-duration is 15s"),
        (&["--controllers=*,nope"], "no controller has this name"),
        (&["--feature-gates=NoSuchGate=true"], "NoSuchGate"),
        (&["--pod-eviction-timeout=5m"], "Kubernetes has removed this flag"),
        (&["--secure-port=70000"], "secure-port"),
        (&["--logging-format=xml"], "use text or json"),
        (&["--attach-detach-reconcile-sync-period=1ms"], "at least one second"),
        (&["extra"], "argument \"extra\""),
    ] {
        let wrong = run(args).expect_err("a mistake");
        assert!(wrong.len() == 1 && wrong[0].contains(word), "{args:?}: {wrong:?}");
    }
}

#[test]
fn signing_files_for_all_signers_exclude_files_for_a_single_signer() {
    let wrong = run(&[
        "--cluster-signing-cert-file=/a",
        "--cluster-signing-key-file=/b",
        "--cluster-signing-kubelet-client-cert-file=/c",
        "--cluster-signing-kubelet-client-key-file=/d",
    ]);
    let wrong = wrong.expect_err("both are given");
    assert!(wrong.len() == 1 && wrong[0].contains("it is for all signers"), "{wrong:?}");
}

#[test]
fn flags_without_effect_for_the_same_reason_share_a_line() {
    let options = run(&["--cloud-config=/a", "--cluster-name=b", "--node-sync-period=1s"]);
    let warnings = options.expect("nothing is wrong").warnings;
    let clouds: Vec<_> = warnings.iter().filter(|line| line.contains("managers of")).collect();
    assert_eq!(clouds.len(), 1, "{warnings:?}");
    let names = "flags without effect: --cloud-config, --cluster-name, --node-sync-period; ";
    assert!(clouds[0].starts_with(names), "{clouds:?}");
    assert!(warnings.iter().any(|line| line.starts_with("deprecated flag: --node-sync-period")));
}

#[test]
fn default_that_is_written_out_is_no_warning() {
    let options = run(&["--concurrent-deployment-syncs=5", "--profiling=true"]);
    assert_eq!(options.expect("nothing is wrong").warnings, Vec::<String>::new());
}

#[test]
fn controllers_flag_entries_without_effect_are_reported() {
    let options = run(&["--controllers=*,route,-serviceaccount-token"]).expect("known names");
    let has = |word: &str| options.warnings.iter().any(|line| line.contains(word));
    assert!(has("node-route-controller") && has("has no effect"), "{:?}", options.warnings);
}

/// The garbage collector is as fast as this limit allows (k#126114).
#[test]
fn api_request_rate_defaults_to_upstream_unless_set() {
    let rate = |args: &[&str]| {
        run(args).expect("nothing is wrong").rate.map(|rate| (rate.per_second, rate.burst))
    };
    assert_eq!(rate(&[]), Some((20.0, 30)));
    assert_eq!(rate(&["--kube-api-qps=500", "--kube-api-burst=900"]), Some((500.0, 900)));
}
