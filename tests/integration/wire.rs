//! The wire itself: what clients of other versions and other languages rely on.

use std::fmt::Write as _;
use std::fs;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).expect("the descriptors decode")
}

/// One line per thing that must never change its meaning: `message.field = number type`.
fn describe() -> String {
    let mut text = String::new();
    for file in descriptors().file {
        writeln!(text, "# {}", file.name()).unwrap();
        for service in &file.service {
            for method in &service.method {
                writeln!(
                    text,
                    "{}.{}({}){} {}",
                    service.name(),
                    method.name(),
                    method.input_type(),
                    if method.server_streaming() { " stream" } else { "" },
                    method.output_type()
                )
                .unwrap();
            }
        }
        for message in &file.message_type {
            for field in &message.field {
                writeln!(text, "{}.{}", message.name(), field_line(message, field)).unwrap();
            }
        }
        for list in &file.enum_type {
            for value in &list.value {
                writeln!(text, "{}.{} = {}", list.name(), value.name(), value.number()).unwrap();
            }
        }
    }
    text
}

fn field_line(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let kind = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    let presence = match (field.label(), field.proto3_optional(), field.oneof_index) {
        (Label::Repeated, ..) => "repeated ".to_owned(),
        (_, true, _) => "optional ".to_owned(),
        (_, false, Some(index)) => {
            let oneof = usize::try_from(index).expect("an index");
            format!("oneof {} ", message.oneof_decl[oneof].name())
        }
        _ => String::new(),
    };
    format!("{} = {} {presence}{kind}", field.name(), field.number())
}

/// A changed line is a broken client; a new line is fine. (Accept with `cargo insta accept` only what is new.)
#[test]
fn numbers_and_names_stay() {
    insta::assert_snapshot!("topod.v1", describe());
}

#[test]
fn lists_begin_with_unspecified() {
    for file in descriptors().file {
        assert_eq!(file.package(), "topod.v1");
        for list in &file.enum_type {
            let first = &list.value[0];
            assert!(first.name().ends_with("_UNSPECIFIED"), "{}", list.name());
            assert_eq!(first.number(), 0);
            let prefix = first.name().trim_end_matches("UNSPECIFIED");
            for value in &list.value {
                assert!(value.name().starts_with(prefix), "{}.{}", list.name(), value.name());
            }
        }
    }
}

#[test]
fn calls_have_messages_of_their_own() {
    for file in descriptors().file {
        for service in &file.service {
            assert!(service.name().ends_with("Service"), "{}", service.name());
            for method in &service.method {
                let own = |suffix: &str| format!(".topod.v1.{}{suffix}", method.name());
                assert_eq!(method.input_type(), own("Request"));
                assert_eq!(method.output_type(), own("Response"));
            }
        }
    }
}

#[test]
fn everything_is_documented() {
    let folder = crate::workspace_root().join("proto/topod/v1");
    let mut files = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        files += 1;
        let mut before = "";
        for line in text.lines().map(str::trim) {
            let declares = line.ends_with(['{', ';']) || line.ends_with("{}");
            let head = ["syntax", "package", "import"].iter().any(|word| line.starts_with(word));
            if declares && !head {
                assert!(before.starts_with("//"), "{}: no comment above '{line}'", path.display());
            }
            before = line;
        }
    }
    assert_eq!(files, descriptors().file.len());
}
