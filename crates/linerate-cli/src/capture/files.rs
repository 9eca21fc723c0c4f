//! The files of a capture: one, or a ring of several.

use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use linerate::Error;
use linerate::capture::{Compressor, Counts, Extent, Format, Output, Reader};

use super::commands::FileCommands;
use super::interfaces::Interfaces;
use crate::show::is_closed;
use crate::signals::interrupts;

/// How long a compressor may hold back data from readers of its file. Flushing more often makes the file larger.
const FLUSH_AFTER: Duration = Duration::from_secs(1);

/// When to begin the next file, and how many to keep.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Ring {
    /// Begin a new file before the current one exceeds BYTES bytes, before compression; accepts k, M or G
    #[arg(long, value_name = "BYTES", value_parser = super::bytes, requires = "write")]
    pub file_size: Option<u64>,
    /// Begin a new file whenever the packets' time (UTC) is a multiple of SECONDS seconds
    #[arg(long, value_name = "SECONDS", value_parser = crate::options::seconds, requires = "write")]
    pub file_seconds: Option<Duration>,
    /// Keep the latest N files, and remove older ones
    #[arg(long, value_name = "N", value_parser = crate::options::whole::<u32>(1, 1_000_000), requires = "write")]
    pub files: Option<u32>,
    /// Run PROGRAM with the path of each finished file as its argument, at the lowest priority
    #[arg(long, value_name = "PROGRAM", requires = "write", conflicts_with = "files")]
    pub file_command: Option<PathBuf>,
}

impl Ring {
    /// Returns whether a file is followed by another one.
    pub fn has_next(&self) -> bool {
        self.file_size.is_some() || self.file_seconds.is_some()
    }

    /// Returns the number of the interval that contains a time in nanoseconds since 1970; 0 without intervals.
    fn interval(&self, nanoseconds: u64) -> u128 {
        self.file_seconds.map_or(0, |length| u128::from(nanoseconds) / length.as_nanos())
    }
}

/// Files that another program has changed, replaced or removed.
#[derive(Default)]
pub struct AffectedFiles {
    pub count: u64,
    pub first: Option<PathBuf>,
}

impl AffectedFiles {
    fn add(&mut self, path: PathBuf) {
        self.count += 1;
        self.first.get_or_insert(path);
    }
}

/// The statistics at the end of a file, by interface.
pub type Ends = Vec<Counts>;

/// The files that are written.
pub struct Files {
    path: PathBuf,
    format: Format,
    snaplen: u32,
    interfaces: Arc<Interfaces>,
    ring: Ring,
    pub commands: FileCommands,
    current: Option<Current>,
    /// The existing files, oldest first, with the extent of each finished one when it was finished.
    paths: VecDeque<(PathBuf, Option<Extent>)>,
    begun: u64,
    /// The number in the last file's name.
    number: u64,
    /// Frames, and bytes of records before compression, in all files.
    pub frames: u64,
    pub bytes: u64,
    /// Older files that were removed, and the first one that could not be, with the reason.
    pub removed: u64,
    pub unremoved: Option<String>,
    /// Files that were removed or moved.
    pub missing: AffectedFiles,
    /// Files that were changed or replaced; they are not removed.
    pub changed: AffectedFiles,
    /// The times of the first and the last frame.
    times: Option<[u64; 2]>,
    /// Frames of each port.
    written: Vec<u64>,
}

/// The file that is written now.
struct Current {
    target: Target,
    /// Its bytes before compression.
    bytes: u64,
    frames: u64,
    /// The ports of the interfaces that it describes.
    ports: Vec<usize>,
    /// The time of its first frame.
    first: Option<u64>,
    /// Since when the compressor holds unflushed data.
    unflushed: Option<Instant>,
}

enum Target {
    Plain(Output),
    Compressed(Compressor),
}

impl Files {
    /// Prepares the files, and creates the first one, so that an invalid path fails immediately.
    ///
    /// # Errors
    /// [`ErrorKind::File`].
    pub fn create(path: &Path, snaplen: u32, interfaces: Arc<Interfaces>, ring: Ring) -> Result<Files, Error> {
        let written = vec![0; interfaces.from(0).0.len()];
        let format = if is_standard_output(path) { Format::Pcapng } else { Format::of(path) };
        let mut files = Files {
            path: path.to_path_buf(),
            format,
            snaplen,
            interfaces,
            commands: FileCommands::new(ring.file_command.clone()),
            ring,
            current: None,
            paths: VecDeque::new(),
            begun: 0,
            number: 0,
            frames: 0,
            bytes: 0,
            removed: 0,
            unremoved: None,
            missing: AffectedFiles::default(),
            changed: AffectedFiles::default(),
            times: None,
            written,
        };
        files.next()?;
        Ok(files)
    }

    /// Returns the format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the existing files, oldest first.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.paths.iter().map(|(path, _)| path)
    }

    /// Compares the files with what was written, and counts changed and missing ones. Missing files are removed from
    /// [`paths`](Files::paths).
    pub fn compare(&mut self) {
        for (path, written) in std::mem::take(&mut self.paths) {
            match Extent::at(&path) {
                _ if is_standard_output(&path) => {}
                Err(_) if self.commands.has_program() => continue,
                Ok(_) if self.commands.has_program() => {}
                Err(_) => {
                    self.missing.add(path);
                    continue;
                }
                Ok(there) if written.is_some_and(|written| there != written) => self.changed.add(path.clone()),
                Ok(_) => {}
            }
            self.paths.push_back((path, written));
        }
    }

    /// Returns how many files were begun.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Begins the next file.
    fn next(&mut self) -> Result<(), Error> {
        // Do not overwrite another run's file of the same second.
        let is_free = |number: &u64| numbered(&self.path, *number).symlink_metadata().is_err();
        let path = if self.ring.has_next() {
            self.number = (self.number + 1..).find(is_free).unwrap_or(u64::MAX);
            numbered(&self.path, self.number)
        } else {
            self.path.clone()
        };
        let is_compressed = Compressor::is_for(&path)?;
        let output = match is_standard_output(&path) {
            true if is_closed() => {
                let (file, why) = ("standard output".to_string(), "cannot write to it: it is closed".to_string());
                return Err(Error::file(file, why));
            }
            true => Output::standard(|| interrupts().should_end())?,
            false => Output::create(&path)?,
        };
        let target = match is_compressed {
            false => Target::Plain(output),
            true => Target::Compressed(Compressor::start(output)?),
        };
        self.begun += 1;
        let (names, ports) = self.interfaces.from(0);
        self.current = Some(Current { target, bytes: 0, frames: 0, ports, first: None, unflushed: None });
        self.paths.push_back((path, None));
        let mut beginning = Vec::new();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.format.begin(&mut beginning, self.snaplen, &names);
        self.put(&beginning, 0)?;
        while self.ring.files.is_some_and(|most| self.paths.len() > most as usize) {
            let Some((oldest, written)) = self.paths.pop_front() else { break };
            // Do not remove another program's file in its place.
            let is_link = oldest.symlink_metadata().is_ok_and(|there| there.is_symlink());
            if is_link || Extent::at(&oldest).is_ok_and(|there| written.is_some_and(|written| there != written)) {
                self.changed.add(oldest);
                continue;
            }
            match fs::remove_file(&oldest) {
                Ok(()) => self.removed += 1,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => self.missing.add(oldest),
                Err(error) => {
                    self.unremoved.get_or_insert_with(|| format!("{}: {error}", oldest.display()));
                }
            }
        }
        Ok(())
    }

    /// Writes complete records. `ends` returns the statistics for the end of a file, if one ends here.
    ///
    /// # Errors
    /// [`ErrorKind::File`].
    pub fn write(&mut self, records: &[u8], ends: &impl Fn(&Files) -> Ends) -> Result<(), Error> {
        let (mut start, mut at, mut frames) = (0, 0, 0);
        for found in self.format.records(records) {
            let current = self.current.as_mut().expect("a file is always open");
            let size = current.bytes + (at - start + found.len) as u64;
            let first = *current.first.get_or_insert(found.nanoseconds);
            let is_full = self.ring.file_size.is_some_and(|most| size > most) && current.frames + frames > 0;
            let is_old = self.ring.interval(found.nanoseconds) > self.ring.interval(first);
            if is_full || is_old {
                self.put(&records[start..at], frames)?;
                self.end(&ends(self))?;
                self.next()?;
                (start, frames) = (at, 0);
                self.current.iter_mut().for_each(|next| next.first = Some(found.nanoseconds));
            }
            let port = self.current.as_ref().and_then(|current| current.ports.get(found.interface as usize).copied());
            let port = match port {
                Some(port) => port,
                None => {
                    self.put(&records[start..at], frames)?;
                    (start, frames) = (at, 0);
                    self.add_interfaces(found.interface as usize)?
                }
            };
            self.written[port] += 1;
            let times = self.times.get_or_insert([found.nanoseconds; 2]);
            times[1] = times[1].max(found.nanoseconds);
            (at, frames) = (at + found.len, frames + 1);
        }
        self.put(&records[start..at], frames)
    }

    /// Describes interfaces that have appeared since the file began. Returns the port of one of them.
    fn add_interfaces(&mut self, interface: usize) -> Result<usize, Error> {
        let current = self.current.as_mut().expect("a file is always open");
        let (names, ports) = self.interfaces.from(current.ports.len());
        current.ports.extend(ports);
        let port = current.ports.get(interface).copied().unwrap_or(0);
        let mut bytes = Vec::new();
        names.iter().for_each(|name| self.format.add_interface(&mut bytes, self.snaplen, name));
        self.put(&bytes, 0)?;
        Ok(port)
    }

    /// Returns the number of frames written for a port, and the times of the first and the last frame of all
    /// interfaces.
    pub fn written(&self, port: usize) -> (u64, [u64; 2]) {
        (self.written[port], self.times.unwrap_or_default())
    }

    /// Flushes data that the compressor has held for a second, so that readers of the file see it. Starts commands that
    /// wait for others.
    ///
    /// # Errors
    /// [`ErrorKind::File`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.commands.advance();
        if let Some(Current { target: Target::Compressed(compressor), unflushed, .. }) = &mut self.current
            && unflushed.is_some_and(|since| since.elapsed() >= FLUSH_AFTER)
        {
            *unflushed = None;
            let flushed = compressor.flush();
            flushed.map_err(|error| self.failure(&error))?;
        }
        Ok(())
    }

    /// Returns the error of a file that could not be written. For a compressed file, the frames are counted in the file
    /// itself, as the compressor may have buffered some.
    fn failure(&mut self, error: &std::io::Error) -> Error {
        let current = self.current.as_mut().expect("a file is always open");
        let output = match &current.target {
            Target::Plain(output) => return output.error(error, current.frames),
            Target::Compressed(compressor) => compressor.output(),
        };
        let (whole, more) = self.paths.back().map_or((0, ""), |(path, _)| frames_in(path));
        self.frames = self.frames - current.frames + whole;
        current.frames = whole;
        output.error(error, format!("{more}{whole}"))
    }

    /// Ends the last file.
    ///
    /// # Errors
    /// [`ErrorKind::File`].
    pub fn end(&mut self, ends: &Ends) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for (interface, counts) in (0..).zip(ends) {
            self.format.end(&mut bytes, interface, counts);
        }
        self.put(&bytes, 0)?;
        if let Some(Current { target: Target::Compressed(compressor), .. }) = &mut self.current {
            let ended = compressor.finish();
            ended.map_err(|error| self.failure(&error))?;
        }
        let extent = self.current.take().and_then(|current| match &current.target {
            Target::Plain(output) => output.extent(),
            Target::Compressed(compressor) => compressor.output().extent(),
        });
        if let Some((path, written)) = self.paths.back_mut() {
            *written = extent;
            self.commands.add(path.clone());
        }
        Ok(())
    }

    /// Writes bytes that are complete records of this number of frames.
    fn put(&mut self, bytes: &[u8], frames: u64) -> Result<(), Error> {
        let current = self.current.as_mut().expect("a file is always open");
        match &mut current.target {
            Target::Plain(output) => {
                if let Err((error, written)) = output.write_all_counted(bytes) {
                    // The beginning and the end of a file contain no records.
                    let records = (frames > 0).then(|| self.format.records(&bytes[..written])).into_iter().flatten();
                    let (whole, end) = records.fold((0, 0), |(whole, end), found| (whole + 1, end + found.len));
                    (self.frames, current.frames) = (self.frames + whole, current.frames + whole);
                    output.truncate_by(written - end);
                    return Err(self.failure(&error));
                }
            }
            Target::Compressed(compressor) => {
                current.unflushed.get_or_insert_with(Instant::now);
                let written = compressor.write_all(bytes);
                written.map_err(|error| self.failure(&error))?;
            }
        }
        let current = self.current.as_mut().expect("a file is always open");
        current.bytes += bytes.len() as u64;
        current.frames += frames;
        self.frames += frames;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Counts the complete frames of a compressed file. Stops after 5 s; then the word is "more than".
fn frames_in(path: &Path) -> (u64, &'static str) {
    const LONGEST: Duration = Duration::from_secs(5);
    let (mut whole, mut frame, begin) = (0, Vec::new(), Instant::now());
    let Ok(file) = fs::File::open(path) else { return (0, "") };
    let Ok(mut reader) = Reader::new(file, "the file") else { return (0, "") };
    while let Ok(Some(_)) = reader.next(&mut frame) {
        whole += 1;
        if begin.elapsed() > LONGEST {
            return (whole, "more than ");
        }
    }
    (whole, "")
}

/// Returns whether a path is `-`, or another name of standard output.
pub fn is_standard_output(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path.as_os_str() == *name)
        || is_redirected_output(path)
}

/// Returns whether a path is that of the file or pipe to which standard output is redirected.
fn is_redirected_output(path: &Path) -> bool {
    let Ok(there) = path.metadata() else { return false };
    let is_output = rustix::fs::fstat(std::io::stdout())
        .is_ok_and(|output| (output.st_dev, output.st_ino) == (there.dev(), there.ino()));
    is_output && !there.file_type().is_char_device()
}

/// Returns the name of a ring's file, like dumpcap's: `NAME_00001_20261125134500.pcapng`, with the time in UTC.
fn numbered(path: &Path, number: u64) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (stem, endings) = match name.split_once('.') {
        Some((stem, endings)) => (stem.to_string(), format!(".{endings}")),
        None => (name, String::new()),
    };
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let digits: String = time.chars().filter(char::is_ascii_digit).collect();
    path.with_file_name(format!("{stem}_{number:05}_{digits}{endings}"))
}

#[cfg(test)]
mod tests {
    use super::super::interfaces::Numbers;
    use super::*;

    /// An interface that appears later is described before its first packet, and at the beginning of later files.
    #[test]
    fn interfaces_are_described_when_they_appear() {
        let folder = tempfile::tempdir().unwrap();
        let ring = Ring { file_size: Some(700), ..Ring::default() };
        let all = Interfaces::new(vec!["one".to_string(), "any".to_string()]);
        let mut numbers = Numbers::new(1, all.clone());
        let mut files = Files::create(&folder.path().join("a.pcapng"), 64, all, ring).unwrap();
        let mut records = Vec::new();
        // The loopback interface has index 1; the other does not exist.
        let interfaces = [0, numbers.of(1), numbers.of(1), 0, numbers.of(1_000_000_007), numbers.of(1)];
        assert_eq!(interfaces, [0, 2, 2, 0, 3, 2]);
        for (time, interface) in (0..).zip([interfaces, interfaces].concat()) {
            files.format().append(&mut records, interface, time, &[interface as u8; 60], 64);
        }
        files.write(&records, &|_| vec![Counts::default(); 2]).unwrap();
        files.end(&Vec::new()).unwrap();
        assert_eq!((files.written(0).0, files.written(1).0), (4, 8));
        assert!(files.begun() > 1, "there is no second file");
        for path in files.paths() {
            let bytes = fs::read(path).unwrap();
            for name in ["any", "lo\0\0", "interface 1000000007"] {
                let count = bytes.windows(name.len()).filter(|part| *part == name.as_bytes()).count();
                assert_eq!(count, 1, "{name}");
            }
            let mut reader = Reader::open(path).unwrap();
            while reader.next(&mut Vec::new()).unwrap().is_some() {}
        }
    }

    /// A file ends before the first packet after a multiple of its time.
    #[test]
    fn files_end_by_the_packets_times() {
        let folder = std::env::temp_dir().join(format!("linerate-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let ring = Ring { file_seconds: Some(Duration::from_secs(60)), ..Ring::default() };
        let mut files =
            Files::create(&folder.join("a.b.pcapng"), 64, Interfaces::new(vec!["port".to_string()]), ring).unwrap();
        let mut records = Vec::new();
        for second in [10, 30, 59, 60, 119, 120, 1000, 1059, 1021] {
            files.format().append(&mut records, 0, second * 1_000_000_000, &[0; 60], 64);
        }
        files.write(&records, &|files| vec![Counts { written: files.written(0).0, ..Counts::default() }]).unwrap();
        files.end(&Vec::new()).unwrap();
        let counts: Vec<usize> = files
            .paths()
            .map(|path| {
                let mut reader = linerate::capture::Reader::open(path).unwrap();
                let mut frame = Vec::new();
                std::iter::from_fn(|| reader.next(&mut frame).unwrap()).count()
            })
            .collect();
        assert_eq!((counts, files.frames, files.begun()), (vec![3, 2, 1, 1, 2], 9, 5));
        let name = files.paths().next().unwrap().file_name().unwrap().to_str().unwrap().to_string();
        assert!(name.starts_with("a_00001_2") && name.ends_with(".b.pcapng"), "{name}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
