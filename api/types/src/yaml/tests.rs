//! Texts as go-yaml and Go's json read them: scalars, keys, aliases, encodings, and refused texts.

use serde_json::{Value, json};

use super::*;

const LIMITS: ReadLimits = ReadLimits { depth_max: 64, nodes_max: 100_000, replayed_max: 20_000 };

fn value(text: &str) -> Value {
    let document = read_yaml(text.as_bytes(), &LIMITS);
    document.unwrap_or_else(|error| panic!("{text:?}: {error}")).value.into()
}

fn refused(text: &str) -> String {
    let found = read_yaml(text.as_bytes(), &LIMITS);
    found.expect_err(&format!("{text:?} is to be refused")).message
}

#[test]
fn scalars_are_resolved_as_in_yaml_1_1() {
    for (text, want) in [
        ("yes", json!(true)),
        ("Off", json!(false)),
        ("y", json!(true)),
        ("0400", json!(256)),
        ("0o400", json!(256)),
        ("0x1F", json!(31)),
        ("0b101", json!(5)),
        ("-0b101", json!(-5)),
        ("0b-1", json!(-1)),
        ("1_000", json!(1000)),
        ("08", json!(8)),
        ("1:30", json!("1:30")),
        (".5", json!(0.5)),
        (".5_0", json!(0.5)),
        ("1e3", json!(1000)),
        ("1.0", json!(1)),
        ("1e21", json!(1e21)),
        ("83e2010", json!("83e2010")),
        ("2001-12-14", json!("2001-12-14")),
        ("~", Value::Null),
        ("", Value::Null),
        ("nUll", json!("nUll")),
        ("18446744073709551615", json!(u64::MAX)),
        ("+18446744073709551615", json!(18446744073709551615_f64)),
        ("\"yes\"", json!("yes")),
        ("!!str 0400", json!("0400")),
        ("!!float 3", json!(3)),
        ("!!int \"12\"", json!(12)),
        ("!!binary aGk=", json!("hi")),
        ("! 12", json!("12")),
        ("!own 12", json!("12")),
        ("0x", json!("0x")),
        ("-", Value::Array(vec![Value::Null])),
    ] {
        assert_eq!(value(text), want, "{text:?}");
    }
    for text in [".inf", ".nan", "!!int x", "!!timestamp x", "!!float yes", "!!binary %"] {
        refused(text);
    }
}

#[test]
fn the_first_document_counts_and_the_last_key() {
    assert_eq!(value("a: 1\n---\n# nothing\n"), json!({"a": 1}));
    assert_eq!(value("a: 1\n--- {\n"), json!({"a": 1}));
    assert_eq!(value("--- a\n...\n%"), json!("a"));
    assert_eq!(value("a: 1\na: 2\n"), json!({"a": 2}));
    assert_eq!(
        value("1: a\n1.5: b\nyes: c\n1e6: d\n"),
        json!({
            "1": "a", "1.5": "b", "true": "c", "1e+06": "d"
        })
    );
    let document = read_yaml(b"a: 1\nb: 2\na: 3\n", &LIMITS).expect("yaml");
    assert_eq!(document.repeated, [Repeated { line: 3, key: "a".to_owned() }]);
    refused("? [a]\n: b\n");
    refused("~: b\n");
}

#[test]
fn anchors_are_repeated_and_maps_merged() {
    let text = "a: &a {x: 1, w: 2}\nb: {<<: *a, w: 3}\nc: {w: 4, <<: *a}\nd: [*a, *a]\n";
    let a = json!({"x": 1, "w": 2});
    let want = json!({"a": a, "b": {"x": 1, "w": 3}, "c": a, "d": [a, a]});
    assert_eq!(value(text), want);
    let text = "a: &a {x: 1}\nb: &b {x: 2, z: 2}\nc: {<<: [*a, *b]}\nd: {\"<<\": 1}\n";
    assert_eq!(value(text)["c"], json!({"x": 1, "z": 2}));
    assert_eq!(value(text)["d"], json!({"<<": 1}));
    refused("a: {<<: 1}\n");
    refused("a: *b\n");
    refused("a: &a [*a]\n");
}

#[test]
fn excessive_aliases_and_nesting_are_rejected() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let items = vec![format!("*a{}", level - 1); 9].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    assert!(refused(&bomb).contains("excessive aliasing"));
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    assert!(refused(&deep).contains("max depth"));
    assert!(refused(&"- ".repeat(100)).contains("max depth"));
}

#[test]
fn block_and_flow_scalars_fold_and_chomp() {
    for (text, want) in [
        ("|\n a\n  b\n\n", "a\n b\n"),
        ("|-\n a\n", "a"),
        ("|+\n a\n\n", "a\n\n"),
        ("|2\n   a\n", " a\n"),
        (">\n a\n b\n\n c\n", "a b\nc\n"),
        ("\"a\\\n  b\"", "ab"),
        ("'a\n  b\n\n  c'", "a b\nc"),
        ("a\n b", "a b"),
        ("\"\\x41\\u00e9\\U0001F600\\N\"", "A\u{e9}\u{1F600}\u{85}"),
    ] {
        assert_eq!(value(text), json!(want), "{text:?}");
    }
}

#[test]
fn every_encoding_that_has_a_mark_is_read() {
    let text = "name: \u{e9}\u{1F600}\r\nyes: no\r\n";
    let want = json!({"name": "\u{e9}\u{1F600}", "true": false});
    let units: Vec<u16> = text.encode_utf16().collect();
    let little = [0xff, 0xfe].into_iter().chain(units.iter().flat_map(|it| it.to_le_bytes()));
    let big = [0xfe, 0xff].into_iter().chain(units.iter().flat_map(|it| it.to_be_bytes()));
    let marked = [0xef, 0xbb, 0xbf].into_iter().chain(text.bytes());
    for bytes in [little.collect::<Vec<_>>(), big.collect(), marked.collect()] {
        let document = read(&bytes, &LIMITS).expect("yaml");
        assert_eq!(Value::from(document.value), want);
    }
    for bytes in [&b"a: \xff"[..], b"a: \x01", b"\xff\xfea", b"a: \xc3"] {
        read(bytes, &LIMITS).expect_err("it is no text");
    }
    // Text behind the part that is read does not spoil it.
    let mut late = b"a: 1\n---\n".to_vec();
    late.extend([b'#'; 600]);
    late.push(0);
    assert!(read(&late, &LIMITS).is_ok());
}

#[test]
fn json_is_read_as_go_reads_it() {
    let read = |text: &[u8]| read(text, &LIMITS).map(|document| Value::from(document.value));
    let want = json!({"a": {"x": 1, "y": 2}, "b": [3]});
    assert_eq!(read(b" {\"a\":{\"x\":1},\"b\":[1,2],\"a\":{\"y\":2},\"b\":[3]}"), Ok(want));
    assert_eq!(read(b"{\"a\":\"\xff\\ud800\"}"), Ok(json!({"a": "\u{fffd}\u{fffd}"})));
    for text in ["{a: b}", "{\"a\":01}", "{\"a\":1}\n---", "{\"a\":1,}", "{\"a\":yes}"] {
        assert!(read(text.as_bytes()).is_err(), "{text}");
    }
    // In YAML a flow map may be anywhere but at the start.
    assert_eq!(read(b"# flow\n{a: b}"), Ok(json!({"a": "b"})));
}

#[test]
fn nulls_are_zero_values_and_an_error_names_its_field() {
    use k8s_openapi::api::core::v1::Pod;
    let decode = |text: &str| {
        let document = read_yaml(text.as_bytes(), &LIMITS).expect("yaml");
        from_json::<Pod>(&document.value)
    };
    let pod = decode(
        "metadata: {labels: {a: ~}, name: null, Name: other}\nspec:\n  containers:\n  - null\n  - \
         args: [~, b]\n    resources: {limits: {cpu: 0.5, memory: 1e3, x: ~}}\n  volumes: ~\n",
    );
    let pod = pod.expect("a pod");
    assert_eq!(pod.metadata.labels.expect("labels")["a"], "");
    let spec = pod.spec.expect("a spec");
    assert_eq!((spec.containers.len(), spec.containers[0].name.as_str()), (2, ""));
    assert_eq!(spec.containers[1].args, Some(vec![String::new(), "b".to_owned()]));
    let limits = spec.containers[1].resources.clone().expect("resources").limits.expect("limits");
    let limits: Vec<_> = limits.values().map(|quantity| quantity.0.as_str()).collect();
    assert_eq!(limits, ["0.5", "1000", "0"]);
    for (text, path) in [
        ("metadata: {name: 1}", "metadata.name"),
        ("spec: {containers: [{name: a}, {args: [1]}]}", "spec.containers[1].args[0]"),
        ("spec: {hostNetwork: \"true\"}", "spec.hostNetwork"),
        ("spec: {terminationGracePeriodSeconds: 1.5}", "spec.terminationGracePeriodSeconds"),
        ("metadata: {creationTimestamp: 2020-01-01}", "metadata.creationTimestamp"),
        ("spec: {overhead: {cpu: x}}", "spec.overhead.cpu"),
    ] {
        let error = decode(text).expect_err(text);
        assert_eq!(error.path, path, "{error}");
    }
}

#[test]
fn an_outline_has_the_line_of_each_field() {
    let text = "a: &a {x: 1,\n  y: 2}\nb:\n  <<: *a\n  c:\n  - d\n  - e: 1\n";
    let outline = Outline::of(text.as_bytes(), &LIMITS);
    let fields = [("a.x", 1), ("a.y", 2), ("b.y", 2), ("b.c[1].e", 7), ("b.c[5].f", 6), ("b.c", 6)];
    for (path, line) in fields {
        assert_eq!(outline.line(path), Some(line), "{path}");
    }
    assert_eq!(Outline::of(b"a: [", &LIMITS).line("a"), None);
}
