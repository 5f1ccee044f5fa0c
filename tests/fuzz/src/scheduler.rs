//! The evaluator of selectors of devices. Its files use little else of the scheduler, and are compiled
//! here once more, for the reason that `server` has.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "most of these files is for the scheduler")]

#[path = "../../../scheduler/src/devices/cel/mod.rs"]
mod cel;
#[path = "../../../api/daemon/src/metrics/text.rs"]
mod text;

pub(crate) use cel::fuzz::fuzz as fuzz_cel;
pub(crate) use text::go_float;
