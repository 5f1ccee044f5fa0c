//! What surrounds each method: the log, the faults, the lock of the state.
//!
//! Input: a request and its effect. Output: the answer, after the call's lines in the log. Effects
//! run on a thread for blocking work with the state locked; a call that hangs by a fault holds no
//! lock. Bound: one effect at a time over all drivers of a state folder.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tonic::transport::server::UdsConnectInfo;
use tonic::{Code, Request, Response, Status};

use crate::faults::{FaultFile, Moment};
use crate::lifecycle::{Checker, Violation};
use crate::log::{CallLog, Phase, Subject};
use crate::settings::{Feature, Settings};
use crate::state::{State, StateFile, VolumeState};
use crate::trace::CallTrace;

/// The driver. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    log: CallLog,
    faults: FaultFile,
    file: StateFile,
}

/// What an effect works with.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) state: &'a mut State,
    violations: Vec<String>,
}

impl Driver {
    pub(crate) fn open(settings: Settings) -> Result<Self> {
        for folder in ["volumes", "snapshots"] {
            let path = settings.state.join(folder);
            std::fs::create_dir_all(&path)
                .with_context(|| format!("cannot create {}", path.display()))?;
        }
        let log = CallLog::open(&settings.state, &settings.node_id).context("no log of calls")?;
        let faults = FaultFile::new(&settings.state);
        let file = StateFile::new(&settings.state);
        let mut locked = file.lock().context("no state")?;
        locked.state.nodes.insert(settings.node_id.clone());
        locked.save().context("no state")?;
        drop(locked);
        Ok(Self { shared: Arc::new(Shared { settings, log, faults, file }) })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Makes a call that looks at the state or changes it.
    pub(crate) async fn serve<Q, A>(
        &self,
        subject: Subject,
        request: Q,
        effect: impl FnOnce(&mut Session<'_>, Q) -> Result<A, Status> + Send + 'static,
    ) -> Result<Response<A>, Status>
    where
        Q: Debug + Send + 'static,
        A: Send + 'static,
    {
        let log = &self.shared.log;
        let call = log.next_call();
        log.append(Phase::Begin, call, &subject, format!("{request:?}"));
        let trace = self.settings().traces.then(|| CallTrace::of(subject.method, &request));
        let answer = self.carry_out(call, &subject, request, effect).await;
        if let Some(trace) = trace {
            eprintln!("{}", trace.line(answer.as_ref().err()));
        }
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        log.append(Phase::End, call, &subject, format!("{code:?}"));
        answer.map(Response::new)
    }

    async fn carry_out<Q, A>(
        &self,
        call: u64,
        subject: &Subject,
        request: Q,
        effect: impl FnOnce(&mut Session<'_>, Q) -> Result<A, Status> + Send + 'static,
    ) -> Result<A, Status>
    where
        Q: Send + 'static,
        A: Send + 'static,
    {
        let faults = &self.shared.faults;
        let rule = faults.take(subject.method, &subject.volume).map_err(internal)?;
        faults.act(rule.as_ref(), Moment::Before).await?;
        let shared = Arc::clone(&self.shared);
        let owned = subject.clone();
        let work = move || shared.locked(call, &owned, |session| effect(session, request));
        let answer = tokio::task::spawn_blocking(work).await;
        let answer = answer.map_err(|error| Status::internal(error.to_string()))??;
        faults.act(rule.as_ref(), Moment::After).await?;
        Ok(answer)
    }
}

impl Shared {
    fn locked<A>(
        &self,
        call: u64,
        subject: &Subject,
        effect: impl FnOnce(&mut Session<'_>) -> Result<A, Status>,
    ) -> Result<A, Status> {
        let mut locked = self.file.lock().map_err(internal)?;
        let state = &mut locked.state;
        let mut session = Session { settings: &self.settings, state, violations: Vec::new() };
        let answer = effect(&mut session);
        for violation in session.violations {
            self.log.append(Phase::Violation, call, subject, violation);
        }
        // Also after a failure: an effect that fails halfway says what it has done.
        locked.save().map_err(internal)?;
        answer
    }
}

impl Session<'_> {
    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.settings.has(feature)
    }

    /// How many volumes the node can have: what the file `max_volumes` says, or the flag.
    pub(crate) fn max_volumes(&self) -> i64 {
        self.told_number("max_volumes").unwrap_or(self.settings.max_volumes)
    }

    /// What the driver calls the node: what the file `node_id` says, be it a lie, or the flag.
    pub(crate) fn told_node_id(&self) -> String {
        self.told("node_id").unwrap_or_else(|| self.settings.node_id.clone())
    }

    /// Bytes that the driver says of every volume, where the file `told_bytes` has it lie.
    pub(crate) fn told_bytes(&self) -> Option<i64> {
        self.told_number("told_bytes")
    }

    fn told_number(&self, file: &str) -> Option<i64> {
        self.told(file)?.trim().parse().ok()
    }

    fn told(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.settings.state.join(file)).ok()
    }

    /// Where the content of a volume is.
    pub(crate) fn volume_path(&self, id: &str) -> PathBuf {
        self.settings.state.join("volumes").join(id)
    }

    /// Where the content of a snapshot is.
    pub(crate) fn snapshot_path(&self, id: &str) -> PathBuf {
        self.settings.state.join("snapshots").join(id)
    }

    /// A volume that has to be there.
    pub(crate) fn volume(&mut self, id: &str) -> Result<&mut VolumeState, Status> {
        let missing = || Status::not_found(format!("volume {id} does not exist"));
        self.state.volumes.get_mut(id).ok_or_else(missing)
    }

    /// Logs a violation and makes it the answer.
    pub(crate) fn obey<T>(&mut self, checked: Result<T, Violation>) -> Result<T, Status> {
        checked.map_err(|violation| {
            self.violations.push(violation.0.clone());
            violation.into()
        })
    }

    /// The calls for a volume on a node.
    pub(crate) fn checker<'a>(&self, volume: &'a VolumeState, node: &'a str) -> Checker<'a> {
        let attaches = self.has(Feature::Attach) && self.has(Feature::Controller);
        Checker { volume, node, stages: self.has(Feature::Stage), attaches }
    }

    /// Bytes that all volumes have.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.state.volumes.values().map(|volume| volume.size_bytes).sum()
    }
}

/// What a failure of the machine is for a caller.
pub(crate) fn internal(error: io::Error) -> Status {
    Status::internal(error.to_string())
}

/// What a call is about.
pub(crate) fn subject(method: &'static str, volume: &str, path: &str) -> Subject {
    Subject { method, volume: volume.to_owned(), path: path.to_owned(), caller: 0 }
}

/// The process at the other end of the socket; 0 if the kernel does not name it.
pub(crate) fn caller<T>(request: &Request<T>) -> i32 {
    let peer = request.extensions().get::<UdsConnectInfo>();
    peer.and_then(|peer| peer.peer_cred?.pid()).unwrap_or(0)
}

/// A topology of CSI.
pub(crate) fn topology(
    segments: &BTreeMap<String, String>,
) -> Option<pintle_plugins_v1::csi::Topology> {
    let segments = segments.clone();
    (!segments.is_empty()).then_some(pintle_plugins_v1::csi::Topology { segments })
}

/// A path as CSI has it.
pub(crate) fn path(text: &str) -> &Path {
    Path::new(text)
}
