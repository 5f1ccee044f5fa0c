//! What a CSI driver says about a volume of a pod: its use and its health.
//!
//! Input: a `VolumeQuery`. Output: `DriverFigures`, or why there are none. A driver without
//! GET_VOLUME_STATS is not asked, and its volumes have no figures, as in the kubelet. Bounds: a
//! call's time limit, and the answer's size, are those of `pintle_agent_plugins::csi`.
// k8s: pkg/volume/csi/csi_metrics.go, csi_client.go NodeGetVolumeStats

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use pintle_agent_host::disk::FileSystem;
use pintle_agent_metrics::{CountedFrom, Metrics, OfDriver};
use pintle_agent_plugins::csi::{Node, VolumeHealth, VolumeStats};
use pintle_agent_plugins::error::code_name;
use pintle_agent_plugins::{CallError, Drivers};
use tokio::time::Instant;

use super::files::FileUsage;

/// Method of the call, as metrics name it.
const METHOD: &str = "NodeGetVolumeStats";

/// A volume at the place where a pod has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeQuery {
    pub(super) driver: String,
    pub(super) handle: String,
    pub(super) path: PathBuf,
}

/// A driver's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DriverFigures {
    pub(super) usage: FileUsage,
    pub(super) fs: FileSystem,
    /// `None` where the driver has no health, or the gate is off.
    pub(super) health: Option<VolumeHealth>,
}

/// Why a volume has no figures.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoFigures {
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NoDriver(String),
    #[error("the driver does not tell the use of volumes")]
    NotSupported,
    #[error("failed to get usage from response. usage is nil")]
    NoUsage,
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Asks a driver.
pub(super) type AskDriver =
    Arc<dyn Fn(VolumeQuery) -> BoxFuture<'static, Result<DriverFigures, NoFigures>> + Send + Sync>;

/// Asks the drivers that are registered. The cell is filled once the agent looks for plugins.
pub(super) fn registered(
    drivers: Arc<OnceLock<Drivers>>,
    metrics: Arc<Metrics>,
    with_health: bool,
) -> AskDriver {
    Arc::new(move |question| {
        let (drivers, metrics) = (Arc::clone(&drivers), Arc::clone(&metrics));
        Box::pin(async move {
            let begun = Instant::now();
            let answer = ask(drivers.get(), &question, &metrics, with_health).await;
            metrics.volume_counted(CountedFrom::Driver(&question.driver), begun.elapsed());
            answer
        })
    })
}

async fn ask(
    drivers: Option<&Drivers>,
    question: &VolumeQuery,
    metrics: &Metrics,
    with_health: bool,
) -> Result<DriverFigures, NoFigures> {
    let driver = drivers.and_then(|drivers| drivers.find(&question.driver));
    let driver = driver.ok_or_else(|| NoFigures::NoDriver(question.driver.clone()))?;
    if !driver.capabilities.has_stats {
        return Err(NoFigures::NotSupported);
    }
    // A connection of its own: the driver's other calls are made on another thread.
    let node = Node::new(driver.node.socket());
    let begun = Instant::now();
    let answer = node.volume_stats(&question.handle, &question.path).await;
    let code = answer.as_ref().map_or_else(|error| code_name(error.code), |_| "OK");
    metrics.driver_called(OfDriver::own(&driver.name), METHOD, code, begun.elapsed());
    read(answer?, with_health && driver.capabilities.has_condition)
}

/// Reads an answer; what the driver leaves out is zero.
fn read(stats: VolumeStats, has_health: bool) -> Result<DriverFigures, NoFigures> {
    if stats.bytes.is_none() && stats.inodes.is_none() && !has_health {
        return Err(NoFigures::NoUsage);
    }
    let (bytes, inodes) = (stats.bytes.unwrap_or_default(), stats.inodes.unwrap_or_default());
    let healthy = || VolumeHealth { is_abnormal: false, message: String::new() };
    Ok(DriverFigures {
        usage: FileUsage { bytes: bytes.used, inodes: inodes.used },
        fs: FileSystem {
            capacity_bytes: bytes.total,
            available_bytes: bytes.available,
            free_bytes: bytes.available,
            inodes: inodes.total,
            inodes_free: inodes.available,
        },
        health: has_health.then(|| stats.health.unwrap_or_else(healthy)),
    })
}

#[cfg(test)]
mod tests {
    use pintle_agent_plugins::csi::Usage as Told;

    use super::*;

    fn told(total: u64, used: u64, available: u64) -> Option<Told> {
        Some(Told { total, used, available })
    }

    fn sick() -> Option<VolumeHealth> {
        Some(VolumeHealth { is_abnormal: true, message: "scratched".to_owned() })
    }

    #[test]
    fn driver_response_becomes_usage_and_missing_inodes_are_zero() {
        let stats = VolumeStats { bytes: told(10, 3, 6), inodes: told(5, 1, 4), health: sick() };
        let both = read(stats.clone(), false).expect("figures");
        assert_eq!((both.usage.bytes, both.usage.inodes), (3, 1));
        assert_eq!((both.fs.capacity_bytes, both.fs.available_bytes), (10, 6));
        assert_eq!((both.fs.inodes, both.fs.inodes_free), (5, 4));
        assert_eq!(both.health, None, "health is not requested");
        let device = read(VolumeStats { inodes: None, ..stats }, false).expect("figures");
        assert_eq!((device.fs.capacity_bytes, device.fs.inodes), (10, 0));
    }

    #[test]
    fn health_alone_is_a_valid_response_only_if_the_driver_supports_health() {
        let cases = [
            (VolumeStats { health: sick(), ..VolumeStats::default() }, true, Some(Some(true))),
            (VolumeStats::default(), true, Some(Some(false))),
            (VolumeStats { health: sick(), ..VolumeStats::default() }, false, None),
            (VolumeStats { bytes: told(1, 1, 0), ..VolumeStats::default() }, false, Some(None)),
        ];
        for (stats, has_health, expected) in cases {
            let figures = read(stats.clone(), has_health).ok();
            let health = figures.map(|figures| figures.health.map(|health| health.is_abnormal));
            assert_eq!(health, expected, "{stats:?} {has_health}");
        }
    }

    #[tokio::test]
    async fn a_driver_that_is_not_registered_is_not_asked() {
        let drivers = Arc::new(OnceLock::new());
        let ask = registered(Arc::clone(&drivers), Arc::new(Metrics::new("n")), true);
        let question = || VolumeQuery { driver: "d".into(), handle: "h".into(), path: "/p".into() };
        for _ in 0..2 {
            let answer = ask(question()).await.expect_err("no driver");
            assert!(matches!(answer, NoFigures::NoDriver(name) if name == "d"));
            // The second time the agent looks for plugins, and there are none.
            let _ = drivers.set(Drivers::none());
        }
    }
}
