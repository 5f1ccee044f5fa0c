//! The error of an expression: a text in the words of upstream.
//!
//! Input: the text. Output: the text, in events and conditions. Owner: the caller.
//! Bounds: a text about one value of the expression. Why a text and not variants: to CEL an error
//! is a value that `&&` and `||` pass on or absorb, whatever it says; nothing branches on it.

use std::borrow::Cow;
use std::fmt;

/// Reason why an expression does not compile or has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CelError(Cow<'static, str>);

impl fmt::Display for CelError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for CelError {}

impl From<String> for CelError {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&'static str> for CelError {
    fn from(text: &'static str) -> Self {
        Self(text.into())
    }
}
