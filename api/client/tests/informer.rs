//! Informers of a server whose pods change, which forgets, sends nonsense and goes back in time.

#[allow(dead_code)] // its switches are for connections
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pintle_api::informer::{
    FirstList, FollowSpec, IndexBy, Informer, InformerError, InformerObserver, ObjectChange,
    Subscription,
};
use pintle_api::{Access, AnswerWithin, ClientOptions};
use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::PrunedMeta;
use serde::Deserialize;
use serde_json::json;
use server::{Authority, Server};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InformedPod {
    metadata: PrunedMeta,
    spec: WatchedSpec,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatchedSpec {
    node_name: String,
}
pintle_api_types::pruned_object!(InformedPod);

#[derive(Default)]
struct Heard(Mutex<BTreeMap<String, usize>>);

impl Heard {
    fn add(&self, what: &str) {
        *self.0.lock().expect("not poisoned").entry(what.to_owned()).or_default() += 1;
    }
    fn count(&self, what: &str) -> usize {
        self.0.lock().expect("not poisoned").get(what).copied().unwrap_or_default()
    }
}

impl InformerObserver for Heard {
    fn listed(&self, name: &str, _: Duration, items: usize) {
        assert_eq!(name, "pods");
        self.add(&format!("listed {items}"));
    }
    fn watched(&self, _: &str, _: Duration, items: u64, _: bool) {
        self.add(&format!("watched {items}"));
    }
    fn unreadable(&self, _: &str, key: Option<&ObjectKey>) {
        self.add(&format!("unreadable {}", key.map_or("?", ObjectKey::as_str)));
    }
    fn fails(&self, _: &str, error: &InformerError) {
        self.add(&format!("fails {error}"));
    }
    fn works(&self, _: &str) {
        self.add("works");
    }
}

struct InformerWorld {
    server: Server,
    informer: Informer<InformedPod>,
    subscription: Subscription<InformedPod>,
    heard: Arc<Heard>,
}

/// An informer of pods that are there already: `(name, node)`.
async fn world(first_list: FirstList, pods: &[(&str, &str)]) -> InformerWorld {
    let server = Server::start(Authority::new()).await;
    pods.iter().for_each(|(name, node)| server.pods().put(name, &json!({"nodeName": node})));
    let client =
        Access::read(&server.kubeconfig()).expect("a kubeconfig").client(ClientOptions::default());
    let heard = Arc::<Heard>::default();
    let mut spec = FollowSpec::new("pods", "/api/v1/pods");
    spec.first_list = first_list;
    spec.observer = heard.clone();
    let by_node: IndexBy<InformedPod> = ("node", |pod, add| add(&pod.spec.node_name));
    let informer = Informer::new(spec, &[by_node]);
    let subscription = informer.subscribe();
    tokio::spawn(informer.run(client));
    InformerWorld { server, informer, subscription, heard }
}

impl InformerWorld {
    /// The next change, in short form.
    async fn told(&mut self) -> String {
        let change = tokio::time::timeout(PATIENCE, self.subscription.next()).await;
        let shown = |pod: &InformedPod| format!("{}@{}", pod.metadata.name, pod.spec.node_name);
        match change.expect("a change") {
            ObjectChange::Added { object, initial } => {
                format!("{}{}", if initial { "has " } else { "added " }, shown(&object))
            }
            ObjectChange::Updated { old, new } => format!("{} became {}", shown(&old), shown(&new)),
            ObjectChange::Deleted { object, is_final: true } => format!("{} ended", shown(&object)),
            ObjectChange::Deleted { object, is_final: false } => format!("{} gone", shown(&object)),
        }
    }

    /// The next so many changes, sorted.
    async fn all_told(&mut self, count: usize) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(self.told().await);
        }
        all.sort();
        all
    }

    fn put(&self, name: &str, node: &str) {
        self.server.pods().put(name, &json!({"nodeName": node}));
    }
}

#[tokio::test]
async fn list_has_an_answer_time_limit_and_waits_for_its_turn_without_a_limit() {
    let (told, mut limits) = tokio::sync::mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let _ = told.send(request.extensions().get::<AnswerWithin>().copied());
        std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
    });
    let informer = Informer::<InformedPod>::new(FollowSpec::new("pods", "/api/v1/pods"), &[]);
    let limit = tokio::select! {
        () = informer.run(kube::Client::new(service, "default")) => None,
        limit = limits.recv() => limit.flatten(),
    };
    assert_eq!(limit, Some(AnswerWithin(Duration::from_secs(60))));
}

#[tokio::test]
async fn existing_objects_are_listed_and_changes_are_watched() {
    let mut world = world(FirstList::Newest, &[("a", "n1"), ("b", "n1"), ("c", "n2")]).await;
    assert_eq!(world.all_told(3).await, ["has a@n1", "has b@n1", "has c@n2"]);
    assert!(!world.subscription.has_synced());
    world.put("b", "n2");
    assert_eq!(world.told().await, "b@n1 became b@n2");
    assert!(world.subscription.has_synced());
    let on_n2 = world.informer.store().by_index("node", "n2");
    assert_eq!(on_n2.iter().map(|pod| &*pod.metadata.name).collect::<Vec<_>>(), ["b", "c"]);
    world.server.pods().delete("c");
    assert_eq!(world.told().await, "c@n2 ended");
    assert_eq!(world.heard.count("listed 3"), 1);
    // The next watch continues at the bookmark.
    world.server.pods().bookmark();
    world.put("d", "n3");
    assert_eq!(world.told().await, "added d@n3");
    let version = world.server.pods().version();
    world.server.pods().end_watches();
    world.put("d", "n4");
    assert_eq!(world.told().await, "d@n3 became d@n4");
    let asked = world.server.pods().asked();
    let watch = |from: u64| format!("resourceVersion={from}");
    let watches: Vec<_> = asked.iter().filter(|query| query.starts_with("watch=true")).collect();
    assert!(watches.len() == 2 && watches[0].ends_with(&watch(3)), "{asked:?}");
    assert!(watches[1].ends_with(&watch(version)), "{asked:?}");
    assert_eq!(asked.len(), 3, "the list came in one answer: {asked:?}");
    assert_eq!((world.heard.count("works"), world.heard.count("watched 4")), (1, 1));
}

#[tokio::test]
async fn unreadable_object_keeps_its_last_state_and_does_not_affect_other_objects() {
    let mut world = world(FirstList::Any, &[("a", "n1"), ("b", "n1")]).await;
    assert_eq!(world.all_told(2).await, ["has a@n1", "has b@n1"]);
    world.server.pods().put("a", &json!({"nodeName": 7}));
    world.server.pods().put("x", &json!({"nodeName": ["secret"]}));
    world.put("b", "n2");
    assert_eq!(world.told().await, "b@n1 became b@n2");
    let kept = world.informer.store().get("a", "a").expect("kept");
    assert_eq!(kept.spec.node_name, "n1");
    assert_eq!((world.heard.count("unreadable a/a"), world.heard.count("unreadable a/x")), (1, 1));
    // A list that still has it is no reason to forget it; one without it is.
    world.server.pods().compact();
    world.server.pods().put("b", &json!({"nodeName": "n3"}));
    assert_eq!(world.told().await, "b@n2 became b@n3");
    assert!(world.informer.store().get("a", "a").is_some());
    world.server.pods().delete("a");
    assert_eq!(world.told().await, "a@n1 gone", "its final state cannot be read");
    assert_eq!(world.heard.count("works"), 1, "nothing failed");
}

#[tokio::test]
async fn largest_objects_are_cached_and_oversized_objects_are_reported_by_name() {
    let mut world = world(FirstList::Any, &[("a", "n1"), ("b", "n1"), ("c", "n1")]).await;
    assert_eq!(world.all_told(3).await, ["has a@n1", "has b@n1", "has c@n1"]);
    // Etcd would take 1.4 MB of them.
    let escaped = |count| json!({"nodeName": "n2", "env": "\\u003c".repeat(count)});
    world.server.pods().put("b", &escaped(1_400_000));
    assert_eq!(world.told().await, "b@n1 became b@n2");
    world.server.pods().put("a", &escaped(6_000_000));
    world.server.pods().put("long", &escaped(6_000_000));
    world.put("b", "n3");
    assert_eq!(world.told().await, "b@n2 became b@n3");
    assert_eq!(world.informer.store().get("a", "a").expect("kept").spec.node_name, "n1");
    assert_eq!(
        (world.heard.count("unreadable a/a"), world.heard.count("unreadable a/long")),
        (1, 1)
    );
    // A list that has such an object shows which objects are gone.
    world.server.refuse_once(500, None);
    world.server.pods().end_watches();
    world.server.pods().delete("c");
    world.server.pods().compact();
    assert_eq!(world.told().await, "c@n1 gone");
    assert!(world.informer.store().get("a", "a").is_some());
    world.server.pods().delete("a");
    assert_eq!(world.told().await, "a@n1 gone");
}

#[tokio::test]
async fn missed_changes_are_recovered_by_a_list() {
    let mut world = world(FirstList::Any, &[("a", "n1"), ("b", "n1")]).await;
    assert_eq!(world.all_told(2).await, ["has a@n1", "has b@n1"]);
    world.put("b", "n2");
    assert_eq!(world.told().await, "b@n1 became b@n2");
    // The watch breaks, and the server does not keep the following events.
    world.server.refuse_once(500, None);
    world.server.pods().end_watches();
    world.server.pods().delete("a");
    world.put("b", "n3");
    world.put("c", "n1");
    world.server.pods().compact();
    let want = ["a@n1 gone", "added c@n1", "b@n2 became b@n3"];
    assert_eq!(world.all_told(3).await, want);
    assert_eq!(world.heard.count("fails 500 Internal Server Error"), 1);
    assert_eq!(world.heard.count("works"), 2);
}

#[tokio::test]
async fn a_server_that_was_restored_from_a_backup_is_followed_back() {
    let mut world = world(FirstList::Any, &[("a", "n1"), ("b", "n1")]).await;
    assert_eq!(world.all_told(2).await, ["has a@n1", "has b@n1"]);
    let backup = world.server.pods().version();
    world.put("b", "n2");
    world.put("c", "n2");
    world.put("d", "n2");
    let told = world.all_told(3).await;
    assert_eq!(told, ["added c@n2", "added d@n2", "b@n1 became b@n2"]);
    // The first request after the restart fails, so the next is a list, with the error "too large".
    world.server.refuse_once(503, None);
    world.server.pods().restore(backup);
    let told = world.all_told(3).await;
    assert_eq!(told, ["b@n2 became b@n1", "c@n2 gone", "d@n2 gone"]);
    world.put("e", "n1");
    assert_eq!(world.told().await, "added e@n1", "at a version that was there before");
    assert_eq!(world.server.pods().watches(), 1);
}
