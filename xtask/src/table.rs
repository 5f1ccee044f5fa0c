//! Percentiles, and the table that a benchmark prints: goal, our value, the value it is compared
//! with, ratio, verdict.
//!
//! Pure but for `print`. The table is Markdown, so that a report can include it unchanged.

/// Numbers in order.
#[derive(Clone, Debug)]
pub struct Spread(Vec<f64>);

impl Spread {
    /// Sorts them; panics when there are none, because nothing was measured then.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        assert!(!numbers.is_empty(), "nothing was measured");
        numbers.sort_by(f64::total_cmp);
        Self(numbers)
    }

    /// The number below which this share lies; the nearest that was measured.
    pub fn at(&self, share: f64) -> f64 {
        self.0[((self.0.len() - 1) as f64 * share).round() as usize]
    }

    /// The median.
    pub fn p50(&self) -> f64 {
        self.at(0.5)
    }

    /// The smallest.
    pub fn min(&self) -> f64 {
        self.at(0.0)
    }

    /// The largest.
    pub fn max(&self) -> f64 {
        self.at(1.0)
    }
}

/// Kind of a goal.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// Our value is at most this multiple of the other.
    Ratio(f64),
    /// Our value is at most this.
    Limit(f64),
    /// Shown for comparison.
    None,
}

/// A line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The measure's name.
    pub measure: String,
    /// Unit of `ours` and `bound`.
    pub unit: &'static str,
    /// The goal.
    pub goal: Goal,
    /// Our value.
    pub ours: f64,
    /// The same without the agent, where that can be measured.
    pub bound: Option<f64>,
}

impl Row {
    /// Our value divided by the value it is compared with.
    pub fn ratio(&self) -> Option<f64> {
        self.bound.filter(|bound| *bound > 0.0).map(|bound| self.ours / bound)
    }

    /// Returns whether the goal is met; `None` when there is no goal.
    pub fn met(&self) -> Option<bool> {
        match self.goal {
            Goal::Ratio(most) => self.ratio().map(|ratio| ratio <= most),
            Goal::Limit(most) => Some(self.ours <= most),
            Goal::None => None,
        }
    }

    fn line(&self) -> String {
        let unit = self.unit;
        let goal = match self.goal {
            Goal::Ratio(most) => format!("<= {}x", digits(most)),
            Goal::Limit(most) => format!("<= {most} {unit}"),
            Goal::None => String::new(),
        };
        let bound = self.bound.map(|b| format!("{} {unit}", digits(b))).unwrap_or_default();
        let ratio = self.ratio().map(|r| format!("{r:.2}x")).unwrap_or_default();
        let verdict = self.met().map_or("", |met| if met { "met" } else { "missed" });
        let (measure, ours) = (&self.measure, digits(self.ours));
        format!("| {measure} | {goal} | {ours} {unit} | {bound} | {ratio} | {verdict} |")
    }
}

/// Three digits that matter.
fn digits(number: f64) -> String {
    match number.abs() {
        n if n >= 100.0 => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        n if n >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

/// Prints the rows; `bound` names the side compared with.
pub fn print(bound: &str, rows: &[Row]) {
    println!("| measure | goal | ours | {bound} | ratio | verdict |");
    println!("|---|---|---|---|---|---|");
    rows.iter().for_each(|row| println!("{}", row.line()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_number_that_was_measured() {
        let spread = Spread::of([5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!((spread.min(), spread.p50(), spread.max()), (1.0, 3.0, 5.0));
        assert_eq!(Spread::of([7.0]).p50(), 7.0);
    }

    #[test]
    fn ratio_goal_is_relative_to_the_bound_and_a_limit_goal_is_absolute() {
        let row = |goal, ours| {
            Row { measure: "m".into(), unit: "ms", goal, ours, bound: Some(100.0) }.met()
        };
        assert_eq!(row(Goal::Ratio(1.1), 109.0), Some(true));
        assert_eq!(row(Goal::Ratio(1.1), 111.0), Some(false));
        assert_eq!(row(Goal::Limit(50.0), 51.0), Some(false));
        assert_eq!(row(Goal::None, 1.0), None);
    }

    #[test]
    fn table_line_has_goal_our_value_bound_ratio_and_verdict() {
        let row = Row {
            measure: "one pod".into(),
            unit: "ms",
            goal: Goal::Ratio(1.1),
            ours: 210.0,
            bound: Some(200.0),
        };
        assert_eq!(row.line(), "| one pod | <= 1.10x | 210 ms | 200 ms | 1.05x | met |");
    }
}
