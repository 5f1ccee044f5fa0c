//! Tests of the Job controller; `kit` has what they share.

mod kit;
mod vectors;
