//! Protobuf code and file descriptor set from `proto/topod/v1/*.proto`, without protoc.
//!
//! The output is checked in, so that an ordinary build needs neither protoc nor a build script; this
//! lives in xtask and not in a test of the proto crate, because that crate's conversions do not compile
//! until the code they convert exists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use prost::Message as _;

use crate::workspace_root;

/// What reflection serves, beside the generated code.
const DESCRIPTOR_SET: &str = "topod.v1.bin";

/// Writes the generated files; returns what was done, in words.
pub(crate) fn write() -> Result<String, String> {
    let files = generate()?;
    let folder = generated_folder();
    fs::create_dir_all(&folder).map_err(|error| at(&folder, &error))?;
    for stale in existing()?.keys().filter(|name| !files.contains_key(*name)) {
        let path = folder.join(stale);
        fs::remove_file(&path).map_err(|error| at(&path, &error))?;
    }
    for (name, bytes) in &files {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(|error| at(&path, &error))?;
    }
    Ok(format!("wrote {} files to {}", files.len(), folder.display()))
}

/// Compares the checked-in files with what the .proto files give now.
pub(crate) fn check() -> Result<(), String> {
    let (files, existing) = (generate()?, existing()?);
    let differ: Vec<&str> = files
        .keys()
        .chain(existing.keys().filter(|name| !files.contains_key(*name)))
        .filter(|name| files.get(*name) != existing.get(*name))
        .map(String::as_str)
        .collect();
    if differ.is_empty() {
        return Ok(());
    }
    Err(format!(
        "in proto/src/generated {} {} not what the .proto files give; run 'cargo xtask codegen'",
        differ.join(", "),
        if differ.len() == 1 { "is" } else { "are" }
    ))
}

fn generated_folder() -> PathBuf {
    workspace_root().join("proto/src/generated")
}

fn existing() -> Result<BTreeMap<String, Vec<u8>>, String> {
    match read_folder(&generated_folder()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        other => other.map_err(|error| at(&generated_folder(), &error)),
    }
}

/// Every generated file by name.
fn generate() -> Result<BTreeMap<String, Vec<u8>>, String> {
    let root = workspace_root().join("proto");
    let sources = proto_files(&root)?;
    let mut compiler = protox::Compiler::new([&root]).map_err(|error| error.to_string())?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(&sources).map_err(|error| format!("{error:?}"))?;
    let with_comments = compiler.file_descriptor_set();
    compiler.include_source_info(false);
    let without_comments = compiler.file_descriptor_set();

    let out = tempfile::tempdir().map_err(|error| format!("temporary folder: {error}"))?;
    tonic_prost_build::configure()
        // Maps in key order: equal messages then encode to equal bytes.
        .btree_map(".")
        .out_dir(out.path())
        .compile_fds(with_comments)
        .map_err(|error| error.to_string())?;
    let mut files = read_folder(out.path()).map_err(|error| at(out.path(), &error))?;
    files.insert(DESCRIPTOR_SET.into(), without_comments.encode_to_vec());
    Ok(files)
}

/// `topod/v1/*.proto`, sorted.
fn proto_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = root.join("topod/v1");
    let names = read_folder(&folder).map_err(|error| at(&folder, &error))?;
    Ok(names
        .into_keys()
        .filter(|name| name.ends_with(".proto"))
        .map(|name| folder.join(name))
        .collect())
}

fn read_folder(folder: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    fs::read_dir(folder)?
        .map(|entry| {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok((name, fs::read(&path)?))
        })
        .collect()
}

fn at(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}
