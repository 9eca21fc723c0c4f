//! Reads traces, schedules and tables.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

/// The longest file, in bytes: a trace of a quarter of an hour at 100 Mbit/s.
const LONGEST: u64 = 64 << 20;

/// Reads a file, and parses it. A file that is not regular, such as a pipe without a writer, could block or never end.
pub fn read<T>(path: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    let named = |why: String| format!("{path}: {why}");
    let system = |error: std::io::Error| named(error.to_string());
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = std::fs::File::options().read(true).custom_flags(nonblocking).open(path).map_err(system)?;
    let metadata = file.metadata().map_err(system)?;
    if !metadata.is_file() {
        return Err(named("it is not a regular file".to_string()));
    }
    if metadata.len() > LONGEST {
        return Err(named(format!("it has {} bytes, more than {LONGEST}", metadata.len())));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(system)?;
    parse(&text).map_err(named)
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
        std::fs::File::create(path("long")).unwrap().set_len(LONGEST + 1).unwrap();
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
