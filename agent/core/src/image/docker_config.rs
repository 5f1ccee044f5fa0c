//! Docker's configuration as it is written, read as Go's `encoding/json` reads it: pure.
//!
//! `null` leaves what is there, names of fields count in any case, the last of two that are the same
//! holds, and what is unknown is passed over. serde's derived code refuses the first three, and a
//! secret that works with the kubelet has to work here.
// k8s: pkg/credentialprovider/config.go DockerConfigJSON, DockerConfigEntry

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

/// `config.json`.
#[derive(Default)]
pub(super) struct DockerConfig {
    pub(super) auths: Entries,
}

/// Entries by registry: `.dockercfg`.
#[derive(Default)]
pub(super) struct Entries(pub(super) BTreeMap<String, Entry>);

/// An entry.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) auth: String,
    pub(super) username: String,
    pub(super) password: String,
    pub(super) email: String,
    pub(super) identity_token: String,
}

/// What takes its fields one after the other.
trait Fields: Default {
    /// Takes the value of a field.
    fn field<'de, A: MapAccess<'de>>(&mut self, key: String, from: &mut A) -> Result<(), A::Error>;
}

impl Fields for DockerConfig {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: String, from: &mut A) -> Result<(), A::Error> {
        if !key.eq_ignore_ascii_case("auths") {
            return from.next_value::<IgnoredAny>().map(drop);
        }
        // A second map is put over the first.
        self.auths.0.extend(from.next_value::<Entries>()?.0);
        Ok(())
    }
}

impl Fields for Entries {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: String, from: &mut A) -> Result<(), A::Error> {
        let entry = from.next_value()?;
        self.0.insert(key, entry);
        Ok(())
    }
}

impl Fields for Entry {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: String, from: &mut A) -> Result<(), A::Error> {
        let field = match key.to_ascii_lowercase().as_str() {
            "auth" => &mut self.auth,
            "username" => &mut self.username,
            "password" => &mut self.password,
            "email" => &mut self.email,
            "identitytoken" => &mut self.identity_token,
            _ => return from.next_value::<IgnoredAny>().map(drop),
        };
        if let Some(text) = from.next_value()? {
            *field = text;
        }
        Ok(())
    }
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
        while let Some(key) = map.next_key()? {
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

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Map(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Map(PhantomData))
    }
}
