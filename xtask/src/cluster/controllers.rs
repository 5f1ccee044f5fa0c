//! The controller managers of a cluster: upstream's, and beside it ours for chosen controllers.
//!
//! Input: a choice, kept in two files of the cluster's folder, so that later runs find it. Output:
//! two command lines. The two managers never run the same controller: upstream's gets a list that
//! leaves out ours, ours gets a list of exactly these. Each has its own lease and its own port,
//! because both are on the control plane's machine. Without a choice only upstream's runs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::Cluster;

/// The process of upstream's manager.
pub const UPSTREAM: &str = "controllers";
/// The process of ours, and the lease that it holds.
pub const OURS: &str = "pintle-controllers";
/// Port of ours; upstream's has the usual one.
pub const OURS_PORT: u16 = 10260;
/// Controllers that pintle has, by their canonical names.
pub const LOOPS: [&str; 14] = [
    TOKENS,
    "replicationcontroller-controller",
    "resourcequota-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "garbage-collector-controller",
    "daemonset-controller",
    "job-controller",
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "cronjob-controller",
    "ttl-after-finished-controller",
    "root-ca-certificate-publisher-controller",
];
/// This controller starts regardless of the list, unless it has no signing key.
const TOKENS: &str = "serviceaccount-token-controller";
/// Controllers that bootstrap tokens need; they are off unless they are named.
const NAMED: &str = "bootstrap-signer-controller,token-cleaner-controller";

/// Our program, and which controllers it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controllers {
    /// The program's path.
    pub program: PathBuf,
    /// Canonical names, each one of [`LOOPS`].
    pub loops: Vec<String>,
}

impl Controllers {
    /// Reads `LOOP,LOOP..`; an empty text means all.
    ///
    /// # Errors
    /// For a name that is none of [`LOOPS`].
    pub fn new(program: PathBuf, loops: &str) -> Result<Self> {
        let names = loops.split(',').map(str::trim).filter(|name| !name.is_empty());
        let mut loops: Vec<String> = names.map(str::to_owned).collect();
        for name in &loops {
            let known = LOOPS.contains(&name.as_str());
            ensure!(known, "pintle has no controller {name:?}, but these: {}", LOOPS.join(", "));
        }
        if loops.is_empty() {
            loops = LOOPS.map(str::to_owned).into();
        }
        Ok(Self { program, loops })
    }

    /// The choice that was written for a cluster.
    pub(super) fn chosen(cluster: &Cluster) -> Option<Self> {
        let layout = &cluster.layout;
        let program = fs::read_to_string(layout.controllers_program()).ok()?;
        let loops = fs::read_to_string(layout.controllers_loops()).ok()?;
        Some(Self { program: program.into(), loops: loops.split(',').map(str::to_owned).collect() })
    }

    fn has(&self, name: &str) -> bool {
        self.loops.iter().any(|one| one == name)
    }
}

/// Chooses our program for some controllers, from the next start of both managers on.
pub(super) fn choose(cluster: &Cluster, choice: Option<&Controllers>) -> Result<()> {
    let (program, loops) =
        (cluster.layout.controllers_program(), cluster.layout.controllers_loops());
    let Some(choice) = choice else {
        for path in [program, loops].iter().filter(|path| path.exists()) {
            fs::remove_file(path)?;
        }
        return Ok(());
    };
    fs::create_dir_all(cluster.layout.dir())?;
    let write = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
    };
    write(&program, choice.program.as_os_str().as_encoded_bytes())?;
    write(&loops, choice.loops.join(",").as_bytes())
}

/// Arguments of upstream's manager, beside ours for the chosen controllers.
pub(super) fn upstream(cluster: &Cluster, ours: Option<&Controllers>) -> Vec<String> {
    let mut list = format!("*,{NAMED}");
    for name in ours.into_iter().flat_map(|ours| &ours.loops) {
        list.push_str(&format!(",-{name}"));
    }
    let signs = ours.is_none_or(|ours| !ours.has(TOKENS));
    let mut args = usual(cluster, signs);
    args.extend(ours.into_iter().flat_map(|_| patience()));
    args.push(format!("--controllers={list}"));
    args
}

/// Arguments of our manager for exactly these controllers.
pub(super) fn ours(cluster: &Cluster, ours: &Controllers) -> Vec<String> {
    let mut args = usual(cluster, ours.has(TOKENS));
    args.extend(patience());
    args.push(format!("--controllers={}", ours.loops.join(",")));
    args.push(format!("--leader-elect-resource-name={OURS}"));
    args.push(format!("--secure-port={OURS_PORT}"));
    args
}

/// Long lease timings for several managers and the scheduler on a busy host: a process that loses
/// its lease exits, and nothing here restarts it.
pub(super) fn patience() -> [String; 2] {
    [("lease-duration", 90), ("renew-deadline", 60)]
        .map(|(flag, seconds)| format!("--leader-elect-{flag}={seconds}s"))
}

/// Arguments of every manager of the cluster; `signs` adds the keys that sign tokens.
pub(super) fn usual(cluster: &Cluster, signs: bool) -> Vec<String> {
    let mut args = super::control::identity(cluster, "controllers");
    args.push("--use-service-account-credentials=true".to_owned());
    args.push("--allocate-node-cidrs=false".to_owned());
    for (flag, file) in [
        ("service-account-private-key-file", "accounts.key"),
        ("root-ca-file", "ca.crt"),
        ("cluster-signing-cert-file", "ca.crt"),
        ("cluster-signing-key-file", "ca.key"),
    ] {
        if signs || file != "accounts.key" {
            args.push(format!("--{flag}={}", cluster.layout.pki(file).display()));
        }
    }
    args
}

/// RBAC rules for a lease of another name: the manager's role names upstream's lease only.
pub(super) fn lease_rights() -> [Value; 2] {
    let group = "rbac.authorization.k8s.io";
    let meta = json!({"name": OURS, "namespace": "kube-system"});
    let role = json!({
        "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": meta,
        "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
            "resourceNames": [OURS], "verbs": ["get", "update"]}],
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": meta,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": OURS},
        "subjects": [{"apiGroup": group, "kind": "User",
            "name": "system:kube-controller-manager"}],
    });
    [role, binding]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
        args.iter().find_map(|arg| arg.strip_prefix(&format!("--{name}=")))
    }

    #[test]
    fn both_managers_share_no_controller_lease_or_port() {
        let cluster = Cluster::named("managers").expect("a name");
        let choice = Controllers::new("/bin/ours".into(), "job-controller, deployment-controller");
        let choice = choice.expect("known names");
        let (theirs, ours) = (upstream(&cluster, Some(&choice)), ours(&cluster, &choice));
        let named = "bootstrap-signer-controller,token-cleaner-controller";
        let without = "-job-controller,-deployment-controller";
        assert_eq!(flag(&theirs, "controllers"), Some(&*format!("*,{named},{without}")));
        assert_eq!(flag(&ours, "controllers"), Some("job-controller,deployment-controller"));
        assert_eq!(flag(&ours, "leader-elect-resource-name"), Some(OURS));
        assert_eq!(flag(&theirs, "leader-elect-resource-name"), None);
        assert!(flag(&ours, "secure-port").is_some() && flag(&theirs, "secure-port").is_none());
    }

    #[test]
    fn only_the_manager_that_makes_tokens_has_the_key() {
        let cluster = Cluster::named("managers").expect("a name");
        let key = "service-account-private-key-file";
        let all = Controllers::new("/bin/ours".into(), "").expect("all names");
        assert_eq!(all.loops, LOOPS);
        assert!(flag(&ours(&cluster, &all), key).is_some());
        assert_eq!(flag(&upstream(&cluster, Some(&all)), key), None);
        let job = Controllers::new("/bin/ours".into(), "job-controller").expect("a name");
        assert_eq!(flag(&ours(&cluster, &job), key), None);
        assert!(flag(&upstream(&cluster, Some(&job)), key).is_some());
        assert!(flag(&upstream(&cluster, None), key).is_some());
    }

    #[test]
    fn an_unknown_controller_is_refused_by_name() {
        let error = Controllers::new("/bin/ours".into(), "podgc").expect_err("not ours");
        assert!(error.to_string().contains("\"podgc\""), "{error}");
    }
}
