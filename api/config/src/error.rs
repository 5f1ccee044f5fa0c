//! A fault of the configuration, in one sentence with its remedy.

use std::fmt;

/// Longer values are cut in messages, so that a pasted file does not fill the screen.
const VALUE_CHARS_MAX: usize = 120;

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// File and line, when known.
    pub place: Option<String>,
    /// Configuration field or flag.
    pub field: String,
    /// The value it was given.
    pub value: String,
    /// The fault.
    pub problem: String,
    /// The remedy.
    pub remedy: String,
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// A setting, its value, the fault, the remedy.
    pub fn new(
        field: impl Into<String>,
        value: impl fmt::Display,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            place: None,
            field: field.into(),
            value: cut(value.to_string()),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    /// The same error, found in a file at a line.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }
}

fn cut(value: String) -> String {
    match value.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value,
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        f.write_str(&self.field)?;
        if !self.value.is_empty() {
            write!(f, " is {}", self.value)?;
        }
        write!(f, ": {}", self.problem)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}
