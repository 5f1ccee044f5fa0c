//! The process beside a real API server: wrong arguments, its port, its lease, its identities, its
//! restart.
//!
//! Input: two managers on one server, and workloads that have settled. Output: the writes in the
//! API server's audit log, by user. A restart and a hand-over must not write an unchanged value.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pintle_testbed::wait::{LONG, until};
use serde_json::{Value, json};
use xtask::cluster::controllers::LOOPS;

use crate::kit::{CaseNamespace, image};
use crate::server::{ControlPlane, ManagerProcess, PORT};

/// Port of the second manager.
const SECOND_PORT: u16 = 10261;
/// A released lease has another holder after this; without a release it would last 15 s.
const HAND_OVER_MAX: Duration = Duration::from_secs(5);
/// How long nothing may be written after a restart.
const QUIET: Duration = Duration::from_secs(8);
const KINDS: [&str; 9] = [
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "ControllerRevision",
    "Job",
    "CronJob",
    "Pod",
    "ResourceQuota",
];

#[test]
fn invalid_arguments_exit_with_code_1_and_one_error_line() {
    let server = ControlPlane::shared();
    let usual = server.args();
    let empty = server.file("empty.kubeconfig", "").display().to_string();
    for (args, word) in [
        (vec!["--no-such-flag".to_owned()], "no-such-flag"),
        (vec!["--controllers=*,nope".to_owned()], "nope"),
        (vec!["--leader-elect-renew-deadline=20s".to_owned()], "--leader-elect-lease-duration"),
        (vec!["--root-ca-file=/nowhere/ca.crt".to_owned()], "/nowhere/ca.crt"),
        (vec!["--service-account-private-key-file=/dev/null".to_owned()], "no private key"),
        (vec!["--kubeconfig=/nowhere/kubeconfig".to_owned()], "/nowhere/kubeconfig"),
        (vec![format!("--kubeconfig={empty}")], "empty.kubeconfig"),
        (vec!["--tls-cert-file=/nowhere/tls.crt".to_owned()], "tls"),
    ] {
        let (status, text) = server.refusal(&[usual.clone(), args.clone()].concat());
        assert_eq!(status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains(word), "{args:?}: {text}");
        let errors: Vec<&str> = text.lines().filter(|line| is_error(line)).collect();
        assert_eq!(errors.len(), 1, "{args:?}: {text}");
    }
}

/// A line of text that is no line of the log: those begin with a level and a date.
fn is_error(line: &str) -> bool {
    let is_logged = |level| {
        line.strip_prefix(level)
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    !line.is_empty() && !['I', 'W'].into_iter().any(is_logged)
}

#[test]
fn only_the_leading_manager_acts_and_a_restart_writes_nothing() {
    let server = ControlPlane::start("process");
    let first = start(&server, "first", PORT);
    server.wait_healthy(PORT);
    let second = start(&server, "second", SECOND_PORT);
    server.wait_healthy(SECOND_PORT);
    answers_on_its_port(&server);
    only_the_first_leads(&server);
    server.with_client(async |client| {
        let case = CaseNamespace::begin(client, "process".to_owned()).await?;
        create_workloads(&case).await
    });
    writes_are_of_accounts(&server.audit());
    hand_over(&server, first);
    server.with_client(async |client| {
        let case = CaseNamespace::begin(client, "second".to_owned()).await?;
        case.deployment("d", 2, json!({})).await?;
        case.eq("two pods", json!(2), async || Ok(case.pods().await?.len().into())).await?;
        case.settles(&KINDS).await
    });
    assert!(second.end(Signal::SIGTERM).success());
    restart(&server);
    pods_are_created_once(&server.audit());
}

fn start(server: &ControlPlane, name: &str, port: u16) -> ManagerProcess {
    let mut args = server.args();
    args.push(format!("--secure-port={port}"));
    server.start_tested(name, &args)
}

fn answers_on_its_port(server: &ControlPlane) {
    for path in ["/healthz", "/livez", "/readyz"] {
        let answer = server.answer(PORT, path, None);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{path}: {answer}");
    }
    let refused = server.answer(PORT, "/metrics", None);
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    let metrics = server.answer(PORT, "/metrics", Some("admin"));
    for family in ["workqueue_depth", "rest_client_requests_total", "process_cpu_seconds_total"] {
        assert!(metrics.contains(family), "{family}: {metrics}");
    }
    runs_all_controllers(server, &metrics);
    let configuration = server.answer(PORT, "/configz", Some("admin"));
    assert!(configuration.contains("kubecontrollermanager.config.k8s.io"), "{configuration}");
    assert!(configuration.contains("ConcurrentDeploymentSyncs"), "{configuration}");
    let flags = server.answer(PORT, "/flagz", Some("admin"));
    assert!(flags.contains("use-service-account-credentials=true"), "{flags}");
    let status = server.answer(PORT, "/statusz", Some("admin"));
    assert!(status.contains("kube-controller-manager"), "{status}");
}

/// The harness chooses all controllers by default; each of them runs.
fn runs_all_controllers(server: &ControlPlane, metrics: &str) {
    let checks = server.answer(PORT, "/healthz?verbose", Some("admin"));
    for name in LOOPS {
        let line = format!("name=\"{name}\"}} 1");
        let running =
            metrics.lines().filter(|line| line.starts_with("running_managed_controllers"));
        assert!(running.into_iter().any(|one| one.ends_with(&line)), "{name}: {metrics}");
        let has_check = checks.contains(&format!("[+]{name} ok"));
        assert!(has_check || name == "serviceaccount-token-controller", "{name}: {checks}");
    }
}

fn only_the_first_leads(server: &ControlPlane) {
    let status = "leader_election_master_status{name=\"kube-controller-manager\"}";
    for (port, leads) in [(PORT, "1"), (SECOND_PORT, "0")] {
        let metrics = server.answer(port, "/metrics", Some("admin"));
        assert!(metrics.contains(&format!("{status} {leads}")), "{port}: {metrics}");
    }
}

/// One workload of each kind, settled, with pods that run.
async fn create_workloads(t: &CaseNamespace) -> Result<()> {
    let node = t.node("n", Value::Null).await?;
    t.kubelet(Some(&node), |_| true);
    t.deployment("d", 3, json!({})).await?;
    t.stateful_set("s", 2, json!({})).await?;
    t.daemon_set("ds", json!({})).await?;
    t.job("j", json!({"parallelism": 2})).await?;
    let pod = crate::kit::template("c", "good", json!({"restartPolicy": "Never"}));
    let job = json!({"spec": {"template": {"spec": pod["spec"]}}});
    let daily = json!({"schedule": "0 0 1 1 *", "jobTemplate": job});
    t.create("CronJob", "c", json!({"spec": daily})).await?;
    t.create("ResourceQuota", "q", json!({"spec": {"hard": {"pods": "20"}}})).await?;
    t.eq("all run", json!([3, 2, 1, 2]), async || {
        Ok(json!([
            t.counted("Deployment", "d", "availableReplicas").await?,
            t.counted("StatefulSet", "s", "availableReplicas").await?,
            t.counted("DaemonSet", "ds", "numberAvailable").await?,
            t.counted("Job", "j", "ready").await?,
        ]))
    })
    .await?;
    t.set_image("Deployment", "d", "next").await?;
    t.eq("the rollout is over", json!({"next": 3}), async || t.sizes("d").await).await?;
    t.eq("pods of the new template", json!(3), async || {
        let pods = t.pods().await?;
        Ok(pods.iter().filter(|pod| image(pod) == "next").count().into())
    })
    .await?;
    t.settles(&KINDS).await
}

/// A change that the API server recorded.
struct ObjectWrite {
    verb: String,
    /// Resource, or resource and subresource.
    of: String,
    user: String,
    object: String,
}

/// Changes by managers, without leases, events, and the tokens that they ask for.
fn writes(audit: &str) -> Vec<ObjectWrite> {
    let mut all = Vec::new();
    for line in audit.lines() {
        let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let reference = &entry["objectRef"];
        let (resource, sub) = (text(&reference["resource"]), text(&reference["subresource"]));
        let user = text(&entry["user"]["username"]);
        let code = entry["responseStatus"]["code"].as_u64().unwrap_or(0);
        let is_managers = user.contains(":kube-system:") || user.ends_with("controller-manager");
        let is_work = !matches!(resource.as_str(), "leases" | "events")
            && !resource.ends_with("reviews")
            && sub != "token";
        if is_managers && is_work && code < 300 {
            let of = if sub.is_empty() { resource } else { format!("{resource}/{sub}") };
            let object = format!("{}/{}", text(&reference["namespace"]), text(&reference["name"]));
            all.push(ObjectWrite { verb: text(&entry["verb"]), of, user, object });
        }
    }
    all
}

/// Each controller writes as its own service account.
fn writes_are_of_accounts(audit: &str) {
    let all = writes(audit);
    for (verb, of, account) in [
        ("create", "replicasets", "deployment-controller"),
        ("update", "deployments/status", "deployment-controller"),
        ("create", "pods", "replicaset-controller"),
        ("create", "pods", "statefulset-controller"),
        ("create", "pods", "daemon-set-controller"),
        ("create", "pods", "job-controller"),
        ("create", "controllerrevisions", "statefulset-controller"),
        ("create", "controllerrevisions", "daemon-set-controller"),
        ("update", "resourcequotas/status", "resourcequota-controller"),
        ("create", "serviceaccounts", "service-account-controller"),
        ("create", "configmaps", "root-ca-cert-publisher"),
    ] {
        let user = format!("system:serviceaccount:kube-system:{account}");
        let is_it =
            |write: &ObjectWrite| write.verb == verb && write.of == of && write.user == user;
        assert!(all.iter().any(is_it), "{verb} {of} by {account}");
    }
    let own = |write: &&ObjectWrite| write.user == "system:kube-controller-manager";
    let others: Vec<String> = all
        .iter()
        .filter(own)
        .filter(|write| write.of != "serviceaccounts" && write.of != "secrets")
        .map(|write| format!("{} {}", write.verb, write.of))
        .collect();
    assert!(others.is_empty(), "the manager itself writes nothing but accounts: {others:?}");
}

fn hand_over(server: &ControlPlane, first: ManagerProcess) {
    let holder = async |client: &kube::Client| {
        let lease = crate::kit::NamespaceClient::new(client.clone(), "kube-system".to_owned());
        let lease = lease.get("Lease", "kube-controller-manager").await?;
        Ok::<_, anyhow::Error>(lease["spec"]["holderIdentity"].clone())
    };
    let before = server.with_client(async |client| holder(&client).await);
    let began = Instant::now();
    first.signal(Signal::SIGTERM);
    let taken = server.with_client(async |client| {
        loop {
            let now = holder(&client).await?;
            if now != before && now != "" && !now.is_null() {
                return Ok(began.elapsed());
            }
            ensure!(began.elapsed() < LONG, "{now} holds the lease");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    println!("the standby holds the lease {taken:.0?} after the signal");
    let limit = HAND_OVER_MAX * pintle_testbed::patience();
    assert!(taken < limit, "{taken:?}\n{}", first.log_end());
    assert!(first.end(Signal::SIGTERM).success());
}

/// A manager that starts on settled objects writes nothing of them.
fn restart(server: &ControlPlane) {
    let versions = || {
        server.with_client(async |client| {
            let requests = crate::kit::NamespaceClient::new(client, "process".to_owned());
            requests.versions(&KINDS).await
        })
    };
    let (before, length) = (versions(), server.audit().len());
    let third = start(server, "third", PORT);
    until(LONG, "it works", || {
        ensure!(third.log().contains("all caches are synced"), "{}", third.log_end());
        Ok(())
    });
    std::thread::sleep(QUIET);
    let audit = server.audit();
    let since = writes(audit.get(length..).context("it grows").expect("a log"));
    let since: Vec<String> = since
        .iter()
        .map(|write| format!("{} {} {} by {}", write.verb, write.of, write.object, write.user))
        .collect();
    assert!(since.is_empty(), "{since:#?}");
    assert_eq!(before, versions());
    assert!(third.end(Signal::SIGTERM).success());
}

/// Two managers that both act would create more pods than there are.
fn pods_are_created_once(audit: &str) {
    let mut created: BTreeMap<String, usize> = BTreeMap::new();
    for write in writes(audit).iter().filter(|one| one.verb == "create" && one.of == "pods") {
        let account = write.user.rsplit(':').next().unwrap_or_default().to_owned();
        *created.entry(account).or_default() += 1;
    }
    // Three pods, three of the next template, two of the second Deployment.
    assert_eq!(created.get("replicaset-controller"), Some(&8), "{created:?}");
    assert_eq!(created.get("job-controller"), Some(&2), "{created:?}");
    assert_eq!(created.get("daemon-set-controller"), Some(&1), "{created:?}");
    assert_eq!(created.get("statefulset-controller"), Some(&2), "{created:?}");
}
