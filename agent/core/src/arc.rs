//! Serde of shared values by value: it writes the value, and a value that was read is not shared.
//!
//! For `#[serde(with = "crate::arc")]` and `crate::arc::option`. Pure.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<T: Serialize, S: Serializer>(
    value: &Arc<T>,
    out: S,
) -> Result<S::Ok, S::Error> {
    (**value).serialize(out)
}

pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    input: D,
) -> Result<Arc<T>, D::Error> {
    T::deserialize(input).map(Arc::new)
}

/// The same of a value that may be missing.
pub(crate) mod option {
    use super::{Arc, Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<Arc<T>>,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_deref().serialize(out)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        input: D,
    ) -> Result<Option<Arc<T>>, D::Error> {
        Ok(Option::<T>::deserialize(input)?.map(Arc::new))
    }
}

/// The same of the first of two.
pub(crate) mod first {
    use super::{Arc, Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, U: Serialize, S: Serializer>(
        (first, second): &(Arc<T>, U),
        out: S,
    ) -> Result<S::Ok, S::Error> {
        (&**first, second).serialize(out)
    }

    pub(crate) fn deserialize<
        'de,
        T: Deserialize<'de>,
        U: Deserialize<'de>,
        D: Deserializer<'de>,
    >(
        input: D,
    ) -> Result<(Arc<T>, U), D::Error> {
        let (first, second) = Deserialize::deserialize(input)?;
        Ok((Arc::new(first), second))
    }
}

/// A pod's identity and version, for a digest: the pod itself came with an input.
pub(crate) mod metadata {
    use k8s_openapi::api::core::v1::Pod;

    use super::{Arc, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(pod: &Arc<Pod>, out: S) -> Result<S::Ok, S::Error> {
        pod.metadata.serialize(out)
    }
}
