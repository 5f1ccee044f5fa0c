//! Tests of the Job controller; `kit` has what they share.

mod backoff;
mod cases;
mod handlers;
mod indexes;
mod kit;
mod policies;
mod removal;
mod vectors;
