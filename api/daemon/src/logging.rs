//! Log lines: klog's text form or the JSON form of Kubernetes components, on standard error.
//!
//! Input: `tracing` events and the `logging` section of the configuration. Output: one line per
//! event, written at once with a single write, so that lines of threads never mix. Fields of the
//! enclosing spans (pod, container) are part of each line.
//!
//! `-v` is klog's: 0 shows what an operator must know, 2 and more adds `debug`, 5 and more `trace`.
//! Libraries stay at warnings until `-v=8`. A line has at most [`LINE_BYTES_MAX`] bytes. Failing to
//! write a line is ignored: there is no other place to report it. Times are UTC.
//!
//! // k8s: k8s.io/klog/v2/internal/buffer FormatHeader; component-base/logs/json

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use jiff::Timestamp;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Longest line; the rest of a longer one is cut off.
pub const LINE_BYTES_MAX: usize = 16 * 1024;
/// `-v` from which `debug` events are shown.
const DEBUG_FROM: u32 = 2;
/// `-v` from which `trace` events are shown.
const TRACE_FROM: u32 = 5;
/// `-v` from which libraries show more than warnings.
const LIBRARIES_FROM: u32 = 8;
/// Crates of this repository begin with this.
const OWN_CRATES: &str = "pintle";

/// Changes the level of detail while the agent runs.
#[derive(Clone, Debug)]
pub struct Verbosity(Arc<AtomicU32>);

impl Verbosity {
    /// klog's level.
    pub fn level(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets klog's level for all threads.
    pub fn set(&self, level: u32) {
        self.0.store(level, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }
}

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// klog's.
    Text,
    /// A JSON object.
    Json,
}

/// Installs the logger of the process; a second call leaves the first logger in place.
pub fn init(format: Format, verbosity: u32) -> Verbosity {
    let verbosity = Verbosity(Arc::new(AtomicU32::new(verbosity)));
    let lines = LineWriter {
        format,
        verbosity: verbosity.clone(),
        write: |line: &str| drop(std::io::stderr().lock().write_all(line.as_bytes())),
    };
    // Only a logger that is already there makes this fail; tests run in one process.
    let _ = tracing_subscriber::registry().with(lines).try_init();
    verbosity
}

/// Turns events into lines.
struct LineWriter<W> {
    format: Format,
    verbosity: Verbosity,
    write: W,
}

impl<S, W> Layer<S> for LineWriter<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Fn(&str) + 'static,
{
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        is_shown(metadata.target(), *metadata.level(), self.verbosity.level())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(finest(self.verbosity.level())))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = LogFields::default();
            attributes.record(&mut fields);
            span.extensions_mut().replace(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<LogFields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = LogFields::default();
        event.record(&mut fields);
        let spans = context.event_scope(event).into_iter().flatten();
        let mut outer = Vec::new();
        for span in spans {
            if let Some(found) = span.extensions().get::<LogFields>() {
                outer.extend(found.named.iter().cloned());
            }
        }
        let metadata = event.metadata();
        let line = LogLine {
            level: *metadata.level(),
            time: Timestamp::now(),
            pid: std::process::id(),
            place: metadata.file().map(file_name).zip(metadata.line()),
            message: fields.message,
            fields: fields.named.into_iter().chain(outer).collect(),
        };
        (self.write)(&line.render(self.format));
    }
}

/// The finest level that `-v` shows of our own crates.
fn finest(verbosity: u32) -> Level {
    match verbosity {
        v if v >= TRACE_FROM => Level::TRACE,
        v if v >= DEBUG_FROM => Level::DEBUG,
        _ => Level::INFO,
    }
}

fn is_shown(target: &str, level: Level, verbosity: u32) -> bool {
    let own = target.starts_with(OWN_CRATES) || verbosity >= LIBRARIES_FROM;
    // kube logs every failed request as an error; the caller logs those that matter.
    if !own && target.starts_with("kube_") {
        return false;
    }
    level <= if own { finest(verbosity) } else { Level::WARN }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Message and fields of an event or span.
#[derive(Default)]
struct LogFields {
    message: String,
    named: Vec<(&'static str, Value)>,
}

impl LogFields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("message", other) => self.message = other.to_string(),
            (name, value) => self.named.push((name, value)),
        }
    }
}

impl Visit for LogFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, Value::from(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, Value::from(value));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            // Writing to a String cannot fail.
            let _ = write!(text, ": {cause}");
            source = cause.source();
        }
        self.add(field, Value::from(text));
    }
}

/// Everything a line shows.
struct LogLine<'a> {
    level: Level,
    time: Timestamp,
    pid: u32,
    place: Option<(&'a str, u32)>,
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl LogLine<'_> {
    fn render(&self, format: Format) -> String {
        let mut text = match format {
            Format::Text => self.text(),
            Format::Json => self.json(),
        };
        text.push('\n');
        text
    }

    /// `I1121 12:00:00.123456    4242 file.rs:12] "message" key="value"`
    fn text(&self) -> String {
        let letter = match self.level {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let time = self.time.strftime("%m%d %H:%M:%S%.6f");
        let (file, line) = self.place.unwrap_or(("???", 1));
        let message = Value::from(self.message.as_str());
        let mut text = format!("{letter}{time} {:>7} {file}:{line}] {message}", self.pid);
        for (name, value) in &self.fields {
            let _ = write!(text, " {name}={value}");
        }
        cut(text)
    }

    /// The line as one object with the keys of component-base: `ts` (milliseconds), `caller`,
    /// `msg`, `v`.
    fn json(&self) -> String {
        let mut object = format!("{{\"ts\":{}", self.millis());
        if let Some((file, line)) = self.place {
            let _ = write!(object, ",\"caller\":{}", Value::from(format!("{file}:{line}")));
        }
        let message = cut(self.message.clone());
        let _ = write!(object, ",\"msg\":{}", Value::from(message));
        match self.level {
            Level::ERROR => {}
            Level::DEBUG => drop(write!(object, ",\"v\":{DEBUG_FROM}")),
            Level::TRACE => drop(write!(object, ",\"v\":{TRACE_FROM}")),
            _ => object.push_str(",\"v\":0"),
        }
        for (name, value) in &self.fields {
            let pair = format!(",{}:{value}", Value::from(*name));
            // A cut object would not be JSON, so fields that do not fit are left out whole.
            if object.len() + pair.len() < LINE_BYTES_MAX {
                object.push_str(&pair);
            }
        }
        object.push('}');
        object
    }

    /// Milliseconds since 1970 with microseconds as fraction.
    fn millis(&self) -> String {
        let micros = self.time.as_microsecond();
        format!("{}.{:03}", micros / 1000, micros.rem_euclid(1000))
    }
}

/// Cuts a text to [`LINE_BYTES_MAX`] bytes, between characters.
fn cut(mut text: String) -> String {
    if text.len() > LINE_BYTES_MAX {
        let end = (0..=LINE_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn line(level: Level, message: &str, fields: Vec<(&'static str, Value)>) -> LogLine<'static> {
        let time = "2026-11-21T12:03:04.000567Z".parse().expect("a time");
        let place = Some(("step.rs", 12));
        LogLine { level, time, pid: 4242, place, message: message.to_owned(), fields }
    }

    #[test]
    fn text_lines_have_klogs_form() {
        let fields = vec![("pod", Value::from("default/web")), ("restarts", Value::from(2))];
        assert_eq!(
            line(Level::WARN, "Container \"a\" died", fields).render(Format::Text),
            "W1121 12:03:04.000567    4242 step.rs:12] \"Container \\\"a\\\" died\" \
             pod=\"default/web\" restarts=2\n"
        );
    }

    #[test]
    fn json_lines_have_the_keys_of_kubernetes_components() {
        let fields = vec![("err", Value::from("no\nroute"))];
        assert_eq!(
            line(Level::ERROR, "Failed", fields).render(Format::Json),
            "{\"ts\":1795262584000.567,\"caller\":\"step.rs:12\",\"msg\":\"Failed\",\
             \"err\":\"no\\nroute\"}\n"
        );
        let debug = line(Level::DEBUG, "x", Vec::new()).render(Format::Json);
        assert!(debug.ends_with(",\"msg\":\"x\",\"v\":2}\n"), "{debug}");
    }

    #[test]
    fn log_line_is_single_and_bounded_in_both_formats() {
        let long = "ä\n".repeat(LINE_BYTES_MAX);
        for format in [Format::Text, Format::Json] {
            let fields = vec![("k", Value::from(long.clone()))];
            let text = line(Level::INFO, &long, fields).render(format);
            assert_eq!(text.matches('\n').count(), 1);
            assert!(text.len() <= 2 * LINE_BYTES_MAX, "{}", text.len());
        }
        let json = line(Level::INFO, "m", vec![("k", Value::from(long))]).render(Format::Json);
        assert!(serde_json::from_str::<Value>(&json).is_ok());
    }

    #[test]
    fn verbosity_is_klogs_and_libraries_are_quiet() {
        for (verbosity, level, own, library) in [
            (0, Level::WARN, true, true),
            (0, Level::INFO, true, false),
            (1, Level::DEBUG, false, false),
            (2, Level::DEBUG, true, false),
            (4, Level::TRACE, false, false),
            (5, Level::TRACE, true, false),
            (8, Level::TRACE, true, true),
        ] {
            let shown = |target| is_shown(target, level, verbosity);
            assert_eq!(shown("pintle_agent::worker"), own, "own {level} at {verbosity}");
            assert_eq!(shown("h2::codec"), library, "library {level} at {verbosity}");
        }
    }

    /// The lines that `work` logs, in JSON.
    fn logged(verbosity: u32, work: impl FnOnce(&Verbosity)) -> Vec<Value> {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let verbosity = Verbosity(Arc::new(AtomicU32::new(verbosity)));
        let sink = kept.clone();
        let lines = LineWriter {
            format: Format::Json,
            verbosity: verbosity.clone(),
            write: move |line: &str| sink.lock().expect("not poisoned").push(line.to_owned()),
        };
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, || work(&verbosity));
        let kept = kept.lock().expect("not poisoned");
        kept.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    #[test]
    fn log_line_has_its_fields_span_fields_and_error_causes() {
        let cause = "1x".parse::<pintle_api_types::duration::GoDuration>().expect_err("wrong");
        let error = std::io::Error::other(cause);
        let lines = logged(0, |_| {
            let pod = tracing::info_span!("pod", pod = "a/b", container = tracing::field::Empty);
            let _inside = pod.enter();
            pod.record("container", "main");
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::info!(restarts = 3, ok = true, share = 0.5, state = ?Some(1), error, "Again");
        });
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!(line["msg"], "Again");
        assert_eq!(line["pod"], "a/b");
        assert_eq!(line["container"], "main");
        assert_eq!(line["restarts"], 3);
        assert_eq!(line["ok"], true);
        assert_eq!(line["share"], 0.5);
        assert_eq!(line["state"], "Some(1)");
        assert!(line["error"].as_str().is_some_and(|text| text.contains("not a duration")));
        assert!(line["caller"].as_str().is_some_and(|text| text.starts_with("logging.rs:")));
    }

    #[test]
    fn the_level_of_detail_can_be_changed_while_running() {
        let lines = logged(0, |verbosity| {
            for step in 0..2 {
                tracing::debug!(step, "detail");
                verbosity.set(DEBUG_FROM);
            }
            assert_eq!(verbosity.level(), DEBUG_FROM);
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0]["step"], 1);
    }
}
