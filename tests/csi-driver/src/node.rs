//! CSI's Node service: staged is bound to the staging path, published is bound to the target.
//!
//! A file system is the volume's folder, a device the loop device of the volume's file. What CSI
//! lets an orchestrator do only in an order is checked by `lifecycle` before anything is done.

use pintle_plugins_v1::csi::node_server::Node;
use pintle_plugins_v1::csi::node_service_capability::rpc::Type as Rpc;
use pintle_plugins_v1::csi::node_service_capability::{Rpc as RpcMessage, Type};
use pintle_plugins_v1::csi::volume_capability::access_mode::Mode;
use pintle_plugins_v1::csi::*;
use tonic::{Request, Response, Status};

use crate::call::{Driver, Session, caller, internal, path, subject, topology};
use crate::capability::{Wish, required};
use crate::lifecycle::Todo;
use crate::log::Subject;
use crate::settings::Feature;
use crate::state::{Publication, VolumeState};
use crate::volumes::{condition, signed};
use crate::{disk, loops};

/// Attribute by which the kubelet says that a volume is made for the pod.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// Attribute of the size of such a volume, in bytes.
const SIZE: &str = "size";
/// Its size without that.
const EPHEMERAL_BYTES: u64 = 1 << 20;

macro_rules! methods {
    ($($name:ident $method:literal($request:ident) -> $response:ident,
        |$r:ident| $about:expr, $effect:path;)*) => {
        #[tonic::async_trait]
        impl Node for Driver {
            $(async fn $name(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$response>, Status> {
                let caller = caller(&request);
                let request = request.into_inner();
                let (volume, path): (&str, &str) = {
                    let $r = &request;
                    $about
                };
                let subject = Subject { caller, ..subject($method, volume, path) };
                self.serve(subject, request, $effect).await
            })*
        }
    };
}

methods! {
    node_stage_volume "NodeStageVolume"(NodeStageVolumeRequest) -> NodeStageVolumeResponse,
        |r| (&r.volume_id, &r.staging_target_path), stage;
    node_unstage_volume "NodeUnstageVolume"(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse,
        |r| (&r.volume_id, &r.staging_target_path), unstage;
    node_publish_volume "NodePublishVolume"(NodePublishVolumeRequest) -> NodePublishVolumeResponse,
        |r| (&r.volume_id, &r.target_path), publish;
    node_unpublish_volume "NodeUnpublishVolume"(NodeUnpublishVolumeRequest)
        -> NodeUnpublishVolumeResponse, |r| (&r.volume_id, &r.target_path), unpublish;
    node_get_volume_stats "NodeGetVolumeStats"(NodeGetVolumeStatsRequest)
        -> NodeGetVolumeStatsResponse, |r| (&r.volume_id, &r.volume_path), stats;
    node_expand_volume "NodeExpandVolume"(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse,
        |r| (&r.volume_id, &r.volume_path), expand;
    node_get_capabilities "NodeGetCapabilities"(NodeGetCapabilitiesRequest)
        -> NodeGetCapabilitiesResponse, |r| { let _ = r; ("", "") }, capabilities;
    node_get_info "NodeGetInfo"(NodeGetInfoRequest) -> NodeGetInfoResponse,
        |r| { let _ = r; ("", "") }, info;
}

fn stage(
    session: &mut Session<'_>,
    request: NodeStageVolumeRequest,
) -> Result<NodeStageVolumeResponse, Status> {
    needs(session, Feature::Stage)?;
    let id = required(&request.volume_id, "volume id")?;
    let staging = required(&request.staging_target_path, "staging target path")?;
    let wish = Wish::read(request.volume_capability.as_ref())?;
    let node = session.settings.node_id.clone();
    let volume = usable(session, id, &wish)?;
    let todo = session.checker(&volume, &node).stage(staging, &wish.text());
    if is_needed(session.obey(todo)?)? {
        let content = session.volume_path(id);
        match &wish.mount {
            None => drop(loops::attach(&content).map_err(internal)?),
            Some(mount) => {
                give_to_group(session, &mount.volume_mount_group, id)?;
                disk::bind(&content, path(staging), &mount.mount_flags, false).map_err(internal)?;
            }
        }
        let here = session.volume(id)?.nodes.entry(node).or_default();
        here.staged.insert(staging.to_owned(), wish.text());
    }
    Ok(NodeStageVolumeResponse {})
}

fn unstage(
    session: &mut Session<'_>,
    request: NodeUnstageVolumeRequest,
) -> Result<NodeUnstageVolumeResponse, Status> {
    needs(session, Feature::Stage)?;
    let id = required(&request.volume_id, "volume id")?;
    let staging = required(&request.staging_target_path, "staging target path")?;
    let node = session.settings.node_id.clone();
    let volume = session.volume(id)?.clone();
    let todo = session.checker(&volume, &node).unstage(staging);
    if session.obey(todo)? == Todo::Effect {
        match volume.is_block {
            true => loops::detach(&session.volume_path(id)).map_err(internal)?,
            // The folder is the orchestrator's.
            false => disk::unmount(path(staging)).map_err(internal)?,
        }
        let here = session.volume(id)?.nodes.entry(node).or_default();
        here.staged.remove(staging);
    }
    Ok(NodeUnstageVolumeResponse {})
}

fn publish(
    session: &mut Session<'_>,
    request: NodePublishVolumeRequest,
) -> Result<NodePublishVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume id")?;
    let target = required(&request.target_path, "target path")?;
    let wish = Wish::read(request.volume_capability.as_ref())?;
    let is_ephemeral = request.volume_context.get(EPHEMERAL).is_some_and(|text| text == "true");
    if is_ephemeral && !session.state.volumes.contains_key(id) {
        create_ephemeral(session, id, &request)?;
    }
    let node = session.settings.node_id.clone();
    let volume = usable(session, id, &wish)?;
    let wanted = Publication { is_read_only: request.readonly, capability: wish.text() };
    let staging = request.staging_target_path.as_str();
    let todo = session.checker(&volume, &node).publish(target, staging, &wanted);
    let is_elsewhere =
        volume.nodes.values().any(|here| here.published.keys().any(|at| at != target));
    if wish.mode == Mode::SingleNodeSingleWriter && is_elsewhere {
        return Err(Status::failed_precondition("the volume's single writer is another one"));
    }
    if is_needed(session.obey(todo)?)? {
        let content = session.volume_path(id);
        let group = wish.mount.as_ref().map_or("", |mount| &mount.volume_mount_group);
        give_to_group(session, group, id)?;
        let options = wish.mount.map(|mount| mount.mount_flags).unwrap_or_default();
        let from = match volume.is_block {
            true => loops::attach(&content).map_err(internal)?,
            false if staging.is_empty() => content,
            false => path(staging).to_owned(),
        };
        disk::bind(&from, path(target), &options, request.readonly).map_err(internal)?;
        let here = session.volume(id)?.nodes.entry(node).or_default();
        here.published.insert(target.to_owned(), wanted);
    }
    Ok(NodePublishVolumeResponse {})
}

fn unpublish(
    session: &mut Session<'_>,
    request: NodeUnpublishVolumeRequest,
) -> Result<NodeUnpublishVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume id")?;
    let target = required(&request.target_path, "target path")?;
    let node = session.settings.node_id.clone();
    let volume = session.volume(id)?.clone();
    if session.checker(&volume, &node).unpublish(target) == Todo::Effect {
        disk::unbind(path(target)).map_err(internal)?;
        let content = session.volume_path(id);
        let stages = session.has(Feature::Stage);
        let volume = session.volume(id)?;
        let here = volume.nodes.entry(node).or_default();
        here.published.remove(target);
        let is_last = here.published.is_empty();
        if is_last && volume.is_block && !stages {
            loops::detach(&content).map_err(internal)?;
        }
        if is_last && volume.is_ephemeral {
            disk::remove(&content).map_err(internal)?;
            session.state.volumes.remove(id);
        }
    }
    Ok(NodeUnpublishVolumeResponse {})
}

/// Makes the volume of a pod that describes it itself.
fn create_ephemeral(
    session: &mut Session<'_>,
    id: &str,
    request: &NodePublishVolumeRequest,
) -> Result<(), Status> {
    let unreadable = |_| Status::invalid_argument(format!("{SIZE} is no number of bytes"));
    let size = request.volume_context.get(SIZE).map(|text| text.parse().map_err(unreadable));
    let size_bytes = size.transpose()?.unwrap_or(EPHEMERAL_BYTES);
    // The id is the caller's: it must not lead out of the folder.
    if id.contains('/') || id.starts_with('.') {
        return Err(Status::invalid_argument("the volume id is no file name"));
    }
    disk::create(&session.volume_path(id), false, size_bytes).map_err(internal)?;
    let name = id.to_owned();
    let volume = VolumeState { name, size_bytes, is_ephemeral: true, ..Default::default() };
    session.state.volumes.insert(id.to_owned(), volume);
    Ok(())
}

fn stats(
    session: &mut Session<'_>,
    request: NodeGetVolumeStatsRequest,
) -> Result<NodeGetVolumeStatsResponse, Status> {
    needs(session, Feature::Stats)?;
    let id = required(&request.volume_id, "volume id")?;
    let at = required(&request.volume_path, "volume path")?;
    let volume = match session.volume(id)?.clone() {
        // The kubelet asks about the place where it has bound the device.
        volume if volume.is_block && path(at).exists() => volume,
        _ => present(session, id, at)?,
    };
    let total = signed(volume.size_bytes);
    let content = session.volume_path(id);
    let unit = volume_usage::Unit::Bytes.into();
    let mut usage = vec![VolumeUsage { total, unit, ..Default::default() }];
    if !volume.is_block {
        let used = signed(disk::used_bytes(&content).map_err(internal)?);
        let available = (total - used).max(0);
        usage = vec![VolumeUsage { total, used, available, unit }, inodes(&content)?];
    }
    if let Some(told) = session.told_bytes() {
        usage[0] = VolumeUsage { total: told, used: told, available: told, unit };
    }
    let volume_condition = session.has(Feature::Condition).then(|| condition(session, id));
    Ok(NodeGetVolumeStatsResponse { usage, volume_condition })
}

fn inodes(content: &std::path::Path) -> Result<VolumeUsage, Status> {
    let stat = nix::sys::statvfs::statvfs(content).map_err(|error| internal(error.into()))?;
    let (total, free) = (signed(stat.files()), signed(stat.files_available()));
    let unit = volume_usage::Unit::Inodes.into();
    Ok(VolumeUsage { total, available: free, used: (total - free).max(0), unit })
}

fn expand(
    session: &mut Session<'_>,
    request: NodeExpandVolumeRequest,
) -> Result<NodeExpandVolumeResponse, Status> {
    needs(session, Feature::NodeExpand)?;
    let id = required(&request.volume_id, "volume id")?;
    let at = required(&request.volume_path, "volume path")?;
    let volume = present(session, id, at)?;
    if let Some(capability) = &request.volume_capability {
        let wish = Wish::read(Some(capability))?;
        if wish.is_block() != volume.is_block {
            return Err(Status::invalid_argument("the volume is of another kind"));
        }
    }
    let range = request.capacity_range.unwrap_or_default();
    let wanted = u64::try_from(range.required_bytes).unwrap_or(0);
    if wanted > session.settings.capacity_bytes {
        return Err(Status::out_of_range(format!("{wanted} bytes cannot be had")));
    }
    let content = session.volume_path(id);
    let size_bytes = volume.size_bytes.max(wanted);
    disk::grow(&content, volume.is_block, size_bytes).map_err(internal)?;
    if volume.is_block {
        loops::grow(&content).map_err(internal)?;
    }
    session.volume(id)?.size_bytes = size_bytes;
    let capacity_bytes = session.told_bytes().unwrap_or(signed(size_bytes));
    Ok(NodeExpandVolumeResponse { capacity_bytes })
}

fn capabilities(
    session: &mut Session<'_>,
    _: NodeGetCapabilitiesRequest,
) -> Result<NodeGetCapabilitiesResponse, Status> {
    let all = [
        (Rpc::StageUnstageVolume, Feature::Stage),
        (Rpc::GetVolumeStats, Feature::Stats),
        (Rpc::ExpandVolume, Feature::NodeExpand),
        (Rpc::VolumeCondition, Feature::Condition),
        (Rpc::SingleNodeMultiWriter, Feature::Writers),
        (Rpc::VolumeMountGroup, Feature::MountGroup),
    ];
    let had = all.into_iter().filter(|(_, feature)| session.has(*feature));
    let capability = |(rpc, _): (Rpc, Feature)| NodeServiceCapability {
        r#type: Some(Type::Rpc(RpcMessage { r#type: rpc.into() })),
    };
    Ok(NodeGetCapabilitiesResponse { capabilities: had.map(capability).collect() })
}

fn info(session: &mut Session<'_>, _: NodeGetInfoRequest) -> Result<NodeGetInfoResponse, Status> {
    let is_bound = session.has(Feature::Topology);
    Ok(NodeGetInfoResponse {
        node_id: session.told_node_id(),
        max_volumes_per_node: session.max_volumes(),
        accessible_topology: is_bound.then(|| topology(&session.settings.segments())).flatten(),
    })
}

fn needs(session: &Session<'_>, feature: Feature) -> Result<(), Status> {
    match session.has(feature) {
        true => Ok(()),
        false => Err(Status::unimplemented("this driver is run without this method")),
    }
}

/// A volume that is there and of the kind that the call wants.
fn usable(session: &mut Session<'_>, id: &str, wish: &Wish) -> Result<VolumeState, Status> {
    let volume = session.volume(id)?.clone();
    match volume.is_block == wish.is_block() {
        true => Ok(volume),
        false => Err(Status::invalid_argument("the volume is of another kind")),
    }
}

/// A volume that is staged or published at a path.
fn present(session: &mut Session<'_>, id: &str, at: &str) -> Result<VolumeState, Status> {
    let node = session.settings.node_id.clone();
    let volume = session.volume(id)?.clone();
    let here = volume.nodes.get(&node);
    match here.is_some_and(|here| here.staged.contains_key(at) || here.published.contains_key(at)) {
        true => Ok(volume),
        false => Err(Status::not_found(format!("volume {id} is not at {at}"))),
    }
}

/// Returns whether there is something left to do.
fn is_needed(todo: Todo) -> Result<bool, Status> {
    match todo {
        Todo::Effect => Ok(true),
        Todo::Nothing => Ok(false),
        Todo::Incompatible => Err(Status::already_exists("it is there in another way")),
    }
}

fn give_to_group(session: &Session<'_>, group: &str, id: &str) -> Result<(), Status> {
    if group.is_empty() {
        return Ok(());
    }
    let group = group.parse().map_err(|_| Status::invalid_argument("the group is no number"))?;
    disk::give_to_group(&session.volume_path(id), group).map_err(internal)
}
