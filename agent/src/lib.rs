//! The agent's pipeline.
