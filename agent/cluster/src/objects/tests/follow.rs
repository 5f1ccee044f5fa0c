//! Objects of an API server in memory: gaps, lost places, refusals, silence.

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Container, Pod};
use pintle_agent_config::modes::ChangeDetectionStrategy;
use pintle_agent_core::env::variables::LookupError;
use pintle_agent_core::references::{ObjectName, ReferenceKind};
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::ClaimViews;
use pintle_agent_core::volume::payload::{ContentError, TokenRequest};
use pintle_agent_core::worker::PodsInput;
use pintle_agent_host::volume::content::ContentSource;
use pintle_memory_http::SharedServer;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use crate::objects::{Objects, Settings};

/// Timeout of a test; only a failing one waits that long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server, the objects behind it, and the inputs of workers.
pub(super) struct Scene {
    pub(super) server: SharedServer,
    pub(super) objects: Objects,
    inputs: mpsc::Receiver<PodsInput>,
}

fn run(strategy: ChangeDetectionStrategy, test: impl AsyncFnOnce(Scene)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.expect("a runtime"), async {
        let server = SharedServer::new(1);
        server.put("/api/v1/namespaces/ns/serviceaccounts/sa", json!({}));
        let (sender, inputs) = mpsc::channel(64);
        let resync = Duration::from_millis(20);
        let settings = Settings {
            strategy,
            resync,
            trust_bundles: true,
            pod_certificates: false,
            recorder: Recorder::default(),
            claims: ClaimViews::default(),
            node: None,
        };
        let objects = Objects::new(server.client(), settings, sender);
        test(Scene { server, objects, inputs }).await;
    });
}

pub(super) fn watched(test: impl AsyncFnOnce(Scene)) {
    run(ChangeDetectionStrategy::Watch, test);
}

pub(super) fn pod(uid: &str, spec: Value) -> (PodUid, Pod) {
    let meta = json!({"name": uid, "namespace": "ns", "uid": uid,
        "annotations": {"kubernetes.io/config.source": "api"}});
    let pod = serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod");
    (PodUid::from(uid), pod)
}

fn shows(uid: &str, name: &str) -> (PodUid, Pod) {
    pod(uid, json!({"containers": [], "volumes": [{"name": "v", "configMap": {"name": name}}]}))
}

fn reads(uid: &str, name: &str) -> (PodUid, Pod) {
    let from = json!([{"secretRef": {"name": name}}]);
    pod(uid, json!({"containers": [{"name": "c", "envFrom": from}]}))
}

fn path(kind: &str, name: &str) -> String {
    format!("/api/v1/namespaces/ns/{kind}/{name}")
}

impl Scene {
    fn register(&self, (uid, pod): &(PodUid, Pod)) {
        self.objects.register(uid, pod);
    }

    async fn map(&self, (uid, pod): &(PodUid, Pod), name: &str) -> Result<String, ContentError> {
        let values = self.objects.content(uid, pod).config_map("ns", name).await?;
        Ok(String::from_utf8_lossy(&values["k"]).into_owned())
    }

    async fn token(&self, uid: &PodUid, pod: &Pod) -> Result<String, ContentError> {
        self.objects.content(uid, pod).token(&request()).await.map(claims)
    }

    /// The next pod that is notified.
    pub(super) async fn told(&mut self) -> (String, bool) {
        match tokio::time::timeout(PATIENCE, self.inputs.recv()).await {
            Ok(Some(PodsInput::Content { uid, files })) => (uid.to_string(), files),
            other => panic!("no pod was notified: {other:?}, {:?}", self.server.requests()),
        }
    }

    /// Creates or changes an object.
    fn put(&self, kind: &str, name: &str, rest: Value) {
        self.server.put(&path(kind, name), rest);
    }

    fn delete(&self, kind: &str, name: &str) {
        self.server.remove(&path(kind, name));
    }

    fn put_map(&self, name: &str, value: &str) {
        self.put("configmaps", name, json!({"data": {"k": value}}));
    }

    async fn watching(&self, count: usize) {
        // The services' own watch is one more.
        self.until("watches", |server| server.open_watches() == count + 1).await;
    }

    /// Refuses requests with this text.
    pub(super) fn refuse(&self, text: &str, code: u16) {
        self.server.refuse("", text, code, "told to fail");
    }

    /// Ends all watches, and refuses new ones.
    async fn end_watches(&self) {
        self.refuse("watch=true", 500);
        self.server.cut_watches();
        self.until("cut", |server| server.open_watches() == 0).await;
    }

    /// Waits until something holds.
    pub(super) async fn until(&self, what: &str, holds: impl Fn(&SharedServer) -> bool) {
        let wait = async {
            while !holds(&self.server) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        assert!(waited.is_ok(), "not in time: {what}; requests: {:?}", self.server.requests());
    }
}

#[test]
fn change_reaches_every_pod_that_mounts_the_object_by_a_single_watch() {
    watched(async |mut scene| {
        scene.put_map("a", "one");
        let pods = ["p", "q", "r"].map(|uid| shows(uid, "a"));
        for pod in &pods {
            scene.register(pod);
        }
        for pod in &pods {
            assert_eq!(scene.map(pod, "a").await, Ok("one".to_owned()));
        }
        scene.watching(1).await;
        scene.put_map("a", "two");
        let mut told = [scene.told().await, scene.told().await, scene.told().await];
        told.sort();
        assert_eq!(told, ["p", "q", "r"].map(|uid| (uid.to_owned(), true)));
        for pod in &pods {
            assert_eq!(scene.map(pod, "a").await, Ok("two".to_owned()));
        }
        assert_eq!(scene.server.count("fieldSelector=metadata.name%3Da"), 1);
        assert_eq!(scene.objects.followed(), 1);
        for (uid, _) in &pods {
            scene.objects.forget(uid);
        }
        // The last pod is gone: every watch ends, that of services as well.
        scene.until("no watch", |server| server.open_watches() == 0).await;
        assert_eq!(scene.objects.followed(), 0);
    });
}

#[test]
fn later_pod_reads_the_object_again_and_gets_changes_made_before_it_was_registered() {
    watched(async |scene| {
        scene.put_map("a", "one");
        let first = shows("p", "a");
        scene.register(&first);
        assert_eq!(scene.map(&first, "a").await, Ok("one".to_owned()));
        scene.watching(1).await;
        // The watch is blocked: only a read of its own can notify the next pod.
        scene.end_watches().await;
        scene.put_map("a", "two");
        let second = shows("q", "a");
        scene.register(&second);
        assert_eq!(scene.map(&second, "a").await, Ok("two".to_owned()));
    });
}

#[test]
fn pod_is_notified_when_its_missing_object_appears_and_when_it_is_deleted() {
    watched(async |mut scene| {
        let pod = shows("p", "a");
        scene.register(&pod);
        let missing = ContentError::NotFound { kind: "configmap", name: "a".to_owned() };
        assert_eq!(scene.map(&pod, "a").await, Err(missing.clone()));
        scene.watching(1).await;
        scene.put_map("a", "one");
        assert_eq!(scene.told().await, ("p".to_owned(), true));
        assert_eq!(scene.map(&pod, "a").await, Ok("one".to_owned()));
        scene.delete("configmaps", "a");
        assert_eq!(scene.told().await, ("p".to_owned(), true));
        assert_eq!(scene.map(&pod, "a").await, Err(missing));
    });
}

#[test]
fn pod_that_waits_for_a_variable_is_notified_when_the_secret_appears() {
    watched(async |mut scene| {
        let pod = reads("p", "s");
        scene.register(&pod);
        let container: Container = pod.1.spec.as_ref().expect("a spec").containers[0].clone();
        let found = scene.objects.environment(&pod.0, &pod.1, &container).await;
        assert_eq!(found.secret("ns", "s"), Err(LookupError::NotFound));
        scene.watching(1).await;
        // Base64 of `v`, and a value that Go writes as null.
        scene.put("secrets", "s", json!({"data": {"k": "dg==", "none": null}}));
        assert_eq!(scene.told().await, ("p".to_owned(), false));
        let found = scene.objects.environment(&pod.0, &pod.1, &container).await;
        let secret = found.secret("ns", "s").expect("there");
        let data = secret.data.as_ref().expect("data");
        assert_eq!((data["k"].0.as_slice(), data["none"].0.as_slice()), (&b"v"[..], &b""[..]));
    });
}

#[test]
fn broken_watch_resumes_at_its_resource_version() {
    watched(async |mut scene| {
        scene.put_map("a", "one");
        let pod = shows("p", "a");
        scene.register(&pod);
        assert_eq!(scene.map(&pod, "a").await, Ok("one".to_owned()));
        scene.watching(1).await;
        scene.end_watches().await;
        // Within the gap.
        scene.put_map("a", "two");
        scene.server.refuse_nothing();
        assert_eq!(scene.told().await, ("p".to_owned(), true));
        assert_eq!(scene.map(&pod, "a").await, Ok("two".to_owned()));
        // One read in all: the watch knew its place.
        assert_eq!(scene.server.count("GET /api/v1/namespaces/ns/configmaps/a"), 1);
    });
}

#[test]
fn watch_with_a_compacted_resource_version_reads_again_and_finds_a_deletion() {
    watched(async |mut scene| {
        scene.put_map("a", "one");
        let pod = shows("p", "a");
        scene.register(&pod);
        assert_eq!(scene.map(&pod, "a").await, Ok("one".to_owned()));
        scene.watching(1).await;
        scene.end_watches().await;
        scene.delete("configmaps", "a");
        scene.server.compact();
        scene.server.refuse_nothing();
        assert_eq!(scene.told().await, ("p".to_owned(), true));
        let missing = ContentError::NotFound { kind: "configmap", name: "a".to_owned() };
        assert_eq!(scene.map(&pod, "a").await, Err(missing));
        assert_eq!(scene.server.count("GET /api/v1/namespaces/ns/configmaps/a"), 2);
        // And it watches again.
        scene.watching(1).await;
        scene.put_map("a", "three");
        assert_eq!(scene.told().await, ("p".to_owned(), true));
    });
}

#[test]
fn a_read_that_is_forbidden_for_a_moment_is_repeated() {
    watched(async |scene| {
        scene.put_map("a", "one");
        scene.refuse("/configmaps/a", 403);
        let pod = shows("p", "a");
        scene.register(&pod);
        let (map, _) = tokio::join!(scene.map(&pod, "a"), async {
            scene.until("two reads", |server| server.count("/configmaps/a") > 1).await;
            scene.server.refuse_nothing();
        });
        assert_eq!(map, Ok("one".to_owned()));
    });
}

#[test]
fn cached_objects_are_served_during_an_api_outage_and_other_reads_return_the_error() {
    watched(async |mut scene| {
        scene.put_map("a", "one");
        let pod = shows("p", "a");
        scene.register(&pod);
        assert_eq!(scene.map(&pod, "a").await, Ok("one".to_owned()));
        scene.refuse("/api", 500);
        let later = shows("q", "a");
        scene.register(&later);
        assert_eq!(scene.map(&later, "a").await, Ok("one".to_owned()));
        let unknown = shows("r", "b");
        scene.put_map("b", "x");
        scene.register(&unknown);
        let error = scene.map(&unknown, "b").await.expect_err("the server refuses").to_string();
        assert_eq!(error, "failed to sync configmap cache: told to fail");
        scene.server.refuse_nothing();
        // The read of `r` failed; it is notified once there is an answer.
        assert_eq!(scene.told().await, ("r".to_owned(), true));
        assert_eq!(scene.map(&unknown, "b").await, Ok("x".to_owned()));
    });
}

#[test]
fn an_immutable_object_is_not_watched() {
    watched(async |scene| {
        let map = json!({"immutable": true, "data": {"k": "one"}});
        scene.put("configmaps", "a", map);
        scene.put_map("b", "x");
        let (pod, other) = (shows("p", "a"), shows("q", "b"));
        scene.register(&pod);
        assert_eq!(scene.map(&pod, "a").await, Ok("one".to_owned()));
        scene.register(&other);
        assert_eq!(scene.map(&other, "b").await, Ok("x".to_owned()));
        // One of the two, and the services.
        scene.watching(1).await;
        assert_eq!(scene.server.count("fieldSelector=metadata.name%3Da"), 0);
        // One that becomes immutable is let go.
        let map = json!({"immutable": true, "data": {"k": "x"}});
        scene.put("configmaps", "b", map);
        scene.watching(0).await;
    });
}

#[test]
fn without_watches_objects_are_read_when_used() {
    run(ChangeDetectionStrategy::Get, async |mut scene| {
        scene.put_map("a", "one");
        let pod = shows("p", "a");
        scene.register(&pod);
        assert_eq!(scene.map(&pod, "a").await, Ok("one".to_owned()));
        scene.put_map("a", "two");
        assert_eq!(scene.map(&pod, "a").await, Ok("two".to_owned()));
        // Its volumes are refreshed periodically.
        assert_eq!(scene.told().await, ("p".to_owned(), true));
        assert_eq!(scene.server.count("fieldSelector"), 0);
    });
    run(ChangeDetectionStrategy::Cache, async |scene| {
        scene.put_map("a", "one");
        let pod = shows("p", "a");
        scene.register(&pod);
        assert_eq!(scene.map(&pod, "a").await, Ok("one".to_owned()));
        scene.put_map("a", "two");
        // Still fresh enough; a new pod causes a new read.
        assert_eq!(scene.map(&pod, "a").await, Ok("one".to_owned()));
        let later = shows("q", "a");
        scene.register(&later);
        assert_eq!(scene.map(&later, "a").await, Ok("two".to_owned()));
        assert_eq!(scene.server.count("fieldSelector"), 0);
    });
}

fn service(address: &str) -> Value {
    json!({"spec": {"clusterIP": address, "ports": [{"port": 80}]}})
}

async fn addresses(scene: &Scene, pod: &(PodUid, Pod)) -> Vec<String> {
    let found = scene.objects.environment(&pod.0, &pod.1, &Container::default()).await;
    let services = found.services().expect("known");
    services.iter().filter_map(|s| s.spec.as_ref()?.cluster_ip.clone()).collect()
}

#[test]
fn services_are_known_before_a_container_starts_and_kept_up_to_date() {
    watched(async |scene| {
        scene.put("services", "web", service("10.0.0.1"));
        let pod = reads("p", "none");
        scene.register(&pod);
        assert_eq!(addresses(&scene, &pod).await, ["10.0.0.1"]);
        scene.put("services", "db", service("10.0.0.2"));
        scene.delete("services", "web");
        while addresses(&scene, &pod).await != ["10.0.0.2"] {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // A gap in which the watch loses its version and a service is deleted.
        scene.end_watches().await;
        scene.delete("services", "db");
        scene.server.compact();
        scene.server.refuse_nothing();
        while !addresses(&scene, &pod).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
}

#[test]
fn services_are_listed_in_a_single_response_with_a_most_recent_read() {
    watched(async |scene| {
        for n in 0..1_201 {
            scene.put("services", &format!("s{n}"), service("10.0.0.1"));
        }
        let pod = reads("p", "a");
        scene.register(&pod);
        assert_eq!(addresses(&scene, &pod).await.len(), 1_201);
        let asked = scene.server.requests();
        let of_services = asked.iter().filter(|one| one.contains("/services?")).collect::<Vec<_>>();
        assert_eq!(of_services[0], "GET /api/v1/services?");
        assert!(of_services[1..].iter().all(|one| one.contains("watch=true")), "{asked:?}");
    });
}

#[test]
fn a_static_pod_does_not_wait_for_services() {
    watched(async |scene| {
        scene.refuse("/services", 500);
        let mut pod = reads("p", "none");
        let annotations = pod.1.metadata.annotations.as_mut().expect("some");
        annotations.insert("kubernetes.io/config.source".to_owned(), "file".to_owned());
        scene.register(&pod);
        let found = scene.objects.environment(&pod.0, &pod.1, &Container::default()).await;
        assert_eq!(found.services(), None);
    });
}

fn account(uid: &str) -> (PodUid, Pod) {
    pod(uid, json!({"containers": [], "serviceAccountName": "sa"}))
}

fn request() -> TokenRequest {
    let audience = "vault".to_owned();
    TokenRequest { path: "token".to_owned(), audience, expiration_seconds: 3600 }
}

/// The number of a token, and the pod that it is bound to.
fn claims(token: String) -> String {
    let (number, rest) = token.split_once("-of-").expect("a number");
    let (_, pod) = rest.split_once("-bound-to-").expect("a pod");
    let (pod, _) = pod.split_once("-until-").expect("an end");
    format!("{} of {pod}", number.replace('-', " "))
}

#[test]
fn token_is_bound_to_its_pod_and_cached_while_it_is_fresh() {
    watched(async |scene| {
        let (p, q) = (account("p"), account("q"));
        assert_eq!(scene.token(&p.0, &p.1).await, Ok("token 1 of p".to_owned()));
        assert_eq!(scene.token(&p.0, &p.1).await, Ok("token 1 of p".to_owned()));
        assert_eq!(scene.token(&q.0, &q.1).await, Ok("token 2 of q".to_owned()));
        assert_eq!(scene.server.count("POST /api/v1/namespaces/ns/serviceaccounts/sa/token"), 2);
        scene.objects.forget(&p.0);
        assert_eq!(scene.token(&p.0, &p.1).await, Ok("token 3 of p".to_owned()));
    });
}

#[test]
fn token_due_for_renewal_is_renewed_and_its_pod_notified() {
    watched(async |mut scene| {
        // Older than four fifths of its life as soon as it is there.
        scene.server.put_clock_behind(SignedDuration::from_secs(3_000));
        let p = account("p");
        let first = scene.token(&p.0, &p.1).await;
        assert_eq!(first, Ok("token 1 of p".to_owned()));
        assert_eq!(scene.told().await, ("p".to_owned(), true));
        let second = scene.token(&p.0, &p.1).await;
        assert_eq!(second, Ok("token 2 of p".to_owned()));
        // While the API server does not answer the old one serves.
        scene.refuse("/token", 500);
        let third = scene.token(&p.0, &p.1).await;
        assert_eq!(third, Ok("token 2 of p".to_owned()));
    });
}

#[test]
fn token_error_names_its_reason_and_a_forbidden_token_request_is_retried() {
    watched(async |scene| {
        scene.refuse("/token", 404);
        let p = account("p");
        let failed = scene.objects.content(&p.0, &p.1).token(&request()).await;
        let text = failed.expect_err("no account").to_string();
        assert_eq!(text, "failed to fetch token: told to fail");
        // Forbidden for a moment: the authorizer has yet to see the pod.
        scene.server.refuse_nothing();
        scene.refuse("/token", 403);
        let content = scene.objects.content(&p.0, &p.1);
        let request = request();
        let (token, _) = tokio::join!(content.token(&request), async {
            scene.until("two attempts", |server| server.count("/token") > 2).await;
            scene.server.refuse_nothing();
        });
        assert_eq!(token.map(claims), Ok("token 1 of p".to_owned()));
    });
}

#[test]
fn pull_secrets_are_read_and_the_missing_named() {
    watched(async |scene| {
        // {"auths":{"reg.example":{"auth":"dTpw"}}}
        let config = "eyJhdXRocyI6eyJyZWcuZXhhbXBsZSI6eyJhdXRoIjoiZFRwdyJ9fX0=";
        let rest = json!({"type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": config}});
        scene.put("secrets", "good", rest);
        // A name may stand there more than once.
        let names = ["good", "nope", "", "good", "nope"].map(|name| json!({"name": name}));
        let p = pod("p", json!({"containers": [], "imagePullSecrets": names}));
        scene.register(&p);
        let found = scene.objects.pull_secrets(&p.0, &p.1).await;
        let warning = "Unable to retrieve some image pull secrets (nope); attempting to pull the \
                       image may not succeed.";
        assert_eq!(found.warning().as_deref(), Some(warning));
        let auths = found.keyring.expect("read").of("reg.example/a:1");
        assert_eq!((&*auths[0].auth.username, &*auths[0].auth.password), ("u", "p"));
        assert_eq!(auths.len(), 1, "read once");
    });
}

#[test]
fn runtime_class_resolves_to_its_handler_and_the_last_answer_serves_in_an_outage() {
    watched(async |scene| {
        let with = |class: &str| pod("p", json!({"containers": [], "runtimeClassName": class}));
        let ask = async |class: &str| scene.objects.runtime_handler(&with(class).1).await;
        assert_eq!(ask("").await, Ok(String::new()));
        let unknown = ask("kata").await.expect_err("no class").to_string();
        assert_eq!(unknown, "runtimeclass.node.k8s.io \"kata\" not found");
        let class = json!({"handler": "kata-qemu"});
        scene.server.put("/apis/node.k8s.io/v1/runtimeclasses/kata", class);
        assert_eq!(ask("kata").await, Ok("kata-qemu".to_owned()));
        assert_eq!(scene.objects.known_handler(&with("kata").1).await, "kata-qemu");
        // The last answer stands in.
        scene.refuse("/runtimeclasses", 500);
        assert_eq!(ask("kata").await, Ok("kata-qemu".to_owned()));
        let text = ask("other").await.expect_err("never known").to_string();
        assert_eq!(text, "failed to lookup RuntimeClass other: told to fail");
    });
}

#[test]
fn objects_without_an_api_server_are_empty_or_a_no_api_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let objects = Objects::none();
        let pod = reads("p", "s");
        objects.register(&pod.0, &pod.1);
        let found = objects.environment(&pod.0, &pod.1, &Container::default()).await;
        assert_eq!(found.secret("ns", "s"), Err(LookupError::NoApi));
        assert_eq!(found.services().map(<[_]>::len), Some(0));
        let key = ObjectName::new(ReferenceKind::Secret, "ns", "s");
        assert_eq!(objects.object(&pod.0, &key).await.err(), Some(LookupError::NoApi));
        assert_eq!(objects.runtime_handler(&pod.1).await, Ok(String::new()));
    });
}
