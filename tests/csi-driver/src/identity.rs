//! CSI's Identity service.

use pintle_plugins_v1::csi::identity_server::Identity;
use pintle_plugins_v1::csi::plugin_capability::service::Type as ServiceType;
use pintle_plugins_v1::csi::plugin_capability::volume_expansion::Type as ExpansionType;
use pintle_plugins_v1::csi::plugin_capability::{Service, Type, VolumeExpansion};
use pintle_plugins_v1::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response, Status};

use crate::call::{Driver, subject};
use crate::settings::Feature;

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        self.serve(subject("GetPluginInfo", "", ""), request.into_inner(), |session, _| {
            Ok(GetPluginInfoResponse {
                name: session.settings.name.clone(),
                vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
                ..Default::default()
            })
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let subject = subject("GetPluginCapabilities", "", "");
        self.serve(subject, request.into_inner(), |session, _| {
            let service = |service: ServiceType| Type::Service(Service { r#type: service.into() });
            let online = VolumeExpansion { r#type: ExpansionType::Online.into() };
            let expands =
                session.has(Feature::ControllerExpand) || session.has(Feature::NodeExpand);
            let all = [
                (session.has(Feature::Controller), service(ServiceType::ControllerService)),
                (
                    session.has(Feature::Topology) && !session.settings.topology.is_empty(),
                    service(ServiceType::VolumeAccessibilityConstraints),
                ),
                (expands, Type::VolumeExpansion(online)),
            ];
            let had = all.into_iter().filter(|(has, _)| *has);
            let capabilities = had.map(|(_, one)| PluginCapability { r#type: Some(one) }).collect();
            Ok(GetPluginCapabilitiesResponse { capabilities })
        })
        .await
    }

    async fn probe(
        &self,
        request: Request<ProbeRequest>,
    ) -> Result<Response<ProbeResponse>, Status> {
        let subject = subject("Probe", "", "");
        self.serve(subject, request.into_inner(), |_, _| Ok(ProbeResponse { ready: Some(true) }))
            .await
    }
}
