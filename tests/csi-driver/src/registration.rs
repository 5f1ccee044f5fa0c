//! Plays node-driver-registrar: answers the kubelet what driver this is, and logs its verdict.

use pintle_plugins_v1::registration::registration_server::Registration;
use pintle_plugins_v1::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use tonic::{Request, Response, Status};

use crate::call::{Driver, subject};

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(
        &self,
        request: Request<InfoRequest>,
    ) -> Result<Response<PluginInfo>, Status> {
        self.serve(subject("GetInfo", "", ""), request.into_inner(), |session, _| {
            let settings = session.settings;
            let endpoint = settings.registered_endpoint.as_ref().unwrap_or(&settings.endpoint);
            Ok(PluginInfo {
                r#type: "CSIPlugin".to_owned(),
                name: settings.name.clone(),
                endpoint: endpoint.display().to_string(),
                supported_versions: vec!["1.0.0".to_owned()],
            })
        })
        .await
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let subject = subject("NotifyRegistrationStatus", "", "");
        self.serve(subject, request.into_inner(), |_, _| Ok(RegistrationStatusResponse {})).await
    }
}
