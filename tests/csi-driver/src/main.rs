//! `pintle-csi-driver`: the process around the driver. SIGTERM removes its registration and ends
//! it.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser as _;
use pintle_csi_driver::Settings;
use pintle_csi_driver::proxy::{self, ProxySettings};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match ProxySettings::of_arguments(arguments.iter().map(String::as_str)) {
        Some(settings) => run(proxy::serve(&settings), std::slice::from_ref(&settings.endpoint)),
        None => {
            let settings = Settings::parse();
            let sockets = settings.sockets();
            run(pintle_csi_driver::serve(settings), &sockets)
        }
    }
}

/// Serves until SIGTERM, and removes the sockets.
fn run(service: impl Future<Output = Result<()>>, sockets: &[PathBuf]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let mut stop = signal(SignalKind::terminate())?;
        tokio::select! {
            served = service => served,
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
