//! Setup before watches start: credentials, and out-of-tree plugins.
//!
//! Input: settings. Output: an [`Access`], the plugins of each profile. Owner: the start of the
//! process.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use pintle_api::Access;
use pintle_daemon::program::credentials;
use pintle_scheduler_core::config::ProcessSettings;
use pintle_scheduler_core::framework::{Handle, Plugins, Registry};

use crate::daemon::Settings;
use crate::daemon::plugin_metrics::OfProfile;
use crate::daemon::serve::State;

/// Out-of-tree plugins, by profile.
pub(super) type ProfilePlugins = Vec<Option<Rc<Plugins>>>;

/// Out-of-tree plugins and their handle to the scheduler.
pub(super) struct OfOthers {
    pub(super) plugins: ProfilePlugins,
    pub(super) handle: Handle,
}

/// Builds the out-of-tree plugins of each profile.
pub(super) fn plugins(
    settings: &Settings,
    registry: &Registry,
    handle: &Handle,
    state: &Arc<State>,
) -> Result<ProfilePlugins> {
    let made = settings.chosen.iter().enumerate().map(|(at, chosen)| {
        if chosen.is_empty() {
            return Ok(None);
        }
        let plugins = registry.plugins(chosen, handle);
        let meter = Rc::new(OfProfile(Arc::clone(state), at));
        plugins.map(|plugins| Some(Rc::new(plugins.metered(meter)))).map_err(|error| {
            anyhow::anyhow!("--config: configuration: profiles[{at}].{error}: correct the file")
        })
    });
    let made = made.collect::<Result<ProfilePlugins>>()?;
    let sorts =
        |plugins: &Option<Rc<Plugins>>| plugins.as_ref().and_then(|p| p.sorts_by().cloned());
    let first = made.first().and_then(sorts);
    if let Some(at) = made.iter().position(|plugins| sorts(plugins) != first) {
        anyhow::bail!(
            "--config: configuration: profiles[{at}].plugins.queueSort: all profiles must sort the \
             queue by the same plugin: correct the file"
        );
    }
    Ok(made)
}

/// Returns the configured credentials, or those of the pod that this process runs in.
pub(super) fn access(process: &ProcessSettings, master: Option<&str>) -> Result<Access> {
    let remedy = "--kubeconfig, or clientConnection.kubeconfig in the file of --config";
    Ok(credentials::access(process.kubeconfig.as_deref(), master, remedy)?)
}
