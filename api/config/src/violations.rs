//! Collects violations of ranges and combinations, each in one sentence with its remedy.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::error::ConfigError;
use pintle_api_types::duration::GoDuration;

/// Collects violations.
#[derive(Debug, Default)]
pub struct Violations(pub Vec<ConfigError>);

impl Violations {
    /// Adds a violation unless `holds`.
    pub fn require(
        &mut self,
        holds: bool,
        field: &str,
        value: impl fmt::Display,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        if !holds {
            self.0.push(ConfigError::new(field, value, problem, remedy));
        }
    }

    /// Requires a number within bounds.
    pub fn in_range(&mut self, field: &str, value: i64, range: &RangeInclusive<i64>) {
        let (min, max) = (range.start(), range.end());
        let problem = format!("it must be from {min} to {max}");
        let remedy = "correct it, or remove it for the default";
        self.require(range.contains(&value), field, value, problem, remedy);
    }

    /// Requires a number that is not below `min`.
    pub fn at_least(&mut self, field: &str, value: i64, min: i64) {
        let problem = format!("it must be at least {min}");
        self.require(value >= min, field, value, problem, format!("use {min} or more"));
    }

    /// Requires an IP address.
    pub fn ip(&mut self, field: &str, text: &str) {
        let problem = "it is not an IP address";
        self.require(text.parse::<IpAddr>().is_ok(), field, text, problem, "write an IP address");
    }

    /// Requires a duration within bounds.
    pub fn between(&mut self, field: &str, value: GoDuration, [min, max]: [GoDuration; 2]) {
        let problem = format!("it must be from {min} to {max}");
        let nearest = value.clamp(min, max);
        self.require(nearest == value, field, value, problem, format!("use {nearest}"));
    }
}
