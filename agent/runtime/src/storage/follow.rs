//! What the volumes hear: the disk once, then drivers, the Node, and time.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use pintle_agent_cluster::node::report::WrittenInUse;
use pintle_agent_core::storage::{Input, NodeVolumes};
use pintle_agent_host::csi::scan;
use pintle_agent_host::volume::san;
use pintle_agent_plugins::{DriverChange, Plugins, changes};
use pintle_daemon::blocking::JobPlace;
use pintle_daemon::{blocking, clock};

use super::Volumes;

/// Looks at the disk, then follows everything else for ever.
pub(super) async fn run(volumes: Volumes) {
    look_at_disk(&volumes).await;
    tokio::join!(
        follow_drivers(&volumes),
        follow_node(&volumes),
        follow_time(&volumes),
        super::resync::run(&volumes)
    );
}

async fn look_at_disk(volumes: &Volumes) {
    let root = volumes.0.parts.root.clone();
    let found = loop {
        let root = root.clone();
        let look = move || {
            scan::remove_unstaged(&root);
            let (mut found, disks) = (scan::scan(&root), san::scan::scan(&root));
            found.volumes.extend(disks.volumes);
            found.unreadable.extend(disks.unreadable);
            found
        };
        match blocking::run(JobPlace::own("volumes"), look).await {
            Ok(found) => break found,
            Err(why) => tracing::warn!(%why, "the volumes of drivers cannot be looked for yet"),
        }
    };
    for (folder, why) in &found.unreadable {
        tracing::warn!(
            folder = %folder.display(), why,
            "a volume of a driver cannot be told by its folder, which stays until its pod is gone"
        );
    }
    let is_whole = found.unreadable.is_empty();
    volumes.give(Input::Found { volumes: found.volumes, is_whole });
    volumes.0.is_known.set(true);
    volumes.0.known.notify_waiters();
}

async fn follow_drivers(volumes: &Volumes) {
    let mut drivers = volumes.0.parts.drivers.clone();
    let mut known = Arc::<Plugins>::default();
    let mut now = Some(drivers.snapshot());
    while let Some(plugins) = now {
        for change in changes(&known, &plugins) {
            if let DriverChange::Registered(driver) = change {
                volumes.give(Input::DriverReady(driver.name.clone()));
            }
        }
        known = plugins;
        now = drivers.changed().await;
    }
    std::future::pending::<()>().await;
}

async fn follow_node(volumes: &Volumes) {
    let Some(mut own) = volumes.0.parts.node.clone() else { return };
    let mut written = volumes.0.in_use_written.subscribe();
    let mut lists = 0;
    loop {
        let now = own.borrow_and_update().clone();
        if let Some(node) = now.object() {
            let is_listed = std::mem::replace(&mut lists, now.lists()) != now.lists();
            let node = read(node);
            volumes.give(if is_listed { Input::NodeListed(node) } else { Input::Node(node) });
        }
        tokio::select! {
            changed = own.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            Ok(()) = written.changed() => {
                let told = written.borrow_and_update().clone();
                if let Some(WrittenInUse { number, node }) = told {
                    volumes.give(Input::InUseWritten { number, node: read(&node) });
                }
            }
        }
    }
}

fn read(node: &Node) -> NodeVolumes {
    let status = node.status.as_ref();
    let attached = status.and_then(|status| status.volumes_attached.as_ref());
    let in_use = status.and_then(|status| status.volumes_in_use.as_ref());
    let version = node.metadata.resource_version.as_deref();
    NodeVolumes {
        // k8s: staging/src/k8s.io/apimachinery/pkg/util/resourceversion: an API server's are numbers
        version: version.and_then(|version| version.parse().ok()).unwrap_or(0),
        attached: attached.into_iter().flatten().map(|volume| volume.name.clone()).collect(),
        in_use: in_use.into_iter().flatten().cloned().collect(),
    }
}

async fn follow_time(volumes: &Volumes) {
    loop {
        let due = volumes.0.machine.borrow().next_due();
        let moved = volumes.0.due_moved.notified();
        match due {
            Some(due) => {
                let wait = due.since(clock::clocks().mono);
                tokio::select! {
                    () = moved => {}
                    () = tokio::time::sleep(wait) => volumes.give(Input::Tick),
                }
            }
            None => moved.await,
        }
    }
}
