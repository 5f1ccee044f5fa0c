//! logind over D-Bus: its delay locks, how long it waits for them, and when it shuts down.
//!
//! Effects: calls on the system bus, logind's drop-in file. Any process of the machine may send a
//! signal with logind's interface over the bus, and as with the kubelet it counts, unless
//! `Announcer::Logind` is set. Bounds: `CALL_MAX` for each call, `SIGNALS_MAX` that wait.
// k8s: pkg/kubelet/nodeshutdown/systemd/inhibit_linux.go

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pintle_daemon::blocking::{self, JobPlace};
use tokio_stream::StreamExt as _;
use zbus::zvariant::{self, DynamicType, Value};
use zbus::{Connection, MatchRule, Message, MessageStream};

/// How long logind may take for an answer.
pub const CALL_MAX: Duration = Duration::from_secs(10);
/// Signals that wait.
const SIGNALS_MAX: usize = 16;
/// How often it is checked whether logind waits longer, and the first pause, which doubles.
const LOOKS: u32 = 5;
const LOOK_PAUSE: Duration = Duration::from_millis(100);

const NAME: &str = "org.freedesktop.login1";
const OBJECT: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SYSTEMD: BusInterface = BusInterface {
    service: "org.freedesktop.systemd1",
    object: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};

/// An interface of an object on the bus.
#[derive(Clone, Copy)]
struct BusInterface {
    service: &'static str,
    object: &'static str,
    interface: &'static str,
}

impl BusInterface {
    /// Of logind's only object.
    fn of_logind(interface: &'static str) -> Self {
        Self { service: NAME, object: OBJECT, interface }
    }
}
/// The kubelet's file: whichever agent comes next finds its own.
const DROP_IN: &str = "99-kubelet.conf";

/// A failed operation of logind.
#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    /// There is no system bus.
    #[error("the system bus cannot be reached")]
    Unreachable(#[source] Box<zbus::Error>),
    /// It refused, or its answer was invalid.
    #[error("logind refused {what}")]
    Refused {
        /// The call or the property.
        what: &'static str,
        /// Cause.
        source: Box<zbus::Error>,
    },
    /// No answer in time.
    #[error("logind did not answer {0} in time")]
    Slow(&'static str),
    /// The bus closed the connection.
    #[error("the system bus closed the connection")]
    Closed,
    /// Its configuration cannot be written.
    #[error("cannot write {path}")]
    Conf {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// It has read its configuration and waits no longer.
    #[error("logind waits {is:?} for pods and not {wanted:?}, although its configuration says so")]
    Delay {
        /// The delay that it reports.
        is: Duration,
        /// The time that all groups take together.
        wanted: Duration,
    },
}

/// The sender of a shutdown signal that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcer {
    /// Any sender of logind's signal, as with the kubelet.
    Anybody,
    /// Of logind alone.
    Logind,
}

/// A connection to logind.
#[derive(Clone, Debug)]
pub struct Logind {
    connection: Connection,
}

/// Shutdowns as they are announced and given up.
#[derive(Debug)]
pub struct ShutdownSignals(MessageStream);

impl Logind {
    /// Over the bus of this address, else over the system bus.
    pub async fn connect(address: Option<&str>) -> Result<Self, LogindError> {
        let connecting = async {
            let builder = match address {
                Some(address) => zbus::connection::Builder::address(address)?,
                None => zbus::connection::Builder::system()?,
            };
            builder.method_timeout(CALL_MAX).build().await
        };
        match tokio::time::timeout(CALL_MAX, connecting).await {
            Ok(Ok(connection)) => Ok(Self { connection }),
            Ok(Err(error)) => Err(LogindError::Unreachable(Box::new(error))),
            Err(_) => Err(LogindError::Slow("a connection")),
        }
    }

    /// Subscribes to the signals from here on.
    // k8s: pkg/kubelet/nodeshutdown/systemd/inhibit_linux.go MonitorShutdown
    pub async fn signals(&self, from: Announcer) -> Result<ShutdownSignals, LogindError> {
        const WHAT: &str = "PrepareForShutdown";
        let rule = || {
            let rule = MatchRule::builder().msg_type(zbus::message::Type::Signal);
            let rule = rule.path(OBJECT)?.interface(MANAGER)?.member(WHAT)?;
            Ok(match from {
                Announcer::Anybody => rule.build(),
                Announcer::Logind => rule.sender(NAME)?.build(),
            })
        };
        let rule = rule().map_err(|error| refused(WHAT, error))?;
        let stream = MessageStream::for_match_rule(rule, &self.connection, Some(SIGNALS_MAX));
        stream.await.map(ShutdownSignals).map_err(|error| refused(WHAT, error))
    }

    /// True if the machine is about to shut down.
    pub async fn is_preparing(&self) -> Result<bool, LogindError> {
        self.property("PreparingForShutdown").await
    }

    /// How long a delay lock may hold up a shutdown.
    pub async fn delay_max(&self) -> Result<Duration, LogindError> {
        self.property::<u64>("InhibitDelayMaxUSec").await.map(Duration::from_micros)
    }

    /// A delay lock, held as long as the descriptor is open.
    pub async fn inhibit(&self) -> Result<OwnedFd, LogindError> {
        const WHAT: &str = "Inhibit";
        let why = "Kubelet needs time to handle node shutdown";
        let body = ("shutdown", "kubelet", why, "delay");
        let answer = self.call(BusInterface::of_logind(MANAGER), WHAT, &body).await?;
        let lock: zvariant::OwnedFd =
            answer.body().deserialize().map_err(|error| refused(WHAT, error))?;
        Ok(lock.into())
    }

    /// Has logind wait for locks at least as long, if it does not.
    // k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go start
    pub async fn raise_delay(&self, wanted: Duration, conf: &Path) -> Result<(), LogindError> {
        let mut is = self.delay_max().await?;
        if is >= wanted {
            return Ok(());
        }
        write(conf, wanted).await?;
        let hangup = ("systemd-logind.service", "all", nix::libc::SIGHUP);
        self.call(SYSTEMD, "KillUnit", &hangup).await?;
        let mut pause = LOOK_PAUSE;
        for _ in 0..LOOKS {
            is = self.delay_max().await?;
            if is >= wanted {
                return Ok(());
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Err(LogindError::Delay { is, wanted })
    }

    async fn property<T>(&self, name: &'static str) -> Result<T, LogindError>
    where
        T: for<'a> TryFrom<Value<'a>, Error = zvariant::Error>,
    {
        let at = BusInterface::of_logind("org.freedesktop.DBus.Properties");
        let answer = self.call(at, "Get", &(MANAGER, name)).await?;
        let body = answer.body();
        let value: Value<'_> = body.deserialize().map_err(|error| refused(name, error))?;
        T::try_from(value).map_err(|error| refused(name, error.into()))
    }

    async fn call<B>(
        &self,
        at: BusInterface,
        method: &'static str,
        body: &B,
    ) -> Result<Message, LogindError>
    where
        B: serde::Serialize + DynamicType,
    {
        let BusInterface { service, object, interface } = at;
        let call =
            self.connection.call_method(Some(service), object, Some(interface), method, body);
        match tokio::time::timeout(CALL_MAX, call).await {
            Ok(answer) => answer.map_err(|error| refused(method, error)),
            Err(_) => Err(LogindError::Slow(method)),
        }
    }
}

impl ShutdownSignals {
    /// The next one: true when the machine is about to shut down, false when it stays up.
    pub async fn next(&mut self) -> Result<bool, LogindError> {
        loop {
            let message = match self.0.next().await {
                Some(Ok(message)) => message,
                Some(Err(_)) | None => return Err(LogindError::Closed),
            };
            match message.body().deserialize() {
                Ok(preparing) => return Ok(preparing),
                Err(error) => tracing::warn!(%error, "logind's PrepareForShutdown says nothing"),
            }
        }
    }
}

/// Writes the drop-in file.
// k8s: pkg/kubelet/nodeshutdown/systemd/inhibit_linux.go OverrideInhibitDelay
async fn write(conf: &Path, wanted: Duration) -> Result<(), LogindError> {
    let path = conf.join(DROP_IN);
    let text = drop_in(wanted);
    let (folder, file) = (conf.to_owned(), path.clone());
    let write = move || -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(file, text)
    };
    let written = blocking::run(JobPlace::own("logind.conf"), write).await;
    let written = written.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
    written.map_err(|source| LogindError::Conf { path, source })
}

fn drop_in(wanted: Duration) -> String {
    let seconds = wanted.as_secs_f64().ceil();
    format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={seconds:.0}\n")
}

fn refused(what: &'static str, error: zbus::Error) -> LogindError {
    LogindError::Refused { what, source: Box::new(error) }
}
