//! The controllers that run, set up from the options.
//!
//! Input: options. Output: a [`Frame`] with the selected controllers, in upstream's order. A
//! controller that is selected and not built yet is logged once, by name.

use std::fs;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use jiff::tz::TimeZone;
use pintle_controllers_core::frame::Frame;
use pintle_controllers_core::kinds::{ReplicaSet, ReplicationController};
use pintle_controllers_core::names::CONTROLLERS;
use pintle_controllers_loops::cron_job::CronJobController;
use pintle_controllers_loops::daemon_set::DaemonSets;
use pintle_controllers_loops::deployment::DeploymentController;
use pintle_controllers_loops::garbage_collector::GarbageCollector;
use pintle_controllers_loops::job::JobController;
use pintle_controllers_loops::namespace::Namespaces;
use pintle_controllers_loops::replica_set::ReplicaController;
use pintle_controllers_loops::resource_quota::ResourceQuotas;
use pintle_controllers_loops::root_ca::RootCaPublisher;
use pintle_controllers_loops::service_account::ServiceAccounts;
use pintle_controllers_loops::service_account_token::{ServiceAccountTokens, TokenSigner};
use pintle_controllers_loops::stateful_set::StatefulSets;
use pintle_controllers_loops::ttl_after_finished::TtlAfterFinished;

use crate::options::Options;

/// The frame with the selected controllers; `authority` is the bundle that the kubeconfig trusts.
///
/// # Errors
/// When a file that a flag names cannot be read.
pub(crate) fn frame(options: &Options, authority: Option<&[u8]>) -> Result<Frame> {
    let mut frame = Frame::default();
    let mut missing = Vec::new();
    let is_on = |gate: &str| options.gates.enabled(gate);
    for controller in &CONTROLLERS {
        if options.selection.absence(controller, is_on).is_some() {
            continue;
        }
        if !add(controller.name, options, authority, &mut frame)? {
            missing.push(controller.name);
        }
    }
    if !missing.is_empty() {
        tracing::warn!(
            "controllers that pintle does not have yet, keep kube-controller-manager for them \
             (--controllers): {}",
            missing.join(", ")
        );
    }
    Ok(frame)
}

/// A frame with these controllers alone, as the options set them up.
///
/// # Errors
/// When a file that a flag names cannot be read.
pub(crate) fn only(names: &[&str], options: &Options) -> Result<Frame> {
    let mut frame = Frame::default();
    for (at, name) in names.iter().enumerate() {
        if !names[..at].contains(name) {
            add(name, options, None, &mut frame)?;
        }
    }
    Ok(frame)
}

/// Adds a controller; says whether there is one of this name.
fn add(name: &str, options: &Options, authority: Option<&[u8]>, frame: &mut Frame) -> Result<bool> {
    let loops = &options.loops;
    let workers = usize::try_from(loops.workers(name)).unwrap_or(usize::MAX).max(1);
    match name {
        "replicationcontroller-controller" => {
            frame.add(ReplicaController::<ReplicationController>::new(workers));
        }
        "replicaset-controller" => frame.add(ReplicaController::<ReplicaSet>::new(workers)),
        "deployment-controller" => frame.add(DeploymentController { workers }),
        "statefulset-controller" => {
            let has_max_unavailable = options.gates.enabled("MaxUnavailableStatefulSet");
            frame.add(StatefulSets { workers, has_max_unavailable });
        }
        "daemonset-controller" => frame.add(DaemonSets::new(workers)),
        "cronjob-controller" => frame.add(CronJobController::new(workers, TimeZone::system())),
        "serviceaccount-token-controller" => {
            if let Some(path) = &loops.service_account_key {
                let key = read(path, "--service-account-private-key-file")?;
                let signer =
                    TokenSigner::from_pem(&String::from_utf8_lossy(&key)).with_context(|| {
                        format!("--service-account-private-key-file: cannot use {}", path.display())
                    })?;
                let root_ca = root_ca(options, authority)?.into();
                frame.add(ServiceAccountTokens { workers, signer: Rc::new(signer), root_ca });
            }
        }
        "job-controller" => {
            let mut controller = JobController::new(workers);
            controller.settings.clears_start_time =
                options.gates.enabled("MutableSchedulingDirectivesForSuspendedJobs");
            #[cfg(feature = "suites")]
            {
                controller.settings = crate::suites::job_settings(controller.settings)?;
            }
            frame.add(controller);
        }
        "ttl-after-finished-controller" => frame.add(TtlAfterFinished { workers }),
        "namespace-controller" => {
            let follows_content = loops.enable_garbage_collector && frame.reads_all_metadata();
            frame.add(Namespaces::new(workers, follows_content));
        }
        "resourcequota-controller" => {
            frame.add(ResourceQuotas::new(workers, loops.resource_quota_sync_period, true));
        }
        "garbage-collector-controller" if loops.enable_garbage_collector => {
            frame.add(GarbageCollector::new(workers, Vec::new()));
        }
        "garbage-collector-controller" => {}
        "serviceaccount-controller" => frame.add(ServiceAccounts::default()),
        "root-ca-certificate-publisher-controller" => {
            let bundle = root_ca(options, authority)?;
            let root_ca = Rc::from(String::from_utf8_lossy(&bundle));
            frame.add(RootCaPublisher { root_ca });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The bundle that pods trust: that of `--root-ca-file`, or the kubeconfig's.
fn root_ca(options: &Options, authority: Option<&[u8]>) -> Result<Vec<u8>> {
    match &options.loops.root_ca {
        Some(path) => read(path, "--root-ca-file"),
        None => Ok(authority.unwrap_or_default().to_vec()),
    }
}

fn read(path: &Path, flag: &str) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("{flag}: cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{ManagerAction, parse};

    const KEY: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/loops/src/service_account_token/testdata/rsa.pem");

    /// Upstream keeps them whole, so that its memory grows with their bytes (k#115699).
    #[test]
    fn config_maps_and_secrets_are_watched_as_metadata_only() {
        let args = [format!("--service-account-private-key-file={KEY}")];
        let options = match parse(&args).expect("nothing is wrong") {
            ManagerAction::Run(options) => options,
            ManagerAction::Print(text) => panic!("it prints {text}"),
        };
        let frame = frame(&options, None).expect("the files are there");
        assert!(frame.reads_all_metadata());
        let kinds = frame.kinds();
        let filters: Vec<_> = kinds
            .iter()
            .filter(|kind| kind.group.is_empty())
            .filter(|kind| ["configmaps", "secrets"].contains(&kind.plural))
            .map(|kind| kind.fields)
            .collect();
        let expected =
            ["metadata.name=kube-root-ca.crt", "type=kubernetes.io/service-account-token"];
        assert_eq!(filters, expected, "only these are followed whole");
    }
}
