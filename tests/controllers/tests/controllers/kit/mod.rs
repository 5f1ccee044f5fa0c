//! Kit of a case: requests in a namespace of its own, checks that wait, and a kubelet and a
//! scheduler that are simulated through the API.
//!
//! A case is an async function of one [`CaseNamespace`]; cases run side by side on one thread. A
//! check polls until it holds and fails at its limit with the last state; [`CaseNamespace::stays`]
//! and [`CaseNamespace::settles`] fail on later changes. Nodes and background tasks end with the
//! case, its namespace is deleted, and the next run begins on a new server.
//!
//! - `requests`: objects in and out. `read`: fields of objects
//! - `checks`: waiting. `node`: kubelet and scheduler. `workloads`, `custom`: objects and
//!   kinds that cases create

mod checks;
mod custom;
mod node;
mod read;
mod requests;
mod workloads;

use std::cell::RefCell;
use std::ops::Deref;
use std::pin::Pin;
use std::time::Instant;

use anyhow::Result;
use futures_util::future::join_all;
use serde_json::json;
use tokio::task::JoinHandle;

pub use self::custom::Custom;
pub use self::node::{PodRun, before_now};
pub use self::read::{
    annotation, condition, controller, count, image, is_terminating, label, name, owner_reference,
    uid,
};
pub use self::requests::{DeleteHow, NamespaceClient};
pub use self::workloads::template;
use crate::server::ControlPlane;

/// Characters of a case's name that its namespace has.
const NAMESPACE_CHARS: usize = 40;

/// A case under way.
pub type CaseRun<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// A case under its name.
pub struct Named {
    /// The function's name.
    pub name: &'static str,
    /// The function.
    pub run: fn(&CaseNamespace) -> CaseRun<'_>,
}

/// The named functions as cases.
#[macro_export]
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        &[$($crate::kit::Named { name: stringify!($case), run: |case| Box::pin($case(case)) }),*]
    };
}

/// A namespace for one case, and everything that ends with it.
pub struct CaseNamespace {
    requests: NamespaceClient,
    nodes: RefCell<Vec<String>>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

impl Deref for CaseNamespace {
    type Target = NamespaceClient;

    fn deref(&self) -> &NamespaceClient {
        &self.requests
    }
}

impl CaseNamespace {
    /// Creates the namespace with its default account, which pods need.
    pub async fn begin(client: kube::Client, namespace: String) -> Result<Self> {
        let requests = NamespaceClient::new(client, namespace);
        let account = json!({});
        requests.create("Namespace", &requests.namespace, json!({})).await?;
        // The manager may have been quicker.
        let _ = requests.create("ServiceAccount", "default", account).await;
        Ok(Self { requests, nodes: RefCell::default(), tasks: RefCell::default() })
    }

    /// Ends its tasks, and deletes its nodes and its namespace.
    pub async fn end(self) -> Result<()> {
        self.tasks.take().iter().for_each(JoinHandle::abort);
        for node in self.nodes.take() {
            self.delete("Node", &node, DeleteHow::default()).await?;
        }
        self.delete("Namespace", &self.namespace.clone(), DeleteHow::default()).await
    }
}

impl Drop for CaseNamespace {
    fn drop(&mut self) {
        self.tasks.take().iter().for_each(JoinHandle::abort);
    }
}

/// Runs the cases side by side on the shared server; panics with the result of each that failed.
/// `PINTLE_CASE` chooses by a part of the name.
pub fn run(cases: &[Named]) {
    let part = std::env::var("PINTLE_CASE").unwrap_or_default();
    let chosen: Vec<&Named> = cases.iter().filter(|case| case.name.contains(&part)).collect();
    if chosen.is_empty() {
        return println!("no case of this group is named {part}");
    }
    let server = ControlPlane::shared();
    let failed = server.with_client(async |client| {
        let all = chosen.iter().map(|case| run_one(client.clone(), case));
        Ok(join_all(all).await.into_iter().flatten().collect::<Vec<String>>())
    });
    assert!(failed.is_empty(), "{}\n{}", failed.join("\n"), server.manager_log_end());
}

/// The failure of a case, if it failed.
async fn run_one(client: kube::Client, case: &Named) -> Option<String> {
    let began = Instant::now();
    // Nodes and their labels are named after it, which have 63 characters.
    let short: String = case.name.chars().take(NAMESPACE_CHARS).collect();
    let namespace = short.replace('_', "-").trim_end_matches('-').to_owned();
    let result = async {
        let context = CaseNamespace::begin(client, namespace).await?;
        let result = (case.run)(&context).await;
        let ended = context.end().await;
        result.and(ended)
    };
    match result.await {
        Ok(()) => {
            println!("ok {} ({:.0?})", case.name, began.elapsed());
            None
        }
        Err(error) => Some(format!("FAIL {}: {error:#}", case.name)),
    }
}
