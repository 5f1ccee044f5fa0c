//! An API server in memory: objects, versions, watches and rights as a pure state machine.

#![forbid(unsafe_code)]
