//! Our api.proto and call table against the surface that Kubernetes publishes.
//!
//! `data/cri-v1-surface.txt` lists every call, message, field, number, type and enum value of CRI
//! v1 as of Kubernetes 1.36.3. Each line must be equal to the one written from our descriptor set.

use std::collections::BTreeSet;

use pintle_cri::{DESCRIPTOR_SET, Method};
use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

const PUBLISHED: &str = include_str!("data/cri-v1-surface.txt");

fn published() -> BTreeSet<String> {
    let lines = PUBLISHED.lines().filter(|line| !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

fn ours() -> BTreeSet<String> {
    let set = FileDescriptorSet::decode(DESCRIPTOR_SET).expect("valid descriptor set");
    let mut lines = BTreeSet::new();
    for file in set.file {
        assert_eq!(file.package(), "runtime.v1");
        for service in &file.service {
            for method in &service.method {
                let end = if method.server_streaming() { "?" } else { "" };
                let (request, reply) = (short(method.input_type()), short(method.output_type()));
                assert!(!method.client_streaming());
                let (service, name) = (service.name(), method.name());
                lines.insert(format!("rpc {service} {name} {request} {reply}{end}"));
            }
        }
        for message in &file.message_type {
            lines.insert(message_line(message));
            for nested in &message.enum_type {
                lines.insert(enum_line(nested, &format!("{}.", message.name())));
            }
        }
        file.enum_type.iter().for_each(|e| _ = lines.insert(enum_line(e, "")));
    }
    lines
}

fn short(type_name: &str) -> &str {
    type_name.strip_prefix(".runtime.v1.").expect("a type of this package")
}

fn message_line(message: &DescriptorProto) -> String {
    let mut fields: Vec<_> = message.field.iter().collect();
    fields.sort_by_key(|field| field.number());
    let fields = fields.iter().map(|field| {
        let end = if field.options.as_ref().is_some_and(|o| o.deprecated()) { "!" } else { "" };
        format!(" {}:{}:{}{end}", field.number(), field.name(), field_type(message, field))
    });
    format!("message {}{}", message.name(), fields.collect::<String>())
}

fn field_type(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let entry = message.nested_type.iter().find(|nested| {
        nested.options.as_ref().is_some_and(|options| options.map_entry())
            && field.type_name().ends_with(&format!(".{}.{}", message.name(), nested.name()))
    });
    if let Some(entry) = entry {
        let part = |index: usize| scalar(&entry.field[index]);
        return format!("map<{},{}>", part(0), part(1));
    }
    let label = if field.label() == Label::Repeated { "[]" } else { "" };
    format!("{label}{}", scalar(field))
}

fn scalar(field: &FieldDescriptorProto) -> String {
    let name = match field.r#type() {
        Type::String => "string",
        Type::Bytes => "bytes",
        Type::Bool => "bool",
        Type::Int32 => "int32",
        Type::Int64 => "int64",
        Type::Uint32 => "uint32",
        Type::Uint64 => "uint64",
        Type::Double => "double",
        Type::Message | Type::Enum => {
            short(field.type_name()).rsplit('.').next().expect("not empty")
        }
        other => panic!("{}: CRI has no {other:?}", field.name()),
    };
    name.to_owned()
}

fn enum_line(descriptor: &EnumDescriptorProto, outer: &str) -> String {
    let values = descriptor.value.iter();
    let values: String = values.map(|v| format!(" {}:{}", v.number(), v.name())).collect();
    format!("enum {outer}{}{values}", descriptor.name())
}

#[test]
fn every_cri_method_message_field_number_and_enum_value_equals_the_published_one() {
    let (published, ours) = (published(), ours());
    assert!(published.len() > 200, "the table was read");
    let missing: Vec<_> = published.difference(&ours).collect();
    let extra: Vec<_> = ours.difference(&published).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:#?}\nextra: {extra:#?}");
}

#[test]
fn the_client_has_every_published_call() {
    let published: BTreeSet<String> = published()
        .iter()
        .filter_map(|line| line.strip_prefix("rpc "))
        .map(|line| {
            let mut words = line.split(' ');
            let (service, method) = (words.next().expect("a service"), words.next());
            format!("/runtime.v1.{service}/{}", method.expect("a method"))
        })
        .collect();
    let ours = Method::ALL.iter().map(|method| method.path().to_owned()).collect();
    assert_eq!(published, ours);
}
