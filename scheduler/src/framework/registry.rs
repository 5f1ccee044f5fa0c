//! Which plugins there are, and those of them that a profile runs.
//!
//! Input: what was registered, what a profile chose. Output: [`Plugins`] by point, or a sentence.
//! Owner: the start of the process.
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
    Bind, EnqueueExtensions, Filter, Happened, Permit, PostBind, PostFilter, PreBind, PreEnqueue,
    PreFilter, PreScore, QueueSort, Reserve, Score,
};
use super::{Chosen, Handle, Name};

type Factory = Rc<dyn Fn(&Value, &Handle) -> Result<Points, String>>;

/// Plugins that are linked in, by name.
#[derive(Clone, Default)]
pub struct Registry(BTreeMap<String, Factory>);

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Registry {
    /// The same with one more. `make` is called for each profile that enables it, with the arguments of
    /// the file (`null` where it has none), and says in a sentence what is wrong with them.
    #[must_use]
    pub fn with(
        mut self,
        name: &str,
        make: impl Fn(&Value, &Handle) -> Result<Points, String> + 'static,
    ) -> Self {
        self.0.insert(name.to_owned(), Rc::new(make));
        self
    }

    /// Whether there is a plugin of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The plugins of one profile.
    ///
    /// # Errors
    /// A sentence that names the plugin, and the point or the argument.
    pub fn plugins(&self, chosen: &Chosen, handle: &Handle) -> Result<Plugins, String> {
        let mut made = BTreeMap::new();
        for name in chosen.names() {
            if Plugin::from_name(name).is_some() {
                return Err(format!("plugin {name:?} is one of upstream's: register it otherwise"));
            }
            let make = self.0.get(name).ok_or_else(|| format!("plugin {name:?} is not known"))?;
            let args = chosen.args.get(name).unwrap_or(&Value::Null);
            let points = make(args, handle)
                .map_err(|error| format!("pluginConfig[{name}].args: {error}"))?;
            made.insert(name.to_owned(), points);
        }
        Plugins::new(chosen, &made)
    }
}

macro_rules! points {
    ($($field:ident, $many:ident, $point:literal, $kind:ident;)*) => {
        /// What one plugin does: the points that it is asked at.
        #[derive(Clone, Default)]
        pub struct Points {
            $(#[doc = concat!("At `", $point, "`.")] pub $field: Option<Rc<dyn $kind>>,)*
            /// What may help pods that it rejected.
            pub events: Option<Rc<dyn EnqueueExtensions>>,
        }

        impl Points {
            $(#[doc = concat!("The same at `", $point, "` too.")]
            #[must_use]
            pub fn $field(mut self, plugin: Rc<dyn $kind>) -> Self {
                self.$field = Some(plugin);
                self
            })*

            /// The same with what may help its pods.
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
            /// Filters that come one after the other with none of upstream's between them, and where.
            pub(super) filter_runs: Vec<(Rank, Range<usize>)>,
            /// Where each comes among all who are asked before any node is looked at.
            pub(super) pre_filter_ranks: Vec<Rank>,
            /// Who counts what they do, and how many attempts began.
            pub(super) meter: Option<Rc<dyn Meter>>,
            pub(super) attempts: Cell<u64>,
            /// Pods that none of them binds are bound as usual.
            pub(crate) binds_by_default: bool,
        }

        impl Plugins {
            fn new(
                chosen: &Chosen,
                made: &BTreeMap<String, Points>,
            ) -> Result<Self, String> {
                let mut plugins = Self::default();
                $(for (name, weight) in chosen.at($point) {
                    let Some(plugin) = made.get(&name).and_then(|points| points.$field.clone())
                    else {
                        if chosen.named_at($point).iter().any(|(named, _)| *named == name) {
                            return Err(format!(
                                "plugins.{}: plugin {name:?} is not asked at this point", $point
                            ));
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
    /// Puts those whose order matters in their places among upstream's.
    fn take_places(&mut self, chosen: &Chosen) {
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

    /// What the sets of points say together.
    fn check(&mut self, chosen: &Chosen) -> Result<(), String> {
        let is_off = |point: &str, name: &str| {
            let off = chosen.disabled.get(point).into_iter().flatten();
            off.into_iter().any(|off| off == "*" || off == name)
        };
        if !self.queue_sorts.is_empty() && !is_off("queueSort", "PrioritySort") {
            let (name, ..) = &self.queue_sorts[0];
            return Err(format!(
                "plugins.queueSort: {name:?} and PrioritySort cannot both sort the queue: disable \
                 PrioritySort"
            ));
        }
        if self.queue_sorts.len() > 1 {
            return Err("plugins.queueSort: only one plugin can sort the queue".to_owned());
        }
        self.binds_by_default = !is_off("bind", "DefaultBinder");
        if self.binds.is_empty() && !self.binds_by_default {
            return Err("plugins.bind: nothing is left to bind pods".to_owned());
        }
        // Upstream's own comes first unless it is turned off, and leaves nothing to others.
        if self.binds_by_default && chosen.named_at("bind").is_empty() {
            self.binds.clear();
        }
        Ok(())
    }

    /// The same, counted.
    pub(crate) fn metered(mut self, meter: Rc<dyn Meter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Who sorts the queue.
    pub(crate) fn sorts_by(&self) -> Option<&Name> {
        self.queue_sorts.first().map(|(name, ..)| name)
    }

    /// Who keeps a pod from being decided, if anybody does.
    pub(crate) fn gate(&self, pod: &Pod) -> Option<Name> {
        let refuses = |(name, _, plugin): &(Name, i64, Rc<dyn PreEnqueue>)| {
            let said = meter::asked(name, "PreEnqueue", || plugin.pre_enqueue(pod));
            (!matches!(said, Ok(Ok(())))).then(|| Rc::clone(name))
        };
        self.pre_enqueues.iter().find_map(refuses)
    }

    /// Where a pod is in the queue.
    pub(crate) fn rank(&self, pod: &Pod) -> Option<i64> {
        let (name, _, plugin) = self.queue_sorts.first()?;
        meter::asked(name, "QueueSort", || plugin.rank(pod)).ok()
    }

    /// Whether something that happened may help a pod that these rejected; all of them, where it is
    /// not known who did.
    pub(crate) fn may_help(&self, by: &[Name], pod: &Pod, happened: Happened) -> bool {
        let helps = |name: &str| {
            let events = self.events.get(name);
            let asks = |events: &Rc<dyn EnqueueExtensions>| {
                let run = || events.may_help(pod, happened);
                meter::asked(name, "EventsToRegister", run).unwrap_or(true)
            };
            events.is_none_or(asks)
        };
        by.is_empty() || by.iter().any(|name| helps(name))
    }

    /// Whether anything is done once a pod has a node.
    pub(crate) fn acts_late(&self) -> bool {
        !(self.reserves.is_empty()
            && self.permits.is_empty()
            && self.pre_binds.is_empty()
            && self.binds.is_empty()
            && self.post_binds.is_empty())
    }
}
