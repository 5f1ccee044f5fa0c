//! The garbage of a node that may be removed, and in which order. Pure: no clock, no effects.
//!
//! | module | decides |
//! |---|---|
//! | `containers` | selection of dead containers and sandboxes |
//! | `images` | selection of images, when they are removed, and why others stay |

pub mod containers;
pub mod images;
