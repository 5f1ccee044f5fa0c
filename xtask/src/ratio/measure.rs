//! The measures compared, and the goal of each comparison.

use std::collections::BTreeMap;

use crate::table::{Goal, Row, Spread};

/// A thing that is measured of both agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Measure {
    /// Share of a core in the idle window.
    IdleCpu,
    /// Resident memory at the end of the idle window.
    Memory,
    /// From the kill of a container's first process to its terminated status.
    Death,
    /// From the first pod of a burst to each pod's phase Running.
    Running,
    /// Writes of the agent in the pods' namespace, per pod of the burst.
    Writes,
    /// Those that change a pod's status.
    StatusWrites,
    /// From the first pod's deletion to each pod's end.
    Gone,
    /// Attempts of exec probes per second.
    ProbeRate,
    /// Share of a core while probes run.
    ProbeCpu,
    /// The same for one attempt.
    CpuPerProbe,
}

/// The point of a spread that is shown.
#[derive(Clone, Copy, Debug)]
enum SpreadPoint {
    First,
    Median,
    At99,
    Last,
}

/// A line of the table: measure, point of its spread, name, unit, goal.
type Line = (Measure, SpreadPoint, &'static str, &'static str, Goal);

/// The table; goals are shares of what the kubelet needs.
const LINES: [Line; 14] = [
    (Measure::IdleCpu, SpreadPoint::Median, "idle: share of a core", "%", Goal::Ratio(1.0 / 12.0)),
    (Measure::Memory, SpreadPoint::Median, "idle: resident memory", "MiB", Goal::Ratio(0.25)),
    (Measure::Death, SpreadPoint::Median, "death to status, p50", "ms", Goal::Ratio(1.0 / 12.0)),
    (Measure::Death, SpreadPoint::At99, "death to status, p99", "ms", Goal::Ratio(1.0 / 12.0)),
    (Measure::Running, SpreadPoint::First, "burst: first Running", "s", Goal::None),
    (Measure::Running, SpreadPoint::Median, "burst: median Running", "s", Goal::Ratio(0.7)),
    (Measure::Running, SpreadPoint::Last, "burst: last Running", "s", Goal::Ratio(1.0)),
    (Measure::Writes, SpreadPoint::Median, "API writes per pod started", "", Goal::Ratio(1.0)),
    (Measure::StatusWrites, SpreadPoint::Median, "of those, pods/status", "", Goal::None),
    (Measure::Gone, SpreadPoint::Median, "deletion: median gone", "s", Goal::None),
    (Measure::Gone, SpreadPoint::Last, "deletion: last gone", "s", Goal::Ratio(0.4)),
    (Measure::ProbeRate, SpreadPoint::Median, "exec probes: attempts a second", "", Goal::None),
    (
        Measure::ProbeCpu,
        SpreadPoint::Median,
        "exec probes: share of a core",
        "%",
        Goal::Ratio(1.0 / 3.0),
    ),
    (Measure::CpuPerProbe, SpreadPoint::Median, "CPU per exec probe", "ms", Goal::Ratio(1.0 / 3.0)),
];

/// Numbers by measure; those of all rounds.
#[derive(Clone, Debug, Default)]
pub(super) struct MeasuredNumbers(BTreeMap<Measure, Vec<f64>>);

impl MeasuredNumbers {
    /// Adds numbers.
    pub(super) fn note(&mut self, measure: Measure, numbers: impl IntoIterator<Item = f64>) {
        self.0.entry(measure).or_default().extend(numbers);
    }

    /// Adds those of another round.
    pub(super) fn extend(&mut self, other: Self) {
        for (measure, numbers) in other.0 {
            self.note(measure, numbers);
        }
    }

    fn at(&self, measure: Measure, point: SpreadPoint) -> Option<f64> {
        let spread = Spread::of(self.0.get(&measure)?.iter().copied());
        Some(match point {
            SpreadPoint::First => spread.min(),
            SpreadPoint::Median => spread.p50(),
            SpreadPoint::At99 => spread.at(0.99),
            SpreadPoint::Last => spread.max(),
        })
    }
}

/// Figures of one side, for the log: they survive when the run fails later.
pub(super) fn summary(figures: &MeasuredNumbers) -> String {
    let text = |(measure, point, text, unit, _): Line| {
        Some(format!("{text} {:.3} {unit}", figures.at(measure, point)?))
    };
    LINES.into_iter().filter_map(text).collect::<Vec<_>>().join("; ")
}

/// The table's rows: what both sides have.
pub(super) fn rows(ours: &MeasuredNumbers, kubelet: &MeasuredNumbers) -> Vec<Row> {
    let row = |(measure, point, text, unit, goal): Line| {
        let (ours, bound) = (ours.at(measure, point)?, kubelet.at(measure, point));
        Some(Row { measure: text.to_owned(), unit, goal, ours, bound })
    };
    LINES.into_iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_compares_the_same_number_of_both_sides() {
        let (mut ours, mut kubelet) = (MeasuredNumbers::default(), MeasuredNumbers::default());
        ours.note(Measure::Running, [1.0, 2.0, 3.0]);
        kubelet.note(Measure::Running, [4.0, 9.0]);
        kubelet.extend(ours.clone());
        let rows = rows(&ours, &kubelet);
        let numbers: Vec<_> = rows.iter().map(|row| (row.ours, row.bound)).collect();
        assert_eq!(numbers, [(1.0, Some(1.0)), (2.0, Some(3.0)), (3.0, Some(9.0))]);
    }
}
