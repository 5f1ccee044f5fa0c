//! Sources of pods that need no cluster: a folder of manifests, a URL.

pub(crate) mod file;
pub(crate) mod http;

use pintle_agent_core::source::*;
