//! `pintle-csi-driver`: the process around the driver. SIGTERM removes its registration and ends
//! it. A first word selects a stand-in for one of upstream's programs, with that program's flags.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser as _;
use pintle_csi_driver::go_flags::GoFlags;
use pintle_csi_driver::proxy::{self, ProxySettings};
use pintle_csi_driver::{Settings, host_path, sidecar};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flags = GoFlags::read(arguments.iter().map(String::as_str));
    match arguments.first().map(String::as_str) {
        Some("csi-node-driver-registrar") => run(sidecar::register(&flags), &[]),
        Some("livenessprobe") => run(sidecar::answer_health_checks(&flags), &[]),
        Some("hostpathplugin") => match ProxySettings::of_flags(&flags) {
            Some(settings) => {
                run(proxy::serve(&settings), std::slice::from_ref(&settings.endpoint))
            }
            None => serve(host_path::settings(&flags)?),
        },
        _ => serve(Settings::parse()),
    }
}

fn serve(settings: Settings) -> Result<()> {
    let sockets = settings.sockets();
    run(pintle_csi_driver::serve(settings), &sockets)
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
