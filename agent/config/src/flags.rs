//! Reads a command line by the table of `flag_table.rs`, with the rules of the kubelet's parser.
//!
//! Input: arguments without the program's name. Output: one JSON value per flag that was given,
//! in the form its configuration field has in a file, or an error for each argument that cannot be
//! used; all are reported, not only the first. It knows forms of values and no flag by name.
//!
//! Rules: `_` is `-`; `--flag value` and `--flag=value`; a bool takes its value only after `=`;
//! lists and maps add up over repetitions; everything else keeps the last value; one leading dash
//! only for `-v` and `-h`; positional arguments are errors.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::ConfigError;
use super::flag_table::{self, Flag, FlagKind};
use super::suggest;
use pintle_api_types::duration::GoDuration;
use pintle_api_types::quantity::Amount;

/// Flags that were given, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GivenFlags(BTreeMap<&'static str, Value>);

impl GivenFlags {
    /// What the flag was set to.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The text the flag was set to, unless it is empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.value(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// Whether a switch was given and set to true.
    pub fn is_true(&self, name: &str) -> bool {
        self.value(name) == Some(&Value::Bool(true))
    }

    /// All given flags with their table entry.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Flag, &Value)> {
        self.0.iter().filter_map(|(name, value)| Some((flag_table::find(name)?, value)))
    }
}

/// Reads all arguments.
pub fn read(args: &[String]) -> Result<GivenFlags, Vec<ConfigError>> {
    let mut given = GivenFlags::default();
    let mut errors = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let result = split(arg).and_then(|(flag, inline)| {
            let text = match inline {
                Some(text) => text,
                None if flag.kind.needs_no_value() => "true",
                None => rest.next().ok_or_else(|| missing_value(flag))?,
            };
            add(&mut given, flag, text)
        });
        errors.extend(result.err());
    }
    if errors.is_empty() { Ok(given) } else { Err(errors) }
}

/// The flag an argument names, and the text after its `=`.
fn split(arg: &str) -> Result<(&'static Flag, Option<&str>), ConfigError> {
    let Some(long) = arg.strip_prefix("--").filter(|name| !name.is_empty()) else {
        return split_short(arg);
    };
    let (name, inline) = match long.split_once('=') {
        Some((name, text)) => (name, Some(text)),
        None => (long, None),
    };
    let flag = flag_table::find(name).ok_or_else(|| unknown_flag(name))?;
    Ok((flag, inline))
}

/// `-h`, `-v N`, `-v=N` and `-vN`; anything else with fewer than two dashes is no flag.
fn split_short(arg: &str) -> Result<(&'static Flag, Option<&str>), ConfigError> {
    let short = |letter: char| arg.strip_prefix('-').and_then(|rest| rest.strip_prefix(letter));
    if let (Some(""), Some(help)) = (short('h'), flag_table::find("help")) {
        return Ok((help, None));
    }
    if let (Some(level), Some(v)) = (short('v'), flag_table::find("v")) {
        let level = level.strip_prefix('=').unwrap_or(level);
        if level.is_empty() || level.parse::<u32>().is_ok() {
            return Ok((v, Some(level).filter(|level| !level.is_empty())));
        }
    }
    let name = arg.trim_start_matches('-').split('=').next().unwrap_or_default();
    if arg.starts_with('-') && flag_table::find(name).is_some() {
        let remedy = format!("write --{name} with two dashes");
        return Err(ConfigError::new(arg, "", "no such short flag exists", remedy));
    }
    Err(ConfigError::new(
        format!("argument {arg:?}"),
        "",
        "arguments without a flag are not accepted",
        "remove it, or write a flag's value as --flag=value",
    ))
}

/// Flags of older kubelets that files such as `kubeadm-flags.env` still have, and what took their
/// place.
const REMOVED: [(&str, &str); 12] = [
    ("pod-infra-container-image", "remove it; the runtime's configuration names the pause image"),
    ("container-runtime", "remove it; the runtime is always a remote one"),
    ("docker-endpoint", "remove it; containerRuntimeEndpoint names the runtime's socket"),
    ("network-plugin", "remove it; the runtime's configuration says where CNI is"),
    ("cni-conf-dir", "remove it; the runtime's configuration says where CNI is"),
    ("cni-bin-dir", "remove it; the runtime's configuration says where CNI is"),
    ("cni-cache-dir", "remove it; the runtime's configuration says where CNI is"),
    ("network-plugin-mtu", "remove it; the pod network sets its own"),
    ("image-pull-progress-deadline", "remove it; the runtime's configuration has a time-out"),
    ("cloud-config", "remove it; cloud providers run outside of the node"),
    ("azure-container-registry-config", "use --image-credential-provider-config"),
    ("keep-terminated-pod-volumes", "remove it; volumes of ended pods are unmounted"),
];

fn unknown_flag(name: &str) -> ConfigError {
    if let Some((_, remedy)) = REMOVED.iter().find(|(flag, _)| *flag == name) {
        let problem = "Kubernetes has removed this flag";
        return ConfigError::new(format!("--{name}"), "", problem, *remedy);
    }
    let known = flag_table::flags().map(|flag| flag.name);
    let remedy = match suggest::did_you_mean(name, known) {
        Some(hint) => hint.replacen("did you mean ", "did you mean --", 1),
        None => "see --help".to_owned(),
    };
    ConfigError::new(format!("--{name}"), "", "no such flag exists", remedy)
}

fn missing_value(flag: &Flag) -> ConfigError {
    let remedy = format!("write --{}={}", flag.name, flag.kind.name());
    ConfigError::new(format!("--{}", flag.name), "", "its value is missing", remedy)
}

fn add(given: &mut GivenFlags, flag: &'static Flag, text: &str) -> Result<(), ConfigError> {
    let value = value_of(flag.kind, text).map_err(|problem| {
        let remedy = format!("give it as {}", flag.kind.name());
        ConfigError::new(format!("--{}", flag.name), format!("{text:?}"), problem, remedy)
    })?;
    match (given.0.get_mut(flag.name), value) {
        (Some(Value::Array(old)), Value::Array(new)) => old.extend(new),
        (Some(Value::Object(old)), Value::Object(new)) if flag.kind == FlagKind::Headers => {
            new.into_iter().for_each(|(name, values)| add_header(old, name, values));
        }
        (Some(Value::Object(old)), Value::Object(new)) => old.extend(new),
        (_, value) => {
            given.0.insert(flag.name, value);
        }
    }
    Ok(())
}

/// The value of a flag in the form its configuration field has in a file.
fn value_of(kind: FlagKind, text: &str) -> Result<Value, String> {
    Ok(match kind {
        FlagKind::Bool | FlagKind::Help => Value::Bool(bool_of(text)?),
        FlagKind::Version => Value::Bool(text == "raw" || bool_of(text)?),
        FlagKind::Int32 => json!(number(text, i32::MIN.into(), i32::MAX.into())?),
        FlagKind::Int64 => json!(number(text, i64::MIN, i64::MAX)?),
        FlagKind::Level => json!(number(text, 0, i32::MAX.into())?),
        FlagKind::Text => json!(text),
        FlagKind::Quantity => {
            text.parse::<Amount>().map_err(|error| error.to_string())?;
            json!(text)
        }
        FlagKind::Duration => {
            json!(text.parse::<GoDuration>().map_err(|error| error.to_string())?)
        }
        FlagKind::Ip => json!(ip(text)?),
        FlagKind::Ips => json!(items(text).map(ip).collect::<Result<Vec<_>, _>>()?),
        FlagKind::TextList => json!(comma_list(text)?),
        FlagKind::Pairs => json!(pairs(items(text), '=')?),
        FlagKind::Pair => json!(pairs([text].into_iter(), '=')?),
        FlagKind::Labels => labels(text),
        FlagKind::Thresholds => json!(pairs(items(text), '<')?),
        FlagKind::Gates => gates(text)?,
        FlagKind::Headers => headers(text)?,
        FlagKind::Taints => taints(text)?,
        FlagKind::ReservedMemory => reserved_memory(text)?,
        FlagKind::Vmodule => vmodule(text)?,
    })
}

// k8s: strconv.ParseBool
fn bool_of(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("it is neither true nor false".to_owned()),
    }
}

/// Decimal, `0x`, `0o` or `0b`, as the kubelet's parser reads numbers.
fn number(text: &str, min: i64, max: i64) -> Result<i64, String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let unsigned = !digits.starts_with(['+', '-']);
    let number = i128::from_str_radix(digits, radix).ok().filter(|_| unsigned);
    let number = number.and_then(|n| i64::try_from(n * sign).ok());
    number
        .filter(|n| (min..=max).contains(n))
        .ok_or_else(|| format!("it is not a whole number from {min} to {max}"))
}

fn ip(text: &str) -> Result<String, String> {
    let address = text.trim().parse::<std::net::IpAddr>();
    address.map(|ip| ip.to_string()).map_err(|_| "it is not an IP address".to_owned())
}

/// Comma-separated values where `"a,b"` in quotes is one.
fn comma_list(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        match (c, list.last_mut()) {
            ('"', _) => quoted = !quoted,
            (',', _) if !quoted => list.push(String::new()),
            (c, Some(last)) => last.push(c),
            (_, None) => {}
        }
    }
    if quoted { Err("a quotation mark is not closed".to_owned()) } else { Ok(list) }
}

/// Non-empty parts between commas.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn pairs<'a>(
    items: impl Iterator<Item = &'a str>,
    separator: char,
) -> Result<BTreeMap<String, String>, String> {
    items
        .map(|item| {
            let (key, value) = item
                .split_once(separator)
                .ok_or_else(|| format!("{item:?} is not of the form key{separator}value"))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}

fn labels(text: &str) -> Value {
    let label = |item: &str| match item.split_once('=') {
        Some((key, value)) => (key.trim().to_owned(), json!(value.trim())),
        None => (item.to_owned(), json!("")),
    };
    Value::Object(items(text).map(label).collect())
}

fn gates(text: &str) -> Result<Value, String> {
    let pairs = pairs(items(text), '=')?;
    let gates: Result<Map<_, _>, String> = pairs
        .into_iter()
        .map(|(name, on)| {
            let on = bool_of(&on).map_err(|problem| format!("{name}: {problem}"))?;
            Ok((name, Value::Bool(on)))
        })
        .collect();
    gates.map(Value::Object)
}

fn headers(text: &str) -> Result<Value, String> {
    let mut headers = Map::new();
    for item in items(text) {
        let (name, value) = item
            .split_once(':')
            .ok_or_else(|| format!("{item:?} is not of the form name:value"))?;
        add_header(&mut headers, name.trim().to_owned(), json!([value.trim()]));
    }
    Ok(Value::Object(headers))
}

fn add_header(headers: &mut Map<String, Value>, name: String, values: Value) {
    match (headers.get_mut(&name), values) {
        (Some(Value::Array(old)), Value::Array(new)) => old.extend(new),
        (_, values) => {
            headers.insert(name, values);
        }
    }
}

fn taints(text: &str) -> Result<Value, String> {
    let taint = |item: &str| {
        let problem = || format!("{item:?} is not of the form key=value:effect");
        let (key, effect) = item.rsplit_once(':').ok_or_else(problem)?;
        let (key, value) = key.split_once('=').unwrap_or((key, ""));
        Ok(json!({ "key": key, "value": value, "effect": effect }))
    };
    items(text).map(taint).collect::<Result<Vec<_>, String>>().map(Value::Array)
}

fn reserved_memory(text: &str) -> Result<Value, String> {
    let reservation = |part: &str| {
        let problem = || format!("{part:?} is not of the form node:type=quantity");
        let (node, limits) = part.split_once(':').ok_or_else(problem)?;
        let node = number(node.trim(), 0, i32::MAX.into())?;
        Ok(json!({ "numaNode": node, "limits": pairs(items(limits), '=')? }))
    };
    let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
    parts.map(reservation).collect::<Result<Vec<_>, String>>().map(Value::Array)
}

fn vmodule(text: &str) -> Result<Value, String> {
    let item = |(pattern, level): (String, String)| {
        let level = number(&level, 0, i32::MAX.into())?;
        Ok(json!({ "filePattern": pattern, "verbosity": level }))
    };
    let pairs = pairs(items(text), '=')?;
    pairs.into_iter().map(item).collect::<Result<Vec<_>, String>>().map(Value::Array)
}

#[cfg(test)]
#[path = "flags_tests.rs"]
mod tests;
