//! `pintle-controllers`: a drop-in for kube-controller-manager.

#![forbid(unsafe_code)]

mod dispatch;
mod follow;
mod run;

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use pintle_api::{Access, ClientOptions, Rate};
use pintle_controllers_core::frame::Frame;
use pintle_controllers_loops::ttl_after_finished::TtlAfterFinished;

fn main() -> anyhow::Result<()> {
    let flag =
        std::env::args().find_map(|arg| arg.strip_prefix("--kubeconfig=").map(str::to_owned));
    let path = flag.unwrap_or_default();
    pintle_daemon::logging::init(pintle_daemon::logging::Format::Text, 0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let access = Access::read(Path::new(&path))?;
        let mut frame = Frame::default();
        frame.add(TtlAfterFinished { workers: 5 });
        let mut identities = BTreeMap::new();
        for name in frame.names() {
            let options = ClientOptions { user_agent: name.to_owned(), ..Default::default() };
            let client = access.client(options);
            let rate = Rate { per_second: 0.0, burst: 1 };
            let (recorder, sink) = pintle_api::events::recorder(client.clone(), name, "", rate);
            tokio::task::spawn_local(sink.run());
            identities.insert(name, Rc::new(dispatch::Identity { client, recorder }));
        }
        let watcher = access.client(ClientOptions::default());
        run::run(run::Parts { frame, identities, watcher }).await;
        Ok(())
    })
}
