//! CSI's Controller service: which method is which function of `volumes` and `snapshots`.

use pintle_plugins_v1::csi::controller_server::Controller;
use pintle_plugins_v1::csi::*;
use tonic::{Request, Response, Status};

use crate::call::{Driver, Session, subject};
use crate::settings::Feature;
use crate::{snapshots, volumes};

/// A driver without the service has none of its methods, one without a feature not that one's.
fn needs(session: &Session<'_>, feature: Feature) -> Result<(), Status> {
    match session.has(Feature::Controller) && session.has(feature) {
        true => Ok(()),
        false => Err(Status::unimplemented("this driver is run without this method")),
    }
}

macro_rules! methods {
    ($($name:ident $method:literal($request:ident) -> $response:ident,
        |$r:ident| $subject:expr, $feature:ident, $effect:path;)*) => {
        #[tonic::async_trait]
        impl Controller for Driver {
            $(async fn $name(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$response>, Status> {
                let request = request.into_inner();
                let about: &str = {
                    let $r = &request;
                    $subject
                };
                let subject = subject($method, about, "");
                self.serve(subject, request, |session, request| {
                    needs(session, Feature::$feature)?;
                    $effect(session, request)
                })
                .await
            })*
        }
    };
}

methods! {
    create_volume "CreateVolume"(CreateVolumeRequest) -> CreateVolumeResponse,
        |r| &r.name, Controller, volumes::create;
    delete_volume "DeleteVolume"(DeleteVolumeRequest) -> DeleteVolumeResponse,
        |r| &r.volume_id, Controller, volumes::delete;
    controller_publish_volume "ControllerPublishVolume"(ControllerPublishVolumeRequest)
        -> ControllerPublishVolumeResponse, |r| &r.volume_id, Attach, volumes::attach;
    controller_unpublish_volume "ControllerUnpublishVolume"(ControllerUnpublishVolumeRequest)
        -> ControllerUnpublishVolumeResponse, |r| &r.volume_id, Attach, volumes::detach;
    validate_volume_capabilities "ValidateVolumeCapabilities"(ValidateVolumeCapabilitiesRequest)
        -> ValidateVolumeCapabilitiesResponse, |r| &r.volume_id, Controller, volumes::validate;
    list_volumes "ListVolumes"(ListVolumesRequest) -> ListVolumesResponse,
        |r| &r.starting_token, Controller, volumes::list;
    get_capacity "GetCapacity"(GetCapacityRequest) -> GetCapacityResponse,
        |r| { let _ = r; "" }, Controller, volumes::capacity;
    controller_get_capabilities "ControllerGetCapabilities"(ControllerGetCapabilitiesRequest)
        -> ControllerGetCapabilitiesResponse, |r| { let _ = r; "" }, Controller,
        volumes::capabilities;
    create_snapshot "CreateSnapshot"(CreateSnapshotRequest) -> CreateSnapshotResponse,
        |r| &r.name, Snapshots, snapshots::create;
    delete_snapshot "DeleteSnapshot"(DeleteSnapshotRequest) -> DeleteSnapshotResponse,
        |r| &r.snapshot_id, Snapshots, snapshots::delete;
    list_snapshots "ListSnapshots"(ListSnapshotsRequest) -> ListSnapshotsResponse,
        |r| &r.snapshot_id, Snapshots, snapshots::list;
    controller_expand_volume "ControllerExpandVolume"(ControllerExpandVolumeRequest)
        -> ControllerExpandVolumeResponse, |r| &r.volume_id, ControllerExpand, volumes::expand;
    controller_get_volume "ControllerGetVolume"(ControllerGetVolumeRequest)
        -> ControllerGetVolumeResponse, |r| &r.volume_id, Controller, volumes::get;
    controller_modify_volume "ControllerModifyVolume"(ControllerModifyVolumeRequest)
        -> ControllerModifyVolumeResponse, |r| &r.volume_id, Controller, volumes::modify;
}
