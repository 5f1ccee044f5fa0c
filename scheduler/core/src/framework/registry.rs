//! Registry of out-of-tree plugins, and the plugins that a profile runs.
//!
//! Input: registered plugins, a profile's choice. Output: [`Plugins`] by point, or an error
//! message. Owner: the start of the process.
// k8s: pkg/scheduler/framework/runtime/{registry,framework}.go

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::Plugin;
use pintle_sched_core::config::Rank;
use serde_json::Value;

use super::meter::{self, Meter};
use super::points::{
    Bind, EnqueueExtensions, Filter, Happened, Permit, PluginError, PostBind, PostFilter, PreBind,
    PreEnqueue, PreFilter, PreScore, QueueSort, Reserve, Score,
};
use super::{EnabledPlugins, Handle, Name};

type Factory = Rc<dyn Fn(&Value, &Handle) -> Result<Points, PluginError>>;

/// Reason why a profile's plugins cannot run. The text begins with the setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// An out-of-tree plugin has the name of an upstream plugin.
    #[error("plugin {0:?} is one of upstream's: register it otherwise")]
    Upstreams(String),
    /// No plugin has this name.
    #[error("plugin {0:?} is not known")]
    Unknown(String),
    /// A plugin refuses its arguments.
    #[error("pluginConfig[{name}].args: {error}")]
    Args {
        /// The plugin.
        name: String,
        /// Its reason.
        error: PluginError,
    },
    /// A plugin is enabled at a point that it does not have.
    #[error("plugins.{point}: plugin {name:?} is not asked at this point")]
    Point {
        /// The extension point.
        point: &'static str,
        /// The plugin.
        name: String,
    },
    /// Two plugins sort the queue, one of them upstream's.
    #[error(
        "plugins.queueSort: {0:?} and PrioritySort cannot both sort the queue: disable PrioritySort"
    )]
    SortsBesidePriority(Name),
    /// Several plugins sort the queue.
    #[error("plugins.queueSort: only one plugin can sort the queue")]
    SeveralSorts,
    /// The default binder is disabled, and no plugin binds.
    #[error("plugins.bind: nothing is left to bind pods")]
    NoBinder,
}

/// Linked-in plugins, by name.
#[derive(Clone, Default)]
pub struct Registry(BTreeMap<String, Factory>);

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Registry {
    /// Adds a plugin. `make` is called for each profile that enables the plugin, with the arguments
    /// of the configuration file (`null` if it has none); it returns a message if they are invalid.
    #[must_use]
    pub fn with(
        mut self,
        name: &str,
        make: impl Fn(&Value, &Handle) -> Result<Points, PluginError> + 'static,
    ) -> Self {
        self.0.insert(name.to_owned(), Rc::new(make));
        self
    }

    /// Returns true if a plugin has this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Creates the plugins of one profile.
    ///
    /// # Errors
    /// A message that names the plugin, and the point or the argument.
    pub fn plugins(
        &self,
        chosen: &EnabledPlugins,
        handle: &Handle,
    ) -> Result<Plugins, RegistryError> {
        let mut made = BTreeMap::new();
        for name in chosen.names() {
            if Plugin::from_name(name).is_some() {
                return Err(RegistryError::Upstreams(name.to_owned()));
            }
            let make = self.0.get(name);
            let make = make.ok_or_else(|| RegistryError::Unknown(name.to_owned()))?;
            let args = chosen.args.get(name).unwrap_or(&Value::Null);
            let points = make(args, handle)
                .map_err(|error| RegistryError::Args { name: name.to_owned(), error })?;
            made.insert(name.to_owned(), points);
        }
        Plugins::new(chosen, &made)
    }
}

macro_rules! points {
    ($($field:ident, $many:ident, $point:literal, $kind:ident;)*) => {
        /// The extension points of one plugin.
        #[derive(Clone, Default)]
        pub struct Points {
            $(#[doc = concat!("At `", $point, "`.")] pub $field: Option<Rc<dyn $kind>>,)*
            /// Its queueing hint.
            pub events: Option<Rc<dyn EnqueueExtensions>>,
        }

        impl Points {
            $(#[doc = concat!("The same at `", $point, "` too.")]
            #[must_use]
            pub fn $field(mut self, plugin: Rc<dyn $kind>) -> Self {
                self.$field = Some(plugin);
                self
            })*

            /// Adds a queueing hint.
            #[must_use]
            pub fn events(mut self, events: Rc<dyn EnqueueExtensions>) -> Self {
                self.events = Some(events);
                self
            }
        }

        /// The plugins of one profile, by point, each with its name and weight.
        #[derive(Default)]
        pub struct Plugins {
            $(pub(crate) $many: Vec<(Name, i64, Rc<dyn $kind>)>,)*
            events: BTreeMap<String, Rc<dyn EnqueueExtensions>>,
            /// Runs of filters with no in-tree filter between them, each with its rank.
            pub(super) filter_runs: Vec<(Rank, Range<usize>)>,
            /// The rank of each among all PreFilter plugins.
            pub(super) pre_filter_ranks: Vec<Rank>,
            /// Metrics of plugin calls, and the number of attempts.
            pub(super) meter: Option<Rc<dyn Meter>>,
            pub(super) attempts: Cell<u64>,
            /// The default binder binds pods that none of the plugins binds.
            pub(crate) binds_by_default: bool,
        }

        impl Plugins {
            fn new(
                chosen: &EnabledPlugins,
                made: &BTreeMap<String, Points>,
            ) -> Result<Self, RegistryError> {
                let mut plugins = Self::default();
                $(for (name, weight) in chosen.at($point) {
                    let Some(plugin) = made.get(&name).and_then(|points| points.$field.clone())
                    else {
                        if chosen.named_at($point).iter().any(|(named, _)| *named == name) {
                            return Err(RegistryError::Point { point: $point, name });
                        }
                        continue;
                    };
                    plugins.$many.push((name.as_str().into(), weight, plugin));
                })*
                plugins.take_places(chosen);
                for (name, points) in made {
                    plugins.events.extend(points.events.clone().map(|e| (name.clone(), e)));
                }
                plugins.check(chosen)?;
                Ok(plugins)
            }
        }
    };
}

points! {
    pre_enqueue, pre_enqueues, "preEnqueue", PreEnqueue;
    queue_sort, queue_sorts, "queueSort", QueueSort;
    pre_filter, pre_filters, "preFilter", PreFilter;
    filter, filters, "filter", Filter;
    post_filter, post_filters, "postFilter", PostFilter;
    pre_score, pre_scores, "preScore", PreScore;
    score, scores, "score", Score;
    reserve, reserves, "reserve", Reserve;
    permit, permits, "permit", Permit;
    pre_bind, pre_binds, "preBind", PreBind;
    bind, binds, "bind", Bind;
    post_bind, post_binds, "postBind", PostBind;
}

impl fmt::Debug for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Points").finish_non_exhaustive()
    }
}

impl fmt::Debug for Plugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugins").finish_non_exhaustive()
    }
}

impl Plugins {
    /// Sorts plugins into their ranks among the in-tree ones, at points where order matters.
    fn take_places(&mut self, chosen: &EnabledPlugins) {
        self.filters.sort_by_key(|(name, ..)| chosen.rank("filter", name));
        let ranks = self.filters.iter().map(|(name, ..)| chosen.rank("filter", name)).enumerate();
        for (at, rank) in ranks {
            match self.filter_runs.last_mut() {
                Some((first, run)) if usize::from(rank - *first) <= run.len() => run.end = at + 1,
                _ => self.filter_runs.push((rank, at..at + 1)),
            }
        }
        self.pre_filters.sort_by_key(|(name, ..)| chosen.rank("preFilter", name));
        let pre_filters = self.pre_filters.iter();
        self.pre_filter_ranks =
            pre_filters.map(|(name, ..)| chosen.rank("preFilter", name)).collect();
    }

    /// Checks rules that concern several plugins or points.
    fn check(&mut self, chosen: &EnabledPlugins) -> Result<(), RegistryError> {
        let is_off = |point: &str, name: &str| {
            let off = chosen.disabled.get(point).into_iter().flatten();
            off.into_iter().any(|off| off == "*" || off == name)
        };
        if !self.queue_sorts.is_empty() && !is_off("queueSort", "PrioritySort") {
            let (name, ..) = &self.queue_sorts[0];
            return Err(RegistryError::SortsBesidePriority(Rc::clone(name)));
        }
        if self.queue_sorts.len() > 1 {
            return Err(RegistryError::SeveralSorts);
        }
        self.binds_by_default = !is_off("bind", "DefaultBinder");
        if self.binds.is_empty() && !self.binds_by_default {
            return Err(RegistryError::NoBinder);
        }
        // The default binder comes first unless it is disabled, and binds every pod.
        if self.binds_by_default && chosen.named_at("bind").is_empty() {
            self.binds.clear();
        }
        Ok(())
    }

    /// Adds a meter.
    pub fn metered(mut self, meter: Rc<dyn Meter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Returns the plugin that sorts the queue.
    pub fn sorts_by(&self) -> Option<&Name> {
        self.queue_sorts.first().map(|(name, ..)| name)
    }

    /// Returns the plugin that gates the pod, if any.
    pub(crate) fn gate(&self, pod: &Pod) -> Option<Name> {
        let refuses = |(name, _, plugin): &(Name, i64, Rc<dyn PreEnqueue>)| {
            let result = meter::call_plugin(name, "PreEnqueue", || plugin.pre_enqueue(pod));
            (!matches!(result, Ok(Ok(())))).then(|| Rc::clone(name))
        };
        self.pre_enqueues.iter().find_map(refuses)
    }

    /// Returns the sort key of a pod in the queue.
    pub(crate) fn rank(&self, pod: &Pod) -> Option<i64> {
        let (name, _, plugin) = self.queue_sorts.first()?;
        meter::call_plugin(name, "QueueSort", || plugin.rank(pod)).ok()
    }

    /// Returns true if an event may help a pod that these plugins rejected. Always true for an
    /// empty `by`, because the rejectors are unknown.
    pub(crate) fn may_help(&self, by: &[Name], pod: &Pod, happened: Happened) -> bool {
        let helps = |name: &str| {
            let events = self.events.get(name);
            let asks = |events: &Rc<dyn EnqueueExtensions>| {
                let run = || events.may_help(pod, happened);
                meter::call_plugin(name, "EventsToRegister", run).unwrap_or(true)
            };
            events.is_none_or(asks)
        };
        by.is_empty() || by.iter().any(|name| helps(name))
    }

    /// Returns true if a plugin runs after a node is selected.
    pub(crate) fn acts_late(&self) -> bool {
        !(self.reserves.is_empty()
            && self.permits.is_empty()
            && self.pre_binds.is_empty()
            && self.binds.is_empty()
            && self.post_binds.is_empty())
    }
}
