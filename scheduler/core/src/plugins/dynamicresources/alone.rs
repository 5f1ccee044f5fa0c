//! Test oracle: allocates devices of one node, from API objects only.
//!
//! Input: a node, classes, slices, used devices. Output: devices, or the reason there are none.
//! Owner: pure. Bounds: the objects; the search has no time limit. The daemon does not use it: it
//! exists to compare this search with another allocator.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Node, NodeSelector};
use k8s_openapi::api::resource::v1::{
    AllocationResult, Device, DeviceClass, ResourceClaim, ResourceSlice,
};
use pintle_cel::{EvaluationLimits, Patterns, Selector, Unanswered};
use pintle_sched_core::attempt_budget::AttemptBudget;
use pintle_sched_core::{Cluster, Profile};

use super::allocate::{AllocationFailure, DeviceOffers, allocate};
use super::offer::{AllocationNode, Offers, Slice, value};
use super::selectors::Selectors;
use super::usage::Usage;

/// Fixed name of a shared device's part, which other allocators draw at random.
pub const SHARE: &str = "share";

/// Reason why claims get no devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoDevices {
    /// This node does not have them; the text is a reason beyond that, if there is one.
    Here(String),
    /// An error that is the same for all nodes.
    Anywhere(String),
}

/// Offered and used devices of one node.
pub struct Alone {
    offers: Offers,
    classes: BTreeMap<String, Rc<DeviceClass>>,
    usage: Usage,
    selectors: Selectors,
    node: OneNode,
}

/// A node, and the selectors of slices and devices that it meets.
struct OneNode {
    name: String,
    meets: HashMap<*const NodeSelector, bool>,
}

impl AllocationNode for OneNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn meets(&self, selector: &Rc<NodeSelector>) -> bool {
        self.meets.get(&Rc::as_ptr(selector)).copied().unwrap_or(false)
    }
}

impl Alone {
    /// Reads the objects; `lists` says if attributes of devices may be lists.
    ///
    /// # Errors
    /// The node is invalid.
    pub fn new(
        node: &Node,
        classes: Vec<DeviceClass>,
        slices: &[ResourceSlice],
        taken: &[AllocationResult],
        lists: bool,
    ) -> Result<Self, OracleError> {
        let mut cluster = Cluster::new(Profile::default());
        cluster.set_node(node).map_err(|error| OracleError::Node(error.to_string()))?;
        let (mut offers, mut usage) = (Offers::default(), Usage::default());
        slices.iter().for_each(|slice| _ = offers.set(Slice::read(slice, lists)));
        taken.iter().for_each(|taken| usage.add(taken));
        let named =
            |class: DeviceClass| (class.metadata.name.clone().unwrap_or_default(), Rc::new(class));
        let mut meets = HashMap::new();
        for selector in offers.all().flat_map(|slice| slice.selectors()) {
            let rows = cluster.rows_matching(&selector.node_selector_terms);
            meets.insert(Rc::as_ptr(selector), rows.count() > 0);
        }
        let name = node.metadata.name.clone().unwrap_or_default();
        Ok(Self {
            offers,
            classes: classes.into_iter().map(named).collect(),
            usage,
            selectors: Selectors::new(lists),
            node: OneNode { name, meets },
        })
    }

    /// Allocates claims without devices, in their order.
    ///
    /// # Errors
    /// The reason they get none.
    pub fn devices(&self, claims: Vec<ResourceClaim>) -> Result<Vec<AllocationResult>, NoDevices> {
        let world = DeviceOffers {
            offers: &self.offers,
            usage: &self.usage,
            classes: &self.classes,
            selectors: &self.selectors,
            budget: &AttemptBudget::unlimited(),
            is_late: &|| false,
        };
        let claims: Vec<_> = claims.into_iter().map(Rc::new).collect();
        let found = allocate(world, &self.node, &claims, &mut || SHARE.to_owned());
        found.map_err(|failure| match failure {
            AllocationFailure::Nothing | AllocationFailure::Late => NoDevices::Here(String::new()),
            AllocationFailure::OnNode(why) => NoDevices::Here(why),
            AllocationFailure::Exhausted(why) => NoDevices::Anywhere(why.to_string()),
            AllocationFailure::Error(why) => NoDevices::Anywhere(why),
        })
    }
}

/// Reason why the oracle has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OracleError {
    /// The node is invalid.
    #[error("{0}")]
    Node(String),
    /// The selector does not compile.
    #[error("{0}")]
    Selector(String),
    /// The device has an invalid attribute.
    #[error("{0}")]
    Device(String),
    /// The selector has no result.
    #[error("{0}")]
    Evaluation(String),
}

/// Result of a selector for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Does the device match? An error says why the selector has no answer.
    pub fits: Result<bool, OracleError>,
    /// CEL cost as upstream counts it.
    pub cost: u64,
}

/// Evaluates a selector once, with no other limits than its own.
///
/// # Errors
/// The text does not compile.
pub fn selected(text: &str, driver: &str, device: &Device) -> Result<Selected, OracleError> {
    let selector = Selector::compile(text, false);
    let selector = selector.map_err(|error| OracleError::Selector(error.to_string()))?;
    let value = value(device, driver, false);
    let value = value.map_err(|error| OracleError::Device(error.to_string()))?;
    let budget = AttemptBudget::unlimited();
    let limits = EvaluationLimits { budget: &budget, is_late: &|| false };
    let (fits, cost) = selector.priced(&value, &Patterns::default(), limits);
    let fits = fits.map_err(|why| {
        OracleError::Evaluation(match why {
            Unanswered::Error(error) => error.to_string(),
            Unanswered::Exhausted(exhausted) => exhausted.to_string(),
            Unanswered::Late => "late".to_owned(),
        })
    });
    Ok(Selected { fits, cost })
}
