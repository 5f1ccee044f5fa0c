//! systemd's D-Bus interface: creates, limits and stops slices.
//!
//! Input: paths of slices and their limits. Output: units of systemd; the cgroup directories are
//! there when a call has returned. Owner: `Cgroups`. Bounds: a call takes at most `CALL_MAX`, as
//! does each way to connect, and is made once more on a new connection when the old one broke. The
//! connection is opened by the first call: a node with the other driver has none.
//!
//! The system bus is tried first and systemd's own socket then, as the kubelet does, because a node
//! may run without a bus. systemd reports the result of a job in a signal; signals are drained
//! while the answer is awaited, because a full queue of signals would delay the answer.
// k8s: vendor/github.com/opencontainers/cgroups/systemd/common.go startUnit, stopUnit

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_stream::StreamExt as _;
use zbus::zvariant::{DynamicType, OwnedObjectPath, Value};
use zbus::{Connection, MatchRule, MessageStream};

use super::limits::CgroupLimits;
use super::unit;

/// How long systemd may take for one unit, or for a connection.
const CALL_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });
/// Signals of ended jobs that wait while a call is under way.
const SIGNALS_MAX: usize = 1024;
/// A path that exists while systemd is process 1.
const BOOTED: &str = "/run/systemd/system";
/// systemd's own socket, for root.
const PRIVATE: &str = "unix:path=/run/systemd/private";
const NAME: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// A failed call of systemd.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// Neither the bus nor the private socket answers.
    #[error("cannot reach systemd, neither over the system bus nor at /run/systemd/private")]
    Unreachable(#[source] Box<zbus::Error>),
    /// systemd refused the call, or the connection broke twice.
    #[error("systemd refused {method} of {unit}")]
    Refused {
        /// The call.
        method: &'static str,
        /// The unit.
        unit: String,
        /// Cause.
        source: Box<zbus::Error>,
    },
    /// The unit's job ended otherwise than done.
    #[error("systemd's job for {unit} ended as {result:?}")]
    Job {
        /// The unit.
        unit: String,
        /// systemd's word, such as `failed`.
        result: String,
    },
    /// No answer in time.
    #[error("systemd did not finish {method} of {unit} within {CALL_MAX:?}")]
    Slow {
        /// The call.
        method: &'static str,
        /// The unit.
        unit: String,
    },
}

/// The connection to systemd.
#[derive(Debug, Default)]
pub struct Systemd {
    bus: Mutex<Option<Bus>>,
}

#[derive(Clone, Debug)]
struct Bus {
    connection: Connection,
    /// systemd's release; 0 when it does not say.
    version: u32,
}

/// True when systemd is process 1 of this host.
pub fn is_running() -> bool {
    Path::new(BOOTED).is_dir()
}

impl Systemd {
    /// Creates the slice unless it exists.
    pub async fn start(&self, path: &str, is_v2: bool) -> Result<(), SystemdError> {
        let unit = unit::unit_of(path);
        let none: Vec<(&str, Vec<(&str, Value<'_>)>)> = Vec::new();
        let body = (unit, "replace", unit::creation(path, is_v2), none);
        match self.job("StartTransientUnit", unit, &body).await {
            Err(error) if error.is("UnitExists") => Ok(()),
            Err(error) => {
                self.reset(unit).await;
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Sets the slice's limits until the next boot.
    pub async fn limit(
        &self,
        path: &str,
        limits: &CgroupLimits,
        is_v2: bool,
    ) -> Result<(), SystemdError> {
        let unit = unit::unit_of(path);
        let version = self.bus().await?.version;
        let properties = unit::properties(limits, is_v2, version);
        if properties.is_empty() {
            return Ok(());
        }
        self.call("SetUnitProperties", unit, &(unit, true, properties)).await.map(drop)
    }

    /// Stops the slice and everything in it; a slice that systemd does not know is no error.
    pub async fn stop(&self, path: &str) -> Result<(), SystemdError> {
        let unit = unit::unit_of(path);
        let stopped = match self.job("StopUnit", unit, &(unit, "replace")).await {
            Err(SystemdError::Job { unit, result }) => {
                tracing::warn!(unit, result, "systemd did not stop a slice cleanly; going on");
                Ok(())
            }
            Err(error) if error.is("NoSuchUnit") => Ok(()),
            other => other,
        };
        self.reset(unit).await;
        stopped
    }

    /// Resets a unit that failed; most have not.
    async fn reset(&self, unit: &str) {
        let _ = self.call("ResetFailedUnit", unit, &(unit,)).await;
    }

    /// Calls a method that starts a job and waits for the job's end.
    async fn job<B>(&self, method: &'static str, unit: &str, body: &B) -> Result<(), SystemdError>
    where
        B: serde::Serialize + DynamicType,
    {
        let again = || self.attempt_job(method, unit, body);
        match again().await {
            Err(error) if error.is_connection() => {
                self.forget().await;
                again().await
            }
            other => other,
        }
    }

    async fn attempt_job<B>(
        &self,
        method: &'static str,
        unit: &str,
        body: &B,
    ) -> Result<(), SystemdError>
    where
        B: serde::Serialize + DynamicType,
    {
        let connection = self.bus().await?.connection;
        let work = job(&connection, method, body);
        let result = match tokio::time::timeout(CALL_MAX, work).await {
            Err(_) => return Err(SystemdError::Slow { method, unit: unit.to_owned() }),
            Ok(result) => result.map_err(|error| refused(method, unit, error))?,
        };
        match result.as_str() {
            "done" => Ok(()),
            _ => Err(SystemdError::Job { unit: unit.to_owned(), result }),
        }
    }

    async fn call<B>(
        &self,
        method: &'static str,
        unit: &str,
        body: &B,
    ) -> Result<zbus::Message, SystemdError>
    where
        B: serde::Serialize + DynamicType,
    {
        let again = async || {
            let connection = self.bus().await?.connection;
            let call = connection.call_method(Some(NAME), OBJECT, Some(MANAGER), method, body);
            match tokio::time::timeout(CALL_MAX, call).await {
                Err(_) => Err(SystemdError::Slow { method, unit: unit.to_owned() }),
                Ok(answer) => answer.map_err(|error| refused(method, unit, error)),
            }
        };
        match again().await {
            Err(error) if error.is_connection() => {
                self.forget().await;
                again().await
            }
            other => other,
        }
    }

    async fn bus(&self) -> Result<Bus, SystemdError> {
        let mut kept = self.bus.lock().await;
        if let Some(bus) = kept.as_ref() {
            return Ok(bus.clone());
        }
        let bus = Bus::open().await.map_err(|e| SystemdError::Unreachable(Box::new(e)))?;
        Ok(kept.insert(bus).clone())
    }

    async fn forget(&self) {
        self.bus.lock().await.take();
    }
}

impl Bus {
    async fn open() -> Result<Self, zbus::Error> {
        match Self::over(zbus::connection::Builder::system()?).await {
            Ok(bus) => Ok(bus),
            Err(error) => {
                tracing::debug!(%error, "no system bus; using systemd's own socket");
                Self::over(zbus::connection::Builder::address(PRIVATE)?.p2p()).await
            }
        }
    }

    /// Connects to the bus of `builder`, with a time-out, because pods wait meanwhile.
    async fn over(builder: zbus::connection::Builder<'_>) -> Result<Self, zbus::Error> {
        let opened = tokio::time::timeout(CALL_MAX, Self::opened(builder)).await;
        opened.unwrap_or_else(|_| Err(std::io::Error::from(ErrorKind::TimedOut).into()))
    }

    async fn opened(builder: zbus::connection::Builder<'_>) -> Result<Self, zbus::Error> {
        let connection = builder.method_timeout(CALL_MAX).build().await?;
        let manager =
            |method| connection.call_method(Some(NAME), OBJECT, Some(MANAGER), method, &());
        // Without this call systemd sends no signals over the bus. Its private socket does not have
        // it.
        if connection.is_bus() {
            manager("Subscribe").await?;
        }
        let ask = (MANAGER, "Version");
        let properties = Some("org.freedesktop.DBus.Properties");
        let answer = connection.call_method(Some(NAME), OBJECT, properties, "Get", &ask).await?;
        let body = answer.body();
        let version: Value<'_> = body.deserialize()?;
        let version = String::try_from(version).unwrap_or_default();
        Ok(Self { version: release(&version), connection: connection.clone() })
    }
}

/// `v252.4-1.fc36` or `252 (252.39-1~deb12u1)` as 252.
fn release(version: &str) -> u32 {
    let version = version.trim_start_matches(['"', 'v']);
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// Calls, and waits for the end of the job that the answer names.
async fn job<B>(
    connection: &Connection,
    method: &'static str,
    body: &B,
) -> Result<String, zbus::Error>
where
    B: serde::Serialize + DynamicType,
{
    let rule = MatchRule::builder()
        .msg_type(zbus::message::Type::Signal)
        .interface(MANAGER)?
        .member("JobRemoved")?
        .build();
    let mut ended = MessageStream::for_match_rule(rule, connection, Some(SIGNALS_MAX)).await?;
    let call = connection.call_method(Some(NAME), OBJECT, Some(MANAGER), method, body);
    tokio::pin!(call);
    let mut before = Vec::new();
    let job: OwnedObjectPath = loop {
        tokio::select! {
            biased;
            answer = &mut call => break answer?.body().deserialize()?,
            signal = ended.next() => before.push(removed(signal)?),
        }
    };
    if let Some((_, result)) = before.into_iter().find(|(of, _)| *of == job) {
        return Ok(result);
    }
    loop {
        let (of, result) = removed(ended.next().await)?;
        if of == job {
            return Ok(result);
        }
    }
}

/// Job and result of a `JobRemoved`.
fn removed(
    signal: Option<Result<zbus::Message, zbus::Error>>,
) -> Result<(OwnedObjectPath, String), zbus::Error> {
    let closed = || zbus::Error::InputOutput(std::sync::Arc::new(closed()));
    let message = signal.ok_or_else(closed)??;
    let (_, job, _, result): (u32, OwnedObjectPath, String, String) =
        message.body().deserialize()?;
    Ok((job, result))
}

fn closed() -> std::io::Error {
    std::io::Error::new(ErrorKind::ConnectionReset, "systemd closed the connection")
}

fn refused(method: &'static str, unit: &str, error: zbus::Error) -> SystemdError {
    SystemdError::Refused { method, unit: unit.to_owned(), source: Box::new(error) }
}

impl SystemdError {
    /// The answer carries this D-Bus error, such as `NoSuchUnit`.
    fn is(&self, name: &str) -> bool {
        let Self::Refused { source, .. } = self else { return false };
        let zbus::Error::MethodError(found, ..) = &**source else { return false };
        found.as_str().strip_prefix(NAME).is_some_and(|rest| rest.trim_start_matches('.') == name)
    }

    /// True for an error after which the connection cannot be used any more.
    fn is_connection(&self) -> bool {
        let Self::Refused { source, .. } = self else { return false };
        matches!(**source, zbus::Error::InputOutput(_) | zbus::Error::Failure(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silent_dbus_connection_times_out() {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("bus");
        let _silent = tokio::net::UnixListener::bind(&socket).expect("bound");
        let address = format!("unix:path={}", socket.display());
        let builder = zbus::connection::Builder::address(&*address).expect("an address").p2p();
        let opened = tokio::time::timeout(Duration::from_secs(30), Bus::over(builder)).await;
        assert!(matches!(opened, Ok(Err(zbus::Error::InputOutput(_)))), "{opened:?}");
    }

    #[test]
    fn the_release_is_the_first_number_of_the_version() {
        for (text, number) in [
            ("252.39-1~deb12u1", 252),
            ("v245.4-1.fc32", 245),
            ("\"v239", 239),
            ("257", 257),
            ("", 0),
            ("unknown", 0),
        ] {
            assert_eq!(release(text), number, "{text}");
        }
    }
}
