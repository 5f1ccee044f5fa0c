//! Pieces that several controllers share.

pub mod availability;
pub mod claim;
pub mod history;
pub mod int_or_percent;
pub mod lockstep;
pub mod node_match;
pub mod owner;
pub mod pods;
pub mod ranking;
#[cfg(test)]
mod ranking_tests;
pub mod sample;
pub mod scaled;
pub mod status;
pub mod template_defaults;
pub mod time;
pub mod times;
