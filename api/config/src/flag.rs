//! The table of a daemon's flags: names, forms of values, the field of each, and its help line.
//!
//! Output: [`FlagTable`], with which `given.rs` reads a command line and which `help.rs` shows. The
//! reader knows forms, never names; a flag exists exactly when it stands in the table.

use serde_json::Value;

use crate::forms::FormError;
use crate::status::Status;

/// The form of the text after a flag.
#[derive(Clone, Copy, Debug)]
pub enum FlagKind {
    /// true or false; alone it means true
    Bool,
    /// 32-bit number
    Int32,
    /// 64-bit number
    Int64,
    /// Real number
    Float,
    /// klog level, not negative
    Level,
    /// Any text
    Text,
    /// Resource quantity
    Quantity,
    /// Duration in Go's form
    Duration,
    /// One IP address
    Ip,
    /// One IP address or two of different families
    Ips,
    /// Comma-separated texts; repeating adds
    TextList,
    /// key=value,…; repeating adds
    Pairs,
    /// One key=value, not split at commas; repeating adds
    Pair,
    /// key=value,… where a missing value is empty
    Labels,
    /// name=true|false,…
    Gates,
    /// pattern=N,…
    Vmodule,
    /// A form that only this daemon has; lists and maps add up over repetitions
    Own(&'static Form),
    /// Shows the help and stops
    Help,
    /// Shows the version and stops
    Version,
}

/// A form of value that only one daemon has.
#[derive(Debug)]
pub struct Form {
    /// Its name for people.
    pub name: &'static str,
    /// A value of this form.
    pub example: &'static str,
    /// The value in the form its configuration field has in a file, or the fault of the text.
    pub read: fn(&str) -> Result<Value, FormError>,
}

impl FlagKind {
    /// Its form, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool | Self::Help | Self::Version => "bool",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Float => "number",
            Self::Level => "level",
            Self::Text => "string",
            Self::Quantity => "quantity",
            Self::Duration => "duration",
            Self::Ip => "ip",
            Self::Ips => "ip[,ip]",
            Self::TextList => "text,...",
            Self::Pairs | Self::Labels => "key=value,...",
            Self::Pair => "key=value",
            Self::Gates => "name=bool,...",
            Self::Vmodule => "pattern=level,...",
            Self::Own(form) => form.name,
        }
    }

    /// A value of this form.
    pub const fn example(self) -> &'static str {
        match self {
            Self::Bool | Self::Help | Self::Version => "true",
            Self::Int32 | Self::Int64 | Self::Float | Self::Level | Self::Quantity => "1",
            Self::Duration => "1s",
            Self::Ip | Self::Ips => "127.0.0.1",
            Self::Pairs | Self::Pair | Self::Labels => "a=b",
            Self::Gates => "A=true",
            Self::Vmodule => "a=1",
            Self::Text | Self::TextList => "text",
            Self::Own(form) => form.example,
        }
    }

    /// The printed value of a flag of this form without a value and a default.
    pub const fn zero(self) -> &'static str {
        match self {
            Self::Bool | Self::Help | Self::Version => "false",
            Self::Int32 | Self::Int64 | Self::Float | Self::Level => "0",
            Self::Duration => "0s",
            Self::TextList => "[]",
            _ => "",
        }
    }

    /// A bare `--flag` is complete, and the next argument is not its value.
    pub const fn needs_no_value(self) -> bool {
        matches!(self, Self::Bool | Self::Help | Self::Version)
    }
}

/// The field that a flag sets.
#[derive(Clone, Copy, Debug)]
pub enum FlagTarget {
    /// The configuration field at this path.
    Field(&'static str),
    /// Something that no configuration file has, or nothing.
    Own(Status),
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Name without dashes in front.
    pub name: &'static str,
    /// Form of its value.
    pub kind: FlagKind,
    /// The field that it sets.
    pub target: FlagTarget,
    /// One line for `--help`.
    pub help: &'static str,
    /// The replacement, when it is deprecated.
    pub deprecated: Option<&'static str>,
    /// The value of a flag without a field when it is not set.
    pub default: &'static str,
}

impl Flag {
    /// A flag that overrides the configuration field at `path`.
    pub const fn field(
        name: &'static str,
        kind: FlagKind,
        path: &'static str,
        help: &'static str,
    ) -> Self {
        Self { name, kind, target: FlagTarget::Field(path), help, deprecated: None, default: "" }
    }

    /// A flag that no configuration file has.
    pub const fn own(
        name: &'static str,
        kind: FlagKind,
        status: Status,
        help: &'static str,
    ) -> Self {
        Self { name, kind, target: FlagTarget::Own(status), help, deprecated: None, default: "" }
    }

    /// Its use warns, and names the replacement.
    #[must_use]
    pub const fn deprecated(self, instead: &'static str) -> Self {
        Self { deprecated: Some(instead), ..self }
    }

    /// Its value when it is not set, as flags print theirs.
    #[must_use]
    pub const fn default(self, text: &'static str) -> Self {
        Self { default: text, ..self }
    }
}

/// Flags shown under one heading.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The heading.
    pub title: &'static str,
    /// Its flags.
    pub flags: &'static [Flag],
}

/// All flags of a daemon.
#[derive(Clone, Copy, Debug)]
pub struct FlagTable {
    /// Groups in the order of `--help`; in parts, as a long table has several files.
    pub parts: &'static [&'static [Group]],
    /// Flags of older releases, and their replacements.
    pub removed: &'static [(&'static str, &'static str)],
}

impl FlagTable {
    /// All groups in the order of `--help`.
    pub fn groups(&self) -> impl Iterator<Item = &'static Group> + use<> {
        self.parts.iter().copied().flatten()
    }

    /// All flags.
    pub fn flags(&self) -> impl Iterator<Item = &'static Flag> + use<> {
        self.groups().flat_map(|group| group.flags)
    }

    /// The flag of this name, `_` and `-` being the same.
    pub fn find(&self, name: &str) -> Option<&'static Flag> {
        let name = name.replace('_', "-");
        self.flags().find(|flag| flag.name == name)
    }
}
