//! Files that cargo built for a test, and C programs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of a file in this test's folder that cargo has built, such as a shared object.
pub fn built(name: &str) -> PathBuf {
    std::env::current_exe().expect("the test's path").with_file_name(name)
}

/// Compiles a C program for this test, and returns its path. Each test binary has its own copy.
pub fn compiled(source: impl AsRef<Path>, arguments: &[&str]) -> PathBuf {
    let source = source.as_ref();
    let output = std::env::current_exe().expect("the test's path").with_extension(source.file_stem().expect("a name"));
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(source).arg("-o").arg(&output);
    let status = compile.args(arguments).status();
    assert!(status.expect("a C compiler is there: apt install gcc").success());
    output
}
