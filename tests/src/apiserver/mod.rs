//! An API server in memory, on the loopback: objects with versions, lists, watches, patches,
//! tokens, faults.
//!
//! Input: objects of the test, requests of the agent over plain HTTP. Output: the real server's
//! answers, as far as a node agent reads them, and the recorded writes. A deleted pod stays until
//! the agent reports its end. Nothing is validated or defaulted. `serve` is its HTTP side.

mod serve;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use pintle_api_types::strategic;

/// Key of an object: path of its group, namespace, plural, name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    group: String,
    plural: String,
    namespace: String,
    name: String,
}

/// One change, for watches.
#[derive(Clone, Debug)]
struct Change {
    version: u64,
    kind: &'static str,
    key: Key,
    object: Value,
}

/// How requests are answered that would have been served otherwise.
#[derive(Clone, Debug)]
struct Fault {
    method: String,
    path: String,
    code: u16,
    message: String,
}

#[derive(Debug, Default)]
struct World {
    version: u64,
    objects: BTreeMap<Key, Value>,
    changes: Vec<Change>,
    faults: Vec<Fault>,
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct ApiServer {
    shared: Shared,
    port: u16,
    thread: Option<(oneshot::Sender<()>, thread::JoinHandle<()>)>,
}

/// State that the server's thread shares with the test.
#[derive(Clone, Debug)]
struct Shared {
    world: Arc<Mutex<World>>,
    /// Counts changes.
    changed: watch::Sender<u64>,
}

/// A refusal: code, reason, sentence.
type Refusal = (u16, &'static str, String);

impl ApiServer {
    /// Serves on a free port of the loopback.
    pub fn start() -> std::io::Result<Self> {
        Self::on(std::net::TcpListener::bind("127.0.0.1:0")?)
    }

    /// Serves on this port of a loopback, such as that of a node's network.
    pub fn on(listener: std::net::TcpListener) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let shared = Shared { world: Arc::default(), changed: watch::channel(0).0 };
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = shared.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("fake-api".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {} // sent or dropped: both mean stop
                    served = serve::run(serving, listener) => served.expect("the fake serves"),
                }
            });
        })?;
        Ok(Self { shared, port, thread: Some((stop, thread)) })
    }

    /// The file by which an agent finds it.
    pub fn kubeconfig(&self) -> Value {
        json!({
            "kind": "Config", "apiVersion": "v1", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url()}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}], "users": [],
        })
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Creates or replaces an object at a path such as `/api/v1/namespaces/ns/secrets/s`. Its name,
    /// namespace and version are set.
    pub fn put(&self, path: &str, object: Value) {
        let (key, _) = Key::parse(path).expect("the path of an object");
        self.shared.change(|world| world.store(key, object));
    }

    /// The object at a path.
    pub fn get(&self, path: &str) -> Option<Value> {
        let (key, _) = Key::parse(path)?;
        self.shared.world().objects.get(&key).cloned()
    }

    /// Deletes an object at once.
    pub fn remove(&self, path: &str) {
        let (key, _) = Key::parse(path).expect("the path of an object");
        self.shared.change(|world| world.remove(&key));
    }

    /// Deletes a pod with its own grace period: its containers are to be stopped first.
    pub fn delete_pod(&self, namespace: &str, name: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let (key, _) = Key::parse(&path).expect("the path of a pod");
        self.shared.change(|world| world.begin_deletion(key));
    }

    /// The events about an object, in the order in which they were first emitted.
    pub fn events(&self, namespace: &str, name: &str) -> Vec<Value> {
        let world = self.shared.world();
        let about = |event: &&Value| event["involvedObject"]["name"] == name;
        let of = world.objects.iter();
        let of = of.filter(|(key, _)| key.plural == "events" && key.namespace == namespace);
        let mut events: Vec<Value> = of.map(|(_, event)| event).filter(about).cloned().collect();
        // Names end with the time of the first emission.
        events.sort_by_key(|event| {
            let name = event["metadata"]["name"].as_str().unwrap_or_default();
            let stamp = name.rsplit('.').next().unwrap_or_default();
            i64::from_str_radix(stamp, 16).unwrap_or_default()
        });
        events
    }

    /// From now on such requests are refused; `path` is a part of it.
    pub fn refuse(&self, method: &str, path: &str, code: u16, message: &str) {
        let (method, path, message) = (method.to_owned(), path.to_owned(), message.to_owned());
        self.shared.world().faults.push(Fault { method, path, code, message });
    }

    /// Nothing is refused any more.
    pub fn refuse_nothing(&self) {
        self.shared.world().faults.clear();
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let Some((stop, thread)) = self.thread.take() else { return };
        drop(stop);
        let _ = thread.join();
    }
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        // A test that panicked elsewhere should still be able to look.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let result = change(&mut self.world());
        self.changed.send_modify(|count| *count += 1);
        result
    }
}

impl Key {
    /// The key of a path, and the subresource. The name is empty for a collection.
    fn parse(path: &str) -> Option<(Self, String)> {
        let mut parts = path.trim_matches('/').split('/');
        let group = match parts.next()? {
            "api" => format!("/api/{}", parts.next()?),
            "apis" => format!("/apis/{}/{}", parts.next()?, parts.next()?),
            _ => return None,
        };
        let rest: Vec<&str> = parts.collect();
        let (namespace, rest) = match rest.split_first() {
            Some((&"namespaces", [namespace, rest @ ..])) if !rest.is_empty() => (*namespace, rest),
            _ => ("", &rest[..]),
        };
        let mut rest = rest.iter().map(|part| (*part).to_owned());
        let (plural, name) = (rest.next()?, rest.next().unwrap_or_default());
        let subresource = rest.next().unwrap_or_default();
        Some((Self { group, plural, namespace: namespace.to_owned(), name }, subresource))
    }

    /// True for a member of this collection, which is one of a namespace or of all.
    fn has(&self, key: &Self) -> bool {
        let inside = self.namespace.is_empty() || self.namespace == key.namespace;
        inside && self.group == key.group && self.plural == key.plural
    }
}

/// `metadata.name=a,spec.nodeName=b`.
fn selected(selector: &str, object: &Value) -> bool {
    selector.split(',').filter_map(|term| term.split_once('=')).all(|(path, wanted)| {
        let found = path.split('.').fold(object, |value, field| &value[field]);
        found.as_str().unwrap_or_default() == wanted
    })
}

impl World {
    fn store(&mut self, key: Key, mut object: Value) -> Value {
        self.version += 1;
        let meta = &mut object["metadata"];
        meta["name"] = json!(key.name);
        if !key.namespace.is_empty() {
            meta["namespace"] = json!(key.namespace);
        }
        meta["resourceVersion"] = json!(self.version.to_string());
        if meta["uid"].is_null() {
            meta["uid"] = json!(format!("00000000-0000-4000-8000-{:012}", self.version));
        }
        if meta["creationTimestamp"].is_null() {
            meta["creationTimestamp"] = json!(now());
        }
        let is_known = self.objects.contains_key(&key);
        let kind = if is_known { "MODIFIED" } else { "ADDED" };
        self.objects.insert(key.clone(), object.clone());
        let version = self.version;
        self.changes.push(Change { version, kind, key, object: object.clone() });
        object
    }

    fn remove(&mut self, key: &Key) -> Option<Value> {
        let mut object = self.objects.remove(key)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let (version, kind) = (self.version, "DELETED");
        self.changes.push(Change { version, kind, key: key.clone(), object: object.clone() });
        Some(object)
    }

    /// A pod that has ended is removed at once, another one when the agent deletes it.
    fn begin_deletion(&mut self, key: Key) {
        let Some(mut pod) = self.objects.get(&key).cloned() else { return };
        let over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let grace = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
        let grace = if over { 0 } else { grace };
        pod["metadata"]["deletionTimestamp"] = json!(now());
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        let generation = pod["metadata"]["generation"].as_i64().unwrap_or(1);
        pod["metadata"]["generation"] = json!(generation + 1);
        self.store(key.clone(), pod);
        if grace == 0 {
            self.remove(&key);
        }
    }

    fn create(&mut self, mut key: Key, object: Value) -> Result<Value, Refusal> {
        key.name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if self.objects.contains_key(&key) {
            let text = format!("{} {:?} already exists", key.plural, key.name);
            return Err((409, "AlreadyExists", text));
        }
        Ok(self.store(key, object))
    }

    fn patch(&mut self, key: Key, patch: &Value) -> Result<Value, Refusal> {
        let mut object = self.find(&key)?.clone();
        let uid = &patch["metadata"]["uid"];
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            let text = "the UID in the precondition is not that of the record".to_owned();
            return Err((409, "Conflict", text));
        }
        strategic::merge(&mut object, patch);
        Ok(self.store(key, object))
    }

    fn replace(&mut self, key: Key, object: Value) -> Result<Value, Refusal> {
        self.find(&key)?;
        Ok(self.store(key, object))
    }

    fn delete(&mut self, key: &Key, options: &Value) -> Result<Value, Refusal> {
        let found = self.find(key)?;
        let uid = &options["preconditions"]["uid"];
        if !uid.is_null() && *uid != found["metadata"]["uid"] {
            return Err((409, "Conflict", "it is another object of this name".to_owned()));
        }
        Ok(self.remove(key).unwrap_or_default())
    }

    fn find(&self, key: &Key) -> Result<&Value, Refusal> {
        let singular = key.plural.trim_end_matches('s');
        let missing = || (404, "NotFound", format!("{singular} {:?} not found", key.name));
        self.objects.get(key).ok_or_else(missing)
    }
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_collections_objects_and_subresources() {
        let parsed = |path: &str| {
            let (key, sub) = Key::parse(path).expect("a path");
            format!("{} {} {} {} {sub}", key.group, key.plural, key.namespace, key.name)
        };
        assert_eq!(parsed("/api/v1/pods"), "/api/v1 pods   ");
        assert_eq!(parsed("/api/v1/namespaces/ns/pods/p/status"), "/api/v1 pods ns p status");
        assert_eq!(parsed("/api/v1/nodes/n"), "/api/v1 nodes  n ");
        assert_eq!(
            parsed("/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"),
            "/apis/coordination.k8s.io/v1 leases ns l "
        );
        assert_eq!(Key::parse("/healthz"), None);
    }

    #[test]
    fn a_pod_stays_until_its_deletion_is_completed_unless_it_is_over() {
        let mut world = World::default();
        for (name, phase, stays) in [("a", "Running", true), ("b", "Failed", false)] {
            let (key, _) =
                Key::parse(&format!("/api/v1/namespaces/ns/pods/{name}")).expect("a key");
            world.store(key.clone(), json!({"status": {"phase": phase}}));
            world.begin_deletion(key.clone());
            assert_eq!(world.objects.contains_key(&key), stays, "{name}");
        }
    }

    #[test]
    fn fields_select() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n"}});
        assert!(selected("", &object));
        assert!(selected("metadata.name=a,spec.nodeName=n", &object));
        assert!(!selected("spec.nodeName=m", &object));
    }
}
