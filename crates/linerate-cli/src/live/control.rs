//! The control socket: a program writes a request as a line of JSON, and reads the answer as one line.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linerate::Error;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::de::IgnoredAny;
use serde_json::error::Category;
use serde_json::{Value, json};

use super::{PendingRequest, Request};
use crate::signals::interrupts;
use crate::terminal::note;

/// The longest request, without its line end.
const REQUEST: u64 = 4096;
/// A client that does not read its answer is dropped after this time.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// The most clients at a time.
const CLIENTS: usize = 16;
/// The error for a line that is not a request.
const FORM: &str = "a request is a JSON object on one line, with any of the fields pause, rate, link, rule, reset and \
                    stop, such as {\"pause\":true}";

/// The control socket of a run.
pub struct Control {
    /// Dropped before the socket, so that pending requests are answered.
    requests: Receiver<PendingRequest>,
    _socket: Socket,
}

/// The socket on which a run listens. It is removed when the run ends.
struct Socket {
    path: PathBuf,
    /// Its device and inode: another file may be at the path in the end.
    identity: Option<(u64, u64)>,
    clients: Arc<Clients>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The threads end with the process, so wait until pending requests are answered.
        self.clients.close();
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The connected clients, each of which has a thread.
#[derive(Default)]
struct Clients {
    streams: Mutex<HashMap<RawFd, UnixStream>>,
    one_less: Condvar,
}

impl Clients {
    fn streams(&self) -> MutexGuard<'_, HashMap<RawFd, UnixStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client; false if there are too many.
    fn add(&self, client: &UnixStream) -> bool {
        let mut streams = self.streams();
        let clone = client.try_clone().ok().filter(|_| streams.len() < CLIENTS);
        clone.map(|clone| streams.insert(client.as_raw_fd(), clone)).is_some()
    }

    fn remove(&self, client: &UnixStream) {
        self.streams().remove(&client.as_raw_fd());
        self.one_less.notify_all();
    }

    /// Accepts no new requests, and waits until pending ones are answered, at most for [`CLIENT_TIMEOUT`].
    fn close(&self) {
        let streams = self.streams();
        streams.values().for_each(|client| drop(client.shutdown(Shutdown::Read)));
        drop(self.one_less.wait_timeout_while(streams, CLIENT_TIMEOUT, |streams| !streams.is_empty()));
    }
}

/// Returns the device and the inode of the file at a path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|file| (file.dev(), file.ino()))
}

impl Control {
    /// Returns the next pending request.
    pub fn request(&self) -> Option<PendingRequest> {
        self.requests.try_recv().ok()
    }

    /// Listens at `path`, in separate threads, which forward requests to the run.
    ///
    /// # Errors
    /// [`ErrorKind::Unusable`]: the path cannot be used.
    pub fn listen(path: &Path) -> Result<Control, Error> {
        let listener = bind(path)?;
        let (sender, requests) = channel();
        let clients = Arc::<Clients>::default();
        let socket = Socket { path: path.to_path_buf(), identity: identity(path), clients: clients.clone() };
        let accept = move || {
            for client in listener.incoming().flatten() {
                // Accept only the run's own user and root, in addition to the socket's permissions.
                let is_ours = socket_peercred(&client)
                    .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid());
                if !is_ours || !clients.add(&client) {
                    let _ =
                        refuse(client, if is_ours { "too many clients" } else { "the run belongs to another user" });
                    continue;
                }
                let (sender, clients_of, client) = (sender.clone(), clients.clone(), Arc::new(client));
                let served = client.clone();
                let work = move || {
                    let _ = answer_all(&served, &sender);
                    clients_of.remove(&served);
                };
                if std::thread::Builder::new().name("control".to_string()).spawn(work).is_err() {
                    clients.remove(&client);
                }
            }
        };
        std::thread::Builder::new().name("control".to_string()).spawn(accept).map_err(Error::thread)?;
        note(&format!("control: {}", path.display()));
        Ok(Control { requests, _socket: socket })
    }
}

/// Creates a socket for the run's user. A socket without a server is replaced.
fn bind(path: &Path) -> Result<UnixListener, Error> {
    let error =
        |kind, why: String, remedy: &'static str| Error::new(kind, path.display().to_string(), why).with_remedy(remedy);
    let fail = |why, remedy| error(linerate::ErrorKind::Unusable, why, remedy);
    let bad_path = |why, remedy| error(linerate::ErrorKind::BadName, why, remedy);
    let is_socket = path.symlink_metadata().is_ok_and(|there| there.file_type().is_socket());
    if is_socket {
        match connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(|error| {
                    fail(format!("an old socket exists there and cannot be removed: {error}"), "remove it")
                })?;
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(fail("another user's socket exists there".to_string(), "choose another path"));
            }
            _ => {
                return Err(fail(
                    "another run already listens there".to_string(),
                    "choose another path, or end that run",
                ));
            }
        }
    }
    let listener = UnixListener::bind(path).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            bad_path("a file that is not a socket exists there".to_string(), "choose another path, or remove the file")
        }
        // unix(7): `sun_path` has 108 bytes, of which the last is 0.
        _ if path.as_os_str().len() > 107 => {
            bad_path("its path has more than 107 bytes".to_string(), "choose a shorter path")
        }
        _ => fail(format!("cannot listen there: {error}"), "choose a path in an existing folder that you may write to"),
    })?;
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600));
    Ok(listener)
}

/// Connects, without waiting for a server whose queue of connections is full.
fn connect(path: &Path) -> std::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
}

fn refuse(mut client: UnixStream, why: &str) -> std::io::Result<()> {
    client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    writeln!(client, "{}", json!({ "error": why }))
}

/// Answers a client until it closes the connection, or sends a line that is too long.
fn answer_all(mut client: &UnixStream, requests: &Sender<PendingRequest>) -> std::io::Result<()> {
    client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let (mut reader, mut line) = (BufReader::new(client), Vec::new());
    loop {
        line.clear();
        if (&mut reader).take(REQUEST + 1).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let is_whole = line.ends_with(b"\n") || line.len() as u64 <= REQUEST;
        let answer = match is_whole {
            true => read(&line).map_or_else(|why| json!({ "error": why }), |request| ask(request, requests)),
            false => json!({ "error": format!("a request has at most {REQUEST} bytes") }),
        };
        client.write_all(format!("{answer}\n").as_bytes())?;
        if !is_whole {
            return Ok(());
        }
    }
}

/// Parses a request.
fn read(line: &[u8]) -> Result<Request, String> {
    let line = line.trim_ascii();
    // serde would accept an array as the values of the object's keys.
    if !line.starts_with(b"{") {
        return Err(FORM.to_string());
    }
    serde_json::from_slice(line).map_err(|error| match error.classify() {
        Category::Eof => format!("{FORM}; the line ends before the object does"),
        // Also an object that should have exactly one key.
        Category::Syntax | Category::Io if serde_json::from_slice::<IgnoredAny>(line).is_err() => {
            format!("{FORM}; it is not JSON from column {} on", error.column())
        }
        Category::Syntax | Category::Io => format!("{FORM}; the value at column {} has another form", error.column()),
        Category::Data => {
            let why = error.to_string();
            // A request is one line.
            why.rsplit_once(" at line ").map_or(why.clone(), |(why, _)| why.to_string())
        }
    })
}

/// Forwards a request to the run, and returns the answer.
fn ask(request: Request, requests: &Sender<PendingRequest>) -> Value {
    let (sender, answer) = channel();
    // A run that ends drops the answer's sender instead of answering.
    let _ = requests.send(PendingRequest { request, answer: Some(sender) });
    interrupts().wake();
    answer.recv().unwrap_or_else(|_| json!({ "error": "the run has ended" }))
}
