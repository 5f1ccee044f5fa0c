//! `pintle-csi-driver`: the process around the driver. SIGTERM removes its registration and ends
//! it.

#![forbid(unsafe_code)]

use anyhow::Result;
use clap::Parser as _;
use pintle_csi_driver::Settings;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<()> {
    let settings = Settings::parse();
    let sockets = settings.sockets();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let mut stop = signal(SignalKind::terminate())?;
        tokio::select! {
            served = pintle_csi_driver::serve(settings) => served,
            _ = stop.recv() => Ok(()),
        }
    });
    for socket in sockets {
        let _ = std::fs::remove_file(socket); // a start that failed has made none
    }
    // A call that hangs on purpose does not hold up the end.
    runtime.shutdown_background();
    ended
}
