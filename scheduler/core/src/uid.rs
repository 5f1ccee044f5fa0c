//! The UID under which the scheduler knows a pod or a pod group.
//!
//! Input: `metadata.uid`, or the object's key when it has none. Output: one shared text, compared and
//! hashed as the text, so that maps are read with a `&str`. Owner: every map by UID of this crate and
//! of `pintle-scheduler`, on the deciding thread. A clone counts a reference and copies nothing.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

/// The UID of a pod or a pod group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(Rc<str>);

impl<T: Into<Rc<str>>> From<T> for Uid {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl Deref for Uid {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Uid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
