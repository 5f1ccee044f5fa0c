//! Configuration files: decoded fields, and the messages for invalid ones.

use pintle_sched_core::Plugin;
use pintle_sched_core::config::Strategy;

use super::*;

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

#[test]
fn a_file_without_profiles_means_the_defaults() {
    assert_eq!(profile(HEAD, None).expect("valid"), Profile::default());
}

#[test]
fn plugins_weights_and_arguments_are_taken_over() {
    let text = format!(
        "{HEAD}profiles:\n- schedulerName: mine\n  plugins:\n    score:\n      disabled:\n      \
         - name: ImageLocality\n      enabled:\n      - name: NodeResourcesFit\n        weight: 5\n  \
         pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      scoringStrategy:\n        \
         type: MostAllocated\n        resources:\n        - name: cpu\n          weight: 3\n"
    );
    let found = profile(&text, Some("mine")).expect("valid");
    assert_eq!(found.weight(Plugin::ImageLocality), 0);
    assert_eq!(found.weight(Plugin::NodeResourcesFit), 5);
    assert_eq!(found.strategy, Strategy::MostAllocated);
    assert_eq!(found.fit_resources, vec![("cpu".to_owned(), 3)]);
    assert!(profile(&text, Some("other")).is_err());
}

#[test]
fn configuration_errors_name_their_field() {
    let text =
        format!("{HEAD}profiles:\n- plugins:\n    score:\n      enabled:\n      - name: Nope\n");
    let error = profile(&text, None).expect_err("unknown plugin").to_string();
    assert!(error.contains("profiles[0].plugins.score") && error.contains("Nope"), "{error}");
    assert!(profile("kind: Pod\napiVersion: v1\n", None).is_err());
}

#[test]
fn invalid_configuration_is_reported_by_field_or_line_in_one_sentence() {
    let score = |plugin: &str| format!("profiles: [{{}}, {{plugins: {{score: {{{plugin}}}}}}}]");
    for (text, says) in [
        (
            "parallelism: x".to_owned(),
            "parallelism: invalid type: string \"x\", expected a whole number",
        ),
        ("leaderElection: 5".into(), "leaderElection: invalid type: integer `5`, expected fields"),
        ("leaderElection: {leaderElect: 5}".into(), "leaderElection.leaderElect: invalid type"),
        ("profiles: 5".into(), "profiles: invalid type: integer `5`, expected a list"),
        (
            score("enabled: [{name: ImageLocality, weight: x}]"),
            "profiles[1].plugins.score.enabled[0].weight: ",
        ),
        (score("enabled: [{name: 5}]"), "profiles[1].plugins.score.enabled[0]: invalid type"),
        (score("disable: []"), "profiles[1].plugins.score.disable: unknown field"),
        ("kind: Other".into(), "line 3"),
    ] {
        let said = refused(&text);
        assert!(said.starts_with(&format!("configuration: {says}")), "{text}: {said}");
        assert!(said.lines().count() == 1 && !said.contains("Policy"), "{said}");
    }
    for empty in ["", "\n", "# nothing\n", "null"] {
        let said = profile(empty, None).expect_err("empty").to_string();
        assert_eq!(said, "configuration: the file is empty: write a configuration");
    }
    let said = profile("a: [", None).expect_err("no YAML").to_string();
    assert!(said.contains("line 1") && said.lines().count() == 1, "{said}");
}

fn refused(rest: &str) -> String {
    profile(&format!("{HEAD}{rest}"), None).expect_err("refused").to_string()
}

#[test]
fn unknown_field_is_rejected_at_any_depth() {
    let args = "profiles:\n- pluginConfig:\n  - name: ";
    for (text, name) in [
        ("profile: []\n".to_owned(), "profile"),
        ("profiles:\n- pluginz: {}\n".to_owned(), "pluginz"),
        ("profiles:\n- plugins: {filters: {}}\n".to_owned(), "filters"),
        (
            "profiles:\n- plugins: {score: {enabled: [{name: ImageLocality, wait: 1}]}}\n".into(),
            "wait",
        ),
        (format!("{args}NodeResourcesFit\n    args: {{scoring: {{}}}}\n"), "scoring"),
        (
            format!(
                "{args}PodTopologySpread\n    args:\n      defaultingType: List\n      \
                 defaultConstraints: [{{maxSkew: 1, topologyKey: z, whenUnsatisfiable: \
                 ScheduleAnyway, skew: 2}}]\n"
            ),
            "defaultConstraints[0].skew",
        ),
        (
            format!("{args}NodeAffinity\n    args: {{addedAffinity: {{required: {{}}}}}}\n"),
            "addedAffinity.required",
        ),
    ] {
        let error = refused(&text);
        assert!(error.contains(name) && error.contains("unknown field"), "{error}");
    }
    let process = "leaderElection: {leaderElect: false}\nclientConnection: {qps: 5}\n\
        parallelism: 4\npercentageOfNodesToScore: 50\nenableProfiling: true\n";
    let half = Profile { percentage_of_nodes: 50, ..Profile::default() };
    assert_eq!(profile(&format!("{HEAD}{process}"), None).expect("known"), half);
}

#[test]
fn a_point_that_cannot_be_honoured_is_refused() {
    let plugins = |text: &str| format!("profiles:\n- plugins: {{{text}}}\n");
    for (text, says) in [
        ("permit: {enabled: [{name: NodePorts}]}", "permit"),
        ("preFilter: {disabled: [{name: '*'}]}", "preFilter"),
        ("preScore: {disabled: [{name: InterPodAffinity}]}", "InterPodAffinity"),
        ("preScore: {enabled: [{name: ImageLocality}]}", "nothing to prepare"),
        ("bind: {disabled: [{name: DefaultBinder}]}", "DefaultBinder"),
        ("queueSort: {disabled: [{name: '*'}]}", "PrioritySort"),
        ("multiPoint: {disabled: [{name: '*'}]}", "PrioritySort"),
        ("filter: {enabled: [{name: ImageLocality}]}", "does not filter"),
        ("score: {enabled: [{name: NodePorts}]}", "does not score"),
        ("score: {enabled: [{name: ImageLocality}, {name: ImageLocality}]}", "twice"),
        ("score: {enabled: [{name: ImageLocality, weight: 30000000}]}", "could score"),
        ("score: {enabled: [{name: ImageLocality, weight: -3}]}", "never subtracted"),
    ] {
        let error = refused(&plugins(text));
        assert!(error.contains(says), "{text}: {error}");
    }
    let scores = "extenders: [{urlPrefix: 'http://x', prioritizeVerb: score}]\n";
    assert!(refused(scores).contains("extenders[0].weight"));
    let same = plugins("queueSort: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}]}");
    assert_eq!(profile(&format!("{HEAD}{same}"), None).expect("no change"), Profile::default());
    let alone = plugins(
        "preScore: {disabled: [{name: '*'}], enabled: [{name: NodeAffinity}]}, \
         score: {disabled: [{name: '*'}], enabled: [{name: NodeAffinity, weight: 1}]}, \
         preFilter: {enabled: [{name: VolumeRestrictions}]}",
    );
    let alone = profile(&format!("{HEAD}{alone}"), None).expect("what happens anyway");
    assert_eq!(alone.weights.iter().sum::<i64>(), 1);
    let calm = plugins("postFilter: {disabled: [{name: DefaultPreemption}]}");
    let calm = profile(&format!("{HEAD}{calm}"), None).expect("honoured");
    assert!(!calm.preemption && Profile::default().preemption);
}

#[test]
fn all_plugins_may_be_disabled_if_required_points_are_enabled_explicitly() {
    let plugins = "multiPoint: {disabled: [{name: '*'}]}, bind: {enabled: [{name: DefaultBinder}]}, \
        filter: {enabled: [{name: NodePorts}]}";
    let file = |more: &str| format!("{HEAD}profiles:\n- plugins: {{{plugins}{more}}}\n");
    let found = profile(&file(", queueSort: {enabled: [{name: PrioritySort}]}"), None);
    let found = found.expect("valid");
    let filters = Plugin::ALL.into_iter().filter(|plugin| found.filters(*plugin));
    assert_eq!(filters.collect::<Vec<_>>(), [Plugin::NodePorts]);
    let error = profile(&file(""), None).expect_err("no plugin sorts").to_string();
    assert!(error.contains("PrioritySort cannot be disabled"), "{error}");
    // An out-of-tree plugin may replace PrioritySort. Its arguments, too, may be given only once.
    let others = Registry::default().with("Mine", |_, _| Ok(crate::framework::Points::default()));
    let mine = file(", queueSort: {enabled: [{name: Mine}]}");
    assert!(profiles_with(&mine, &others).is_ok());
    let twice = "  pluginConfig: [{name: Mine, args: {}}, {name: Mine, args: {}}]\n";
    let error = profiles_with(&(mine + twice), &others).expect_err("two arguments").to_string();
    assert!(error.contains("pluginConfig[Mine]: is given twice"), "{error}");
}

#[test]
fn filters_run_in_the_configured_order() {
    use Plugin::{NodeName as Name, NodePorts as Ports, NodeUnschedulable as Shut};
    let alone = "multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, \
        {name: DefaultBinder}, {name: NodePorts}, {name: Mine}, {name: NodeName}]}";
    // The plugin sets, the first three filters, and whether PreFilter has the same order.
    for (plugins, want, prepares) in [
        (String::new(), ["NodeUnschedulable", "NodeName", "TaintToleration"], true),
        (
            "filter: {enabled: [{name: NodePorts}, {name: NodeName}]}".to_owned(),
            ["NodePorts", "NodeName", "NodeUnschedulable"],
            false,
        ),
        (
            "filter: {disabled: [{name: '*'}], enabled: [{name: NodePorts}, {name: Mine}, \
             {name: NodeName}]}"
                .to_owned(),
            ["NodePorts", "Mine", "NodeName"],
            false,
        ),
        (alone.to_owned(), ["NodePorts", "Mine", "NodeName"], true),
        (
            format!("{alone}, filter: {{enabled: [{{name: Mine}}, {{name: NodeUnschedulable}}]}}"),
            ["Mine", "NodePorts", "NodeName"],
            false,
        ),
        (
            "multiPoint: {disabled: [{name: NodeUnschedulable}], enabled: \
             [{name: NodeUnschedulable}, {name: TaintToleration}]}"
                .to_owned(),
            ["NodeName", "TaintToleration", "NodeAffinity"],
            true,
        ),
        (
            "filter: {disabled: [{name: NodeName}], enabled: [{name: NodeName}, \
             {name: NodeUnschedulable}]}"
                .to_owned(),
            ["NodeUnschedulable", "TaintToleration", "NodeAffinity"],
            false,
        ),
    ] {
        let file = format!("{HEAD}profiles:\n- plugins: {{{plugins}}}\n");
        let mine = Registry::default().with("Mine", |_, _| Ok(Default::default()));
        let (profiles, chosen) = profiles_with(&file, &mine).expect("valid");
        let (order, profile) = (&chosen[0].orders["filter"], &profiles[0]);
        let others = ["PrioritySort", "DefaultBinder"];
        let filters = order.iter().filter(|name| !others.contains(&name.as_str()));
        assert_eq!(filters.take(3).collect::<Vec<_>>(), want, "{plugins}");
        assert_eq!(*order == chosen[0].orders["preFilter"], prepares, "{plugins}");
        for plugin in [Shut, Name, Ports].into_iter().filter(|plugin| profile.filters(*plugin)) {
            let at = order.iter().position(|name| name == plugin.name()).expect("it runs");
            assert_eq!(usize::from(profile.filter_rank(plugin)), at + 1, "{plugins}");
        }
    }
}

#[test]
fn several_profiles_are_distinguished_by_unique_scheduler_names() {
    let two = "profiles:\n- schedulerName: a\n- schedulerName: b\n";
    let all = profiles(&format!("{HEAD}{two}")).expect("valid");
    let names: Vec<&str> = all.iter().map(|p| p.scheduler_name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let error = refused("profiles:\n- schedulerName: a\n- schedulerName: a\n");
    assert!(error.contains("two profiles have the same name"), "{error}");
    let error = refused("profiles:\n- schedulerName: a\n- plugins: {}\n");
    assert!(error.contains("profiles[1].schedulerName"), "{error}");
}

#[test]
fn extender_resource_with_ignored_by_scheduler_is_not_counted_by_fit() {
    let text = "extenders:\n- urlPrefix: http://127.0.0.1:9/x\n  filterVerb: filter\n  \
        httpTimeout: 100ms\n  enableHTTPS: true\n  tlsConfig: {insecure: true}\n  managedResources:\n  \
        - name: x.io/gpu\n    ignoredByScheduler: true\n  - name: x.io/other\n";
    let text = format!("{HEAD}{text}");
    let ignored = |rest: &str| {
        let all = profiles(&format!("{text}{rest}"));
        all.map(|all| all[0].ignored_resources.clone()).map_err(|error| error.to_string())
    };
    assert_eq!(ignored("").expect("valid"), ["x.io/gpu"]);
    // The extender's resources replace the ignoredResources of NodeResourcesFit's own arguments.
    let arguments = "profiles:\n- pluginConfig:\n  - name: NodeResourcesFit\n    args: \
        {ignoredResources: [example.com/a]}\n";
    assert_eq!(ignored(arguments).expect("valid"), ["x.io/gpu"]);
    let without = "profiles:\n- plugins: {multiPoint: {disabled: [{name: NodeResourcesFit}]}}\n";
    let error = ignored(without).expect_err("NodeResourcesFit is off");
    assert!(error.contains("NodeResourcesFit must be enabled"), "{error}");
    let scores = "profiles:\n- plugins: {multiPoint: {disabled: [{name: NodeResourcesFit}]}, \
        score: {enabled: [{name: NodeResourcesFit}]}}\n";
    assert_eq!(ignored(scores).expect("valid"), ["x.io/gpu"]);
    let error = profile(&text, None).expect_err("it has an extender").to_string();
    assert!(error.contains("only the scheduler calls extenders"), "{error}");
    let all = extenders(&text, |_| Ok(())).expect("valid");
    assert_eq!((all[0].timeout().as_millis(), all[0].managed_resources.len()), (100, 2));
    assert!(
        refused("extenders: [{urlPrefix: 'http://x', filterVerbs: f}]\n").contains("filterVerbs")
    );
}

#[test]
fn ignorable_extenders_are_called_last() {
    let one = |url: &str, ignorable| {
        format!("- {{urlPrefix: 'http://{url}', filterVerb: f, ignorable: {ignorable}}}\n")
    };
    let all = [one("a", true), one("b", false), one("c", true), one("d", false)].concat();
    let all = extenders(&format!("{HEAD}extenders:\n{all}"), |_| Ok(())).expect("valid");
    let order: String = all.iter().map(|extender| &extender.url_prefix[7..]).collect();
    assert_eq!(order, "bdac");
}

#[test]
fn arguments_of_volume_binding_are_honoured_or_refused() {
    let with = |plugin: &str, args: &str| {
        format!("profiles:\n- pluginConfig:\n  - name: {plugin}\n    args: {args}\n")
    };
    let text = format!("{HEAD}{}", with("VolumeBinding", "{bindTimeoutSeconds: 7}"));
    assert_eq!(profile(&text, None).expect("valid").timeouts.volume_bind_seconds, 7);
    for (plugin, args, says) in [
        (
            "VolumeBinding",
            "{bindTimeoutSeconds: -1}",
            "VolumeBinding].args.bindTimeoutSeconds: is -1",
        ),
        ("VolumeBinding", "{shape: [{utilization: 0, score: 0}]}", "StorageCapacityScoring"),
        ("VolumeBinding", "{shape: []}", "StorageCapacityScoring"),
    ] {
        let error = refused(&with(plugin, args));
        assert!(error.contains(says), "{args}: {error}");
    }
    let nothing = with("VolumeZone", "{kind: VolumeZoneArgs}");
    assert!(profile(&format!("{HEAD}{nothing}"), None).is_ok());
}

/// An absent field, and for most fields zero or an empty string, is upstream's default. Values that
/// upstream rejects are rejected here as well.
#[test]
fn zero_and_empty_fields_have_the_upstream_meaning() {
    let of = |rest: &str| process(&format!("{HEAD}{rest}"));
    let usual = ProcessSettings::default();
    for same in [
        "podInitialBackoffSeconds: null\npodMaxBackoffSeconds: null\n",
        "clientConnection: {qps: 0, burst: 0}\n",
        "leaderElection: {leaseDuration: 0s, renewDeadline: 0s, retryPeriod: 0s}\n",
        "leaderElection: {resourceName: '', resourceNamespace: '', resourceLock: ''}\n",
        "percentageOfNodesToScore: 0\n",
    ] {
        assert_eq!(of(same).expect("valid"), usual, "{same}");
    }
    for (wrong, field) in [
        ("podInitialBackoffSeconds: 0\n", "podInitialBackoffSeconds"),
        ("podInitialBackoffSeconds: -1\n", "podInitialBackoffSeconds"),
        ("podMaxBackoffSeconds: 0\n", "podMaxBackoffSeconds"),
        ("podInitialBackoffSeconds: 11\n", "podMaxBackoffSeconds"),
        ("parallelism: 0\n", "parallelism"),
        ("leaderElection: {resourceLock: endpoints}\n", "leaderElection.resourceLock"),
    ] {
        let error = of(wrong).expect_err(wrong).to_string();
        assert!(error.contains(field), "{error}");
    }
    let spread =
        "profiles:\n- pluginConfig:\n  - name: PodTopologySpread\n    args: {defaultingType: ''}\n";
    let spread = profile(&format!("{HEAD}{spread}"), None).expect("valid");
    assert_eq!(spread, Profile::default());
    let unread = "leaderElection: {leaderElect: false, resourceLock: endpoints}\n";
    assert!(!of(unread).expect("valid").election.is_on);
    let equal = of("podInitialBackoffSeconds: 1\npodMaxBackoffSeconds: 1\n").expect("valid");
    assert_eq!(equal.backoff.initial, equal.backoff.max);
}

#[test]
fn leftover_configuration_without_effect_is_reported_but_accepted() {
    let text = format!(
        "{HEAD}profiles:\n- plugins:\n    multiPoint: {{disabled: [{{name: EBSLimits}}, {{name: Mine}}]}}\n    \
         reserve: {{disabled: [{{name: Coscheduling}}]}}\n    postBind: {{disabled: [{{name: '*'}}]}}\n  \
         pluginConfig:\n  - name: Mine\n    args: {{a: 1}}\n  - name: VolumeZone\n    args: {{zones: [a]}}\n"
    );
    assert_eq!(profile(&text, None).expect("as upstream"), Profile::default());
    let told = without_effect(&text, &Registry::default()).expect("valid");
    let about = ["EBSLimits", "Mine", "Coscheduling", "Mine", "VolumeZone"];
    assert_eq!(told.len(), about.len(), "{told:?}");
    assert!(told.iter().zip(about).all(|(told, name)| told.contains(name)), "{told:?}");
    for (wrong, says) in [
        ("pluginConfig: [{name: EBSLimits}]", "a plugin that is gone"),
        ("pluginConfig: [{name: Mine}, {name: Mine}]", "twice"),
        ("plugins: {multiPoint: {enabled: [{name: EBSLimits}]}}", "not known"),
        ("plugins: {reserve: {disabled: [{name: NodePorts}]}}", "cannot be chosen apart"),
        ("plugins: {permit: {disabled: [{name: '*'}]}}", "cannot be chosen apart"),
    ] {
        let error = refused(&format!("profiles: [{{{wrong}}}]\n"));
        assert!(error.contains(says), "{wrong}: {error}");
    }
}

#[test]
fn null_field_equals_an_absent_field() {
    for text in [
        "extenders:\nprofiles:\nleaderElection:\nclientConnection:\n",
        "profiles: [null]\n",
        "profiles: [{plugins: , pluginConfig: }]\n",
        "profiles: [{plugins: {score: {disabled: , enabled: }, filter: }}]\n",
        "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: , \
         scoringStrategy: }}, {name: PodTopologySpread, args: {defaultConstraints: }}]}]\n",
    ] {
        let read = profile(&format!("{HEAD}{text}"), None);
        assert_eq!(read.expect(text), Profile::default(), "{text}");
    }
    let extender =
        format!("{HEAD}extenders: [{{urlPrefix: 'http://x', filterVerb: , tlsConfig: }}]\n");
    assert_eq!(extenders(&extender, |_| Ok(())).expect("valid")[0].filter_verb, "");
    assert!(refused("profiles: [{plugins: {score: {enabled: [null]}}}]\n").contains("name"));
}

#[test]
fn arguments_that_upstream_refuses_are_refused() {
    let term = |operator: &str| {
        format!("{{matchExpressions: [{{key: a, operator: {operator}, values: [b]}}]}}")
    };
    let required = format!(
        "{{addedAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: \
         [{}, {}]}}}}}}",
        term("In"),
        term("Inn")
    );
    let preferred = |weight: i32| {
        let term = term("Inn");
        format!(
            "{{addedAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: \
             [{{weight: {weight}, preference: {term}}}]}}}}"
        )
    };
    let with = |plugin: &str, args: &str| {
        format!("profiles:\n- pluginConfig:\n  - name: {plugin}\n    args: {args}\n")
    };
    let constraint = "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: a/b/c, \
        whenUnsatisfiable: DoNotSchedule}]}";
    for (plugin, args, says) in [
        ("NodeAffinity", required.as_str(), "nodeSelectorTerms[1].matchExpressions[0].operator"),
        ("NodeAffinity", &preferred(1), "Execution[0].matchExpressions[0].operator"),
        ("NodeResourcesFit", "{scoringStrategy: {resources: [{name: cpu}]}}", "is not a strategy"),
        ("NodeResourcesFit", "{ignoredResourceGroups: [a/b]}", "ignoredResourceGroups[0]"),
        ("NodeResourcesFit", "{ignoredResources: [ok.io/a, 'a b']}", "ignoredResources[1]"),
        ("PodTopologySpread", constraint, "defaultConstraints[0].topologyKey"),
    ] {
        let error = refused(&with(plugin, args));
        assert!(error.contains(says), "{args}: {error}");
    }
    let unread = with("NodeAffinity", &preferred(0));
    assert!(profile(&format!("{HEAD}{unread}"), None).is_ok());
    let off = "  plugins: {multiPoint: {disabled: [{name: NodeResourcesFit}]}}\n";
    let off = with("NodeResourcesFit", "{ignoredResourceGroups: [a/b]}") + off;
    assert!(profile(&format!("{HEAD}{off}"), None).is_ok(), "unread if it is disabled");
    let extender = "extenders: [{urlPrefix: 'http://x', managedResources: [{name: 'x.io/a b'}]}]\n";
    assert!(refused(extender).contains("managedResources[0].name"));
}
