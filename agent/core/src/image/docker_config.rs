//! Docker's configuration as it is written, read as Go's `encoding/json` reads it: pure.
//!
//! `null` leaves the value, names of fields count in any case, the last of two equal ones holds,
//! unknown fields are ignored, and invalid UTF-8 is replaced. serde's derived code and its JSON
//! reader refuse these, and a secret that works with the kubelet has to work here.
// k8s: pkg/credentialprovider/config.go DockerConfigJSON, DockerConfigEntry

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use pintle_api_types::yaml::utf8_of;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};

/// `config.json`.
#[derive(Default)]
pub(super) struct DockerConfig {
    pub(super) auths: RegistryEntries,
}

/// Entries by registry: `.dockercfg`.
#[derive(Default)]
pub(super) struct RegistryEntries {
    pub(super) by_registry: BTreeMap<String, RegistryEntry>,
    /// Earlier entries of the same registries: an unreadable one is an error as well.
    pub(super) replaced: Vec<RegistryEntry>,
}

impl RegistryEntries {
    fn put(&mut self, registry: String, entry: RegistryEntry) {
        self.replaced.extend(self.by_registry.insert(registry, entry));
    }

    fn add(&mut self, other: Self) {
        self.replaced.extend(other.replaced);
        other.by_registry.into_iter().for_each(|(registry, entry)| self.put(registry, entry));
    }

    fn clear(&mut self) {
        self.replaced.extend(std::mem::take(&mut self.by_registry).into_values());
    }
}

/// An entry.
#[derive(Default)]
pub(super) struct RegistryEntry {
    pub(super) auth: String,
    pub(super) username: String,
    pub(super) password: String,
    pub(super) email: String,
    pub(super) identity_token: String,
}

/// Reads a file of either kind.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let text = utf8_of(bytes);
    // Texts are taken as bytes below, which is no reason to take control characters in them.
    serde_json::from_str::<IgnoredAny>(&text)?;
    serde_json::from_str(&text)
}

/// A receiver of fields, one after the other.
trait Fields: Default {
    /// Takes the value of a field.
    fn field<'de, A: MapAccess<'de>>(&mut self, key: String, from: &mut A) -> Result<(), A::Error>;
}

impl Fields for DockerConfig {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: String, from: &mut A) -> Result<(), A::Error> {
        if !is_field(&key, "auths") {
            return from.next_value::<IgnoredAny>().map(drop);
        }
        match from.next_value::<Option<RegistryEntries>>()? {
            // A second map is put over the first.
            Some(entries) => self.auths.add(entries),
            None => self.auths.clear(),
        }
        Ok(())
    }
}

impl Fields for RegistryEntries {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: String, from: &mut A) -> Result<(), A::Error> {
        let entry = from.next_value()?;
        self.put(key, entry);
        Ok(())
    }
}

impl Fields for RegistryEntry {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: String, from: &mut A) -> Result<(), A::Error> {
        let fields = [
            ("auth", &mut self.auth),
            ("username", &mut self.username),
            ("password", &mut self.password),
            ("email", &mut self.email),
            ("identitytoken", &mut self.identity_token),
        ];
        let Some((_, field)) = fields.into_iter().find(|(name, _)| is_field(&key, name)) else {
            return from.next_value::<IgnoredAny>().map(drop);
        };
        if let Some(SurrogateText(text)) = from.next_value()? {
            *field = text;
        }
        Ok(())
    }
}

/// Is it the field of this name, which is in lower case? Two letters of ASCII have a third form.
// Go: encoding/json fold.go foldName
fn is_field(key: &str, name: &str) -> bool {
    let folded = key.chars().map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    });
    folded.eq(name.chars())
}

/// A text in which half of a surrogate pair is replaced.
struct SurrogateText(String);

impl<'de> Deserialize<'de> for SurrogateText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = SurrogateText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<SurrogateText, E> {
                Ok(SurrogateText(without_surrogates(bytes)))
            }

            fn visit_str<E>(self, text: &str) -> Result<SurrogateText, E> {
                Ok(SurrogateText(text.to_owned()))
            }
        }

        from.deserialize_bytes(Bytes)
    }
}

/// serde_json hands out half a pair as the three bytes that UTF-8 would have for it.
fn without_surrogates(bytes: &[u8]) -> String {
    let mut clean = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, more @ ..] = rest {
        match rest {
            [0xed, 0xa0..=0xbf, _, after @ ..] => {
                clean.extend("\u{fffd}".bytes());
                rest = after;
            }
            _ => {
                clean.push(*first);
                rest = more;
            }
        }
    }
    utf8_of(&clean)
}

struct Map<T>(PhantomData<T>);

impl<'de, T: Fields> Visitor<'de> for Map<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut all = T::default();
        while let Some(SurrogateText(key)) = map.next_key()? {
            all.field(key, &mut map)?;
        }
        Ok(all)
    }
}

impl<'de> Deserialize<'de> for DockerConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Map(PhantomData))
    }
}

impl<'de> Deserialize<'de> for RegistryEntries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Map(PhantomData))
    }
}

impl<'de> Deserialize<'de> for RegistryEntry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Map(PhantomData))
    }
}
