//! Volumes as the controller sees them: created, attached, listed, expanded.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pintle_plugins_v1::csi::controller_service_capability::rpc::Type as Rpc;
use pintle_plugins_v1::csi::controller_service_capability::{Rpc as RpcMessage, Type};
use pintle_plugins_v1::csi::volume_content_source::{
    SnapshotSource, Type as SourceType, VolumeSource,
};
use pintle_plugins_v1::csi::*;
use tonic::Status;

use crate::call::{Session, internal, topology};
use crate::capability::{Wish, required};
use crate::disk;
use crate::lifecycle::Todo;
use crate::loops;
use crate::settings::Feature;
use crate::state::{Attachment, Source, VolumeState};

/// Size of a volume for which none is asked.
const SIZE_BYTES: u64 = 1 << 30;
/// Sizes of devices are a multiple of this.
const BLOCK_BYTES: u64 = 4096;

/// CreateVolume: the same name gives the same volume.
pub(crate) fn create(
    session: &mut Session<'_>,
    request: CreateVolumeRequest,
) -> Result<CreateVolumeResponse, Status> {
    let name = required(&request.name, "name")?;
    let wishes = wishes(&request.volume_capabilities)?;
    let is_block = wishes.iter().any(Wish::is_block);
    if is_block && !wishes.iter().all(Wish::is_block) {
        return Err(Status::invalid_argument("a volume is a device or a file system, not both"));
    }
    check_mutable(session, &request.mutable_parameters)?;
    let source = source(request.volume_content_source.as_ref())?;
    let range = request.capacity_range.unwrap_or_default();
    if let Some((id, volume)) = session.state.volume_named(name) {
        let fits = is_within(volume.size_bytes, &range)
            && volume.is_block == is_block
            && volume.source == source;
        return match fits {
            true => Ok(CreateVolumeResponse { volume: Some(message(id, volume)) }),
            false => Err(Status::already_exists(format!("volume {name} exists and is different"))),
        };
    }
    let content = content(session, source.as_ref())?;
    let least = content.as_ref().map_or(0, |content| content.size_bytes);
    if content.as_ref().is_some_and(|content| content.is_block != is_block) {
        return Err(Status::invalid_argument("the source is of another kind"));
    }
    let size_bytes = size(&range, least, session.settings.capacity_bytes, is_block)?;
    let id = session.state.new_id("vol");
    let path = session.volume_path(&id);
    disk::create(&path, is_block, size_bytes).map_err(internal)?;
    if let Some(content) = content {
        disk::copy(&content.path, &path).map_err(internal)?;
        disk::grow(&path, is_block, size_bytes).map_err(internal)?;
    }
    let is_bound = session.has(Feature::Topology);
    let topology = if is_bound { session.settings.segments() } else { BTreeMap::new() };
    let (name, parameters) = (name.to_owned(), request.parameters);
    let volume = VolumeState {
        name,
        mutable: request.mutable_parameters,
        size_bytes,
        is_block,
        source,
        parameters,
        topology,
        ..Default::default()
    };
    let answer = message(&id, &volume);
    session.state.volumes.insert(id, volume);
    Ok(CreateVolumeResponse { volume: Some(answer) })
}

/// What a new volume is filled with.
struct Content {
    path: PathBuf,
    size_bytes: u64,
    is_block: bool,
}

fn content(session: &Session<'_>, source: Option<&Source>) -> Result<Option<Content>, Status> {
    let missing = |id: &str| Status::not_found(format!("source {id} does not exist"));
    Ok(match source {
        None => None,
        Some(Source::Snapshot(id)) => {
            let snapshot = session.state.snapshots.get(id).ok_or_else(|| missing(id))?;
            let (size_bytes, is_block) = (snapshot.size_bytes, snapshot.is_block);
            Some(Content { path: session.snapshot_path(id), size_bytes, is_block })
        }
        Some(Source::Volume(id)) => {
            let volume = session.state.volumes.get(id).ok_or_else(|| missing(id))?;
            let (size_bytes, is_block) = (volume.size_bytes, volume.is_block);
            Some(Content { path: session.volume_path(id), size_bytes, is_block })
        }
    })
}

fn source(source: Option<&VolumeContentSource>) -> Result<Option<Source>, Status> {
    let Some(source) = source else { return Ok(None) };
    match &source.r#type {
        Some(SourceType::Snapshot(one)) => {
            Ok(Some(Source::Snapshot(required(&one.snapshot_id, "snapshot id")?.to_owned())))
        }
        Some(SourceType::Volume(one)) => {
            Ok(Some(Source::Volume(required(&one.volume_id, "volume id")?.to_owned())))
        }
        None => Err(Status::invalid_argument("the content source is empty")),
    }
}

/// DeleteVolume.
pub(crate) fn delete(
    session: &mut Session<'_>,
    request: DeleteVolumeRequest,
) -> Result<DeleteVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume id")?;
    if let Some(volume) = session.state.volumes.get(id) {
        if volume.is_in_use() || !volume.attached.is_empty() {
            return Err(Status::failed_precondition(format!("volume {id} is in use")));
        }
        let path = session.volume_path(id);
        disk::remove(&path).map_err(internal)?;
        session.state.volumes.remove(id);
    }
    Ok(DeleteVolumeResponse {})
}

/// ControllerPublishVolume.
pub(crate) fn attach(
    session: &mut Session<'_>,
    request: ControllerPublishVolumeRequest,
) -> Result<ControllerPublishVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume id")?;
    let node = required(&request.node_id, "node id")?.to_owned();
    let wish = Wish::read(request.volume_capability.as_ref())?;
    let limit = session.max_volumes();
    let is_known = session.state.nodes.contains(&node);
    let count = session.state.volumes.values().filter(|v| v.attached.contains_key(&node)).count();
    let volume = session.volume(id)?;
    if !is_known {
        return Err(Status::not_found(format!("node {node} does not exist")));
    }
    let capability = wish.text();
    let wanted = Attachment { is_read_only: request.readonly, capability };
    match volume.attached.get(&node) {
        Some(attached) if *attached == wanted => {}
        Some(_) => return Err(Status::already_exists("attached in another way")),
        None if !volume.attached.is_empty() && !wish.is_multi_node() => {
            return Err(Status::failed_precondition(format!("volume {id} is attached elsewhere")));
        }
        None if limit > 0 && i64::try_from(count).is_ok_and(|count| count >= limit) => {
            return Err(Status::resource_exhausted(format!("node {node} has {limit} volumes")));
        }
        None => drop(volume.attached.insert(node.clone(), wanted)),
    }
    let publish_context = [("attached-to".to_owned(), node)].into();
    Ok(ControllerPublishVolumeResponse { publish_context })
}

/// ControllerUnpublishVolume.
pub(crate) fn detach(
    session: &mut Session<'_>,
    request: ControllerUnpublishVolumeRequest,
) -> Result<ControllerUnpublishVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume id")?;
    let Some(volume) = session.state.volumes.get(id).cloned() else {
        return Ok(ControllerUnpublishVolumeResponse {});
    };
    let nodes: Vec<String> = match request.node_id.as_str() {
        "" => volume.attached.keys().cloned().collect(),
        node => vec![node.to_owned()],
    };
    for node in nodes {
        let todo = session.checker(&volume, &node).detach();
        if session.obey(todo)? == Todo::Effect {
            session.volume(id)?.attached.remove(&node);
        }
    }
    Ok(ControllerUnpublishVolumeResponse {})
}

/// ValidateVolumeCapabilities.
pub(crate) fn validate(
    session: &mut Session<'_>,
    request: ValidateVolumeCapabilitiesRequest,
) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
    let id = required(&request.volume_id, "volume id")?;
    let wishes = wishes(&request.volume_capabilities)?;
    let is_block = session.volume(id)?.is_block;
    if wishes.iter().any(|wish| wish.is_block() != is_block) {
        let message = "the volume is of another kind".to_owned();
        return Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
    }
    let confirmed = validate_volume_capabilities_response::Confirmed {
        volume_context: request.volume_context,
        volume_capabilities: request.volume_capabilities,
        parameters: request.parameters,
        mutable_parameters: request.mutable_parameters,
    };
    Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
}

/// ListVolumes. A token is the last id of the page before, which may be deleted meanwhile.
pub(crate) fn list(
    session: &mut Session<'_>,
    request: ListVolumesRequest,
) -> Result<ListVolumesResponse, Status> {
    let all = session.state.volumes.iter();
    let ids: Vec<&String> = all.map(|(id, _)| id).collect();
    let page = page(&ids, "vol-", &request.starting_token, request.max_entries)?;
    let entry = |id: &&String| {
        let volume = &session.state.volumes[id.as_str()];
        let status = list_volumes_response::VolumeStatus {
            published_node_ids: volume.attached.keys().cloned().collect(),
            volume_condition: Some(condition(session, id)),
        };
        list_volumes_response::Entry { volume: Some(message(id, volume)), status: Some(status) }
    };
    let entries = page.ids.iter().map(entry).collect();
    Ok(ListVolumesResponse { entries, next_token: page.next_token })
}

/// A part of a list.
pub(crate) struct Page<'a> {
    pub(crate) ids: Vec<&'a String>,
    pub(crate) next_token: String,
}

/// The ids after a token, as many as are asked for; 0 asks for all.
pub(crate) fn page<'a>(
    ids: &[&'a String],
    prefix: &str,
    token: &str,
    max_entries: i32,
) -> Result<Page<'a>, Status> {
    let max = usize::try_from(max_entries)
        .map_err(|_| Status::invalid_argument("max_entries is negative"))?;
    if !token.is_empty() && !token.starts_with(prefix) {
        return Err(Status::aborted(format!("{token:?} is no token")));
    }
    let after = ids.iter().copied().filter(|id| id.as_str() > token);
    let mut ids: Vec<_> = after.collect();
    let mut next_token = String::new();
    if max > 0 && ids.len() > max {
        ids.truncate(max);
        next_token.clone_from(ids[max - 1]);
    }
    Ok(Page { ids, next_token })
}

/// ControllerGetVolume.
pub(crate) fn get(
    session: &mut Session<'_>,
    request: ControllerGetVolumeRequest,
) -> Result<ControllerGetVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume id")?;
    let volume = session.volume(id)?.clone();
    let status = controller_get_volume_response::VolumeStatus {
        published_node_ids: volume.attached.keys().cloned().collect(),
        volume_condition: Some(condition(session, id)),
    };
    Ok(ControllerGetVolumeResponse { volume: Some(message(id, &volume)), status: Some(status) })
}

/// ControllerModifyVolume.
pub(crate) fn modify(
    session: &mut Session<'_>,
    request: ControllerModifyVolumeRequest,
) -> Result<ControllerModifyVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume id")?;
    session.volume(id)?;
    check_mutable(session, &request.mutable_parameters)?;
    session.volume(id)?.mutable.extend(request.mutable_parameters);
    Ok(ControllerModifyVolumeResponse {})
}

/// Refuses parameters that a VolumeAttributesClass cannot change.
fn check_mutable(session: &Session<'_>, mutable: &BTreeMap<String, String>) -> Result<(), Status> {
    let known = &session.settings.mutable_parameter;
    match mutable.keys().find(|key| !known.contains(key)) {
        Some(key) => Err(Status::invalid_argument(format!("parameter {key} is not mutable"))),
        None => Ok(()),
    }
}

/// ControllerExpandVolume.
pub(crate) fn expand(
    session: &mut Session<'_>,
    request: ControllerExpandVolumeRequest,
) -> Result<ControllerExpandVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume id")?;
    let range = request.capacity_range;
    let range = range.ok_or_else(|| Status::invalid_argument("capacity range is missing"))?;
    let (path, max) = (session.volume_path(id), session.settings.capacity_bytes);
    let node_expansion_required = session.has(Feature::NodeExpand);
    let volume = session.volume(id)?;
    let size_bytes = size(&range, volume.size_bytes, max, volume.is_block)?;
    disk::grow(&path, volume.is_block, size_bytes).map_err(internal)?;
    if volume.is_block && !node_expansion_required {
        loops::grow(&path).map_err(internal)?;
    }
    volume.size_bytes = size_bytes;
    let capacity_bytes = signed(size_bytes);
    Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required })
}

/// GetCapacity.
pub(crate) fn capacity(
    session: &mut Session<'_>,
    request: GetCapacityRequest,
) -> Result<GetCapacityResponse, Status> {
    let here = session.settings.segments();
    let asked = request.accessible_topology.unwrap_or_default().segments;
    let is_here = asked.iter().all(|(key, value)| here.get(key) == Some(value));
    let left = session.settings.capacity_bytes.saturating_sub(session.used_bytes());
    let left = if is_here { signed(left) } else { 0 };
    Ok(GetCapacityResponse {
        available_capacity: left,
        maximum_volume_size: Some(left),
        minimum_volume_size: Some(0),
    })
}

/// ControllerGetCapabilities.
pub(crate) fn capabilities(
    session: &mut Session<'_>,
    _: ControllerGetCapabilitiesRequest,
) -> Result<ControllerGetCapabilitiesResponse, Status> {
    let all = [
        (Rpc::CreateDeleteVolume, Feature::Controller),
        (Rpc::ListVolumes, Feature::Controller),
        (Rpc::GetCapacity, Feature::Controller),
        (Rpc::GetVolume, Feature::Controller),
        (Rpc::ModifyVolume, Feature::Controller),
        (Rpc::PublishUnpublishVolume, Feature::Attach),
        (Rpc::PublishReadonly, Feature::Attach),
        (Rpc::ListVolumesPublishedNodes, Feature::Attach),
        (Rpc::CreateDeleteSnapshot, Feature::Snapshots),
        (Rpc::ListSnapshots, Feature::Snapshots),
        (Rpc::CloneVolume, Feature::Clones),
        (Rpc::ExpandVolume, Feature::ControllerExpand),
        (Rpc::VolumeCondition, Feature::Condition),
        (Rpc::SingleNodeMultiWriter, Feature::Writers),
    ];
    let had = all.into_iter().filter(|(_, feature)| session.has(*feature));
    let capability = |(rpc, _): (Rpc, Feature)| ControllerServiceCapability {
        r#type: Some(Type::Rpc(RpcMessage { r#type: rpc.into() })),
    };
    Ok(ControllerGetCapabilitiesResponse { capabilities: had.map(capability).collect() })
}

/// The health of a volume: its content is there, and the file `abnormal` does not name it.
pub(crate) fn condition(session: &Session<'_>, id: &str) -> VolumeCondition {
    let named = std::fs::read_to_string(session.settings.state.join("abnormal"));
    let is_named = named.is_ok_and(|text| text.lines().any(|line| line == id));
    let is_gone = !session.volume_path(id).exists();
    let message = match (is_gone, is_named) {
        (true, _) => "the volume's content is gone",
        (false, true) => "the volume is scratched",
        (false, false) => "the volume is healthy",
    };
    VolumeCondition { abnormal: is_gone || is_named, message: message.to_owned() }
}

fn wishes(capabilities: &[VolumeCapability]) -> Result<Vec<Wish>, Status> {
    if capabilities.is_empty() {
        return Err(Status::invalid_argument("volume capabilities are missing"));
    }
    capabilities.iter().map(|capability| Wish::read(Some(capability))).collect()
}

fn is_within(bytes: u64, range: &CapacityRange) -> bool {
    let limit = u64::try_from(range.limit_bytes).unwrap_or(0);
    bytes >= u64::try_from(range.required_bytes).unwrap_or(0) && (limit == 0 || bytes <= limit)
}

/// The size that a volume gets: what is required, but `least` and no more than `max`.
fn size(range: &CapacityRange, least: u64, max: u64, is_block: bool) -> Result<u64, Status> {
    let bytes = |value: i64| {
        u64::try_from(value).map_err(|_| Status::invalid_argument("a size below zero"))
    };
    let (required, limit) = (bytes(range.required_bytes)?, bytes(range.limit_bytes)?);
    let mut size = match required {
        0 if least > 0 => least,
        0 if limit > 0 => limit.min(SIZE_BYTES),
        0 => SIZE_BYTES,
        required => required.max(least),
    };
    if is_block {
        size = size.next_multiple_of(BLOCK_BYTES);
    }
    match size > max || (limit > 0 && size > limit) {
        true => Err(Status::out_of_range(format!("{size} bytes cannot be had"))),
        false => Ok(size),
    }
}

fn message(id: &str, volume: &VolumeState) -> Volume {
    let source = |source: &Source| VolumeContentSource {
        r#type: Some(match source {
            Source::Snapshot(id) => {
                SourceType::Snapshot(SnapshotSource { snapshot_id: id.clone() })
            }
            Source::Volume(id) => SourceType::Volume(VolumeSource { volume_id: id.clone() }),
        }),
    };
    Volume {
        capacity_bytes: signed(volume.size_bytes),
        volume_id: id.to_owned(),
        volume_context: volume.parameters.clone(),
        content_source: volume.source.as_ref().map(source),
        accessible_topology: topology(&volume.topology).into_iter().collect(),
    }
}

/// Bytes as CSI has them.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(required_bytes: i64, limit_bytes: i64) -> CapacityRange {
        CapacityRange { required_bytes, limit_bytes }
    }

    #[test]
    fn volume_size_is_the_required_size_within_the_limits() {
        let size = |required, limit, least| size(&range(required, limit), least, 1 << 40, false);
        assert_eq!(size(5, 0, 0).ok(), Some(5));
        assert_eq!(size(5, 0, 9).ok(), Some(9));
        assert_eq!(size(0, 0, 0).ok(), Some(SIZE_BYTES));
        assert_eq!(size(0, 7, 0).ok(), Some(7));
        assert!(size(8, 7, 0).is_err() && size(1 << 41, 0, 0).is_err() && size(-1, 0, 0).is_err());
        assert_eq!(super::size(&range(5, 0), 0, 1 << 40, true).ok(), Some(4096));
    }

    #[test]
    fn page_continues_after_the_token_of_a_deleted_volume() {
        let ids: Vec<String> = [1, 2, 4, 5].map(|id| format!("vol-{id}")).into();
        let ids: Vec<&String> = ids.iter().collect();
        let first = page(&ids, "vol-", "vol-3", 1).expect("a page");
        assert_eq!((first.ids.len(), first.next_token.as_str()), (1, "vol-4"));
        let last = page(&ids, "vol-", &first.next_token, 1).expect("a page");
        assert_eq!((last.ids[0].as_str(), last.next_token.as_str()), ("vol-5", ""));
        assert_eq!(page(&ids, "vol-", "", 0).expect("all").ids.len(), 4);
        assert!(page(&ids, "vol-", "7", 1).is_err() && page(&ids, "vol-", "", -1).is_err());
    }
}
