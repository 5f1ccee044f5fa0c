//! Calls extenders: those that filter or choose victims one after the other, those that score
//! concurrently.
// k8s: pkg/scheduler/extender.go send, schedule_one.go findNodesThatPassExtenders, prioritizeNodes,
//      framework/preemption/preemption.go callExtenders

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use http_body_util::{BodyExt as _, Limited};
use hyper::{Method, Request, StatusCode};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::client::Body;
use pintle_api::{Access, ClientOptions, Data, KubeconfigCluster, User};
use pintle_scheduler_core::cycle::command::BindingResult;
use pintle_scheduler_core::extender::{
    Consult, Consulted, Extender, ExtenderCall, ExtenderError, ExtenderReply, Victims, consulted,
    wire,
};
use pintle_scheduler_core::pod_fields::PodRef;
use serde_json::Value;

/// Longest answer that is accepted.
pub const ANSWER_BYTES: usize = 64 << 20;

/// An extender with its connections.
pub struct Caller {
    extender: Extender,
    client: kube::Client,
}

/// Builds address, trusted CAs and client credentials.
///
/// # Errors
/// The address, a certificate or a key is invalid.
// k8s: pkg/scheduler/extender.go makeTransport
pub fn access(extender: &Extender) -> Result<Access, ExtenderError> {
    let tls = extender.tls_config.clone().unwrap_or_default();
    let data = |field, text: &str| {
        let read = Data::from_base64(text);
        read.map_err(|error| ExtenderError::Tls { field, problem: error.to_string() })
    };
    let has_authority = !tls.ca_file.is_empty() || !tls.ca_data.is_empty();
    let mut cluster = KubeconfigCluster::default();
    cluster.server.clone_from(&extender.url_prefix);
    cluster.insecure_skip_tls_verify = tls.insecure || (extender.enable_https && !has_authority);
    cluster.certificate_authority_data = data("caData", &tls.ca_data)?;
    cluster.tls_server_name = tls.server_name;
    cluster.certificate_authority = tls.ca_file;
    let mut user = User::default();
    user.client_certificate_data = data("certData", &tls.cert_data)?;
    user.client_key_data = data("keyData", &tls.key_data)?;
    user.client_certificate = tls.cert_file;
    user.client_key = tls.key_file;
    let access = Access::to_server(Path::new("extenders"), cluster, user);
    access.map_err(|error| ExtenderError::Access(error.to_string()))
}

impl Caller {
    /// Are pods scheduled without it if it does not answer?
    pub fn is_ignorable(&self) -> bool {
        self.extender.ignorable
    }

    /// Creates a caller; must be called on a tokio runtime.
    ///
    /// # Errors
    /// As [`access`].
    pub fn new(extender: Extender) -> Result<Self, ExtenderError> {
        let user_agent = pintle_config::help::user_agent("kube-scheduler");
        let client =
            access(&extender)?.client(ClientOptions { user_agent, ..ClientOptions::default() });
        Ok(Self { extender, client })
    }

    async fn send(&self, verb: &str, body: &Value) -> Result<Value, ExtenderError> {
        let url = self.extender.url(verb);
        let whole = self.exchange(verb, body);
        match tokio::time::timeout(self.extender.timeout(), whole).await {
            Ok(answer) => answer,
            Err(_) => Err(ExtenderError::Late { url, limit: self.extender.timeout() }),
        }
    }

    async fn exchange(&self, verb: &str, body: &Value) -> Result<Value, ExtenderError> {
        let url = self.extender.url(verb);
        let failed = |error: &dyn std::fmt::Display| ExtenderError::Post {
            url: url.clone(),
            problem: error.to_string(),
        };
        let body = serde_json::to_vec(body).map_err(|error| failed(&error))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("/{verb}"))
            .header("content-type", "application/json")
            .body(Body::from(body))
            .map_err(|error| failed(&error))?;
        let answer = self.client.send(request).await.map_err(|error| failed(&error))?;
        if answer.status() != StatusCode::OK {
            let code = answer.status().as_u16();
            return Err(ExtenderError::Code { verb: verb.to_owned(), url, code });
        }
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| failed(&error))?.to_bytes();
        serde_json::from_slice(&body).map_err(|error| failed(&error))
    }
}

/// Calls all interested extenders.
pub async fn consult(callers: &[Rc<Caller>], consult: Consult) -> Consulted {
    let Consult { pod, about, question } = consult;
    let asked: Vec<&Caller> = callers.iter().map(|caller| &**caller).collect();
    let asked: Vec<&Caller> =
        asked.into_iter().filter(|caller| caller.extender.is_interested(&pod)).collect();
    let answer = match question {
        ExtenderCall::Nodes { names, objects } => {
            nodes(&asked, &pod, names, objects).await.map(ExtenderReply::Nodes)
        }
        ExtenderCall::Victims(of) => victims(&asked, &pod, of).await.map(ExtenderReply::Victims),
    };
    Consulted { about, answer }
}

async fn nodes(
    callers: &[&Caller],
    pod: &Pod,
    mut names: Vec<Rc<str>>,
    mut objects: Vec<Rc<Node>>,
) -> Result<consulted::Nodes, ExtenderError> {
    let mut found = consulted::Nodes::default();
    for caller in callers.iter().filter(|caller| !caller.extender.filter_verb.is_empty()) {
        let extender = &caller.extender;
        if names.is_empty() {
            break;
        }
        let by_name = extender.node_cache_capable;
        let body = wire::nodes(pod, &names, (!by_name).then_some(&*objects));
        let answer = caller.send(&extender.filter_verb, &body).await;
        let answer = answer.and_then(|a| wire::filtered(&a, by_name, &names, &extender.url_prefix));
        let filtered = match answer {
            Ok(filtered) => filtered,
            Err(error) if extender.ignorable => {
                tracing::warn!(%error, extender = extender.url_prefix, "an extender is left out");
                continue;
            }
            Err(error) => return Err(error),
        };
        found.failed.extend(filtered.failed);
        let left: HashSet<&str> = filtered.left.iter().map(String::as_str).collect();
        names.retain(|name| left.contains(&**name));
        objects.retain(|node| node.metadata.name.as_deref().is_some_and(|n| left.contains(n)));
    }
    if names.len() > 1 {
        for (node, score) in scores(callers, pod, &names, &objects).await {
            let sum = found.scores.entry(node).or_default();
            *sum = sum.saturating_add(score);
        }
    }
    found.left = names.iter().map(|name| name.to_string()).collect();
    Ok(found)
}

/// Asks all these extenders for scores, concurrently.
// k8s: pkg/scheduler/schedule_one.go prioritizeNodes
async fn scores(
    callers: &[&Caller],
    pod: &Pod,
    names: &[Rc<str>],
    objects: &[Rc<Node>],
) -> Vec<(String, i64)> {
    let scores = |caller: &&&Caller| !caller.extender.prioritize_verb.is_empty();
    let answers = callers.iter().filter(scores).map(|caller| async move {
        let extender = &caller.extender;
        let objects = (!extender.node_cache_capable).then_some(objects);
        let body = wire::nodes(pod, names, objects);
        match caller.send(&extender.prioritize_verb, &body).await {
            Ok(answer) => wire::scores(&answer, extender.weight),
            // The others choose.
            Err(error) => {
                let extender = &extender.url_prefix;
                tracing::warn!(%error, extender, "an extender's scores are missing");
                Vec::new()
            }
        }
    });
    futures_util::future::join_all(answers).await.concat()
}

// k8s: pkg/scheduler/framework/preemption/preemption.go callExtenders
async fn victims(
    callers: &[&Caller],
    pod: &Pod,
    of: BTreeMap<String, Victims>,
) -> Result<BTreeMap<String, Victims>, ExtenderError> {
    let mut chosen = of.clone();
    for caller in callers.iter().filter(|caller| !caller.extender.preempt_verb.is_empty()) {
        let extender = &caller.extender;
        let body = wire::victims(pod, &chosen, extender.node_cache_capable);
        let answer = caller.send(&extender.preempt_verb, &body).await;
        let known = answer.and_then(|answer| {
            let url = extender.url_prefix.as_str();
            resolve(wire::chosen_victims(&answer), &of, url)
        });
        let mut answer = match known {
            Ok(answer) => answer,
            Err(error) if extender.ignorable => {
                tracing::warn!(%error, extender = extender.url_prefix, "an extender is left out");
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Some(node) = answer.iter().find(|(_, v)| v.pods.is_empty()).map(|(node, _)| node)
            && !extender.ignorable
        {
            return Err(ExtenderError::NoVictim(node.clone()));
        }
        answer.retain(|_, victims| !victims.pods.is_empty());
        chosen = answer;
        if chosen.is_empty() {
            break;
        }
    }
    Ok(chosen)
}

/// Resolves the pods that an extender names, on any of the nodes sent to it.
// k8s: pkg/scheduler/extender.go convertToVictims, convertPodUIDToPod
fn resolve(
    answer: BTreeMap<String, wire::MetaVictims>,
    of: &BTreeMap<String, Victims>,
    url: &str,
) -> Result<BTreeMap<String, Victims>, ExtenderError> {
    let mut all = BTreeMap::new();
    for (node, wire::MetaVictims { uids, violations }) in answer {
        let Some(known) = of.get(&node) else {
            return Err(ExtenderError::NoCandidate(node));
        };
        let there = || known.pods.iter().chain(known.others.iter());
        let find = |uid: &String| {
            there().find(|pod| *pod.uid == **uid).cloned().ok_or_else(|| {
                let (url, uid, node) = (url.to_owned(), uid.clone(), node.clone());
                ExtenderError::UnknownVictim { url, uid, node }
            })
        };
        let pods = uids.iter().map(find).collect::<Result<_, _>>()?;
        let others = Rc::clone(&known.others);
        all.insert(node, Victims { pods, violations, others });
    }
    Ok(all)
}

/// Returns the extender that binds a pod, if there is one.
pub fn binder<'a>(callers: &'a [Rc<Caller>], pod: &Pod) -> Option<&'a Rc<Caller>> {
    let binds = |caller: &&Rc<Caller>| !caller.extender.bind_verb.is_empty();
    callers.iter().filter(binds).find(|caller| caller.extender.is_interested(pod))
}

/// Asks an extender to bind a pod.
pub async fn bind(caller: &Caller, pod: &PodRef, node: &str) -> BindingResult {
    let body = wire::binding(pod, node);
    let answer = caller.send(&caller.extender.bind_verb, &body).await;
    match answer.and_then(|answer| wire::error(&answer)) {
        Ok(()) => BindingResult::Bound,
        Err(error) => BindingResult::Failed(error.to_string()),
    }
}

#[cfg(test)]
#[path = "extender_tests.rs"]
mod tests;
