//! The header says what the source says: functions with their types, enumerations with their numbers, the struct's fields.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn sources() -> Vec<String> {
    let files = fs::read_dir(here("src")).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Without comments, and with single spaces.
fn header() -> String {
    let text = fs::read_to_string(here("include/topod.h")).unwrap();
    let mut bare = String::new();
    for (i, part) in text.split("/*").enumerate() {
        bare.push_str(if i == 0 { part } else { part.split_once("*/").unwrap().1 });
    }
    bare.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A type of the source as C spells it.
fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    let pointer = |prefix: &str| rust.strip_prefix(prefix).map(c_type);
    if let Some(to) = pointer("*const ") {
        return if to.ends_with('*') { format!("{to}const *") } else { format!("const {to} *") };
    }
    if let Some(to) = pointer("*mut ") {
        return if to.ends_with('*') { format!("{to}*") } else { format!("{to} *") };
    }
    let known = [
        ("u32", "uint32_t"),
        ("u64", "uint64_t"),
        ("i32", "int32_t"),
        ("i64", "int64_t"),
        ("usize", "size_t"),
        ("c_void", "void"),
        ("c_char", "char"),
        ("Status", "topod_status"),
        ("Stats", "topod_stats"),
        ("Planner", "topod_planner"),
        ("PlanHandle", "topod_plan"),
        ("OptionsHandle", "topod_options"),
        ("CommunicatorHandle", "topod_communicator"),
        ("OperationHandle", "topod_operation"),
    ];
    let found = known.iter().find(|(name, _)| *name == rust);
    found.unwrap_or_else(|| panic!("{rust} has no name in C")).1.to_owned()
}

fn declared(rust_type: &str, name: &str) -> String {
    let c = c_type(rust_type);
    if c.ends_with('*') { format!("{c}{name}") } else { format!("{c} {name}") }
}

/// The prototype of a function whose source begins at its name.
fn prototype(function: &str) -> String {
    let (name, rest) = function.split_once('(').unwrap();
    let (arguments, rest) = rest.split_once(')').unwrap();
    let result = rest.split_once('{').unwrap().0.trim().strip_prefix("->").map_or("", str::trim);
    let arguments: Vec<String> = arguments
        .split(',')
        .filter(|argument| !argument.trim().is_empty())
        .map(|argument| {
            let (name, of) = argument.split_once(':').unwrap();
            declared(of, name.trim())
        })
        .collect();
    let result = if result.is_empty() { format!("void {name}") } else { declared(result, name) };
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
    format!("{result}({arguments});")
}

#[test]
fn every_function_has_its_prototype_and_no_other() {
    let header = header();
    let exported = "#[unsafe(no_mangle)]\npub ";
    let mut count = 0;
    for source in sources() {
        for function in source.split(exported).skip(1) {
            let function = function.strip_prefix("unsafe ").unwrap_or(function);
            let function = function.strip_prefix("extern \"C\" fn ").unwrap();
            let wanted = prototype(function);
            let found = header.replace("( ", "(").replace(" )", ")");
            assert!(found.contains(&format!(" {wanted}")), "the header lacks: {wanted}");
            count += 1;
        }
    }
    assert!(count > 20, "{count} functions");
    // Each prototype ends so, and so does the planner's type.
    assert_eq!(header.matches(");").count(), count + 1, "prototypes in the header");
}

/// Members and numbers of an enumeration in the source.
fn members(source: &str, name: &str) -> BTreeMap<u32, String> {
    let body = source.split_once(&format!("pub enum {name} {{")).unwrap().1;
    let body = body.split_once("\n}").unwrap().0;
    let member = |line: &str| -> Option<(u32, String)> {
        let (name, number) = line.trim().strip_suffix(',')?.split_once(" = ")?;
        let mut upper = String::new();
        for letter in name.chars() {
            if letter.is_uppercase() && !upper.is_empty() {
                upper.push('_');
            }
            upper.push(letter.to_ascii_uppercase());
        }
        Some((number.parse().ok()?, upper))
    };
    body.lines().filter_map(member).collect()
}

#[test]
fn enumerations_have_their_numbers() {
    let (header, all) = (header(), sources().concat());
    for (name, prefix) in [("Status", "TOPOD_STATUS_"), ("Element", "TOPOD_"), ("Op", "TOPOD_")] {
        let members = members(&all, name);
        let listed: Vec<String> =
            members.iter().map(|(number, member)| format!("{prefix}{member} = {number}")).collect();
        let lower = name.to_lowercase();
        let wanted =
            format!("typedef enum topod_{lower} {{ {} }} topod_{lower};", listed.join(", "));
        assert!(members.len() > 5 && header.contains(&wanted), "the header lacks: {wanted}");
    }
}

/// The numbers that C passes are places in the library's lists.
#[test]
fn numbers_are_places_in_the_librarys_lists() {
    let all = sources().concat();
    let names = |name: &str| members(&all, name).into_values().map(|n| n.to_lowercase());
    let elements = transport::ElementType::ALL.iter().map(|e| e.as_str());
    assert!(names("Element").eq(elements.map(str::to_owned)));
    let ops = transport::ReduceOp::ALL.iter().map(|op| op.as_str());
    assert!(names("Op").eq(ops.map(str::to_owned)));
}

#[test]
fn the_struct_has_its_fields() {
    let (header, all) = (header(), sources().concat());
    let body = all.split_once("pub struct Stats {").unwrap().1.split_once("\n}").unwrap().0;
    let fields = body.lines().filter_map(|line| {
        let (name, of) = line.trim().strip_prefix("pub ")?.strip_suffix(',')?.split_once(": ")?;
        Some(format!("{};", declared(of, name)))
    });
    let fields: Vec<String> = fields.collect();
    let wanted = format!("typedef struct topod_stats {{ {} }} topod_stats;", fields.join(" "));
    assert!(fields.len() == 7 && header.contains(&wanted), "the header lacks: {wanted}");
}
