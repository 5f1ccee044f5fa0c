//! Tests of ReplicaSets and ReplicationControllers.

mod syncs;
mod vectors;
mod wakes;
