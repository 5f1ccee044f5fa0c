//! The process against a fake API server.

use std::cell::{Cell, RefCell};

use pintle_scheduler_core::config::Process;
use pintle_scheduler_core::watch_event::KINDS;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::daemon::{Command, parse};

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// An API server without objects, and the requests it got.
#[derive(Default)]
struct Server {
    asked: RefCell<Vec<String>>,
    /// Slices may be listed.
    is_allowed: Cell<bool>,
    /// Existing nodes and pods.
    nodes: RefCell<Vec<serde_json::Value>>,
    pods: RefCell<Vec<serde_json::Value>>,
}

impl Server {
    /// Starts to serve; returns the address.
    async fn serve(self: Rc<Self>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::task::spawn_local(async move {
            while let Ok((peer, _)) = listener.accept().await {
                tokio::task::spawn_local(Rc::clone(&self).talk(peer));
            }
        });
        url
    }

    /// Answers one request after the other; a watch gets no answer.
    async fn talk(self: Rc<Self>, mut peer: TcpStream) {
        while let Some(line) = request(&mut peer).await {
            self.asked.borrow_mut().push(line.clone());
            let (code, answer) = match line.as_str() {
                _ if line.contains("watch=true") => std::future::pending().await,
                _ if line.contains(SLICES) && !self.is_allowed.get() => {
                    (403, failure(403, "Forbidden"))
                }
                _ if line.starts_with(&format!("GET {LEASES}")) => (404, failure(404, "NotFound")),
                _ if line.starts_with("GET") => (
                    200,
                    json!({"kind": "List", "apiVersion": "v1",
                        "metadata": {"resourceVersion": "1"}, "items": self.items(&line)}),
                ),
                _ => (201, json!({"metadata": {"name": "made", "resourceVersion": "2"}})),
            };
            let text = answer.to_string();
            let head = format!(
                "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                text.len()
            );
            peer.write_all((head + &text).as_bytes()).await.expect("the peer listens");
        }
    }

    fn items(&self, line: &str) -> Vec<serde_json::Value> {
        match line {
            _ if line.starts_with("GET /api/v1/nodes?") => self.nodes.borrow().clone(),
            _ if line.starts_with("GET /api/v1/pods?") => self.pods.borrow().clone(),
            _ => Vec::new(),
        }
    }

    fn count(&self, what: &str) -> usize {
        self.asked.borrow().iter().filter(|line| line.contains(what)).count()
    }

    async fn until(&self, what: &str, times: usize) {
        let began = Instant::now();
        while self.count(what) < times {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}: {:?}", self.asked);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn failure(code: u16, reason: &str) -> serde_json::Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no",
        "reason": reason, "code": code})
}

/// Returns method, path and query, after reading the body; `None` at the end of the connection.
async fn request(peer: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok())?
            });
            if bytes.len() >= end + 4 + length.unwrap_or(0) {
                return Some(head.lines().next()?.to_owned());
            }
        }
        if peer.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// Settings of a scheduler without a port.
fn settings(args: &[&str]) -> Settings {
    let args: Vec<String> =
        ["--secure-port=0"].iter().chain(args).map(ToString::to_string).collect();
    match parse(&args, &Registry::default()).expect("good arguments") {
        Command::Run(settings) => *settings,
        Command::Print(text) => panic!("{text}"),
    }
}

/// Starts a scheduler of this server; returns it with its state.
async fn begin(
    server: &Rc<Server>,
    args: &[&str],
) -> (impl Future<Output = Result<()>> + use<>, Arc<State>) {
    let address = Rc::clone(server).serve().await;
    let access = Access::anonymous("test".as_ref(), &address).expect("an address");
    let settings = settings(args);
    let (state, questions) = State::new(&settings);
    let state = Arc::new(state);
    let plugins = (vec![None], Handle::default());
    let running = Running::new(&access, &settings, &state, questions, plugins);
    let lead = lead(&access, &settings, &state).expect("good timings");
    (work(running.expect("good settings"), lead, Ending::never()), state)
}

#[test]
fn a_server_that_is_named_alone_is_asked_by_nobody_in_particular() {
    let process = Process { kubeconfig: None, ..Process::default() };
    let access = access(&process, Some("127.0.0.1:8080")).expect("no credentials are needed");
    assert_eq!(access.server.to_string(), "http://127.0.0.1:8080/");
    assert!(!access.has_identity());
}

#[tokio::test]
async fn who_may_not_list_all_of_the_cluster_leaves_the_lease_to_others() {
    let server = Rc::new(Server::default());
    let tasks = tokio::task::LocalSet::new();
    let shared = Rc::clone(&server);
    let test = tasks.run_until(async move {
        let (work, _) = begin(&shared, &[]).await;
        let looks = async {
            // Everything is synced except the slices, whose list was rejected again.
            shared.until("watch=true", KINDS.len() - 1).await;
            shared.until(SLICES, 2).await;
            assert_eq!(shared.count(LEASES), 0, "{:?}", shared.asked);
            shared.is_allowed.set(true);
            shared.until(&format!("POST {LEASES}"), 1).await;
        };
        tokio::select! {
            ended = work => panic!("it ended: {ended:?}"),
            () = looks => {}
        }
    });
    test.await;
}

#[tokio::test]
async fn cluster_is_read_again_after_a_panic_that_tore_the_cache_and_good_pods_are_bound() {
    let server = Rc::new(Server::default());
    server.is_allowed.set(true);
    server.nodes.borrow_mut().push(json!({"metadata": {"name": "n", "resourceVersion": "1"},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}}));
    for name in ["bad", "good"] {
        let priority = i32::from(name == "bad");
        server.pods.borrow_mut().push(json!({
            "metadata": {"name": name, "namespace": "d", "uid": name, "resourceVersion": "1"},
            "spec": {"schedulerName": "default-scheduler", "priority": priority,
                "containers": [{"name": "c", "image": "i"}]}}));
    }
    let tasks = tokio::task::LocalSet::new();
    let shared = Rc::clone(&server);
    let test = tasks.run_until(async move {
        let (work, state) = begin(&shared, &["--leader-elect=false"]).await;
        pintle_scheduler_core::fault::arm("permit", 0);
        let looks = async {
            shared.until("POST /api/v1/namespaces/d/pods/good/binding", 1).await;
            assert!(!pintle_scheduler_core::fault::disarm(), "it panicked");
            assert_eq!(shared.count("POST /api/v1/namespaces/d/pods/bad/binding"), 0);
            assert_eq!(shared.count("GET /api/v1/nodes? "), 2, "{:?}", shared.asked);
            assert!(state.metrics.text().contains("pintle_scheduler_cache_rebuilds_total 1"));
            // The pod that panicked stays pending, and is bound as well.
            shared.until("POST /api/v1/namespaces/d/pods/bad/binding", 1).await;
        };
        tokio::select! {
            ended = work => panic!("it ended: {ended:?}"),
            () = looks => {}
        }
    });
    test.await;
}
