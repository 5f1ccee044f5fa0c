//! Who has to go when the node runs out of something.
//!
//! ```text
//!   signal     what a node can run out of
//!   observed   how much of it there is, and what pods take
//! ```

pub mod observed;
pub mod signal;
