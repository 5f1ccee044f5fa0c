//! A container runtime in memory behind a real unix socket, for tests of this crate and the agent.
//!
//! Input: CRI calls through the socket; the test's wishes through `FakeRuntime`. Output: answers
//! as containerd gives them, lifecycle events, and a record of every call in order. Sandboxes,
//! containers and images have CRI semantics (state.rs, views.rs, images.rs: pure); scripts say what
//! containers and commands do (script.rs); faults delay, fail and hang calls (faults.rs); events
//! can be lost, reordered and cut off (events.rs); a flavor imitates an older runtime (flavor.rs).
//!
//! The server runs on a thread with its own tokio runtime: `stop` ends it as a kill would, with
//! every call in the middle, and `start_again` finds the state as it was. Exits that fall due in
//! between are unseen, as with containerd: code 255, reason Unknown.
//!
//! ```no_run
//! # use std::{path::Path, time::Duration};
//! # use pintle_cri::{Client, Deadlines, Method, fake::{Behaviour, FakeRuntime}};
//! # async fn example(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
//! let fake = FakeRuntime::start(&directory.join("cri.sock")).await?;
//! fake.script("shop/web/main", Behaviour::exits(Duration::from_millis(10), 1));
//! fake.on(Method::StartContainer).matching("shop/api").times(1).hang();
//! let client = Client::connect(&fake.endpoint(), Deadlines::default())?;
//! # Ok(()) }
//! ```

mod control;
mod events;
mod faults;
mod flavor;
mod images;
mod script;
mod server;
mod shared;
mod state;
mod views;

pub use control::{FakeRuntime, FaultBuilder, Lift};
pub use faults::PanicsOnce;
pub use flavor::Flavor;
pub use script::{
    Behaviour, EXIT_KILLED, EXIT_START_ERROR, EXIT_TERMINATED, EXIT_UNSEEN, ExecAnswer, OnStop,
};
pub use shared::CallRecord;
pub use state::{Nanos, State};
