//! Two profiles and an extender that filters, scores and binds, on a real API server.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use nix::sys::signal::Signal;
use pintle_testbed::wait::LONG;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::shadow::{create, name, patch};
use crate::stand::SchedulerStand;

/// The extender's address, in the cluster's network.
const ADDRESS: &str = "127.0.0.1:8199";
/// The resource that it manages.
const LICENCE: &str = "example.com/licence";
/// Pods of each kind.
const EACH: usize = 6;

/// Nodes n0 to n3; n0 is half full.
async fn set_up(client: &kube::Client) -> Result<()> {
    let account = json!({"metadata": {"name": "default"}});
    create::<ServiceAccount>(&Api::namespaced(client.clone(), "default"), account).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    for at in 0..4 {
        let name = format!("n{at}");
        let room = json!({"cpu": "100", "memory": "100Gi", "pods": "110"});
        let node = json!({"metadata": {"name": name, "annotations": {"seen": "whole"}},
            "status": {"allocatable": room, "capacity": room}});
        create::<Node>(&nodes, node).await?;
        patch(&nodes, &name, json!({"spec": {"taints": []}})).await?;
    }
    let mut there = pod("there", "default-scheduler", "50", None);
    there["spec"]["nodeName"] = "n0".into();
    create::<Pod>(&Api::namespaced(client.clone(), "default"), there).await
}

fn pod(name: &str, scheduler: &str, cpu: &str, licence: Option<&str>) -> Value {
    let mut requests = json!({"cpu": cpu, "memory": "1Gi"});
    if let Some(licence) = licence {
        requests[LICENCE] = licence.into();
    }
    json!({
        "metadata": {"name": name},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "image": "i",
            "resources": {"requests": requests, "limits": requests}}]},
    })
}

/// Calls to the extender, by verb.
type Asked = Rc<std::cell::RefCell<BTreeMap<String, usize>>>;

/// Accepts only n2 and n3, prefers n3, and binds.
async fn extend(listener: TcpListener, client: kube::Client, asked: Asked) -> Result<()> {
    loop {
        let (mut peer, _) = listener.accept().await?;
        let (client, asked) = (client.clone(), Rc::clone(&asked));
        tokio::task::spawn_local(async move {
            while let Some((verb, body)) = request(&mut peer).await {
                // Counted first: a bound pod is seen before the answer is written.
                *asked.borrow_mut().entry(verb.clone()).or_default() += 1;
                let answer = answer(&client, &verb, &body).await;
                let text = answer.to_string();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
                if peer.write_all((head + &text).as_bytes()).await.is_err() {
                    return;
                }
            }
        });
    }
}

async fn answer(client: &kube::Client, verb: &str, body: &Value) -> Value {
    match verb {
        "filter" => {
            let items = body["Nodes"]["items"].as_array().expect("nodes").iter();
            let whole = |node: &&Value| node["metadata"]["annotations"]["seen"] == "whole";
            let (left, others): (Vec<&Value>, Vec<&Value>) = items
                .filter(whole)
                .partition(|node| ["n2", "n3"].iter().any(|n| node["metadata"]["name"] == **n));
            let failed: BTreeMap<&str, &str> = others
                .iter()
                .map(|node| (node["metadata"]["name"].as_str().expect("a name"), "no licence"))
                .collect();
            json!({"Nodes": {"items": left}, "FailedNodes": failed})
        }
        "prioritize" => json!([{"Host": "n2", "Score": 0}, {"Host": "n3", "Score": 10}]),
        _ => {
            let text = |field: &str| body[field].as_str().expect("text").to_owned();
            let binding = json!({"kind": "Binding", "apiVersion": "v1",
                "metadata": {"name": text("PodName"), "uid": text("PodUID"),
                    "annotations": {"by": "extender"}},
                "target": {"kind": "Node", "name": text("Node")}});
            let pods = Api::<Pod>::namespaced(client.clone(), &text("PodNamespace"));
            let (name, params) = (text("PodName"), PostParams::default());
            let bound =
                pods.create_subresource::<Value, Value>("binding", &name, &params, &binding);
            match bound.await {
                Ok(_) => json!({}),
                Err(error) => json!({"Error": error.to_string()}),
            }
        }
    }
}

/// The verb and the body of one request; `None` at the end of the connection.
async fn request(peer: &mut TcpStream) -> Option<(String, Value)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let verb = head.split(' ').nth(1)?.rsplit('/').next()?.to_owned();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
            let length: usize = length.parse().ok()?;
            if let Some(body) = bytes.get(end + 4..end + 4 + length) {
                return Some((verb, serde_json::from_slice(body).ok()?));
            }
        }
        if peer.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// Waits until these pods have nodes; returns the node and the binder of each.
async fn bound(
    client: &kube::Client,
    mut wanted: HashSet<String>,
) -> Result<BTreeMap<String, (String, Option<String>)>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let mut events = pods.watch(&WatchParams::default(), "0").await?.boxed();
    let mut found = BTreeMap::new();
    while !wanted.is_empty() {
        let event = events.try_next().await?.context("the watch ended")?;
        if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event
            && let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone())
            && wanted.remove(name(&pod))
        {
            let by = pod.metadata.annotations.as_ref().and_then(|all| all.get("by").cloned());
            found.insert(name(&pod).to_owned(), (node, by));
        }
    }
    Ok(found)
}

#[test]
fn pods_are_placed_by_their_profile_and_by_an_extender() {
    let packs = json!([{"name": "NodeResourcesFit", "args": {"scoringStrategy":
        {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}}}]);
    let off = json!({"score": {"disabled": [{"name": "NodeResourcesBalancedAllocation"}]}});
    let configuration = json!({
        "leaderElection": {"leaderElect": false},
        "clientConnection": {"qps": 5000, "burst": 5000},
        "profiles": [
            {"schedulerName": "default-scheduler", "plugins": off},
            {"schedulerName": "packs", "plugins": off, "pluginConfig": packs},
        ],
        "extenders": [{
            "urlPrefix": format!("http://{ADDRESS}/licences"), "filterVerb": "filter",
            "prioritizeVerb": "prioritize", "bindVerb": "bind", "weight": 10,
            "managedResources": [{"name": LICENCE, "ignoredByScheduler": true}],
        }],
    });
    let stand = SchedulerStand::without_scheduler("extender", &configuration);
    stand.with_client(async |client| set_up(&client).await);
    let ours = stand.start_ours(&["--secure-port=0"]);
    let (found, asked) = stand.with_client(async |client| {
        let listener = TcpListener::bind(ADDRESS).await?;
        let asked = Asked::default();
        tokio::task::spawn_local(extend(listener, client.clone(), Rc::clone(&asked)));
        let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
        let mut wanted = HashSet::new();
        for at in 0..EACH {
            for (kind, scheduler, licence) in [
                ("plain", "default-scheduler", None),
                ("packed", "packs", None),
                ("licensed", "default-scheduler", Some("1")),
            ] {
                let name = format!("{kind}-{at}");
                create::<Pod>(&pods, pod(&name, scheduler, "1", licence)).await?;
                wanted.insert(name);
            }
        }
        let found = tokio::time::timeout(LONG, bound(&client, wanted)).await??;
        Ok((found, asked.borrow().clone()))
    });
    println!("{found:?}\n{asked:?}");
    for (name, (node, by)) in &found {
        match name.split('-').next() {
            Some("plain") => assert_ne!(node, "n0", "{name}"),
            Some("packed") => assert_eq!(node, "n0", "{name}"),
            _ => assert_eq!((node.as_str(), by.as_deref()), ("n3", Some("extender")), "{name}"),
        }
    }
    assert_eq!(found.len(), 3 * EACH);
    let verbs: Vec<(&str, usize)> = asked.iter().map(|(verb, n)| (verb.as_str(), *n)).collect();
    assert_eq!(verbs, [("bind", EACH), ("filter", EACH), ("prioritize", EACH)]);
    assert!(ours.end(Signal::SIGTERM), "{}", stand.ours_log_end());
}
