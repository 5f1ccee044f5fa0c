//! Messages as JSON and back, for tests that compare with recorded calls.
//!
//! The format is that of the recordings: protobuf field names, 64-bit integers as text, bytes as
//! base64, enums by name, scalars at their default left out, sub-messages kept even when empty
//! (`"run_as_user": {}` is user 0, absent is no user).

use prost::{Message, Name};
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions,
};
use serde_json::Value;

/// Reason why a message could not be converted.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// No message of that name in `runtime.v1`.
    #[error("no message {0} in runtime.v1")]
    UnknownMessage(String),
    /// The JSON does not fit the message.
    #[error("JSON of {0} does not fit")]
    Json(String, #[source] serde_json::Error),
    /// The bytes do not fit the message.
    #[error("bytes of {0} do not fit")]
    Decode(String, #[source] prost::DecodeError),
}

/// A message as JSON.
pub fn to_json<M: Message + Name>(message: &M) -> Result<Value, JsonError> {
    bytes_to_json(&message.encode_to_vec(), &M::full_name())
}

/// The encoded message of that full name (`runtime.v1.RunPodSandboxRequest`) as JSON.
pub fn bytes_to_json(bytes: &[u8], name: &str) -> Result<Value, JsonError> {
    let dynamic = DynamicMessage::decode(descriptor(name)?, bytes)
        .map_err(|error| JsonError::Decode(name.to_owned(), error))?;
    let options =
        SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(true);
    dynamic
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| JsonError::Json(name.to_owned(), error))
}

/// The message that `to_json` would turn into this JSON. Unknown fields are an error.
pub fn from_json<M: Message + Name + Default>(json: &Value) -> Result<M, JsonError> {
    let name = M::full_name();
    let options = DeserializeOptions::new();
    let dynamic = DynamicMessage::deserialize_with_options(descriptor(&name)?, json, &options)
        .map_err(|error| JsonError::Json(name.clone(), error))?;
    M::decode(dynamic.encode_to_vec().as_slice()).map_err(|error| JsonError::Decode(name, error))
}

fn descriptor(name: &str) -> Result<MessageDescriptor, JsonError> {
    thread_local! {
        static POOL: DescriptorPool = DescriptorPool::decode(crate::DESCRIPTOR_SET)
            .expect("build.rs wrote a descriptor set that it had just compiled from");
    }
    POOL.with(|pool| pool.get_message_by_name(name))
        .ok_or_else(|| JsonError::UnknownMessage(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::v1::*;

    #[test]
    fn json_has_the_form_of_the_recordings() {
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: "main".into(), attempt: 0 }),
            envs: vec![KeyValue { key: "A".into(), value: b"443".to_vec() }],
            linux: Some(LinuxContainerConfig {
                resources: Some(LinuxContainerResources {
                    cpu_period: 100_000,
                    hugepage_limits: vec![
                        HugepageLimit { page_size: "2MB".into(), limit: 0 },
                        HugepageLimit { page_size: "1GB".into(), limit: 7 },
                    ],
                    ..Default::default()
                }),
                security_context: Some(LinuxContainerSecurityContext {
                    run_as_user: Some(Int64Value { value: 0 }),
                    supplemental_groups: vec![1000],
                    namespace_options: Some(NamespaceOption {
                        pid: NamespaceMode::Container.into(),
                        ..Default::default()
                    }),
                    seccomp: Some(SecurityProfile::default()),
                    ..Default::default()
                }),
            }),
            cdi_devices: vec![CdiDevice { name: "v/c=d".into() }],
            ..Default::default()
        };
        let expected = json!({
            "metadata": {"name": "main"},
            "envs": [{"key": "A", "value": "NDQz"}],
            "linux": {
                "resources": {
                    "cpu_period": "100000",
                    "hugepage_limits":
                        [{"page_size": "2MB"}, {"page_size": "1GB", "limit": "7"}],
                },
                "security_context": {
                    "run_as_user": {},
                    "supplemental_groups": ["1000"],
                    "namespace_options": {"pid": "CONTAINER"},
                    "seccomp": {},
                },
            },
            "CDI_devices": [{"name": "v/c=d"}],
        });
        assert_eq!(to_json(&config).expect("converts"), expected);
        assert_eq!(from_json::<ContainerConfig>(&expected).expect("converts"), config);
    }

    #[test]
    fn json_that_does_not_fit_is_refused() {
        assert!(from_json::<VersionRequest>(&json!({"version": 7})).is_err());
        assert!(from_json::<VersionRequest>(&json!({"no_such_field": ""})).is_err());
        assert!(bytes_to_json(&[], "runtime.v1.Nothing").is_err());
        assert!(bytes_to_json(&[0xff], "runtime.v1.VersionRequest").is_err());
    }
}
