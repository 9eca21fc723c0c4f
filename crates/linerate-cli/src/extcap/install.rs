//! The link by which Wireshark finds the program.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::grammar::PROGRAM;
use crate::show::print;
use crate::terminal::note;

/// The file at the path of a link.
enum Existing {
    Missing,
    /// A link to a `linerate`.
    Ours,
    Other,
}

fn inspect(path: &Path, program: &Path) -> Result<Existing, String> {
    match (fs::symlink_metadata(path), fs::read_link(path)) {
        (_, Ok(target)) if target == program || target.file_name().is_some_and(|name| name == "linerate") => {
            Ok(Existing::Ours)
        }
        (Err(error), _) if error.kind() == ErrorKind::NotFound => Ok(Existing::Missing),
        (Err(error), _) => Err(failed(path, &error)),
        _ => Ok(Existing::Other),
    }
}

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}\n  try another folder: linerate extcap --install FOLDER", path.display())
}

/// Returns the folders where Wireshark looks for this user's extcap programs: of version 4.2 and later, and of earlier
/// versions.
fn folders(asked: Option<&Path>) -> Result<Vec<PathBuf>, String> {
    if let Some(folder) = asked {
        return Ok(vec![folder.to_path_buf()]);
    }
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = of("HOME").ok_or("HOME is not set\n  name the folder: linerate extcap --install FOLDER")?;
    let config = of("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
    Ok(vec![home.join(".local/lib/wireshark/extcap"), config.join("wireshark/extcap")])
}

/// Returns the path of this program.
fn program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("cannot find this program: {error}\n  mount /proc"))
}

/// Links this program into a folder, or into the user's folders.
pub fn install(asked: Option<&Path>) -> Result<(), String> {
    let program = program()?;
    let links: Vec<PathBuf> = folders(asked)?.iter().map(|folder| folder.join(PROGRAM)).collect();
    // Create all links or none.
    for link in &links {
        if let Existing::Other = inspect(link, &program)? {
            return Err(format!("{} exists and is not a link to linerate\n  move it away", link.display()));
        }
    }
    for link in &links {
        let failed = |error: std::io::Error| failed(link, &error);
        link.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
        if let Existing::Ours = inspect(link, &program)? {
            fs::remove_file(link).map_err(failed)?;
        }
        symlink(&program, link).map_err(failed)?;
        print(&format!("{} -> {}\n", link.display(), program.display()));
    }
    if asked.is_none() && rustix::process::geteuid().is_root() {
        let folder = shared_folder().unwrap_or_else(|| "FOLDER, which tshark -G folders prints".to_string());
        print(&format!("these links are for root only; for all users: linerate extcap --install {folder}\n"));
    }
    print("to check: tshark -D\n");
    Ok(())
}

/// Asks tshark for the folder of all users' extcap programs.
fn shared_folder() -> Option<String> {
    let output = Command::new("tshark").args(["-G", "folders"]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.find(|(what, _)| what.to_lowercase().ends_with("extcap path") && !what.starts_with("Personal"));
    found.map(|(_, folder)| folder.trim().to_string())
}

/// Removes the links.
pub fn uninstall(asked: Option<&Path>) -> Result<(), String> {
    let program = program()?;
    let mut removed = 0;
    for link in folders(asked)?.iter().map(|folder| folder.join(PROGRAM)) {
        match inspect(&link, &program)? {
            Existing::Ours => {
                fs::remove_file(&link).map_err(|error| failed(&link, &error))?;
                print(&format!("removed {}\n", link.display()));
                removed += 1;
            }
            Existing::Other => {
                return Err(format!("{} is not a link to linerate, and was not removed", link.display()));
            }
            Existing::Missing => {}
        }
    }
    if removed == 0 {
        note("note: nothing was installed");
    }
    Ok(())
}
