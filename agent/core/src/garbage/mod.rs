//! What may be thrown away on a node, and in which order. Pure: no clock, no effects.
//!
//! | module | decides |
//! |---|---|
//! | `images` | which images go, when, and why the others stay |

pub mod images;
