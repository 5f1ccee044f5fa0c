//! Tests of the objects' stage: the pure table, and the tasks of an API server in memory.

mod certificates;
mod claims;
mod follow;
mod references;
mod table;
