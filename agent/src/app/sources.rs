//! Starts the sources of pods: files, HTTP, and with a cluster the API server.
//!
//! Every source sends its pods through a channel of its own; the intake merges them.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use pintle_agent_cluster::status::writer::StatusWriter;
use pintle_agent_config::Config;
use pintle_agent_core::admit::Features;
use pintle_agent_core::source::SourceKind;
use pintle_agent_runtime::observed::PodReader;
use pintle_daemon::tasks;
use tokio::sync::mpsc;

use super::StageInputs;
use crate::intake::Intake;
use crate::source;

/// Changes from the API server that may wait.
const DELIVERIES_MAX: usize = 16;
/// Readings that may wait: each has the full content, broken files by the thousand included.
const READINGS_MAX: usize = 1;

/// Starts every configured source and the intake behind them.
pub(super) fn start(
    parts: &StageInputs,
    reader: &PodReader,
    writer: Option<Rc<StatusWriter>>,
    features: Features,
) -> Result<()> {
    let mut kinds = Vec::new();
    let mut intake = Intake::new(
        reader.clone(),
        parts.recorder.clone(),
        parts.inputs.clone(),
        Arc::clone(&parts.problems),
    )
    .on_a_node_with(features);
    if start_file(&parts.config, &mut intake) {
        kinds.push(SourceKind::File);
    }
    if start_http(&parts.config, &mut intake)? {
        kinds.push(SourceKind::Http);
    }
    if let (Some(cluster), Some(writer)) = (&parts.cluster, writer) {
        let (deliveries, queue) = mpsc::channel(DELIVERIES_MAX);
        let node = cluster.node_name.to_string();
        let (client, api_health) = (cluster.client.clone(), cluster.api_health.clone());
        tasks::singleton(
            "pod source",
            pintle_agent_cluster::pods::run(client, node, deliveries, api_health),
        );
        intake.listen(SourceKind::Api, queue);
        intake.report_to(writer);
        kinds.push(SourceKind::Api);
    }
    tasks::singleton("intake", intake.run(kinds));
    Ok(())
}

fn start_file(config: &Config, intake: &mut Intake) -> bool {
    let kubelet = &config.kubelet;
    if kubelet.static_pod_path.is_empty() {
        return false;
    }
    let (readings, queue) = mpsc::channel(READINGS_MAX);
    let folder = source::file::ManifestFolder::new(&kubelet.static_pod_path, &config.node_name);
    let every = kubelet.file_check_frequency.to_std();
    tasks::singleton("manifest folder", source::file::run(folder, every, readings));
    intake.listen(SourceKind::File, queue);
    true
}

fn start_http(config: &Config, intake: &mut Intake) -> Result<bool> {
    let kubelet = &config.kubelet;
    if kubelet.static_pod_url.is_empty() {
        return Ok(false);
    }
    let (readings, queue) = mpsc::channel(READINGS_MAX);
    let headers: Vec<(String, String)> = kubelet
        .static_pod_url_header
        .iter()
        .flat_map(|(name, values)| values.iter().map(|v| (name.clone(), v.clone())))
        .collect();
    let endpoint = source::http::ManifestEndpoint::new(&kubelet.static_pod_url, &headers)
        .context("staticPodURL")?;
    let every = kubelet.http_check_frequency.to_std();
    let node = config.node_name.clone();
    tasks::singleton("manifest url", source::http::run(endpoint, node, every, readings));
    intake.listen(SourceKind::Http, queue);
    Ok(true)
}
