//! The parameters of a request for a container's log. Pure.
//!
//! Input: a query. Output: the options, or the refusal with the kubelet's status and text.
// k8s: pkg/kubelet/server/server.go getContainerLogs,
//      pkg/apis/core/v1/validation/validation.go ValidatePodLogOptions

use jiff::{SignedDuration, Timestamp};
use pintle_agent_runtime::logs::log_read::LogQuery;
use pintle_daemon::serve::query::Query;

const UNDECODABLE: &str = r#"{"message": "Unable to decode query."}"#;
const INVALID: &str = r#"{"message": "Invalid request."}"#;
const ALL: &str = "All";

/// The requested options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) follow: bool,
    pub(super) previous: bool,
    timestamps: bool,
    since: Option<Since>,
    tail_lines: Option<u64>,
    limit_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Seconds(i64),
    Time(Timestamp),
}

/// Reason why the request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogRefusal {
    pub(super) status: u16,
    pub(super) text: String,
}

impl LogRefusal {
    fn undecodable() -> Self {
        Self { status: 400, text: UNDECODABLE.to_owned() }
    }

    fn invalid() -> Self {
        Self { status: 422, text: INVALID.to_owned() }
    }
}

impl Options {
    /// Reads and checks the parameters.
    pub(super) fn parse(query: &Query) -> Result<Self, LogRefusal> {
        let tail = match query.first("tail").filter(|tail| !tail.is_empty()) {
            // An older name; `all` is the same as none.
            Some("all") => None,
            Some(tail) => Some(number(tail)?),
            None => query.first("tailLines").map(number).transpose()?,
        };
        let limit = query.first("limitBytes").map(number).transpose()?;
        let seconds = query.first("sinceSeconds").map(number).transpose()?;
        let time = query.first("sinceTime").map(time).transpose()?.flatten();
        let stream = query.first("stream").unwrap_or(ALL);
        let has_time = query.first("sinceTime").is_some();
        let wrong = tail.is_some_and(|tail| tail < 0)
            || limit.is_some_and(|limit| limit < 1)
            || seconds.is_some_and(|seconds| seconds < 1)
            || (seconds.is_some() && has_time)
            || !["Stdout", "Stderr", ALL].contains(&stream)
            || (stream != ALL && tail.is_some());
        if wrong {
            return Err(LogRefusal::invalid());
        }
        if stream != ALL {
            // The gate is alpha and off.
            let text = format!(
                "unable to return the given log stream: {stream:?}. Please enable \
                 PodLogsQuerySplitStreams feature gate in kubelet"
            );
            return Err(LogRefusal { status: 400, text });
        }
        let unsigned = |number: Option<i64>| number.and_then(|n| u64::try_from(n).ok());
        Ok(Self {
            follow: flag(query, "follow"),
            previous: flag(query, "previous"),
            timestamps: flag(query, "timestamps"),
            since: seconds.map(Since::Seconds).or(time.map(Since::Time)),
            tail_lines: unsigned(tail),
            limit_bytes: unsigned(limit),
        })
    }

    /// The query for the file's reader.
    pub(super) fn query(&self, now: Timestamp) -> LogQuery {
        let since = self.since.map(|since| match since {
            Since::Time(time) => time,
            Since::Seconds(seconds) => {
                let ago = SignedDuration::from_secs(seconds);
                now.checked_sub(ago).unwrap_or(Timestamp::UNIX_EPOCH)
            }
        });
        LogQuery {
            tail_lines: self.tail_lines,
            since,
            limit_bytes: self.limit_bytes,
            timestamps: self.timestamps,
            stream: None,
        }
    }
}

// k8s: staging/src/k8s.io/apimachinery/pkg/runtime/conversion.go Convert_Slice_string_To_bool
fn flag(query: &Query, name: &str) -> bool {
    query.first(name).is_some_and(|text| text != "0" && !text.eq_ignore_ascii_case("false"))
}

fn number(text: &str) -> Result<i64, LogRefusal> {
    text.parse().map_err(|_| LogRefusal::undecodable())
}

fn time(text: &str) -> Result<Option<Timestamp>, LogRefusal> {
    match text {
        "" | "null" => Ok(None),
        text => text.parse().map(Some).map_err(|_| LogRefusal::undecodable()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Options, u16> {
        Options::parse(&Query::parse(query)).map_err(|refusal| refusal.status)
    }

    #[test]
    fn log_options_are_parsed_as_by_the_kubelet() {
        let none = Options::default;
        for (query, expected) in [
            ("", Ok(none())),
            ("follow=true&timestamps=1", Ok(Options { follow: true, timestamps: true, ..none() })),
            ("follow=false&previous=0", Ok(none())),
            ("follow=", Ok(Options { follow: true, ..none() })),
            ("previous=true", Ok(Options { previous: true, ..none() })),
            ("tailLines=0", Ok(Options { tail_lines: Some(0), ..none() })),
            ("tail=5&tailLines=9", Ok(Options { tail_lines: Some(5), ..none() })),
            ("tail=all&tailLines=9", Ok(none())),
            ("tailLines=-1", Err(422)),
            ("tailLines=x", Err(400)),
            ("limitBytes=7", Ok(Options { limit_bytes: Some(7), ..none() })),
            ("limitBytes=0", Err(422)),
            ("limitBytes=", Err(400)),
            ("sinceSeconds=5", Ok(Options { since: Some(Since::Seconds(5)), ..none() })),
            ("sinceSeconds=0", Err(422)),
            ("sinceTime=yesterday", Err(400)),
            ("sinceSeconds=5&sinceTime=2026-01-01T00:00:00Z", Err(422)),
            ("stream=All", Ok(none())),
            ("stream=Stdout", Err(400)),
            ("stream=Stdout&tailLines=1", Err(422)),
            ("stream=both", Err(422)),
            ("insecureSkipTLSVerifyBackend=true&container=c", Ok(none())),
        ] {
            assert_eq!(parse(query), expected, "{query:?}");
        }
    }

    #[test]
    fn since_options_resolve_to_a_time_before_now() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
        let since = |query| parse(query).expect("options").query(now).since;
        assert_eq!(since("sinceSeconds=60"), "2026-01-01T00:00:00Z".parse().ok());
        assert_eq!(since("sinceTime=2026-01-01T00:00:30Z"), "2026-01-01T00:00:30Z".parse().ok());
        assert_eq!(since(""), None);
    }
}
