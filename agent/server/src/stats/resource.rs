//! `/metrics/resource`: the metrics of metrics-server and so of the HPA. Pure.
// k8s: pkg/kubelet/metrics/collectors/resource_metrics.go

use std::borrow::Cow;

use pintle_agent_core::observed::{ObservedContainer, RunState};
use pintle_agent_core::types::UnixNanos;
use pintle_agent_core::view::{PodView, Snapshot};

use super::sweep::{CgroupReading, Sweep};
use super::targets::CgroupOwner;
use super::text::{FamilyText, labels};

const NANOS: f64 = 1e9;

struct ResourceRow<'a> {
    labels: String,
    found: Cow<'a, CgroupReading>,
    started_at: UnixNanos,
}

/// The exposition. Without a sweep it is an error and nothing else.
pub(super) fn exposition(snapshot: &Snapshot, sweep: Option<&Sweep>) -> String {
    let mut text = FamilyText::default();
    if let Some(sweep) = sweep {
        let running = || snapshot.pods.values().filter(|view| !containers(view).is_empty());
        let of_containers: Vec<ResourceRow<'_>> =
            running().flat_map(|view| container_rows(view, sweep)).collect();
        let of_pods: Vec<ResourceRow<'_>> =
            running().filter_map(|view| pod_row(view, sweep)).collect();
        let root = sweep.cgroups.get(&CgroupOwner::Root);
        let of_node: Vec<ResourceRow<'_>> = root
            .map(Cow::Borrowed)
            .map(|found| ResourceRow { labels: String::new(), found, started_at: UnixNanos::NEVER })
            .into_iter()
            .collect();
        figures(&mut text, "container", &of_containers);
        figures(&mut text, "node", &of_node);
        figures(&mut text, "pod", &of_pods);
    }
    let failed = if sweep.is_some() { 0.0 } else { 1.0 };
    text.family("resource_scrape_error", "gauge");
    text.sample("resource_scrape_error", "", failed, None);
    text.into_string()
}

fn containers(view: &PodView) -> Vec<&ObservedContainer> {
    let all = view.observed.containers.iter();
    all.filter(|container| container.state == RunState::Running).collect()
}

fn container_rows<'a>(view: &PodView, sweep: &'a Sweep) -> Vec<ResourceRow<'a>> {
    let rows = containers(view).into_iter().filter_map(|container| {
        let labels = labels(&[
            ("container", &container.name),
            ("namespace", &view.observed.namespace),
            ("pod", &view.observed.name),
        ]);
        let found = Cow::Borrowed(sweep.container(container.id.as_str())?);
        Some(ResourceRow { labels, found, started_at: container.created_at })
    });
    rows.collect()
}

fn pod_row<'a>(view: &PodView, sweep: &'a Sweep) -> Option<ResourceRow<'a>> {
    let observed = &view.observed;
    let found = sweep.pod(observed)?;
    let labels = labels(&[("namespace", &observed.namespace), ("pod", &observed.name)]);
    Some(ResourceRow { labels, found, started_at: UnixNanos::NEVER })
}

type Figure = (&'static str, &'static str, fn(&CgroupReading) -> f64);

#[allow(clippy::cast_precision_loss)] // bytes and nanoseconds below 2^53 are exact
fn figures(text: &mut FamilyText, what: &str, rows: &[ResourceRow<'_>]) {
    const FIGURES: [Figure; 3] = [
        ("cpu_usage_seconds_total", "counter", |f| f.sample.cpu_ns as f64 / NANOS),
        ("memory_working_set_bytes", "gauge", |f| f.sample.working_set_bytes as f64),
        ("swap_usage_bytes", "gauge", |f| f.sample.swap_bytes as f64),
    ];
    if rows.is_empty() {
        return;
    }
    for (name, kind, value) in FIGURES {
        let name = format!("{what}_{name}");
        text.family(&name, kind);
        for row in rows {
            let at = row.found.sample.at.0 / 1_000_000;
            text.sample(&name, &row.labels, value(&row.found), Some(at));
        }
    }
    if what != "container" {
        return;
    }
    text.family("container_start_time_seconds", "gauge");
    for row in rows {
        let at = row.started_at.0 as f64 / NANOS;
        text.sample("container_start_time_seconds", &row.labels, at, None);
    }
    text.family("container_swap_limit_bytes", "gauge");
    for row in rows {
        let at = row.found.sample.at.0 / 1_000_000;
        let sample = &row.found.sample;
        // Used and available swap.
        let Some(limit) = sample.swap_limit_bytes else { continue };
        let limit = limit.max(sample.swap_bytes) as f64;
        text.sample("container_swap_limit_bytes", &row.labels, limit, Some(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::testing::{families, recorded, sweep, world};

    #[test]
    fn families_types_and_labels_are_the_recorded_ones() {
        let (snapshot, ..) = world();
        let text = exposition(&snapshot, Some(&sweep()));
        let (ours, theirs) = (families(&text), recorded("/metrics/resource"));
        assert_eq!(ours, theirs);
    }

    #[test]
    fn missing_resource_metrics_are_a_scrape_error() {
        let text = exposition(&Snapshot::default(), None);
        assert!(text.contains("resource_scrape_error 1\n"), "{text}");
    }
}
