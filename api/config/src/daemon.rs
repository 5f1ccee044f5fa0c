//! The differences between the daemons' command lines and configuration files: their tables, types,
//! and the defaults and rules that no table can express.
//!
//! Each daemon has a marker type that implements [`Daemon`]; everything else of this crate takes it
//! as a parameter. Output: [`load`], from the flags that were given to [`Settings`].

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::ConfigError;
use crate::field::FieldTable;
use crate::flag::FlagTable;
use crate::gates::FeatureGate;
use crate::given::GivenFlags;
use crate::sources::Sources;
use crate::status;

pub use crate::gates::FeatureGates;

/// A daemon's tables and specifics.
pub trait Daemon: Clone + std::fmt::Debug + Default + PartialEq + Eq + 'static {
    /// Its flags. The file is that of `--config`, drop-ins come from `--config-dir`.
    const FLAGS: FlagTable;
    /// The feature gates it accepts.
    const GATES: &'static [FeatureGate];
    /// The fields of its configuration file.
    const FIELDS: FieldTable;
    /// Kind of the configuration object.
    const KIND: &'static str;
    /// Group and version of the configuration object.
    const API_VERSION: &'static str;
    /// Fields that hold a path, relative to the file they stand in.
    const PATH_FIELDS: &'static [&'static str];

    /// The configuration; its `Default` is the value of a file without a field.
    type Configuration: Clone + Default + PartialEq + Serialize + DeserializeOwned;

    /// The settings to start from when there is no file.
    fn without_file() -> Map<String, Value> {
        Map::new()
    }

    /// Adds defaults that depend on other fields, after the file of `--config` and after drop-ins.
    /// Doing it again changes nothing.
    fn complete(_tree: &mut Map<String, Value>) {}

    /// Writes down those defaults that drop-ins would change by setting other fields.
    fn settle(_tree: &mut Map<String, Value>) {}

    /// Adds defaults of the file of `--config`, which drop-ins and flags then change.
    fn complete_file(_tree: &mut Map<String, Value>) {}

    /// Takes back the defaults of features that are switched off. Comes after all sources.
    fn complete_for_gates(_tree: &mut Map<String, Value>, _gates: &FeatureGates<Self>) {}

    /// All violations of ranges and combinations.
    fn check(_config: &Self::Configuration, _gates: &FeatureGates<Self>) -> Vec<ConfigError> {
        Vec::new()
    }
}

/// A configuration that is valid once it exists.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings<D: Daemon> {
    /// The file's fields with the flags over them, as `/configz` shows it.
    pub configuration: D::Configuration,
    /// The enabled features.
    pub gates: FeatureGates<D>,
    /// Settings without effect, and deprecated ones, one sentence each.
    pub warnings: Vec<String>,
}

/// Reads the files that the flags name, puts the flags over them and checks the whole; or all that
/// is wrong.
pub fn load<D: Daemon>(given: &GivenFlags) -> Result<Settings<D>, Vec<ConfigError>> {
    let sources = Sources::<D>::read(given)?;
    let (configuration, gates) = sources.typed()?;
    let mut warnings = sources.warnings;
    warnings.extend(status::flag_warnings(given));
    warnings.extend(status::field_warnings::<D>(&configuration, &sources.baseline));
    warnings.extend(status::gate_warnings(&gates));
    Ok(Settings { configuration, gates, warnings })
}

/// The settings of a file alone, without flags and drop-ins.
pub fn read_alone<D: Daemon>(bytes: &[u8]) -> Result<D::Configuration, Vec<ConfigError>> {
    let document = crate::file::parse::<D>(bytes, "file", std::path::Path::new("/"));
    let sources = Sources::<D>::of_document(document.map_err(|error| vec![error])?)?;
    sources.typed().map(|(configuration, _)| configuration)
}

/// Feeds any bytes to the reader of configuration files; for fuzzing. Must not panic.
pub fn fuzz_load<D: Daemon>(bytes: &[u8]) {
    let _ = read_alone::<D>(bytes); // any answer is fine
}
