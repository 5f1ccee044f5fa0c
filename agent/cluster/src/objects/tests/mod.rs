//! Tests of the objects' stage: the pure table, and the tasks against an API server in miniature.

mod certificates;
mod claims;
mod fake;
mod follow;
mod references;
mod table;
