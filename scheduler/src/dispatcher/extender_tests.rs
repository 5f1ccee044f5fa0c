//! Extenders, called over real connections.

use pintle_api_types::key::ObjectKey;
use pintle_scheduler_core::extender::ManagedResource;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A server that answers each path with a status and a body; requests are sent to the channel.
async fn server(
    answers: Vec<(&'static str, u16, Value)>,
) -> (String, tokio::sync::mpsc::UnboundedReceiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/scheduler/", listener.local_addr().expect("an address"));
    let (heard, hears) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut peer, _)) = listener.accept().await {
            let (answers, heard) = (answers.clone(), heard.clone());
            tokio::spawn(async move {
                while let Some((path, body)) = request(&mut peer).await {
                    let found = answers.iter().find(|(of, ..)| path.ends_with(of));
                    let (_, status, answer) = found.expect("a known path").clone();
                    // Not every test reads the channel.
                    let _ = heard.send((path, body));
                    respond(&mut peer, status, &answer).await;
                }
            });
        }
    });
    (url, hears)
}

async fn respond(peer: &mut TcpStream, status: u16, answer: &Value) {
    let text = answer.to_string();
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", text.len());
    peer.write_all((head + &text).as_bytes()).await.expect("the peer listens");
}

/// Returns the path and the body of one request; `None` at the end of the connection.
async fn request(peer: &mut TcpStream) -> Option<(String, Value)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let path = head.split(' ').nth(1).expect("a path").to_owned();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.expect("a length").parse().expect("a number");
            if let Some(body) = bytes.get(end + 4..end + 4 + length) {
                return Some((path, serde_json::from_slice(body).expect("JSON")));
            }
        }
        if peer.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn extender(url: &str) -> Extender {
    Extender { url_prefix: url.to_owned(), node_cache_capable: true, ..Extender::default() }
}

fn pod() -> Rc<Pod> {
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"x.io/gpu": "1"}}}]}});
    Rc::new(serde_json::from_value(pod).expect("a pod"))
}

fn about() -> PodRef {
    PodRef { key: ObjectKey::new("ns", "p"), uid: "u".into() }
}

async fn ask(
    extenders: Vec<Extender>,
    question: ExtenderCall,
) -> Result<ExtenderReply, ExtenderError> {
    let callers = extenders.into_iter().map(|extender| Caller::new(extender).map(Rc::new));
    let callers: Vec<Rc<Caller>> = callers.collect::<Result<_, _>>().expect("an address");
    consult(&callers, Consult { pod: pod(), about: about(), question }).await.answer
}

fn nodes(names: &[&str]) -> ExtenderCall {
    ExtenderCall::Nodes {
        names: names.iter().map(|name| (*name).into()).collect(),
        objects: vec![],
    }
}

#[tokio::test]
async fn extenders_filter_nodes_and_score_the_remaining_nodes() {
    let (first, mut heard) = server(vec![(
        "/filter",
        200,
        json!({"nodenames": ["a", "b"], "FailedNodes": {"c": "no", "d": "soft"},
            "FailedAndUnresolvableNodes": {"d": "never"}}),
    )])
    .await;
    let scores = json!([{"Host": "a", "Score": 3}, {"host": "b", "score": 10}]);
    let (second, _) = server(vec![("/score", 200, scores)]).await;
    let filters = Extender { filter_verb: "filter".into(), ..extender(&first) };
    let scores = Extender { prioritize_verb: "score".into(), weight: 2, ..extender(&second) };
    let answer = ask(vec![filters, scores], nodes(&["a", "b", "c", "d"])).await.expect("answers");
    let ExtenderReply::Nodes(found) = answer else { panic!("{answer:?}") };
    assert_eq!(found.left, ["a", "b"].map(str::to_owned).into());
    assert_eq!(found.failed["c"], (false, "no".to_owned()));
    assert_eq!(found.failed["d"], (true, "never".to_owned()));
    assert_eq!((found.scores["a"], found.scores["b"]), (60, 200));
    let (path, body) = heard.recv().await.expect("it was asked");
    assert_eq!(path, "/scheduler/filter");
    assert_eq!(body["NodeNames"], json!(["a", "b", "c", "d"]));
    assert_eq!((&body["Nodes"], &body["Pod"]["metadata"]["name"]), (&Value::Null, &json!("p")));
}

#[tokio::test]
async fn scoring_extenders_are_called_concurrently() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        let mut peers = Vec::new();
        for _ in 0..2 {
            let (mut peer, _) = listener.accept().await.expect("a connection");
            request(&mut peer).await.expect("a question");
            peers.push(peer);
        }
        // No response before all requests have arrived.
        for peer in &mut peers {
            respond(peer, 200, &json!([{"Host": "a", "Score": 1}])).await;
        }
    });
    let of = |weight| Extender { prioritize_verb: "score".into(), weight, ..extender(&url) };
    let answer = ask(vec![of(1), of(2)], nodes(&["a", "b"])).await.expect("answers");
    let ExtenderReply::Nodes(found) = answer else { panic!("{answer:?}") };
    assert_eq!(found.scores["a"], 30);
}

#[tokio::test]
async fn extender_without_a_node_cache_gets_whole_nodes() {
    let taken = json!({"Nodes": {"items": [{"metadata": {"name": "b"}}]}});
    let (url, mut heard) = server(vec![("/filter", 200, taken)]).await;
    let filters =
        Extender { filter_verb: "filter".into(), node_cache_capable: false, ..extender(&url) };
    let node = |name: &str| {
        let node = json!({"metadata": {"name": name, "annotations": {"a": name}}});
        Rc::new(serde_json::from_value(node).expect("a node"))
    };
    let question = ExtenderCall::Nodes {
        names: vec!["a".into(), "b".into()],
        objects: vec![node("a"), node("b")],
    };
    let Ok(ExtenderReply::Nodes(found)) = ask(vec![filters], question).await else {
        panic!("no answer")
    };
    assert_eq!(found.left, ["b".to_owned()].into());
    let (_, body) = heard.recv().await.expect("it was asked");
    assert_eq!(body["Nodes"]["items"][1]["metadata"]["annotations"]["a"], "b");
    assert_eq!(body["NodeNames"], Value::Null);
}

#[tokio::test]
async fn failing_extender_fails_the_attempt_unless_it_is_ignorable() {
    let (url, _heard) = server(vec![
        ("/broken", 500, json!({})),
        ("/wrong", 200, json!({"Error": "I will not"})),
        ("/invents", 200, json!({"NodeNames": ["z"]})),
    ])
    .await;
    let of = |verb: &str, ignorable| Extender {
        filter_verb: verb.to_owned(),
        ignorable,
        ..extender(&url)
    };
    for (verb, words) in [
        ("broken", "failed broken with extender at URL"),
        ("wrong", "I will not"),
        ("invents", "claims a filtered node \"z\""),
    ] {
        let error = ask(vec![of(verb, false)], nodes(&["a"])).await.expect_err(verb);
        assert!(error.to_string().contains(words), "{error}");
        let Ok(ExtenderReply::Nodes(found)) = ask(vec![of(verb, true)], nodes(&["a"])).await else {
            panic!("{verb} is left out")
        };
        assert_eq!(found.left, ["a".to_owned()].into());
    }
}

fn victim(uid: &str) -> PodRef {
    PodRef { key: ObjectKey::new("ns", uid), uid: uid.into() }
}

fn going(uids: &[&str], violations: i64) -> Victims {
    let pods = uids.iter().map(|uid| victim(uid)).collect();
    Victims { pods, violations, others: [victim("v3")].into() }
}

#[tokio::test]
async fn extender_may_change_the_preemption_victims_of_a_node() {
    let of_pods = |uids: Value| json!({"NodeNameToMetaVictims": {"a": {"Pods": uids, "NumPDBViolations": 1}}});
    let other_node = json!({"NodeNameToMetaVictims": {"z": {"Pods": [{"UID": "v1"}]}}});
    let (url, mut heard) = server(vec![
        ("/preempt", 200, of_pods(json!([{"UID": "v2"}]))),
        ("/another", 200, of_pods(json!([{"UID": "v2"}, {"UID": "v3"}]))),
        ("/nobody", 200, of_pods(json!([]))),
        ("/unknown", 200, of_pods(json!([{"UID": "x"}]))),
        ("/elsewhere", 200, other_node),
    ])
    .await;
    let of: BTreeMap<String, Victims> =
        ["a", "b"].map(|node| (node.to_owned(), going(&["v1", "v2"], 0))).into();
    let preempts = |verb: &str, ignorable| Extender {
        preempt_verb: verb.to_owned(),
        ignorable,
        ..extender(&url)
    };
    let asked = |verbs: &[&str], ignorable| {
        let all = verbs.iter().map(|verb| preempts(verb, ignorable)).collect();
        ask(all, ExtenderCall::Victims(of.clone()))
    };
    let on_a =
        |uids: &[&str]| Ok(ExtenderReply::Victims([("a".to_owned(), going(uids, 1))].into()));
    assert_eq!(asked(&["preempt"], false).await, on_a(&["v2"]));
    let (_, body) = heard.recv().await.expect("it was asked");
    assert_eq!(body["NodeNameToMetaVictims"]["b"]["Pods"], json!([{"UID": "v1"}, {"UID": "v2"}]));
    // The next extender is sent what the previous one left; an answer may name unknown pods.
    assert_eq!(asked(&["preempt", "another"], false).await, on_a(&["v2", "v3"]));
    heard.recv().await.expect("the first was asked");
    let (_, body) = heard.recv().await.expect("the second was asked");
    let left = json!({"a": {"Pods": [{"UID": "v2"}], "NumPDBViolations": 1}});
    assert_eq!(body["NodeNameToMetaVictims"], left);
    for (verb, why) in [
        ("nobody", "expected at least one victim pod on node \"a\""),
        ("unknown", "claims to preempt pod (UID: &{x}) on node: a, but the pod is not found on"),
        ("elsewhere", "nodeinfo not found for node name \"z\""),
    ] {
        let error = asked(&[verb], false).await.expect_err(verb);
        assert!(error.to_string().contains(why), "{error}");
        let left = if verb == "nobody" { BTreeMap::new() } else { of.clone() };
        assert_eq!(asked(&[verb], true).await, Ok(ExtenderReply::Victims(left)), "it is left out");
    }
}

#[tokio::test]
async fn pod_is_bound_by_the_extender_that_manages_its_resource() {
    let (url, mut heard) =
        server(vec![("/bind", 200, json!({})), ("/no", 200, json!({"Error": "full"}))]).await;
    let binds = |verb: &str, resource: &str| {
        let managed = ManagedResource { name: resource.to_owned(), ignored_by_scheduler: false };
        let of = Extender { bind_verb: verb.to_owned(), ..extender(&url) };
        Rc::new(Caller::new(Extender { managed_resources: vec![managed], ..of }).expect("it is"))
    };
    assert!(binder(&[binds("bind", "x.io/other")], &pod()).is_none());
    let all = [binds("bind", "x.io/gpu")];
    let caller = binder(&all, &pod()).expect("it wants it");
    assert_eq!(bind(caller, &about(), "n").await, BindingResult::Bound);
    let (_, body) = heard.recv().await.expect("it was asked");
    let want = json!({"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n"});
    assert_eq!(body, want);
    let refused = bind(&binds("no", "x.io/gpu"), &about(), "n").await;
    assert_eq!(refused, BindingResult::Failed("full".to_owned()));
}

#[test]
fn an_extender_without_an_address_is_rejected() {
    let nowhere = Extender { url_prefix: String::new(), ..Extender::default() };
    assert!(access(&nowhere).is_err());
    assert!(access(&extender("http://127.0.0.1:1")).is_ok());
}
