//! ResourceSlices, parsed once.
//!
//! Input: ResourceSlices of the API. Output: the same with quantities as numbers and each device as
//! selectors see it. Owner: the devices; pure. Bounds: what the API has; 128 devices a slice.
// k8s: staging/src/k8s.io/dynamic-resource-allocation/{api/types.go,cel/compile.go}

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{
    self as api, Counter, DeviceAttribute, DeviceTaint, ResourceSlice,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pintle_api_types::quantity::Amount;
use pintle_cel::{self as cel, Map, SemanticVersion, Value};

use super::allocatable::{Take, Takes};
use super::request::AskedDevice;
use super::rules::{TaintRule, TaintRules};

/// Identity of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DeviceId {
    pub(crate) driver: Rc<str>,
    pub(crate) pool: Rc<str>,
    pub(crate) device: Rc<str>,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

/// Counters by name.
pub(super) type Counters = BTreeMap<String, Amount>;

/// Nodes on which devices can be used.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reach {
    Node(String),
    Everywhere,
    Nodes(Rc<NodeSelector>),
    /// The nodes are defined by each device.
    PerDevice,
    /// By a field that this version does not know: no node.
    Nowhere,
}

impl Reach {
    fn of(name: Option<&String>, all: Option<bool>, selector: Option<&NodeSelector>) -> Self {
        match (name.filter(|name| !name.is_empty()), selector) {
            (Some(name), _) => Self::Node(name.clone()),
            (None, _) if all == Some(true) => Self::Everywhere,
            (None, Some(selector)) => Self::Nodes(Rc::new(selector.clone())),
            (None, None) => Self::Nowhere,
        }
    }

    /// Does it include the node?
    // k8s: structured/internal/incubating/pools_incubating.go NodeMatches
    pub(super) fn is(&self, place: &dyn AllocationNode) -> bool {
        match self {
            Self::Node(name) => name == place.name(),
            Self::Everywhere => true,
            Self::Nodes(selector) => place.meets(selector),
            Self::PerDevice | Self::Nowhere => false,
        }
    }
}

/// A node on which devices are to be allocated.
pub(crate) trait AllocationNode {
    /// Its name.
    fn name(&self) -> &str;
    /// Does the node meet a selector of a slice or a device?
    fn meets(&self, selector: &Rc<NodeSelector>) -> bool;
}

/// A slice of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    pub(super) name: String,
    pub(super) driver: Rc<str>,
    pub(super) pool: Rc<str>,
    pub(super) generation: i64,
    /// Number of slices of the pool in this generation.
    pub(super) count: i64,
    pub(super) reach: Reach,
    /// Counter sets, in a slice that has these instead of devices.
    pub(super) shared: Vec<(String, Counters)>,
    pub(super) devices: Vec<Device>,
    /// Node resources that its devices take.
    pub(super) takes: BTreeSet<String>,
}

/// Number of a device's version, unique since the program started: a cached result is valid as long
/// as the device has this number.
pub(super) type DeviceNumber = u64;

/// The next number. Devices of a slice have consecutive numbers.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) number: DeviceNumber,
    pub(super) id: DeviceId,
    /// Nodes on which it can be used, if the device defines them.
    pub(super) reach: Reach,
    pub(super) attributes: BTreeMap<String, DeviceAttribute>,
    pub(super) capacity: BTreeMap<String, Capacity>,
    /// Counters that it consumes, by the name of their set.
    pub(super) consumes: Vec<(String, Counters)>,
    /// Taints set by the driver; `ruled` are those of DeviceTaintRules.
    pub(super) taints: Vec<DeviceTaint>,
    pub(super) ruled: Vec<Rc<DeviceTaint>>,
    /// Its allocation is bound to the node.
    pub(super) binds_to_node: bool,
    pub(super) conditions: Option<Vec<String>>,
    pub(super) failures: Option<Vec<String>>,
    /// Several claims may use parts of it.
    pub(super) is_shareable: bool,
    /// Amounts that it takes from the node.
    pub(super) takes: Takes,
    /// CEL value of the device, or the error of building it.
    pub(super) value: Result<Value, DeviceValueError>,
}

/// A capacity of a device, and the amounts that may be requested.
#[derive(Clone, Debug)]
pub(super) struct Capacity {
    pub(super) value: Amount,
    pub(super) policy: Option<Policy>,
}

/// Valid amounts of a request for capacity.
#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    pub(super) default: Option<Amount>,
    /// Minimum, maximum and step.
    pub(super) range: Option<(Amount, Option<Amount>, Option<Amount>)>,
    pub(super) values: Vec<Amount>,
}

/// Parses a quantity, which the API server has validated.
pub(super) fn amount(quantity: &Quantity) -> Amount {
    Amount::parse(&quantity.0).unwrap_or_default()
}

fn counters(all: &BTreeMap<String, Counter>) -> Counters {
    all.iter().map(|(name, counter)| (name.clone(), amount(&counter.value))).collect()
}

impl Slice {
    /// Parses a slice; `lists` says if attributes may be lists.
    pub(super) fn read(slice: &ResourceSlice, lists: bool) -> Self {
        let spec = &slice.spec;
        let (driver, pool): (Rc<str>, Rc<str>) =
            (spec.driver.as_str().into(), spec.pool.name.as_str().into());
        let per_device = spec.per_device_node_selection == Some(true);
        let own = Reach::of(spec.node_name.as_ref(), spec.all_nodes, spec.node_selector.as_ref());
        let reach = match own {
            Reach::Nowhere if per_device => Reach::PerDevice,
            own => own,
        };
        let read = |device: &api::Device| {
            let value = value(device, &driver, lists);
            Device::read(device, value, &driver, &pool, per_device)
        };
        let shared = spec.shared_counters.iter().flatten();
        let devices: Vec<Device> = spec.devices.iter().flatten().map(read).collect();
        let takes = devices.iter().flat_map(|device| device.takes.keys().cloned()).collect();
        Self {
            name: slice.metadata.name.clone().unwrap_or_default(),
            generation: spec.pool.generation,
            count: spec.pool.resource_slice_count,
            reach,
            shared: shared.map(|set| (set.name.clone(), counters(&set.counters))).collect(),
            devices,
            takes,
            driver,
            pool,
        }
    }

    /// Returns the node selectors of the slice and of its devices.
    pub(super) fn selectors(&self) -> impl Iterator<Item = &Rc<NodeSelector>> {
        let all = std::iter::once(&self.reach).chain(self.devices.iter().map(|d| &d.reach));
        all.filter_map(|reach| match reach {
            Reach::Nodes(selector) => Some(selector),
            _ => None,
        })
    }
}

impl Device {
    fn read(
        device: &api::Device,
        value: Result<Value, DeviceValueError>,
        driver: &Rc<str>,
        pool: &Rc<str>,
        per_device: bool,
    ) -> Self {
        let (driver, pool) = (Rc::clone(driver), Rc::clone(pool));
        let node = device.node_name.as_ref();
        let reach = match per_device {
            true => Reach::of(node, device.all_nodes, device.node_selector.as_ref()),
            false => Reach::Everywhere,
        };
        let capacity = device.capacity.iter().flatten();
        let capacity = capacity.map(|(name, capacity)| (name.clone(), Capacity::read(capacity)));
        let consumes = device.consumes_counters.iter().flatten();
        let capacity = capacity.collect();
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            value,
            id: DeviceId { driver, pool, device: device.name.as_str().into() },
            reach,
            attributes: device.attributes.clone().unwrap_or_default(),
            capacity,
            consumes: consumes.map(|c| (c.counter_set.clone(), counters(&c.counters))).collect(),
            taints: device.taints.clone().unwrap_or_default(),
            ruled: Vec::new(),
            binds_to_node: device.binds_to_node == Some(true),
            conditions: device.binding_conditions.clone(),
            failures: device.binding_failure_conditions.clone(),
            is_shareable: device.allow_multiple_allocations == Some(true),
            takes: Take::read(device),
        }
    }

    /// Do its taints keep the request off?
    pub(super) fn keeps_off(&self, request: &AskedDevice) -> bool {
        let ruled = self.ruled.iter().map(|taint| &**taint);
        request.is_kept_off(self.taints.iter().chain(ruled))
    }

    /// Returns an attribute by its full name; an attribute without domain has the driver as domain.
    // k8s: structured/internal/incubating/allocator_incubating.go lookupAttribute
    pub(super) fn attribute(&self, name: &str) -> Option<&DeviceAttribute> {
        let own = || {
            let (domain, name) = name.split_once('/')?;
            self.attributes.get(name).filter(|_| domain == &*self.id.driver)
        };
        self.attributes.get(name).or_else(own)
    }
}

impl Capacity {
    fn read(capacity: &api::DeviceCapacity) -> Self {
        let policy = capacity.request_policy.as_ref().map(|policy| Policy {
            default: policy.default.as_ref().map(amount),
            range: policy.valid_range.as_ref().map(|range| {
                let (most, step) =
                    (range.max.as_ref().map(amount), range.step.as_ref().map(amount));
                (amount(&range.min), most, step)
            }),
            values: policy.valid_values.iter().flatten().map(amount).collect(),
        });
        Self { value: amount(&capacity.value), policy }
    }
}

/// An attribute that has no value for selectors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("attribute {attribute}: {fault}")]
pub(super) struct DeviceValueError {
    attribute: String,
    fault: AttributeFault,
}

/// The fault of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AttributeFault {
    #[error("unsupported attribute value")]
    Unsupported,
    #[error("parse semantic version: {0}")]
    Version(String),
}

/// Builds the CEL variable `device`.
// k8s: cel/compile.go DeviceMatches, getAttributeValue
pub(super) fn value(
    device: &api::Device,
    driver: &str,
    lists: bool,
) -> Result<Value, DeviceValueError> {
    let attribute = |(name, attribute): (&String, &DeviceAttribute)| {
        let wrong = |fault| DeviceValueError { attribute: name.clone(), fault };
        if let Some(all) = list(attribute).filter(|_| lists) {
            return Ok((name.clone(), Value::List(all.map_err(wrong)?.into())));
        }
        let value = match attribute {
            DeviceAttribute { int: Some(n), .. } => Value::Int(*n),
            DeviceAttribute { bool: Some(b), .. } => Value::Bool(*b),
            DeviceAttribute { string: Some(text), .. } => Value::Str(text.as_str().into()),
            DeviceAttribute { version: Some(text), .. } => version(text).map_err(wrong)?,
            _ => return Err(wrong(AttributeFault::Unsupported)),
        };
        Ok((name.clone(), value))
    };
    let attributes = device.attributes.iter().flatten().map(attribute);
    let attributes = attributes.collect::<Result<Vec<_>, DeviceValueError>>()?;
    let capacity = device.capacity.iter().flatten().filter_map(|(name, capacity)| {
        Some((name.clone(), Value::Quantity(cel::Quantity::parse(&capacity.value.0)?)))
    });
    let several = device.allow_multiple_allocations == Some(true);
    Ok(Value::Map(Rc::new(Map::of([
        ("driver", driver.into()),
        ("allowMultipleAllocations", several.into()),
        ("attributes", by_domain(attributes, driver)),
        ("capacity", by_domain(capacity.collect(), driver)),
    ]))))
}

fn version(text: &str) -> Result<Value, AttributeFault> {
    let version = SemanticVersion::parse(text);
    let version = version.map_err(|error| AttributeFault::Version(error.to_string()))?;
    Ok(Value::Version(Rc::new(version)))
}

/// Returns the values of a list attribute.
fn list(attribute: &DeviceAttribute) -> Option<Result<Vec<Value>, AttributeFault>> {
    Some(match attribute {
        DeviceAttribute { ints: Some(all), .. } => {
            Ok(all.iter().copied().map(Value::Int).collect())
        }
        DeviceAttribute { bools: Some(all), .. } => {
            Ok(all.iter().copied().map(Value::Bool).collect())
        }
        DeviceAttribute { strings: Some(all), .. } => {
            Ok(all.iter().map(|text| text.as_str().into()).collect())
        }
        DeviceAttribute { versions: Some(all), .. } => {
            all.iter().map(|text| version(text)).collect()
        }
        _ => return None,
    })
}

/// Groups values by domain and name; an unknown domain reads as an empty map.
fn by_domain(all: Vec<(String, Value)>, driver: &str) -> Value {
    let mut domains: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
    for (full, value) in all {
        let (domain, name) = full.split_once('/').unwrap_or((driver, &full));
        domains.entry(domain.to_owned()).or_default().push((name.to_owned(), value));
    }
    let map = |map: Map| Value::Map(Rc::new(map));
    let inner = |all: &[(String, Value)]| {
        map(Map::of(all.iter().map(|(name, value)| (name.as_str(), value.clone()))))
    };
    let domains = domains.iter().map(|(domain, all)| (domain.as_str(), inner(all)));
    map(Map::of(domains).or(map(Map::default())))
}

/// All slices, indexed by node.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    all: BTreeMap<String, Rc<Slice>>,
    /// Names of slices of single nodes, and of the others.
    by_node: HashMap<String, Vec<String>>,
    others: Vec<String>,
    rules: TaintRules,
}

impl Offers {
    /// Adds or updates a slice. Returns true if it is new.
    pub(crate) fn set(&mut self, mut slice: Slice) -> bool {
        slice.devices.iter_mut().for_each(|device| device.ruled = self.rules.taints(&device.id));
        let is_new = !self.all.contains_key(&slice.name);
        self.remove(&slice.name);
        let names = self.place_of(&slice);
        names.push(slice.name.clone());
        self.all.insert(slice.name.clone(), Rc::new(slice));
        is_new
    }

    /// A slice is gone.
    pub(crate) fn remove(&mut self, name: &str) {
        let Some(old) = self.all.remove(name) else { return };
        self.place_of(&old).retain(|other| other != name);
        if let Reach::Node(node) = &old.reach
            && self.by_node.get(node).is_some_and(Vec::is_empty)
        {
            self.by_node.remove(node);
        }
    }

    /// Adds, replaces or removes a rule. Returns true if the taints of any device changed.
    // k8s: resourceslice/tracker/tracker.go deviceTaintUpdate, syncSlice
    pub(super) fn set_rule(&mut self, name: &str, rule: Option<TaintRule>) -> bool {
        let new = rule.clone();
        let old = self.rules.set(name, rule);
        let is_touched = |id: &DeviceId| [&old, &new].into_iter().flatten().any(|r| r.selects(id));
        let mut has_changed = false;
        for slice in self.all.values_mut() {
            for at in 0..slice.devices.len() {
                let device = &slice.devices[at];
                if !is_touched(&device.id) {
                    continue;
                }
                let ruled = self.rules.taints(&device.id);
                if ruled != device.ruled {
                    Rc::make_mut(slice).devices[at].ruled = ruled;
                    has_changed = true;
                }
            }
        }
        has_changed
    }

    /// Returns the names of all rules.
    pub(super) fn rules(&self) -> impl Iterator<Item = &String> {
        self.rules.names()
    }

    fn place_of(&mut self, slice: &Slice) -> &mut Vec<String> {
        match &slice.reach {
            Reach::Node(node) if slice.shared.is_empty() => {
                self.by_node.entry(node.clone()).or_default()
            }
            _ => &mut self.others,
        }
    }

    /// Returns the names of all slices.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.all.keys()
    }

    /// All slices.
    pub(super) fn all(&self) -> impl Iterator<Item = &Rc<Slice>> {
        self.all.values()
    }

    /// Returns the slices that may have devices for a node.
    pub(super) fn near<'a>(&'a self, node: &str) -> impl Iterator<Item = &'a Rc<Slice>> {
        let own = self.by_node.get(node).into_iter().flatten();
        own.chain(&self.others).filter_map(|name| self.all.get(name))
    }
}
