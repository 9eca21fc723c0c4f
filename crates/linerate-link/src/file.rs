//! Reads traces, schedules and tables.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

/// The longest file, in bytes: a trace of a quarter of an hour at 100 Mbit/s.
const LONGEST: u64 = 64 << 20;

/// Reads a file, and parses it.
pub fn read<T>(path: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    let named = |why: String| format!("{path}: {why}");
    let mut text = String::new();
    let mut file = open(path, LONGEST).map_err(named)?.take(LONGEST);
    file.read_to_string(&mut text).map_err(|error| named(error.to_string()))?;
    parse(&text).map_err(named)
}

/// Opens a file of at most `longest` bytes. A file that is not regular, such as a pipe without a writer, could block or
/// never end.
pub fn open(path: &str, longest: u64) -> Result<File, String> {
    let system = |error: std::io::Error| error.to_string();
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(nonblocking).open(path).map_err(system)?;
    let metadata = file.metadata().map_err(system)?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_string());
    }
    match metadata.len() {
        len if len > longest => Err(format!("it has {len} bytes, more than {longest}")),
        _ => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
        let length = |path: &str| read(path, |text| Ok(text.len()));
        std::fs::write(path("file"), "12345").unwrap();
        assert_eq!(length(&path("file")), Ok(5));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        File::create(path("long")).unwrap().set_len(LONGEST + 1).unwrap();
        std::fs::write(path("bytes"), [0xFF; 9]).unwrap();
        for (name, why) in [
            (path("pipe"), "not a regular file"),
            ("/dev/zero".to_string(), "not a regular file"),
            (path(""), "not a regular file"),
            (path("long"), "more than"),
            (path("bytes"), "UTF-8"),
            (path("absent"), "No such file"),
        ] {
            let error = length(&name).unwrap_err();
            assert!(error.contains(why) && error.starts_with(&name), "{error}");
        }
    }
}
