//! `FakeRuntime`: the test's side of the fake runtime, and the life of its server thread.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use tokio::{net::UnixListener, sync::oneshot};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, transport::Server as Transport};

use super::{
    Behaviour, CallRecord, ExecAnswer, Flavor, State,
    faults::{CallFault, Gate},
    server::FakeCriServer,
    shared::FakeShared,
};
use crate::{
    MESSAGE_BYTES_MAX, Method,
    v1::{
        ContainerStatus, image_service_server::ImageServiceServer,
        runtime_service_server::RuntimeServiceServer,
    },
};

/// A runtime under a test's control. Dropping it ends it.
#[derive(Debug)]
pub struct FakeRuntime {
    path: PathBuf,
    shared: Arc<FakeShared>,
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl FakeRuntime {
    /// Serves at `path` like a current containerd.
    pub async fn start(path: &Path) -> io::Result<Self> {
        Self::start_as(path, Flavor::default()).await
    }

    /// Serves at `path` like the runtime of that flavor.
    pub async fn start_as(path: &Path, flavor: Flavor) -> io::Result<Self> {
        let shared = Arc::new(FakeShared::new(flavor));
        let mut fake = Self { path: path.to_owned(), shared, thread: None };
        fake.start_again()?;
        Ok(fake)
    }

    /// `unix:///path`, for `Client::connect` and flags.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Ends the server with every call in the middle, as a kill does. The state stays.
    pub fn stop(&mut self) {
        let Some((stop, thread)) = self.thread.take() else { return };
        self.shared.apply(|state, _| state.down = true);
        drop(stop);
        thread.join().expect("the server thread does not panic");
        self.shared.events().forget();
        _ = fs::remove_file(&self.path); // may be gone with its directory
    }

    /// Serves again after `stop`, with the state as it was.
    pub fn start_again(&mut self) -> io::Result<()> {
        assert!(self.thread.is_none(), "the server is running");
        self.shared.apply(|_, _| ()); // exits that fell due meanwhile are unseen
        self.shared.apply(|state, _| state.down = false);
        let listener = std::os::unix::net::UnixListener::bind(&self.path)?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("fake-cri".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {} // sent or dropped: both mean stop
                    _ = shared.run_clock() => {}
                    served = serve(shared.clone(), listener) => served.expect("the fake serves"),
                }
            });
            // Dropping the runtime drops every connection and every call in the middle.
        })?;
        self.thread = Some((stop, thread));
        Ok(())
    }

    /// `stop` and `start_again`.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop();
        self.start_again()
    }

    /// Sets the script of containers of that name; `matching` is part of
    /// `namespace/pod/container#ATTEMPT.`. Containers created before keep their script.
    pub fn script(&self, matching: &str, behaviour: Behaviour) {
        self.shared.apply(|state, _| state.scripts.set_container(matching, behaviour));
    }

    /// Sets the answer of a command that contains `command` in containers of that name.
    pub fn script_exec(&self, matching: &str, command: &str, answer: ExecAnswer) {
        self.shared.apply(|state, _| state.scripts.set_command(matching, command, answer));
    }

    /// Begins a fault; `hang`, `fail`, `delay` and their like complete it.
    pub fn on(&self, method: Method) -> FaultBuilder {
        FaultBuilder { shared: self.shared.clone(), method, matching: String::new(), times: None }
    }

    /// Lifts every fault; hanging calls go on.
    pub fn lift_all(&self) {
        self.shared.faults().lift_all();
    }

    /// A container's main process ends with this code.
    pub fn exit_container(&self, id: &str, code: i32) {
        self.shared.apply(|state, now| state.exit(id, code, now));
    }

    /// A sandbox's pause process dies, and the containers with it.
    pub fn kill_sandbox(&self, id: &str) {
        self.shared.apply(|state, now| state.kill_sandbox(id, now));
    }

    /// Puts an image on the node and returns its id.
    pub fn add_image(&self, reference: &str) -> String {
        self.shared.apply(|state, _| state.images.add(reference))
    }

    /// The port for exec, attach and port-forward; the test listens there.
    pub fn set_streaming_port(&self, port: u16) {
        self.shared.apply(|state, _| state.streaming_port = port);
    }

    /// The registry does not have that image.
    pub fn set_image_missing(&self, reference: &str) {
        self.shared.apply(|state, _| state.images.set_missing(reference));
    }

    /// The registry wants that password for the image.
    pub fn set_image_password(&self, reference: &str, password: &str) {
        self.shared.apply(|state, _| state.images.set_password(reference, password));
    }

    /// The address of a pod, `namespace/pod`, from its next sandbox on.
    pub fn set_address(&self, pod: &str, address: &str) {
        let (pod, address) = (pod.to_owned(), address.to_owned());
        self.shared.apply(|state, _| state.addresses.insert(pod, address));
    }

    /// Sets whether its handlers have the features of `Status` that Kubernetes uses.
    pub fn set_able(&self, able: bool) {
        self.shared.apply(|state, _| state.able = able);
    }

    /// Sets a condition of `Status`, such as NetworkReady.
    pub fn set_condition(&self, kind: &str, status: bool, reason: &str) {
        let value = (status, reason.to_owned());
        self.shared.apply(|state, _| state.conditions.insert(kind.to_owned(), value));
    }

    /// Loses events from now on, or no longer.
    pub fn lose_events(&self, lost: bool) {
        self.shared.events().lose(lost);
    }

    /// Holds events back until `release_events`.
    pub fn hold_events(&self) {
        self.shared.events().hold();
    }

    /// Delivers held events in their order.
    pub fn release_events(&self) {
        self.shared.events().release(|_| ());
    }

    /// Delivers held events, the newest first.
    pub fn release_events_reversed(&self) {
        self.shared.events().release(|events| events.reverse());
    }

    /// Breaks every event stream with an error; connections stay.
    pub fn break_event_streams(&self) {
        self.shared.events().break_streams();
    }

    /// The newest container of that `namespace/pod/container`.
    pub fn container(&self, name: &str) -> Option<ContainerStatus> {
        self.shared.apply(|state, _| state.container_named(name))
    }

    /// A copy of everything the runtime knows.
    pub fn state(&self) -> State {
        self.shared.apply(|state, _| state.clone())
    }

    /// The calls received, in order.
    pub fn calls(&self) -> Vec<CallRecord> {
        self.shared.calls()
    }

    /// The calls of one method about subjects that contain `matching`, in order.
    pub fn calls_of(&self, method: Method, matching: &str) -> Vec<CallRecord> {
        let mut calls = self.calls();
        calls.retain(|call| call.method == method && call.subject.contains(matching));
        calls
    }

    /// Forgets the calls received so far.
    pub fn clear_calls(&self) {
        self.shared.clear_calls();
    }

    /// Waits until `count` calls of that kind have arrived, and returns them. Waits for ever: the
    /// test's own timeout ends it.
    pub async fn called(&self, method: Method, matching: &str, count: usize) -> Vec<CallRecord> {
        let mut arrivals = self.shared.arrivals();
        loop {
            arrivals.mark_unchanged();
            let calls = self.calls_of(method, matching);
            if calls.len() >= count {
                return calls;
            }
            arrivals.changed().await.expect("the fake lives as long as this call");
        }
    }

    /// Waits until the runtime's state is as wanted.
    pub async fn until(&self, wanted: impl Fn(&State) -> bool) {
        self.shared.until(wanted).await;
    }
}

impl Drop for FakeRuntime {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(
    shared: Arc<FakeShared>,
    listener: std::os::unix::net::UnixListener,
) -> Result<(), Box<dyn std::error::Error>> {
    let incoming = UnixListenerStream::new(UnixListener::from_std(listener)?);
    let server = FakeCriServer(shared);
    let runtime = RuntimeServiceServer::new(server.clone())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let image = ImageServiceServer::new(server)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let router = Transport::builder().add_service(runtime).add_service(image);
    router.serve_with_incoming(incoming).await?;
    Ok(())
}

/// A fault in the making.
#[derive(Debug)]
#[must_use = "say what is to happen: delay, fail, hang, ..."]
pub struct FaultBuilder {
    shared: Arc<FakeShared>,
    method: Method,
    matching: String,
    times: Option<u32>,
}

/// Lifts a fault; dropping it leaves the fault in force.
#[derive(Clone, Debug)]
pub struct Lift {
    shared: Arc<FakeShared>,
    number: u64,
}

impl FaultBuilder {
    /// Only for subjects that contain this text.
    pub fn matching(mut self, text: &str) -> Self {
        self.matching = text.to_owned();
        self
    }

    /// Only for so many calls.
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    /// Such calls take so much longer.
    pub fn delay(self, time: Duration) -> Lift {
        self.add(CallFault::Delay(time))
    }

    /// Such calls fail without an effect.
    pub fn fail(self, code: Code, message: &str) -> Lift {
        self.add(CallFault::Fail(code, message.to_owned()))
    }

    /// Such calls take effect, and then fail.
    pub fn fail_after(self, code: Code, message: &str) -> Lift {
        self.add(CallFault::FailAfter(code, message.to_owned()))
    }

    /// Such calls wait until the fault is lifted, then go on.
    pub fn hang(self) -> Lift {
        self.add(CallFault::Hang(Gate::shut()))
    }

    /// Such calls take effect, but answer only when the fault is lifted.
    pub fn hang_after(self) -> Lift {
        self.add(CallFault::HangAfter(Gate::shut()))
    }

    fn add(self, fault: CallFault) -> Lift {
        let number = self.shared.faults().add(self.method, self.matching, self.times, fault);
        Lift { shared: self.shared, number }
    }
}

impl Lift {
    /// Ends the fault; calls that hang on it go on.
    pub fn lift(&self) {
        self.shared.faults().lift(self.number);
    }
}
