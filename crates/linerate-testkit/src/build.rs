//! Files that were built with a test, and programs in C.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of a file that cargo has built beside this test, such as a shared object.
pub fn built(name: &str) -> PathBuf {
    std::env::current_exe().expect("the test's path").with_file_name(name)
}

/// Compiles a program in C for this test; returns its path. Each test has its own.
pub fn compiled(source: impl AsRef<Path>, arguments: &[&str]) -> PathBuf {
    let source = source.as_ref();
    let output = std::env::current_exe().expect("the test's path").with_extension(source.file_stem().expect("a name"));
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(source).arg("-o").arg(&output);
    let status = compile.args(arguments).status();
    assert!(status.expect("a C compiler is there: apt install gcc").success());
    output
}
