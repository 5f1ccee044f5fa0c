//! Reads a command line by a daemon's table of flags, with the rules of upstream's parser.
//!
//! Input: arguments without the program's name. Output: one JSON value per flag that was given,
//! in the form its configuration field has in a file, or an error for each argument that cannot be
//! used; all are reported, not only the first. It knows forms of values and no flag by name.
//!
//! Rules: `_` is `-`; `--flag value` and `--flag=value`; a bool takes its value only after `=`;
//! lists and maps add up over repetitions; everything else keeps the last value; one leading dash
//! only for `-v` and `-h`; positional arguments are errors.

use std::collections::BTreeMap;
use std::ffi::OsString;

use serde_json::Value;

use crate::error::ConfigError;
use crate::flag::{Flag, FlagKind, FlagTable};
use crate::{forms, suggest};

/// Flags that were given, by name.
#[derive(Clone, Debug, Default)]
pub struct GivenFlags(BTreeMap<&'static str, (&'static Flag, Value)>);

impl GivenFlags {
    /// The value of a flag that was given.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name).map(|(_, value)| value)
    }

    /// The text the flag was set to, unless it is empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.value(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// True if a switch was given and set to true.
    pub fn is_true(&self, name: &str) -> bool {
        self.value(name) == Some(&Value::Bool(true))
    }

    /// All given flags with their table entry.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Flag, &Value)> {
        self.0.values().map(|(flag, value)| (*flag, value))
    }

    fn add(&mut self, flag: &'static Flag, text: &str) -> Result<(), ConfigError> {
        let value = forms::value_of(flag.kind, text).map_err(|problem| {
            let remedy = format!("give it as {}", flag.kind.name());
            ConfigError::new(
                format!("--{}", flag.name),
                format!("{text:?}"),
                problem.to_string(),
                remedy,
            )
        })?;
        match self.0.get_mut(flag.name) {
            Some((_, old)) => forms::add_up(old, value),
            None => drop(self.0.insert(flag.name, (flag, value))),
        }
        Ok(())
    }
}

/// The arguments as texts.
pub fn texts(args: impl Iterator<Item = OsString>) -> Result<Vec<String>, Vec<ConfigError>> {
    let text = |arg: OsString| {
        arg.into_string().map_err(|arg| {
            let problem = "it is not valid UTF-8";
            ConfigError::new("argument", format!("{arg:?}"), problem, "write it in UTF-8")
        })
    };
    args.map(text).collect::<Result<_, _>>().map_err(|error| vec![error])
}

impl FlagTable {
    /// Reads all arguments.
    pub fn read(&self, args: &[String]) -> Result<GivenFlags, Vec<ConfigError>> {
        let mut given = GivenFlags::default();
        let mut errors = Vec::new();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let result = self.split(arg).and_then(|(flag, inline)| {
                let text = match inline {
                    Some(text) => text,
                    None if flag.kind.needs_no_value() => "true",
                    None => rest.next().ok_or_else(|| missing_value(flag))?,
                };
                given.add(flag, text)
            });
            errors.extend(result.err());
        }
        if errors.is_empty() { Ok(given) } else { Err(errors) }
    }

    /// The flag an argument names, and the text after its `=`.
    fn split<'a>(&self, arg: &'a str) -> Result<(&'static Flag, Option<&'a str>), ConfigError> {
        let Some(long) = arg.strip_prefix("--").filter(|name| !name.is_empty()) else {
            return self.split_short(arg);
        };
        let (name, inline) = match long.split_once('=') {
            Some((name, text)) => (name, Some(text)),
            None => (long, None),
        };
        let flag = self.find(name).ok_or_else(|| self.unknown(name))?;
        Ok((flag, inline))
    }

    /// `-h`, `-v N`, `-v=N` and `-vN`; anything else with fewer than two dashes is no flag.
    fn split_short<'a>(
        &self,
        arg: &'a str,
    ) -> Result<(&'static Flag, Option<&'a str>), ConfigError> {
        let short = |letter: char| arg.strip_prefix('-').and_then(|rest| rest.strip_prefix(letter));
        if let (Some(""), Some(help)) = (short('h'), self.find("help")) {
            return Ok((help, None));
        }
        if let (Some(level), Some(v)) = (short('v'), self.find("v")) {
            let level = level.strip_prefix('=').unwrap_or(level);
            if level.is_empty() || level.parse::<u32>().is_ok() {
                return Ok((v, Some(level).filter(|level| !level.is_empty())));
            }
        }
        let name = arg.trim_start_matches('-').split('=').next().unwrap_or_default();
        if arg.starts_with('-') && self.find(name).is_some() {
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

    fn unknown(&self, name: &str) -> ConfigError {
        let shown = format!("--{name}");
        if let Some((_, remedy)) = self.removed.iter().find(|(flag, _)| *flag == name) {
            return ConfigError::new(shown, "", "Kubernetes has removed this flag", *remedy);
        }
        let negated = name.strip_prefix("no-").and_then(|name| self.find(name));
        let remedy = match negated.filter(|flag| matches!(flag.kind, FlagKind::Bool)) {
            Some(flag) => format!("write --{}=false", flag.name),
            None => match suggest::did_you_mean(name, self.flags().map(|flag| flag.name)) {
                Some(hint) => hint.replacen("did you mean ", "did you mean --", 1),
                None => "see --help".to_owned(),
            },
        };
        ConfigError::new(shown, "", "no such flag exists", remedy)
    }
}

fn missing_value(flag: &Flag) -> ConfigError {
    let remedy = format!("write --{}={}", flag.name, flag.kind.name());
    ConfigError::new(format!("--{}", flag.name), "", "its value is missing", remedy)
}
