//! Out-of-tree plugins: the extension points, and a client for plugins that ask the API server.
//!
//! Input: a registry of plugins, given to [`command_line`](crate::command_line). Output: their
//! answers, see [`pintle_scheduler_core::framework`]. A scheduler with plugins of its own is a
//! crate with a `main` of one line, see `scheduler/examples/own-plugins`:
//!
//! ```no_run
//! use pintle_scheduler::framework::{Points, Registry};
//! fn main() -> std::process::ExitCode {
//!     let registry = Registry::default().with("Nothing", |_args, _handle| Ok(Points::default()));
//!     pintle_scheduler::command_line(registry)
//! }
//! ```

pub use pintle_scheduler_core::framework::*;

/// The client that a plugin gets from its [`Handle`].
pub trait HandleClient {
    /// Returns a client with the scheduler's credentials; `None` in tests without one.
    fn client(&self) -> Option<kube::Client>;
}

impl HandleClient for Handle {
    fn client(&self) -> Option<kube::Client> {
        self.client_of()
    }
}
