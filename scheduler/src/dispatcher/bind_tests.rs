//! Order of the writes of a pod until it is bound.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use http_body_util::BodyExt as _;
use kube::client::Body;
use pintle_scheduler_core::config;
use pintle_scheduler_core::cycle::Scheduler;
use pintle_scheduler_core::framework::{
    CycleState, Handle, PluginError, Points, PreBind, Registry,
};
use pintle_scheduler_core::testing::{decide, deliver_lists, node, pod, without_second_look};
use tokio::sync::mpsc;

use super::*;

const FILE: &str = "apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {preBind: {enabled: [{name: Slow}]}}
";
/// Turns that other tasks get while the plugin prepares.
const TURNS: usize = 1000;

/// Calls in the order in which they happened.
type Seen = Arc<Mutex<Vec<String>>>;

/// A plugin with a slow PreBind, and its result.
struct Slow(Seen, Result<(), PluginError>);

impl PreBind for Slow {
    fn pre_bind<'a>(
        &'a self,
        _: &'a CycleState,
        _: &'a Pod,
        _: &'a str,
    ) -> LocalBoxFuture<'a, Result<(), PluginError>> {
        async {
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            self.0.lock().expect("no panic").push("prepared".to_owned());
            self.1.clone()
        }
        .boxed_local()
    }
}

/// An API server that accepts every request.
fn takes_all(seen: &Seen) -> kube::Client {
    let seen = Arc::clone(seen);
    let answer = move |request: hyper::Request<Body>| {
        let seen = Arc::clone(&seen);
        async move {
            let what = format!("{} {}", request.method(), request.uri().path());
            let body = request.into_body().collect().await?.to_bytes();
            let body: serde_json::Value = serde_json::from_slice(&body)?;
            let kept = body.pointer("/status/nominatedNodeName").map(|node| format!(" {node}"));
            seen.lock().expect("no panic").push(what + &kept.unwrap_or_default());
            let body = Body::from(b"{}".to_vec());
            Ok::<_, tower::BoxError>(hyper::Response::new(body))
        }
    };
    kube::Client::new(tower::service_fn(answer), "default")
}

/// Returns the result of a binding whose PreBind has this result, and the calls until then.
async fn binding(prepared: Result<(), PluginError>) -> (BindEnd, Vec<String>) {
    let seen = Seen::default();
    let of_plugin = Arc::clone(&seen);
    let slow = move |_: &serde_json::Value, _: &Handle| {
        let slow = Slow(Arc::clone(&of_plugin), prepared.clone());
        Ok(Points::default().pre_bind(Rc::new(slow)))
    };
    let registry = Registry::default().with("Slow", slow);
    let (profiles, chosen) = config::profiles_with(FILE, &registry).expect("a good file");
    let handle = Handle::default();
    let plugins = registry.plugins(&chosen[0], &handle).expect("good plugins");
    let scheduler = Scheduler::new(profiles, without_second_look(), 1);
    let mut scheduler = scheduler.with_plugins(vec![Some(Rc::new(plugins))], handle);
    deliver_lists(&mut scheduler, &[node("n", "1"), pod("p", "1")]);
    let commands = decide(&mut scheduler, 0);
    let client = takes_all(&seen);
    let carried_out = async {
        let status = Rc::new(StatusLane::new(client.clone()));
        let writes = Rc::clone(&status);
        tokio::task::spawn_local(async move { writes.run().await });
        let binds = Rc::new(BindLane::new(client, 1, Rc::clone(&status)));
        let (ends, mut ended) = mpsc::unbounded_channel();
        for command in commands {
            match command {
                Command::Status { pod, condition, nominated } => {
                    status.put(pod, condition, nominated);
                }
                Command::Bind { pod, node, attempt, .. } => {
                    let owed = Owed { ends: ends.clone(), end: None, under_way: None };
                    BindLane::put(&binds, BindJob { pod, node, binder: None, attempt, owed });
                }
                other => panic!("unexpected command {other:?}"),
            }
        }
        match ended.recv().await {
            Some(EndedWork::Bind(end)) => end,
            other => panic!("{other:?}"),
        }
    };
    let end = tokio::task::LocalSet::new().run_until(carried_out).await;
    let seen = seen.lock().expect("no panic").clone();
    (end, seen)
}

#[tokio::test]
async fn nominated_node_is_written_while_pre_bind_plugins_run() {
    let (end, seen) = binding(Ok(())).await;
    assert_eq!((end.ended, end.by), (BindingResult::Bound, BoundBy::Default));
    let of_pod = "/api/v1/namespaces/default/pods/p";
    let told = format!("PATCH {of_pod}/status \"n\"");
    assert_eq!(seen, [told, "prepared".to_owned(), format!("POST {of_pod}/binding")]);
}

#[tokio::test]
async fn pod_is_not_bound_after_a_failed_pre_bind() {
    let (end, seen) = binding(Err(PluginError::new("no licence"))).await;
    let why = "running PreBind plugin \"Slow\": no licence".to_owned();
    assert_eq!((end.ended, end.by), (BindingResult::Failed(why), BoundBy::Nobody));
    assert_eq!(seen.last().map(String::as_str), Some("prepared"));
}
