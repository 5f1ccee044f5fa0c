//! Snapshots: copies of a volume's content.

use std::time::SystemTime;

use pintle_plugins_v1::csi::*;
use prost_types::Timestamp;
use tonic::Status;

use crate::call::{Session, internal};
use crate::capability::required;
use crate::disk;
use crate::state::SnapshotState;
use crate::volumes::{page, signed};

/// CreateSnapshot: the same name gives the same snapshot.
pub(crate) fn create(
    session: &mut Session<'_>,
    request: CreateSnapshotRequest,
) -> Result<CreateSnapshotResponse, Status> {
    let name = required(&request.name, "name")?;
    let volume_id = required(&request.source_volume_id, "source volume id")?;
    if let Some((id, known)) = session.state.snapshots.iter().find(|(_, one)| one.name == name) {
        return match known.volume == volume_id {
            true => Ok(CreateSnapshotResponse { snapshot: Some(message(id, known)) }),
            false => Err(Status::already_exists(format!("snapshot {name} is of another volume"))),
        };
    }
    let volume = session.volume(volume_id)?.clone();
    let id = session.state.new_id("snap");
    let (from, to) = (session.volume_path(volume_id), session.snapshot_path(&id));
    disk::copy(&from, &to).map_err(internal)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let snapshot = SnapshotState {
        name: name.to_owned(),
        volume: volume_id.to_owned(),
        size_bytes: volume.size_bytes,
        is_block: volume.is_block,
        created_seconds: signed(now.as_secs()),
    };
    let answer = message(&id, &snapshot);
    session.state.snapshots.insert(id, snapshot);
    Ok(CreateSnapshotResponse { snapshot: Some(answer) })
}

/// DeleteSnapshot.
pub(crate) fn delete(
    session: &mut Session<'_>,
    request: DeleteSnapshotRequest,
) -> Result<DeleteSnapshotResponse, Status> {
    let id = required(&request.snapshot_id, "snapshot id")?;
    if session.state.snapshots.contains_key(id) {
        disk::remove(&session.snapshot_path(id)).map_err(internal)?;
        session.state.snapshots.remove(id);
    }
    Ok(DeleteSnapshotResponse {})
}

/// ListSnapshots.
pub(crate) fn list(
    session: &mut Session<'_>,
    request: ListSnapshotsRequest,
) -> Result<ListSnapshotsResponse, Status> {
    let is_asked = |wanted: &str, actual: &str| wanted.is_empty() || wanted == actual;
    let all = session.state.snapshots.iter().filter(|(id, snapshot)| {
        is_asked(&request.snapshot_id, id) && is_asked(&request.source_volume_id, &snapshot.volume)
    });
    let ids: Vec<&String> = all.map(|(id, _)| id).collect();
    let page = page(&ids, "snap-", &request.starting_token, request.max_entries)?;
    let entry = |id: &&String| {
        let snapshot = Some(message(id, &session.state.snapshots[id.as_str()]));
        list_snapshots_response::Entry { snapshot }
    };
    let entries = page.ids.iter().map(entry).collect();
    Ok(ListSnapshotsResponse { entries, next_token: page.next_token })
}

fn message(id: &str, snapshot: &SnapshotState) -> Snapshot {
    Snapshot {
        size_bytes: signed(snapshot.size_bytes),
        snapshot_id: id.to_owned(),
        source_volume_id: snapshot.volume.clone(),
        creation_time: Some(Timestamp { seconds: snapshot.created_seconds, nanos: 0 }),
        ready_to_use: true,
        group_snapshot_id: String::new(),
    }
}
