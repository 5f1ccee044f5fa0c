//! The garbage of a node that may be removed, and in which order. Pure: no clock, no effects.
//!
//! | module | decides |
//! |---|---|
//! | `containers` | which dead containers and sandboxes go |
//! | `images` | which images go, when, and why the others stay |

pub mod containers;
pub mod images;
