//! Stand-ins for two sidecars that are not published as Go modules: node-driver-registrar and
//! livenessprobe.
//!
//! Input: their flags, and the socket of a driver, which may be the proxy of upstream's mock suites.
//! Output: the registration socket by which the kubelet finds the driver, or an HTTP port that
//! answers 200 while the driver answers Probe. Bounds: a call lasts `CALL_MAX`, a request to the
//! port has `REQUEST_BYTES_MAX` bytes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pintle_plugins_v1::csi::{
    GetPluginInfoRequest, GetPluginInfoResponse, ProbeRequest, ProbeResponse,
};
use pintle_plugins_v1::registration::registration_server::{Registration, RegistrationServer};
use pintle_plugins_v1::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::go_flags::GoFlags;
use crate::listen;

/// Longest call to the driver.
const CALL_MAX: Duration = Duration::from_secs(30);
/// Delay between two calls to a driver that does not answer.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Where the manifests mount the kubelet's folder of registrations.
const REGISTRATIONS: &str = "/registration";
/// Longest request to the health port that is read.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Registers the driver with the kubelet until the process ends; upstream's registrar.
///
/// # Errors
/// A flag is missing, or the registration socket cannot be created.
pub async fn register(flags: &GoFlags) -> Result<()> {
    let driver = socket_of(flags)?;
    let endpoint = flags.value("kubelet-registration-path");
    let endpoint = endpoint.context("--kubelet-registration-path is missing")?.to_owned();
    let name = loop {
        let call = call("/csi.v1.Identity/GetPluginInfo", &driver, GetPluginInfoRequest {});
        let info: Result<GetPluginInfoResponse> = call.await;
        match info {
            Ok(info) => break info.name,
            Err(error) => eprintln!("the driver does not name itself yet: {error:#}"),
        }
        tokio::time::sleep(RETRY_AFTER).await;
    };
    eprintln!("registers {name} at {endpoint}");
    let folder = flags.value("plugin-registration-path").unwrap_or(REGISTRATIONS);
    let socket = PathBuf::from(folder).join(format!("{name}-reg.sock"));
    let service = RegistrationServer::new(Registrar { name, endpoint });
    Ok(Server::builder().add_service(service).serve_with_incoming(listen(&socket)?).await?)
}

/// What the kubelet is to know of a driver.
#[derive(Clone, Debug)]
struct Registrar {
    name: String,
    endpoint: String,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        eprintln!("{:?}", request.into_inner());
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Answers health checks until the process ends; upstream's livenessprobe.
///
/// # Errors
/// A flag is missing, or the port is taken.
pub async fn answer_health_checks(flags: &GoFlags) -> Result<()> {
    let driver = socket_of(flags)?;
    let port: u16 = flags.value("health-port").unwrap_or("9808").parse()?;
    let listener = TcpListener::bind(("0.0.0.0", port)).await.context("no health port")?;
    loop {
        let (stream, _) = listener.accept().await?;
        let driver = driver.clone();
        tokio::spawn(async move {
            // The client's next check has a connection of its own.
            let _ = answer(stream, &driver).await;
        });
    }
}

async fn answer(mut stream: TcpStream, driver: &str) -> Result<()> {
    let mut request = [0; 512];
    let mut bytes_read = 0;
    let mut end = Vec::new();
    while !end.ends_with(b"\r\n\r\n") && bytes_read < REQUEST_BYTES_MAX {
        let count = stream.read(&mut request).await?;
        if count == 0 {
            return Ok(());
        }
        bytes_read += count;
        end.extend(&request[..count]);
    }
    let probe: Result<ProbeResponse> =
        call("/csi.v1.Identity/Probe", driver, ProbeRequest {}).await;
    let (status, text) = match probe {
        Ok(probe) if probe.ready != Some(false) => ("200 OK", "ok".to_owned()),
        Ok(_) => ("500 Internal Server Error", "the driver is not ready".to_owned()),
        Err(error) => ("500 Internal Server Error", format!("{error:#}")),
    };
    let length = text.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all((head + &text).as_bytes()).await?;
    Ok(stream.shutdown().await?)
}

/// The driver's socket, as the flag `csi-address` names it.
fn socket_of(flags: &GoFlags) -> Result<String> {
    let address = flags.value("csi-address").context("--csi-address is missing")?;
    Ok(address.trim_start_matches("unix://").to_owned())
}

/// Makes one call on a connection of its own.
async fn call<Q, A>(method: &'static str, socket: &str, request: Q) -> Result<A>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let endpoint = Endpoint::from_shared(format!("unix://{socket}"))?.timeout(CALL_MAX);
    let mut client = tonic::client::Grpc::new(endpoint.connect().await?);
    client.ready().await?;
    let codec = ProstCodec::<Q, A>::default();
    let method = PathAndQuery::from_static(method);
    Ok(client.unary(Request::new(request), method, codec).await?.into_inner())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use tokio::net::UnixStream;

    use super::*;
    use crate::Settings;

    /// Waits until a socket accepts connections.
    async fn wait_for(socket: &std::path::Path) {
        while UnixStream::connect(socket).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn driver(folder: &std::path::Path) -> Settings {
        let flag = |name: &str, path: &str| format!("--{name}={}", folder.join(path).display());
        let flags = ["driver".to_owned(), flag("endpoint", "csi.sock"), flag("state", "state")];
        Settings::parse_from(flags.into_iter().chain(["--name=some.driver".to_owned()]))
    }

    #[tokio::test]
    async fn driver_is_registered_under_its_own_name_at_the_kubelets_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let flags = [
            format!("--csi-address={}", at("csi.sock").display()),
            format!("--plugin-registration-path={}", folder.path().display()),
            "--kubelet-registration-path=/plugins/some/csi.sock".to_owned(),
        ];
        let flags = GoFlags::read(flags.iter().map(String::as_str));
        let socket = at("some.driver-reg.sock");
        let ask = async {
            wait_for(&socket).await;
            let text = socket.display().to_string();
            call::<_, PluginInfo>("/pluginregistration.Registration/GetInfo", &text, InfoRequest {})
                .await
        };
        let info = tokio::select! {
            ended = register(&flags) => panic!("{ended:?}"),
            ended = crate::serve(driver(folder.path())) => panic!("{ended:?}"),
            info = ask => info.expect("an answer"),
        };
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "some.driver"));
        assert_eq!(info.endpoint, "/plugins/some/csi.sock");
    }

    #[tokio::test]
    async fn health_check_succeeds_while_the_driver_answers() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("csi.sock");
        let driver_socket = socket.display().to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("an address");
        let check = || async {
            let mut client = TcpStream::connect(address).await.expect("connected");
            client.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.expect("written");
            let (server, _) = listener.accept().await.expect("accepted");
            answer(server, &driver_socket).await.expect("answered");
            let mut text = String::new();
            client.read_to_string(&mut text).await.expect("read");
            text
        };
        assert!(check().await.starts_with("HTTP/1.1 500 "), "there is no driver");
        let checked = async {
            wait_for(&socket).await;
            check().await
        };
        let text = tokio::select! {
            ended = crate::serve(driver(folder.path())) => panic!("{ended:?}"),
            text = checked => text,
        };
        assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("\r\n\r\nok"), "{text}");
    }
}
