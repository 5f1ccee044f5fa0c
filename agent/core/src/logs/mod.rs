//! Lines of container logs, and when a log is rotated.

pub mod line;
pub mod pace;
