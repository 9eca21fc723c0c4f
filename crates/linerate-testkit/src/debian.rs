//! The Debian releases whose programs tests run: this machine's, and Debian 13 in a folder that `guest/prepare`
//! creates.

use std::path::Path;
use std::process::Command;

/// Runs a program with root folder `$1`, into which it mounts the machine's devices and state, the folders `$2` and
/// `$3`, and the working directory.
const ENTER: &str = r#"
root=$1
for shared in /proc /sys /dev /run "$2" "$3" "$PWD"; do
  mkdir -p "$root$shared" && mount --rbind "$shared" "$root$shared" || exit
done
shift 3
mount --rbind "$root" "$root" && here=$PWD && cd "$root" && pivot_root . . && umount -l . || exit
exec /usr/bin/env -C "$here" "$@"
"#;

/// A Debian release whose programs a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debian {
    /// The release of this machine.
    Own,
    /// Debian 13.
    Trixie,
}

impl Debian {
    /// Returns all different releases. A test of programs runs once with each.
    pub fn all() -> Vec<Debian> {
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        let is_trixie = release.lines().any(|line| line == "VERSION_CODENAME=trixie");
        if is_trixie { vec![Debian::Own] } else { vec![Debian::Own, Debian::Trixie] }
    }

    /// Returns the words to put before a program and its arguments. The process becomes the program (exec). It can
    /// access temporary files, and files that were built with the test.
    pub fn command_prefix(self) -> Vec<String> {
        if self == Debian::Own {
            return Vec::new();
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let root = here.map(|folder| folder.join("target/guest/trixie")).find(|root| root.join("ready").exists());
        let root = root.expect("Debian 13's programs are there: run guest/prepare");
        let test = std::env::current_exe().unwrap();
        let folders =
            [root.as_path(), test.parent().unwrap(), &std::env::temp_dir()].map(|folder| folder.display().to_string());
        let enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh"];
        enter.into_iter().map(String::from).chain(folders).collect()
    }

    /// Returns the command of a program.
    pub fn command(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let words = self.command_prefix();
        let Some((first, rest)) = words.split_first() else { return Command::new(program) };
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        command
    }
}
