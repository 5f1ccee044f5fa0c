//! Probed ports of recorded containers, on a loopback address for each pod.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// How often a listener checks whether it is still needed.
const PERIOD: Duration = Duration::from_millis(5);

/// How a port answers: an HTTP status, or nothing at all.
pub(crate) const SILENT: u16 = 0;

/// A port that answers until it is dropped.
#[derive(Debug)]
pub(crate) struct AnsweringPort {
    answer: Arc<AtomicU16>,
    stopped: Arc<AtomicBool>,
}

impl AnsweringPort {
    /// Listens; connections are taken, and requests answered with this status.
    pub(crate) fn open(address: SocketAddr, answer: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let port = Self { answer: Arc::new(AtomicU16::new(answer)), stopped: Arc::default() };
        let (answer, stopped) = (Arc::clone(&port.answer), Arc::clone(&port.stopped));
        thread::spawn(move || {
            let mut silent = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else {
                    thread::sleep(PERIOD);
                    continue;
                };
                let status = answer.load(Ordering::Relaxed);
                if status == SILENT {
                    silent.push(stream);
                    continue;
                }
                // A probe that only connects sends nothing.
                let _ = stream.set_nonblocking(false);
                let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
                let _ = stream.read(&mut [0; 1024]);
                let text = format!("HTTP/1.1 {status} x\r\ncontent-length: 2\r\n\r\nok");
                let _ = stream.write_all(text.as_bytes());
            }
        });
        Ok(port)
    }

    /// Answers differently from now on.
    pub(crate) fn answer(&self, status: u16) {
        self.answer.store(status, Ordering::Relaxed);
    }
}

impl Drop for AnsweringPort {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// An address for the pod of this number.
pub(crate) fn address(index: usize) -> Ipv4Addr {
    let [.., high, low] = u32::try_from(index + 1).expect("few pods").to_be_bytes();
    Ipv4Addr::new(127, 77, high, low)
}

/// Containers with probes that open connections, and the ports of each.
pub(crate) fn probed(pod: &Pod) -> Vec<(String, Vec<u16>)> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let of = |container: &Container| {
        let probes =
            [&container.liveness_probe, &container.readiness_probe, &container.startup_probe];
        let named = container.ports.as_deref().unwrap_or_default();
        let ports = probes.into_iter().flatten().filter_map(|probe| port(probe, named));
        let mut ports: Vec<u16> = ports.collect();
        ports.sort_unstable();
        ports.dedup();
        (container.name.clone(), ports)
    };
    containers.map(of).filter(|(_, ports)| !ports.is_empty()).collect()
}

fn port(probe: &Probe, named: &[ContainerPort]) -> Option<u16> {
    let http = probe.http_get.as_ref().map(|get| &get.port);
    let port = http.or(probe.tcp_socket.as_ref().map(|socket| &socket.port))?;
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let found = named.iter().find(|port| port.name.as_deref() == Some(name));
            found.map_or_else(|| name.parse().unwrap_or(0), |port| port.container_port)
        }
    };
    u16::try_from(number).ok()
}
