//! What a scheduler needs before it watches: credentials, and plugins of others.
//!
//! Input: settings. Output: an [`Access`], the plugins of each profile. Owner: the start of the process.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result};
use pintle_api::Access;

use crate::config::Process;
use crate::daemon::Settings;
use crate::daemon::plugin_metrics::OfProfile;
use crate::daemon::serve::State;
use crate::framework::{Handle, Plugins, Registry};

/// Plugins of others, by profile.
pub(super) type OfOthers = Vec<Option<Rc<Plugins>>>;

/// The plugins of others that each profile runs.
pub(super) fn plugins(
    settings: &Settings,
    registry: &Registry,
    handle: &Handle,
    state: &Arc<State>,
) -> Result<OfOthers> {
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
    let made = made.collect::<Result<OfOthers>>()?;
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

/// The credentials that were named, or else, where no server is, those of the pod that it runs in.
// k8s: staging/src/k8s.io/client-go/tools/clientcmd/client_config.go BuildConfigFromFlags
pub(super) fn access(process: &Process, master: Option<&str>) -> Result<Access> {
    match (&process.kubeconfig, master) {
        (Some(path), None) => return Ok(Access::read(path)?),
        (Some(path), Some(master)) => {
            let access = Access::read_for(path, Some(master));
            return access.with_context(|| format!("--master={master}"));
        }
        (None, Some(master)) => return Ok(Access::anonymous(Path::new("--master"), master)?),
        (None, None) => {}
    }
    let of_pod = Access::of_pod().context(
        "no credentials, and this is no pod: give --kubeconfig, or clientConnection.kubeconfig in \
         the file of --config",
    )?;
    Ok(of_pod?)
}
