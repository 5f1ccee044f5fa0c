//! Metric samples that a sync adds to the metrics of its controller.
//!
//! A sync is pure, so it leaves its samples as notes; the controller adds them up.

use std::collections::BTreeMap;

/// A sample of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricValue {
    /// The metric's name, without the prefix of its controller.
    pub name: &'static str,
    /// Labels and their values, in the metric's order.
    pub labels: Vec<(&'static str, String)>,
    /// The increment of a counter, or the value that a histogram observes.
    pub value: f64,
}

impl MetricValue {
    /// A sample with labels.
    pub fn new(name: &'static str, labels: &[(&'static str, &str)], value: f64) -> Self {
        let labels = labels.iter().map(|(label, text)| (*label, (*text).to_owned()));
        Self { name, labels: labels.collect(), value }
    }
}

/// Samples of one metric with the same labels, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SampleTotal {
    /// How many samples there were.
    pub count: u64,
    /// The sum of their values.
    pub sum: f64,
}

/// A metric's name, and its labels with their values.
type SampleKey = (&'static str, Vec<(&'static str, String)>);

/// Samples, added up by metric and labels. Bounds: as many entries as there are label values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleTotals(BTreeMap<SampleKey, SampleTotal>);

impl SampleTotals {
    /// Adds a sample.
    pub fn add(&mut self, sample: MetricValue) {
        let total = self.0.entry((sample.name, sample.labels)).or_default();
        total.count += 1;
        total.sum += sample.value;
    }

    /// The total of a metric's samples with these label values.
    pub fn total(&self, name: &'static str, labels: &[(&'static str, &str)]) -> SampleTotal {
        let sample = MetricValue::new(name, labels, 0.0);
        self.0.get(&(sample.name, sample.labels)).copied().unwrap_or_default()
    }

    /// All totals.
    pub fn iter(&self) -> impl Iterator<Item = (&SampleKey, &SampleTotal)> {
        self.0.iter()
    }
}
