//! Rules of the source that the compiler does not check: files do not use each other in a circle, no code compares the
//! names of kinds of ports, and the documentation names files and functions that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The library's crates.
const LIBRARY: [&str; 11] = [
    "linerate",
    "linerate-capture",
    "linerate-cards",
    "linerate-core",
    "linerate-kernel",
    "linerate-link",
    "linerate-machines",
    "linerate-sim82599",
    "linerate-spec",
    "linerate-traffic",
    "linerate-vale",
];
/// The crates above it.
const PROGRAMS: [&str; 4] = ["linerate-cli", "linerate-netmap", "linerate-pcap", "linerate-preload"];

/// Returns the folder of all crates.
fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Returns the source files under a folder.
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

/// Returns a file's code without comments, and without items built only for tests and fuzzing.
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
        // Skip the following item, up to its end at the same indentation.
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

/// A module's path below its crate, empty for the crate itself.
type Module = Vec<String>;

/// The modules of a crate, each with its file and the paths that it uses. The path of a `use` item comes with the name
/// that the item gives it.
struct Modules(BTreeMap<Module, (PathBuf, Vec<(Module, String)>)>);

impl Modules {
    fn of(source: &Path) -> Modules {
        let mut modules = BTreeMap::new();
        for file in
            files(source).into_iter().filter(|file| !file.ends_with("tests.rs") && !file.ends_with("fuzzing.rs"))
        {
            let path = file.strip_prefix(source).unwrap().with_extension("");
            let mut module: Module = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if ["mod", "lib", "main"].contains(&module.last().unwrap().as_str()) {
                module.pop();
            }
            let text = code(&std::fs::read_to_string(&file).unwrap());
            modules.insert(module, (path, used(&text)));
        }
        Modules(modules)
    }

    /// Returns a path relative to the crate's root; `None` if it belongs to another crate.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Module> {
        let up = path.iter().take_while(|part| *part == "super").count();
        let child = [&module[..], &path[..1]].concat();
        match path[0].as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([&module[..], &path[1..]].concat()),
            "super" => Some([&module[..module.len().checked_sub(up)?], &path[up..]].concat()),
            _ => self.0.contains_key(&child).then(|| [&module[..], path].concat()),
        }
    }

    /// Returns the module that defines the item at a path, following re-exports by `use`.
    fn target(&self, path: &[String], depth: usize) -> Module {
        let mut module = Module::new();
        for (n, part) in path.iter().enumerate() {
            module.push(part.clone());
            if self.0.contains_key(&module) {
                continue;
            }
            module.pop();
            let passed_on = self.0[&module].1.iter().filter(|(_, name)| name == part && depth < 8);
            let mut meant = passed_on.filter_map(|(used, _)| self.absolute(&module, used));
            return match meant.find(|meant| meant[..] != path[..=n]) {
                Some(meant) => self.target(&[&meant[..], &path[n + 1..]].concat(), depth + 1),
                None => module,
            };
        }
        module
    }

    /// Returns the modules that a module uses, except its own submodules.
    fn uses(&self, module: &Module) -> BTreeSet<Module> {
        let used = self.0[module].1.iter().filter_map(|(path, _)| self.absolute(module, path));
        used.map(|path| self.target(&path, 0)).filter(|used| !used.starts_with(module)).collect()
    }

    /// Returns the files that use each other, directly or indirectly.
    fn circles(&self) -> Vec<String> {
        let uses: BTreeMap<_, _> = self.0.keys().map(|module| (module, self.uses(module))).collect();
        let reached = |from: &Module| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(module) = next.pop() {
                next.extend(uses[&module].iter().filter(|used| reached.insert((*used).clone())).cloned());
            }
            reached
        };
        let in_a_circle = self.0.iter().filter(|(module, _)| reached(module).contains(*module));
        in_a_circle.map(|(_, (file, _))| file.display().to_string()).collect()
    }
}

/// Returns the paths in a file's code, each with the name that a `use` item gives it, or an empty name.
fn used(text: &str) -> Vec<(Module, String)> {
    let parts = |path: &str| path.split("::").map(|part| part.trim().to_string()).collect::<Module>();
    let (mut all, mut rest) = (Vec::new(), String::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let item = line.trim_start().trim_start_matches("pub(super) ").trim_start_matches("pub(crate) ");
        let Some(item) = item.trim_start_matches("pub ").strip_prefix("use ") else {
            rest += line;
            rest.push('\n');
            continue;
        };
        let mut tree = item.to_string();
        while !tree.ends_with(';') {
            tree += lines.next().expect("an item of use ends").trim();
        }
        for path in expanded(tree.trim_end_matches(';')) {
            let (path, name) = path.split_once(" as ").map_or((path.as_str(), None), |(path, name)| (path, Some(name)));
            let mut path = parts(path);
            if ["self", "*"].contains(&path[path.len() - 1].as_str()) {
                path.pop();
            }
            let name = name.unwrap_or(&path[path.len() - 1]).to_string();
            all.push((path, name));
        }
    }
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in rest
            .match_indices(start)
            .filter(|(at, _)| !rest[..*at].ends_with(|c: char| c == ':' || c.is_alphanumeric()))
        {
            let end = |c: char| !c.is_alphanumeric() && c != '_' && c != ':';
            let path = rest[at..].split(end).next().unwrap().trim_end_matches(':');
            all.push((parts(path), String::new()));
        }
    }
    all
}

/// Returns the paths of a `use` item, with braces expanded.
fn expanded(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((front, inner)) = tree.split_once('{') else { return vec![tree.to_string()] };
    let inner = inner.strip_suffix('}').expect("a tree of use ends with its brace");
    let (mut paths, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        depth += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        if c == ',' && depth == 0 {
            paths.extend(expanded(&inner[begin..at]).into_iter().filter(|path| !path.is_empty()));
            begin = at + 1;
        }
    }
    paths.into_iter().map(|path| format!("{front}{path}")).collect()
}

#[test]
fn no_file_uses_one_that_uses_it() {
    for name in LIBRARY.into_iter().chain(PROGRAMS) {
        let modules = Modules::of(&crates().join(name).join("src"));
        let arrows: usize = modules.0.keys().map(|module| modules.uses(module).len()).sum();
        assert!(
            2 * arrows > modules.0.len() || ["linerate", "linerate-spec"].contains(&name),
            "{arrows} arrows between the files of {name}"
        );
        assert_eq!(modules.circles(), [""; 0], "{name}: these files use each other, directly or through others");
    }
}

#[test]
fn circles_are_found_through_what_passes_names_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    file("lib.rs", "mod room;\npub use room::A;\n");
    file("room/mod.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\nuse b::{self, B as Other};\n");
    file("room/a.rs", "use super::{\n    Other,\n};\npub struct A;\n");
    file("room/b.rs", "pub struct B;\nfn b() -> crate::A {}\n");
    file("room/c.rs", "use super::A;\n#[cfg(test)]\nmod tests {\n    use super::super::b::B;\n}\n");
    assert_eq!(Modules::of(folder.path()).circles(), ["room/a", "room/b"]);
}

/// No code compares names of kinds or drivers: it asks the kind or the port for its properties.
#[test]
fn no_code_compares_kinds_by_name() {
    const KINDS: [&str; 19] = [
        "sim:",
        "vfio-user:",
        "vhost:",
        "virtio-user:",
        "memif:",
        "xdp:",
        "packet:",
        "tap:",
        "host:",
        "vale",
        "netmap:",
        "null:",
        "pcap:",
        "recorded:",
        "faulty:",
        "served",
        "pipe",
        "monitor",
        "ixgbe",
    ];
    // The grammar of names; netmap's names for requests to a server; hints of errors, which know no kinds.
    const ALLOWED: [&str; 3] = ["port/grammar.rs", "port/kind.rs", "linerate-vale/src/port_kinds.rs"];
    let mut wrong = Vec::new();
    for name in LIBRARY.into_iter().chain(PROGRAMS) {
        for path in files(&crates().join(name).join("src")) {
            if path.ends_with("tests.rs") || ALLOWED.iter().any(|allowed| path.ends_with(allowed)) {
                continue;
            }
            let text = code(&std::fs::read_to_string(&path).unwrap());
            for line in text.lines() {
                let compares = |kind: &&str| {
                    ["starts_with", "strip_prefix", "trim_start_matches", "contains"]
                        .iter()
                        .any(|call| line.contains(&format!("{call}(\"{kind}")))
                        || line.contains(&format!("== \"{}\"", kind.trim_end_matches(':')))
                };
                if KINDS.iter().any(compares) || line.contains("().driver ==") || line.contains("match info.driver") {
                    wrong.push(format!("{}: {}", path.strip_prefix(crates()).unwrap().display(), line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_text_names_a_flag_of_the_command() {
    for path in LIBRARY.iter().flat_map(|name| files(&crates().join(name).join("src"))) {
        let text = code(&std::fs::read_to_string(&path).unwrap());
        for text in text.split('"').skip(1).step_by(2).filter(|text| !text.starts_with("build with it: cargo")) {
            let is_flag =
                |word: &str| word.strip_prefix("--").is_some_and(|flag| flag.starts_with(char::is_alphabetic));
            // These are flags of docker and podman.
            let mut words = text.split_whitespace().filter(|word| !["--cap-add", "--ulimit"].contains(word));
            assert!(!words.any(is_flag), "{}: {text}", path.display());
        }
    }
}

/// Returns the file that the documentation means by a path: `core/batch.rs` is `crates/linerate-core/src/batch.rs`.
fn documented_file(path: &str) -> Option<PathBuf> {
    let (first, rest) = path.split_once('/')?;
    let crates = crates();
    let of_crate = crates.join(format!("linerate-{first}"));
    [
        of_crate.join("src").join(rest),
        of_crate.join(rest),
        crates.join("linerate").join(path),
        crates.join("..").join(path),
    ]
    .into_iter()
    .find(|file| file.exists())
}

#[test]
fn the_documentation_names_functions_that_exist() {
    let text = std::fs::read_to_string(crates().join("../docs/datapaths.md")).unwrap();
    let (mut checked, mut wrong) = (0, Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            let function = pair[0].rsplit("::").next().unwrap();
            let is_name = function.chars().all(|c| c.is_alphanumeric() || c == '_');
            let is_call = line.contains(&format!("{}  ", pair[0])) && !line.starts_with('|');
            if !pair[1].ends_with(".rs") || !is_name || !is_call {
                continue;
            }
            checked += 1;
            let source = documented_file(pair[1]).map(|file| std::fs::read_to_string(file).unwrap());
            let has = |text: &String| {
                ["fn ", "struct ", "enum ", "trait "].iter().any(|item| {
                    text.match_indices(&format!("{item}{function}")).any(|(at, found)| {
                        !text[at + found.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
                    })
                })
            };
            if !source.as_ref().is_some_and(has) {
                wrong.push(format!("{} in {}", pair[0], pair[1]));
            }
        }
    }
    assert!(checked > 100 && wrong.is_empty(), "of {checked}: {wrong:#?}");
}
