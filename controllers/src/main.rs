//! The controller manager.

#![forbid(unsafe_code)]

fn main() {}
