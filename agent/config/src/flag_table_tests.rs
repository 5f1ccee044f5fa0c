//! The command line, form by form.

use proptest::prelude::*;

use serde_json::{Value, json};

use super::*;
use crate::ConfigError;
use pintle_config::given::GivenFlags;

fn read(args: &[String]) -> Result<GivenFlags, Vec<ConfigError>> {
    TABLE.read(args)
}

fn given(line: &[&str]) -> Result<GivenFlags, Vec<ConfigError>> {
    read(&line.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
}

fn value(line: &[&str], name: &str) -> Value {
    let given = given(line).unwrap_or_else(|errors| panic!("{line:?}: {errors:?}"));
    given.value(name).cloned().unwrap_or_else(|| panic!("{line:?} does not set {name}"))
}

#[test]
fn every_form_of_value_is_read() {
    for (line, name, expected) in [
        (&["--max-pods=5"][..], "max-pods", json!(5)),
        (&["--max_pods", "0x10"], "max-pods", json!(16)),
        (&["--oom-score-adj", "-5"], "oom-score-adj", json!(-5)),
        (&["--pod-max-pids=1", "--pod-max-pids=2"], "pod-max-pids", json!(2)),
        (&["--v=3"], "v", json!(3)),
        (&["-v", "4"], "v", json!(4)),
        (&["-v=5"], "v", json!(5)),
        (&["-v6"], "v", json!(6)),
        (&["--runonce"], "runonce", json!(true)),
        (&["--runonce=F"], "runonce", json!(false)),
        (&["--sync-frequency=90s"], "sync-frequency", json!("1m30s")),
        (&["--container-log-max-size=5Mi"], "container-log-max-size", json!("5Mi")),
        (&["--address=::"], "address", json!("::")),
        (&["--node-ip=10.0.0.1,fd00::1"], "node-ip", json!(["10.0.0.1", "fd00::1"])),
        (&["--node-ip="], "node-ip", json!([])),
        (&["--node-ip=010.0.0.09, fd00::1"], "node-ip", json!(["10.0.0.9", "fd00::1"])),
        (&["--address=::ffff:127.00.0.01"], "address", json!("::ffff:127.0.0.1")),
        (&["--cluster-dns=a,b", "--cluster-dns=c"], "cluster-dns", json!(["a", "b", "c"])),
        (&["--cluster-dns=\"a,b\",c"], "cluster-dns", json!(["a,b", "c"])),
        (&["--cluster-dns="], "cluster-dns", json!([])),
        (&["--resolv-conf="], "resolv-conf", json!("")),
        (
            &["--system-reserved=cpu=1, memory=2Gi", "--system-reserved=cpu=3"],
            "system-reserved",
            json!({ "cpu": "3", "memory": "2Gi" }),
        ),
        (
            &["--cpu-manager-policy-options=a=b,c"],
            "cpu-manager-policy-options",
            json!({ "a": "b,c" }),
        ),
        (
            &["--eviction-hard=memory.available<1Gi,nodefs.available<10%"],
            "eviction-hard",
            json!({ "memory.available": "1Gi", "nodefs.available": "10%" }),
        ),
        (&["--feature-gates=A=true,B=0"], "feature-gates", json!({ "A": true, "B": false })),
        (&["--node-labels=a=b,c,d="], "node-labels", json!({ "a": "b", "c": "", "d": "" })),
        (
            &["--manifest-url-header=a:1,b:2", "--manifest-url-header=a:3"],
            "manifest-url-header",
            json!({ "a": ["1", "3"], "b": ["2"] }),
        ),
        (
            &["--register-with-taints=k=v:NoSchedule,x:NoExecute"],
            "register-with-taints",
            json!([
                { "key": "k", "value": "v", "effect": "NoSchedule" },
                { "key": "x", "value": "", "effect": "NoExecute" },
            ]),
        ),
        (
            &["--reserved-memory=0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=3Gi"],
            "reserved-memory",
            json!([
                { "numaNode": 0, "limits": { "memory": "1Gi", "hugepages-1Gi": "2Gi" } },
                { "numaNode": 1, "limits": { "memory": "3Gi" } },
            ]),
        ),
        (
            &["--vmodule=image*=4,pod=2"],
            "vmodule",
            json!([
                { "filePattern": "image*", "verbosity": 4 },
                { "filePattern": "pod", "verbosity": 2 },
            ]),
        ),
    ] {
        assert_eq!(value(line, name), expected, "{line:?}");
    }
}

#[test]
fn error_of_an_invalid_flag_names_the_mistake_and_the_remedy() {
    for (line, said) in [
        (
            &["--pod-infra-container-image=pause:3.9"][..],
            "--pod-infra-container-image: Kubernetes has removed this flag; remove it; the \
             runtime's configuration names the pause image",
        ),
        (&["--maxpods=5"][..], "--maxpods: no such flag exists; did you mean --max-pods?"),
        (&["--nonsense"], "see --help"),
        (&["--max-pods"], "its value is missing; write --max-pods=int32"),
        (&["--max-pods="], "not a whole number"),
        (&["--max-pods=3000000000"], "not a whole number from -2147483648 to 2147483647"),
        (&["--runonce", "true"], "argument \"true\": arguments without a flag"),
        (&["--runonce=yes"], "neither true nor false"),
        (&["-max-pods=5"], "write --max-pods with two dashes"),
        (&["-x"], "arguments without a flag"),
        (&["--"], "arguments without a flag"),
        (&["pods"], "arguments without a flag"),
        (&["--sync-frequency=5"], "not a duration"),
        (&["--container-log-max-size=5MB"], "not a quantity"),
        (&["--address=host"], "not an IP address"),
        (&["--address=10..0.1"], "not an IP address"),
        (&["--system-reserved=cpu"], "not of the form key=value"),
        (&["--eviction-hard=memory.available=1Gi"], "not of the form key<value"),
        (&["--feature-gates=A=maybe"], "A: it is neither true nor false"),
        (&["--manifest-url-header=a"], "not of the form name:value"),
        (&["--register-with-taints=a=b"], "not of the form key=value:effect"),
        (&["--reserved-memory=memory=1Gi"], "not of the form node:type=quantity"),
        (&["--cluster-dns=\"a"], "quotation mark is not closed"),
        (&["--v=-1"], "not a whole number from 0"),
    ] {
        let errors = given(line).expect_err("wrong");
        let text = errors[0].to_string();
        assert!(text.contains(said), "{line:?}: {text}");
    }
}

#[test]
fn all_wrong_arguments_are_reported() {
    let errors = given(&["--foo", "--max-pods=x", "stray"]).expect_err("wrong");
    assert_eq!(errors.len(), 3, "{errors:?}");
}

#[test]
fn every_flag_of_the_table_can_be_given_with_either_separator() {
    for flag in flags() {
        let text = flag.kind.example();
        for name in [flag.name.to_owned(), flag.name.replace('-', "_")] {
            let inline = format!("--{name}={text}");
            assert!(given(&[&inline]).is_ok(), "{inline}");
            let split = [&format!("--{name}") as &str, text];
            assert_eq!(given(&split).is_ok(), !flag.kind.needs_no_value(), "{split:?}");
        }
    }
}

proptest! {
    #[test]
    fn no_command_line_makes_the_reader_panic(
        line in prop::collection::vec("(-{0,2}[a-z_-]{0,12}(=.{0,12})?)|.{0,12}", 0..6),
    ) {
        let _ = read(&line);
    }

    #[test]
    fn no_value_makes_a_known_flag_panic(
        flag in prop::sample::select(flags().map(|f| f.name).collect::<Vec<_>>()),
        text in "[-+0-9a-zA-Z=<:;,.%\"]{0,24}",
    ) {
        let _ = read(&[format!("--{flag}={text}")]);
    }
}

#[test]
fn no_flag_that_exists_counts_as_removed() {
    for (name, _) in REMOVED {
        assert!(TABLE.find(name).is_none(), "--{name} exists");
    }
}
