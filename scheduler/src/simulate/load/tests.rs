//! Dumps of all forms, and errors of those that cannot be used.

use super::*;

fn try_load(text: &str) -> Result<Dump, LoadError> {
    let mut dump = Dump::default();
    load("f.json", text.as_bytes(), &mut dump).map(|()| dump)
}

const NODE: &str = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#;
const POD: &str = concat!(
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"#,
    r#""spec":{"containers":[{"name":"c"}]}}"#
);

#[test]
fn lists_streams_arrays_and_watches_hold_the_same_objects() {
    let bare = r#"{"metadata":{"name":"n"}}"#;
    for text in [
        format!(r#"{{"apiVersion":"v1","kind":"List","items":[{NODE},{POD}]}}"#),
        format!("{NODE}\n{POD}\n"),
        format!("[{NODE},{POD}]"),
        format!(r#"{{"kind":"NodeList","items":[{bare}]}} {POD}"#),
        format!(r#"{{"type":"ADDED","object":{NODE}}}{{"type":"ADDED","object":{POD}}}"#),
    ] {
        let dump = try_load(&text).expect(&text);
        assert_eq!((dump.nodes.len(), dump.pods.len()), (1, 1), "{text}");
    }
}

#[test]
fn the_last_word_of_a_watch_about_an_object_counts() {
    let pod = |name: &str| POD.replace("\"p\"", &format!("\"{name}\""));
    let told = |event: &str, object: &str| format!(r#"{{"type":"{event}","object":{object}}}"#);
    let text = [
        told("ADDED", NODE),
        told("ADDED", &pod("a")),
        told("ADDED", &pod("b")),
        told("DELETED", &pod("a")),
        told("MODIFIED", &pod("b")),
        told("DELETED", &pod("never")),
        told("DELETED", NODE),
        told("ADDED", &pod("a")),
    ];
    let dump = try_load(&text.join("\n")).expect("a watch");
    assert_eq!((dump.nodes.len(), dump.omitted.again.len()), (0, 0));
    let names: Vec<String> = dump.pods.iter().map(pod_name).collect();
    let places = dump.pod_sources.iter().map(|source| source.place.split(':').nth(1));
    let lines: Vec<_> = places.collect();
    assert_eq!(names, ["default/b", "default/a"]);
    assert_eq!(lines, [Some("5"), Some("8")]);
}

#[test]
fn a_wrong_field_is_named_with_its_object_and_position() {
    let text = "{\"kind\":\"List\",\"items\":[\n{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\
        \"metadata\":{\"name\":\"p\",\"namespace\":\"a\"},\n\"spec\":{\"containers\":[\
        {\"name\":\"c\"},{\"name\":5}]}}]}";
    let error = try_load(text).expect_err("wrong");
    assert_eq!(error.object, "Pod a/p");
    assert_eq!(error.field, "spec.containers[1].name: ");
    assert_eq!(error.line, 3);
}

#[test]
fn broken_json_and_empty_files_are_reported_with_their_position() {
    let cut = r#"{"kind":"List","items":[{"kind":"Pod","metadata":{"name":"p"},"spec":{"#;
    let error = try_load(cut).expect_err("cut off");
    assert_eq!((error.object.as_str(), error.field.as_str()), ("Pod p", "items[0].spec: "));
    let error = try_load("{\"kind\":\"Node\",\n \"metadata\": {\"name\": }}").expect_err("bad");
    assert_eq!((error.line, error.field.as_str()), (2, "metadata.name: "));
    let marked = format!("\u{feff}{NODE}");
    assert_eq!(try_load(&marked).expect("a byte order mark says nothing").nodes.len(), 1);
    for other in ["hello", "\u{fffd}\u{fffd}{", "- 5\n"] {
        let error = try_load(other).expect_err("no JSON");
        assert!(error.problem.contains("kubectl get nodes,pods -A -o json"), "{error}");
    }
    let error = try_load(&NODE.replace("\"n\"", &format!("\"{}\"", "n".repeat(254))));
    assert!(error.expect_err("too long").problem.contains("254 bytes"));
    assert!(try_load("").expect_err("empty").problem.contains("no objects"));
    assert!(try_load("{\"kind\":\"Node\"").is_err());
    let error = try_load(r#"{"kind":"Node","apiVersion":"v1","metadata":{}}"#);
    let error = error.expect_err("no name");
    assert_eq!((&*error.field, &*error.object), ("metadata.name: ", "Node (object 1)"));
    let pod = POD.replace(r#"{"name":"c"}"#, "");
    let error = try_load(&format!("{NODE}\n{pod}")).expect_err("no containers");
    assert_eq!((&*error.field, error.line), ("spec.containers: ", 2));
}

#[test]
fn truncated_dump_is_reported() {
    let list = format!(r#"{{"kind":"List","items":[{NODE},{POD}"#);
    let failed = "Error from server (Timeout): the server was unable to return a response";
    let status = r#"{"kind":"Status","status":"Failure","message":"etcd is slow"}"#;
    for (text, line, says) in [
        (list.clone(), 1, "the file ends early, so the dump was cut"),
        (format!("{list}\n{failed}"), 2, "holds an error message, \"Error from server (Timeout)"),
        (format!("{NODE}\n{failed}"), 2, "holds an error message, \"Error from server (Timeout)"),
        (
            format!("{NODE}\nbye"),
            2,
            "is followed by text that is not JSON, \"bye\": the dump was cut",
        ),
        (failed.to_owned(), 1, "holds an error message, \"Error from server (Timeout)"),
        (
            format!("{NODE}{status}"),
            1,
            "is an error of the API server, \"etcd is slow\": the dump was",
        ),
        ("apiVersion: v1\nitems:\n- kind: Pod\n".to_owned(), 1, "the dump was cut"),
        (format!("kind: Node\nmetadata: {{name: n}}\n{failed}\n"), 3, "holds an error message"),
    ] {
        let error = try_load(&text).expect_err(&text);
        assert!(error.problem.contains(says), "{text}: {error}");
        assert!(error.line == line || error.problem.contains("ends early"), "{text}: {error}");
    }
    let watch = format!(
        r#"{{"type":"ADDED","object":{NODE}}}{{"type":"ERROR","object":{{"message":"too old"}}}}"#
    );
    let more = format!(r#"{{"kind":"List","metadata":{{"continue":"x"}},"items":[{NODE}]}}"#);
    for (text, says) in [
        (watch, "f.json: the watch ended in an error, \"too old\": later changes are missing"),
        (more, "f.json:1:1: this list is cut: it has a continue token, so more objects follow it"),
    ] {
        assert_eq!(try_load(&text).expect("a dump").omitted.incomplete, [says]);
    }
}

#[test]
fn yaml_holds_the_same_objects_as_json() {
    let yaml = "apiVersion: v1\nkind: Node\nmetadata:\n  name: n1\nstatus:\n  capacity: {cpu: 2}\n---\n\
        apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: p\n    uid: u\n\
        \x20   creationTimestamp: null\n  spec:\n    containers:\n    - name: c\n      resources:\n\
        \x20       limits: {cpu: 1.5, memory: 1Gi}\nkind: List\n";
    let dump = try_load(yaml).expect("YAML");
    let allocatable = dump.nodes[0].status.as_ref().and_then(|status| status.allocatable.as_ref());
    assert_eq!(allocatable.map(|all| all["cpu"].0.as_str()), Some("2"));
    let spec = dump.pods[0].spec.as_ref().expect("a spec");
    let requests = spec.containers[0].resources.as_ref().and_then(|r| r.requests.as_ref());
    assert_eq!(requests.map(|all| all["cpu"].0.as_str()), Some("1.5"));
    assert_eq!(
        (dump.pod_sources[0].place.as_str(), &dump.pods[0].metadata.uid),
        ("f.json:10:1", &None)
    );
    let error = try_load("kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: 5}]}\n");
    let error = error.expect_err("a number");
    assert_eq!((&*error.field, error.line), ("spec.containers[0].name: ", 1));
}

#[test]
fn mistakes_are_gathered_and_counted() {
    let pod = |name: &str| POD.replace("\"p\"", &format!("{name:?}")).replace("\"c\"", "\"C\"");
    let two = try_load(&format!("{}\n{NODE}\n{}", pod("a"), pod("b"))).expect_err("two");
    let more = two.more.as_ref().expect("another");
    assert_eq!((two.line, more.shown.len(), more.shown[0].line, more.left), (1, 1, 3, 0));
    assert_eq!(two.to_string().lines().count(), 2);
    let many: Vec<String> = (0..13).map(|at| pod(&format!("p{at}"))).collect();
    let many = try_load(&many.join("\n")).expect_err("many");
    let more = many.more.as_ref().expect("others");
    assert_eq!((more.shown.len(), more.left), (9, 3));
    assert!(many.to_string().ends_with("\nand 3 more mistakes"), "{many}");
    let long = POD.replace("\"c\"", &format!("\"{}\"", "C".repeat(100)));
    let text = try_load(&long).expect_err("a long name").to_string();
    let shown = format!("Invalid value: \"{}\".. (100 bytes): ", "C".repeat(64));
    assert!(text.contains(&shown), "{text}");
    let wrong = POD.replace("{\"name\":\"c\"}", &format!("\"{}\"", "x".repeat(100)));
    let text = try_load(&wrong).expect_err("a text").to_string();
    assert!(text.contains("\"..,") && !text.contains(&"x".repeat(65)), "{text}");
}

#[test]
fn objects_are_known_by_group_namespace_and_name() {
    let other =
        r#"{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"name":"s"}}"#;
    let crd = r#"{"apiVersion":"x.y/v1","kind":"Foo","metadata":{"name":"f"}}"#;
    let budget =
        r#"{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"b"}}"#;
    let dump = try_load(&[NODE, other, crd, crd, budget, budget].concat()).expect("a dump");
    let ignored: Vec<(&str, usize)> =
        dump.omitted.ignored.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    assert_eq!(ignored, [("Foo", 2), ("Service.serving.knative.dev", 1)]);
    assert_eq!(dump.budgets.len(), 1, "a duplicate budget counts once");
    let watch = format!(r#"{{"type":"DELETED","object":{budget}}}"#);
    let dump = try_load(&[NODE, budget, &watch].concat()).expect("a dump");
    assert!(dump.budgets.is_empty());
    let pod = |namespace: &str| {
        let names = format!("\"name\":\"p\",\"namespace\":\"{namespace}\",\"uid\":\"u\"");
        POD.replace("\"name\":\"p\"", &names)
    };
    let dump = try_load(&[NODE, &pod("a"), &pod("b")].concat()).expect("a dump");
    assert_eq!(dump.pods.len(), 2);
    assert!(dump.pods.iter().all(|pod| pod.metadata.uid.is_none()));
    let generated = POD.replace("\"name\":\"p\"", "\"generateName\":\"web-\"");
    let dump = try_load(&[NODE, &generated, &generated].concat()).expect("a dump");
    let names: Vec<String> = dump.pods.iter().map(pod_name).collect();
    assert_eq!(names, ["default/web-00002", "default/web-00003"]);
}
