//! `explain` on the command line: asks a manager, or reads the cluster and decides by itself.
//!
//! Input: arguments, a kubeconfig. Output: standard output, or one sentence and a failure. Effects:
//! reads of the API server or of the manager's port.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use pintle_api::{Access, AnswerWithin, ClientOptions};
use pintle_api_types::kind::LEASES;
use pintle_api_types::request::{Request, Target};
use pintle_controllers_loops::explain::{LeaseState, ObjectExplanation, related};
use serde_json::Value;

use super::arguments::{self, ExplainOptions, HELP};
use super::{Investigation, investigate, lists};
use crate::discovery::Discoverer;
use crate::options::{self, COMPONENT, ManagerAction};

/// The longest wait for the manager's answer.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// The namespace of the managers' lease.
const LEASE_NAMESPACE: &str = "kube-system";

/// Runs `explain` with the arguments after this word.
///
/// # Errors
/// When the object cannot be explained, in one sentence.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let text = match arguments::parse(args)? {
        None => HELP.to_owned(),
        Some(options) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            tokio::task::LocalSet::new().block_on(&runtime, explained(&options))?
        }
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

async fn explained(options: &ExplainOptions) -> Result<String> {
    let path = match &options.kubeconfig {
        Some(path) => path.clone(),
        None => usual_kubeconfig().context("which cluster? give --kubeconfig FILE")?,
    };
    let access = Access::read(&path)?;
    let namespace = options.namespace.clone().unwrap_or_else(|| access.namespace().to_owned());
    if let Some(server) = &options.server {
        return ask_manager(options, &path, server, &namespace).await;
    }
    let client = client(&access);
    let explanation = decide(options, &client, &namespace).await?;
    shown(&explanation, options.is_json)
}

fn client(access: &Access) -> kube::Client {
    let user_agent = pintle_config::help::user_agent("pintle-controllers");
    access.client(ClientOptions { user_agent, ..ClientOptions::default() })
}

fn shown(explanation: &ObjectExplanation, is_json: bool) -> Result<String> {
    Ok(match is_json {
        true => serde_json::to_string_pretty(explanation)? + "\n",
        false => explanation.to_string(),
    })
}

/// Where kubectl looks first.
fn usual_kubeconfig() -> Option<PathBuf> {
    let named = std::env::var_os("KUBECONFIG").filter(|text| !text.is_empty());
    let first = named.and_then(|all| std::env::split_paths(&all).next());
    first.or_else(|| std::env::home_dir().map(|home| home.join(".kube/config")))
}

/// Asks a running manager.
async fn ask_manager(
    options: &ExplainOptions,
    kubeconfig: &std::path::Path,
    server: &str,
    namespace: &str,
) -> Result<String> {
    let mut access = Access::read_for(kubeconfig, Some(server))?;
    if options.accepts_any_server {
        access.trust_any_server();
    }
    let escaped = |text: &str| pintle_api_types::url::escaped(text);
    let path = format!(
        "/pintle/explain?kind={}&name={}&namespace={}",
        options.subject.kind.plural,
        escaped(&options.name),
        escaped(namespace)
    );
    let accept = if options.is_json { "application/json" } else { "text/plain" };
    let request = http::Request::get(path)
        .header(http::header::ACCEPT, accept)
        .extension(AnswerWithin(ANSWER_MAX))
        .body(Body::empty())?;
    let answer = client(&access).send(request).await;
    let answer = answer.with_context(|| format!("cannot ask the manager at {server}"))?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    if status.is_success() {
        return Ok(text);
    }
    let problem = serde_json::from_str::<Value>(&text).ok();
    let problem = problem.as_ref().and_then(|status| status["message"].as_str());
    bail!("the manager at {server} answers {status}: {}", problem.unwrap_or(text.trim()))
}

/// Reads the cluster and decides as the controllers would.
async fn decide(
    options: &ExplainOptions,
    client: &kube::Client,
    namespace: &str,
) -> Result<ObjectExplanation> {
    let (subject, key) = (options.subject, options.subject.key(namespace, &options.name));
    let discovery = Discoverer::new(client.clone()).start().await.current();
    let defaults = match options::parse(&[]) {
        Ok(ManagerAction::Run(options)) => options,
        Ok(ManagerAction::Print(_)) | Err(_) => bail!("the defaults cannot be read"),
    };
    let names = [subject.controller, "replicaset-controller"];
    let mut frame = crate::registry::only(&names, &defaults)?;
    let tables = crate::run::discovered(&discovery);
    lists::fill(&mut frame, client, namespace, tables).await?;
    let keys = related(subject, &key, frame.tables());
    let states = keys.iter().filter_map(|(name, key)| frame.key_state(name, key, lists::now()));
    let mut states: Vec<_> = states.collect();
    // The queue of this frame is not a manager's: no worker takes keys from it.
    states.iter_mut().for_each(|state| state.waits.clear());
    let (lease, collector_queue) = (lease(client).await, None);
    let investigation = Investigation { subject, key, states, lease, collector_queue };
    Ok(investigate(investigation, client, |_| client.clone(), &discovery).await?)
}

/// The lease of the managers; `None` where it cannot be read.
async fn lease(client: &kube::Client) -> Option<LeaseState> {
    let key = pintle_api_types::key::ObjectKey::new(LEASE_NAMESPACE, COMPONENT);
    let target = Target::object(LEASES, key.clone());
    let read = Request::Read { target, only_metadata: false };
    let lease = pintle_api::send(client, &read).await.ok()?;
    let spec = &lease["spec"];
    let renewed = spec["renewTime"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let seconds = spec["leaseDurationSeconds"].as_i64().unwrap_or(0);
    let end = renewed?.checked_add(SignedDuration::from_secs(seconds)).ok()?;
    let over = Timestamp::now().duration_since(end).as_secs();
    Some(LeaseState {
        name: key.to_string(),
        holder: spec["holderIdentity"].as_str().unwrap_or_default().to_owned(),
        expired_seconds: (over > 0).then_some(over),
    })
}
