//! The memory, disk and process numbers left on the node, and when to observe them.
//!
//! ```text
//!   node          one reading of everything that is scarce
//!   lines         how little memory has to be left for a look
//!   memory_watch  the kernel's word that memory gets short
//! ```

pub mod lines;
pub mod memory_watch;
pub mod node;
