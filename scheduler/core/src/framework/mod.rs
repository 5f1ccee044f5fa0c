//! Out-of-tree plugins: linked in when a scheduler is built, called at upstream's extension points.
//!
//! ```text
//!   Registry ── names, arguments of a profile ──> Plugins
//!      PreEnqueue, QueueSort         the queue: gates and order
//!      PreFilter .. Score            an Attempt: plugins of single nodes, besides ours
//!      Reserve, Permit               the cycle, once a node is chosen
//!      PreBind, Bind, PostBind       the dispatcher, and the cycle when it is bound
//! ```
//! Input: a registry, the plugin sets of a configuration file. Output: the plugins' answers about
//! pods and nodes. Owner: the deciding thread; a plugin owns the state that it keeps between calls.
//! Plugins need whole nodes and pods, so those are kept whole when a profile enables any plugin.
//! Pods of profiles without plugins cost nothing more.
// k8s: pkg/scheduler/framework/runtime/{framework,registry,waiting_pods_map}.go

mod attempt;
mod chosen;
mod handle;
mod meter;
pub(crate) mod pods;
mod points;
mod registry;
#[cfg(test)]
mod tests;
mod trial;

pub use self::attempt::{Attempt, PointError};
pub(crate) use self::attempt::{Room, Stopped, WholeNodes};
pub use self::chosen::EnabledPlugins;
pub(crate) use self::handle::PluginRequest;
pub use self::handle::{Handle, WaitingPod};
pub use self::meter::Meter;
pub use self::points::{
    Bind, CycleState, EnqueueExtensions, Filter, Happened, NodeInfo, Nodes, Permission, Permit,
    PluginError, PostBind, PostFilter, PreBind, PreEnqueue, PreFilter, PreFilterExtensions,
    PreScore, QueueSort, Rejection, Reserve, Score,
};
pub use self::registry::{Plugins, Points, Registry, RegistryError};

/// The name of a plugin.
pub type Name = std::rc::Rc<str>;
