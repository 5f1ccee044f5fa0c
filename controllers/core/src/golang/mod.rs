//! Results of upstream's controllers that depend on Go's types and encoder, computed from JSON.
//!
//! Input: objects as JSON, and `types.txt`, the fields of Go's structs that a program of
//! `tests/upstream/vectors/golang` lists by reflection. Output: the pod-template-hash, the bytes of
//! a ControllerRevision, and semantic equality as `apiequality.Semantic.DeepEqual` has it.
//!
//! ```text
//!   types              the table of structs, parsed once
//!   number, time       quantities and instants as Go keeps them
//!   print, hash        go-spew's text of a template, and FNV sums of it
//!   json               Go's encoder: which fields are there, in which order, escaped how
//!   equal, digest      equality of decoded objects
//! ```
//! Bounds: the types are those of one release of Kubernetes, and fields that it does not have are
//! ignored, as Go's decoder ignores them. JSON that Go would refuse counts as nothing.

pub mod digest;
pub mod equal;
pub mod hash;
pub mod json;
mod number;
mod print;
mod time;
pub mod types;

#[cfg(test)]
mod recorded_tests;
