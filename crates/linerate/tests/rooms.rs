//! The map of rooms in `lib.rs` is true: a room uses only rooms of lines above its own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Returns the source files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            all.push(path);
        }
    }
    all
}

/// Returns a file's code, without comments, and without what is built for tests and fuzzing only.
fn code(text: &str) -> String {
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    let mut lines = text.lines().filter(|line| !is_comment(line)).peekable();
    let mut code = String::new();
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("#[cfg(test") && !line.trim_start().starts_with("#[cfg(fuzzing") {
            code += line;
            code.push('\n');
            continue;
        }
        // The item that follows, up to its end at the same indentation.
        let indent = line.len() - line.trim_start().len();
        for line in lines.by_ref() {
            let is_end = line.len() - line.trim_start().len() == indent && line.ends_with(['}', ';']);
            if is_end {
                break;
            }
        }
    }
    code
}

#[test]
fn rooms_use_rooms_above_them() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let lib = std::fs::read_to_string(source.join("lib.rs")).unwrap();
    let map = lib.split("//! ```text\n").nth(1).and_then(|rest| rest.split("//! ```").next()).expect("a map in lib.rs");
    let mut level = HashMap::new();
    for (number, line) in map.lines().enumerate() {
        let line = line.trim_start_matches("//!");
        for room in line.split("  ").map(str::trim).filter(|room| !room.is_empty()) {
            assert!(level.insert(room.to_string(), number).is_none(), "{room} is in the map twice");
        }
    }
    let room_of = |path: &Path| {
        let first = path.strip_prefix(&source).unwrap().components().next().unwrap().as_os_str().to_string_lossy();
        first.trim_end_matches(".rs").to_string()
    };
    let mut wrong = Vec::new();
    for path in files(&source) {
        let room = room_of(&path);
        let is_left_out =
            ["lib", "fuzzing"].contains(&&*room) || path.ends_with("fuzzing.rs") || path.ends_with("tests.rs");
        if is_left_out {
            continue;
        }
        let own = *level.get(&room).unwrap_or_else(|| panic!("the map of lib.rs has no room '{room}'"));
        let text = std::fs::read_to_string(&path).unwrap();
        for used in code(&text).split("crate::").skip(1) {
            let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            // Types at the root are those of the first line, and `Options` of `port`.
            let Some(&there) = level.get(&used) else { continue };
            if used != room && own > 0 && there >= own || own == 0 && there > 0 {
                wrong.push(format!("{}: {room} uses {used}", path.strip_prefix(&source).unwrap().display()));
            }
        }
    }
    assert!(level.len() > 15 && wrong.is_empty(), "{wrong:#?}");
}

/// The folders and files that `memory/mod.rs` names.
const UNSAFE: [&str; 12] = [
    "kernel/",
    "memory/",
    "netmap/channel.rs",
    "netmap/reader.rs",
    "nic/",
    "open/",
    "pci/",
    "port/scheduling.rs",
    "share/protocol/ring/",
    "sim82599/",
    "slot/words.rs",
    "vfio_user/",
];

#[test]
fn unsafe_code_is_where_the_documentation_says() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in files(&source) {
        let name = path.strip_prefix(&source).unwrap().to_string_lossy().into_owned();
        let is_allowed = std::fs::read_to_string(&path).unwrap().contains("#![allow(unsafe_code)]");
        assert!(!is_allowed || UNSAFE.iter().any(|place| name.starts_with(place)), "{name} allows unsafe code");
    }
}
