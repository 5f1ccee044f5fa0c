//! A made-up daemon shows the effects of a daemon's tables: parsing, errors of unreadable settings,
//! and texts for users.

#[path = "daemon/anchor.rs"]
mod anchor;

use std::ffi::OsString;
use std::fs;

use pintle_config::{ConfigError, GivenFlags, Settings, daemon, given, listing, load};
use serde_json::json;
use tempfile::TempDir;

use anchor::{Anchor, Mode};

const HEAD: &str = "apiVersion: anchor.example/v1\nkind: AnchorConfiguration\n";

fn read(line: &[&str]) -> Result<GivenFlags, Vec<ConfigError>> {
    let args = given::texts(line.iter().map(OsString::from))?;
    <Anchor as daemon::Daemon>::FLAGS.read(&args)
}

fn settings(line: &[&str]) -> Result<Settings<Anchor>, Vec<ConfigError>> {
    load(&read(line)?)
}

fn good(line: &[&str]) -> Settings<Anchor> {
    settings(line).unwrap_or_else(|errors| panic!("{line:?}: {errors:#?}"))
}

fn sentences(errors: Vec<ConfigError>) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// The result for a file with this text; the file's name is left out.
fn of_file(text: &str) -> Result<Settings<Anchor>, Vec<String>> {
    let dir = temp();
    let path = file(&dir, "a.yaml", text);
    let folder = format!("{}/", dir.path().display());
    let bare = |text: String| text.replace(&folder, "");
    let settings = settings(&["--config", &path]);
    let settings = settings.map_err(|e| sentences(e).into_iter().map(bare).collect::<Vec<_>>())?;
    let warnings = settings.warnings.into_iter().map(bare).collect();
    Ok(Settings { warnings, ..settings })
}

fn file(dir: &TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    fs::create_dir_all(path.parent().expect("below a folder")).expect("folder");
    fs::write(&path, text).expect("file");
    path.display().to_string()
}

fn temp() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}

#[test]
fn each_way_to_write_a_flag_is_read() {
    for (line, name, value) in [
        (&["--port=7"][..], "port", json!(7)),
        (&["--port", "7"], "port", json!(7)),
        (&["--port=7", "--port=8"], "port", json!(8)),
        (&["--kube_api_qps=2.5"], "kube-api-qps", json!(2.5)),
        (&["--leader-elect"], "leader-elect", json!(true)),
        (&["--leader-elect=false"], "leader-elect", json!(false)),
        (&["--leader-elect=T"], "leader-elect", json!(true)),
        (&["--lease=90s"], "lease", json!("1m30s")),
        (&["-v4"], "v", json!(4)),
        (&["-v", "4"], "v", json!(4)),
        (&["--tags=a=1,b=2", "--tags=a=3"], "tags", json!({ "a": "3", "b": "2" })),
        (&["--groups=a,b", "--groups=c"], "groups", json!(["a", "b", "c"])),
        (&["--chain=3x20", "--chain=1x5"], "chain", json!([[3, 20], [1, 5]])),
        (
            &["--feature-gates=A=true", "--feature-gates=B=0"],
            "feature-gates",
            json!({ "A": true, "B": false }),
        ),
    ] {
        let given = read(line).unwrap_or_else(|errors| panic!("{line:?}: {errors:?}"));
        assert_eq!(given.value(name), Some(&value), "{line:?}");
    }
}

#[test]
fn wrong_argument_is_reported_in_one_sentence_with_a_remedy() {
    for (line, sentence) in [
        (&["--prot=7"][..], "--prot: no such flag exists; did you mean --port?"),
        (&["--tls"], "--tls: no such flag exists; see --help"),
        (
            &["--no-leader-elect"],
            "--no-leader-elect: no such flag exists; write --leader-elect=false",
        ),
        (&["--no-port"], "--no-port: no such flag exists; see --help"),
        (&["--rope-size=4"], "--rope-size: Kubernetes has removed this flag; use --lease"),
        (&["--port"], "--port: its value is missing; write --port=int32"),
        (
            &["--port=seven"],
            "--port is \"seven\": it is not a whole number from -2147483648 to \
            2147483647; give it as int32",
        ),
        (
            &["--kube-api-qps=fast"],
            "--kube-api-qps is \"fast\": it is not a number; give it as number",
        ),
        (
            &["--leader-elect=maybe"],
            "--leader-elect is \"maybe\": it is neither true nor false; give it as bool",
        ),
        (
            &["--leader-elect", "false"],
            "argument \"false\": arguments without a flag are not \
            accepted; remove it, or write a flag's value as --flag=value",
        ),
        (&["-port=7"], "-port=7: no such short flag exists; write --port with two dashes"),
        (
            &["--lease=5"],
            "--lease is \"5\": \"5\" is not a duration such as 300ms, 10s or 1h30m; \
            give it as duration",
        ),
        (
            &["--tags=a"],
            "--tags is \"a\": \"a\" is not of the form key=value; give it as \
            key=value,...",
        ),
        (
            &["--chain=3"],
            "--chain is \"3\": \"3\" is not of the form LINKSxMETRES; give it as \
            linksxmetres,...",
        ),
        (
            &["--feature-gates=A=maybe"],
            "--feature-gates is \"A=maybe\": A: it is neither true nor \
            false; give it as name=bool,...",
        ),
    ] {
        let said = sentences(read(line).expect_err(sentence));
        assert_eq!(said, [sentence], "{line:?}");
    }
    assert_eq!(read(&["--foo", "--port=x", "stray"]).expect_err("wrong").len(), 3);
}

#[test]
fn flags_override_configuration_files_and_feature_gates_are_merged() {
    let dir = temp();
    let text = format!(
        "{HEAD}server: {{port: 1, certFile: tls/a.crt}}\nleader: {{lease: 9s}}\nmode: Deep\n\
         tags: {{a: x}}\nfeatureGates: {{Kedging: true}}\n"
    );
    let path = file(&dir, "a.yaml", &text);
    let drop_in = format!("{HEAD}leader: {{elect: false}}\ntags: {{b: z}}\n");
    file(&dir, "d/10.conf", &drop_in);
    let folder = dir.path().join("d").display().to_string();
    let line = ["--config", &path, "--config-dir", &folder, "--port=2"];
    let Settings { configuration, gates, warnings } =
        good(&[&line[..], &["--feature-gates=Weighing=false"]].concat());
    assert_eq!(configuration.server.port, 2);
    assert_eq!(configuration.server.cert_file, dir.path().join("tls/a.crt").display().to_string());
    assert_eq!(configuration.leader.lease.to_string(), "9s");
    assert!(!configuration.leader.elect);
    assert_eq!(configuration.mode, Mode::Deep);
    assert_eq!(configuration.tags, [own("a", "x"), own("b", "z")].into());
    assert!(gates.enabled("Kedging") && !gates.enabled("Weighing"));
    assert_eq!(warnings, [""; 0]);
}

fn own(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[test]
fn defaults_differ_with_and_without_a_file_and_may_follow_other_fields() {
    assert_eq!(good(&[]).configuration.server.port, 10);
    let config = of_file(HEAD).expect("valid").configuration;
    assert_eq!((config.server.port, config.leader.retry.to_string()), (20, "5s".to_owned()));
    // Zero is "not set" unless the API has a pointer.
    let text = format!("{HEAD}server: {{port: 0}}\nleader: {{elect: false, lease: 30s}}\n");
    let config = of_file(&text).expect("valid").configuration;
    assert_eq!((config.server.port, config.leader.retry.to_string()), (20, "10s".to_owned()));
    assert!(!config.leader.elect);
}

#[test]
fn wrong_file_is_reported_with_file_line_field_and_remedy() {
    for (text, sentence) in [
        ("", "the file is empty; write a configuration"),
        (
            "kind: AnchorConfiguration\n",
            "a.yaml: apiVersion is \"\": this file is not read; write apiVersion: anchor.example/v1",
        ),
        (
            "apiVersion: anchor.example/v2\nkind: AnchorConfiguration\n",
            "a.yaml:1: apiVersion is \"anchor.example/v2\": this file is not read; write \
             apiVersion: anchor.example/v1",
        ),
        (
            "apiVersion: anchor.example/v1\nkind: KubeletConfiguration\n",
            "a.yaml:2: kind is \"KubeletConfiguration\": this file is not read; write \
             kind: AnchorConfiguration",
        ),
        (
            "HEADserver: {port: many}\n",
            "a.yaml:3: server.port (--port) is \"many\": it must be a whole number; write one \
             from -2147483648 to 2147483647 without quotes",
        ),
        ("HEADserver: 5\n", "a.yaml:3: server is 5: it must be a map; write a map of fields"),
        (
            "HEADleader: {elect: 'yes'}\n",
            "a.yaml:3: leader.elect (--leader-elect) is \"yes\": it must be true or false; write \
             it without quotes",
        ),
        (
            "HEADgroups: a\n",
            "a.yaml:3: groups (--groups) is \"a\": it must be a list; write each \
            value on a line of its own that begins with -",
        ),
        (
            "HEADserver: {port: 70000}\n",
            "a.yaml:3: server.port (--port) is 70000: it must be from \
            1 to 65535; correct it, or remove it for the default",
        ),
        (
            "HEADleader: {lease: 2h}\n",
            "a.yaml:3: leader.lease (--lease) is 2h0m0s: it must be from \
            1s to 1h0m0s; use 1h0m0s",
        ),
        (
            "HEADfeatureGates: {Kedgin: true}\n",
            "a.yaml:3: featureGates (--feature-gates) is \
            Kedgin=true: no feature gate of Kubernetes 1.36 is named Kedgin; did you mean Kedging?",
        ),
        (
            "HEADfeatureGates: {Mooring: false}\n",
            "a.yaml:3: featureGates (--feature-gates) is \
            Mooring=false: Mooring is locked to true in Kubernetes 1.36; remove it",
        ),
        (
            "HEADfeatureGates: {Kedging: 'on'}\n",
            "a.yaml:3: featureGates.Kedging is \"on\": it must \
            be true or false; write true or false without quotes",
        ),
        (
            "HEADfeatureGates: [Kedging]\n",
            "a.yaml:3: featureGates (--feature-gates) is \
            [\"Kedging\"]: it is no map; write a map from gate names to true or false",
        ),
    ] {
        let text = text.replace("HEAD", HEAD);
        let said = of_file(&text).expect_err(&text);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].ends_with(sentence), "{text}\n said: {}\nwanted: {sentence}", said[0]);
    }
    let text = format!("{HEAD}mode: Shallow\n");
    let said = of_file(&text).expect_err("no such word");
    assert!(said[0].contains("a.yaml:3: mode is \"Shallow\": unknown variant"), "{said:?}");
    assert!(said[0].contains("`Plain`") && said[0].contains("`Deep`"), "{said:?}");
    let said = of_file(&format!("{HEAD}server: [1\n")).expect_err("no YAML");
    assert!(said[0].starts_with("a.yaml:") && said[0].contains("`kind: AnchorConfiguration`"));
    let said = sentences(settings(&["--config=/none/a.yaml"]).expect_err("no file"));
    assert!(
        said[0].starts_with("/none/a.yaml: ") && said[0].ends_with("check the path and its rights")
    );
}

#[test]
fn all_configuration_errors_are_reported_together() {
    let text = format!("{HEAD}server: {{port: many}}\nfeatureGates: {{Kedgin: true}}\nmode: X\n");
    assert_eq!(of_file(&text).expect_err("three").len(), 3);
}

#[test]
fn ignored_deprecated_and_ineffective_settings_are_warned_about_once() {
    for (text, warning) in [
        ("tagz: {a: b}\n", "a.yaml:3: unknown field tagz is ignored; did you mean tags?"),
        (
            "server: {ports: 5}\n",
            "a.yaml:3: unknown field server.ports is ignored; did you mean server.port?",
        ),
        ("depth: 5\n", "depth is set to 5, which has no effect yet: nothing is that deep"),
        (
            "featureGates: {Kedging: true, Hauling: true}\n",
            "feature gate Hauling is set to true, which has no effect: done by hand",
        ),
    ] {
        let settings = of_file(&format!("{HEAD}{text}")).expect(text);
        assert_eq!(settings.warnings, [warning], "{text}");
    }
    let settings = of_file(&format!("{HEAD}mode: Deep\nmode: Plain\n")).expect("the last counts");
    assert_eq!(settings.configuration.mode, Mode::Plain);
    assert!(settings.warnings[0].ends_with("the last one is used"), "{:?}", settings.warnings);
    for (line, warning) in [
        (&["--holder=me"][..], "deprecated flags: --holder; use --tags=holder=NAME"),
        (&["--profiling"], "--profiling is set to true, which has no effect: there is no profiler"),
    ] {
        assert_eq!(good(line).warnings, [warning], "{line:?}");
    }
    assert_eq!(good(&["--port=3"]).warnings, [""; 0]);
}

#[test]
fn field_of_a_disabled_feature_gate_is_rejected() {
    let text = format!("{HEAD}depth: 5\nfeatureGates: {{Weighing: false}}\n");
    let said = of_file(&text).expect_err("the gate is off");
    let sentence = "a.yaml:3: depth is 5: it needs the feature gate Weighing; switch the gate on";
    assert_eq!(said, [sentence]);
    let all = of_file(&format!("{HEAD}featureGates: {{AllAlpha: true}}\n")).expect("valid");
    assert!(all.gates.enabled("Kedging") && all.gates.enabled("Hauling"));
}

#[test]
fn help_shows_each_flag_with_its_form_and_field() {
    let help = <Anchor as daemon::Daemon>::FLAGS.help();
    for line in [
        "\nServer:\n",
        "  --port=int32                              Port to serve on [server.port]\n",
        "  --leader-elect                            Have one leader only [leader.elect]\n",
        "  --chain=linksxmetres,...                  Chains on board\n",
        "\n[field] is the field of the --config file that the flag overrides.\n",
    ] {
        assert!(help.contains(line), "{line:?} is missing in\n{help}");
    }
}

#[test]
fn every_flag_is_listed_with_the_value_in_force() {
    let dir = temp();
    let path = file(&dir, "a.yaml", &format!("{HEAD}tags: {{a: x}}\nleader: {{lease: 9s}}\n"));
    let given = read(&["--config", &path, "--port=2", "--chain=1x2", "--groups=a,b"]);
    let given = given.expect("valid");
    let settings = load::<Anchor>(&given).expect("valid");
    let mut listed = listing::of_fields::<Anchor>(&settings.configuration);
    listed.extend(listing::of_own::<Anchor>(&given));
    let expected = [
        ("chain", "[[1,2]]"),
        ("config", path.as_str()),
        ("config-dir", ""),
        ("feature-gates", ""),
        ("groups", "[a,b]"),
        ("help", "false"),
        ("holder", "nobody"),
        ("kube-api-qps", "20.0"),
        ("leader-elect", "true"),
        ("lease", "9s"),
        ("port", "2"),
        ("profiling", "false"),
        ("tags", "a=x"),
        ("v", "0"),
    ];
    let listed: Vec<_> = listed.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(listed, expected);
}

#[test]
fn completion_knows_every_flag() {
    let completion = <Anchor as daemon::Daemon>::FLAGS.completion("anchor-daemon");
    for shell in ["bash", "zsh", "fish"] {
        let script = completion.script(&[shell.to_owned()]).expect(shell);
        for flag in <Anchor as daemon::Daemon>::FLAGS.flags() {
            assert!(script.contains(flag.name), "{shell} lacks --{}:\n{script}", flag.name);
        }
    }
    let script = completion.script(&["bash".to_owned()]).expect("bash");
    let check = format!(
        "{script}\nCOMP_WORDS=(anchor-daemon --le); COMP_CWORD=1; _anchor_daemon; \
         echo \"${{COMPREPLY[*]}}\""
    );
    let out = std::process::Command::new("bash").args(["-c", &check]).output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "--lease --leader-elect\n");
}
