//! The HTTP server of the counters. It serves many clients at a time; an idle client does not block others.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use linerate::{Error, Remedy};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Address, text};
use crate::run::Mode;
use crate::terminal::note;

/// A client that has not sent its request and read the answer by this time is dropped.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// The most clients at a time. For another one, the oldest is dropped.
const CLIENTS: usize = 64;
/// The longest request.
const REQUEST: usize = 8192;

/// A server of the counters that were last set.
#[derive(Clone)]
pub struct Metrics(Arc<Mutex<String>>);

impl Metrics {
    /// Starts a server in a separate thread, which runs until the process ends. A command that opens ports several
    /// times has a single server.
    ///
    /// # Errors
    /// [`ErrorKind::System`]: the address is in use, or does not belong to this machine.
    pub fn serve(Address(address): Address, mode: &dyn Mode) -> Result<Metrics, Error> {
        static SERVER: OnceLock<Metrics> = OnceLock::new();
        if let Some(server) = SERVER.get() {
            return Ok(server.clone());
        }
        let (listener, address) = listen(address).map_err(|source| cannot_listen(address, source))?;
        // No port is open yet.
        let metrics = Metrics(Arc::new(Mutex::new(text(mode, 0, 0, None, &[]))));
        let served = metrics.clone();
        let thread = std::thread::Builder::new().name("metrics".to_string());
        thread.spawn(move || served.answer_all(&listener)).map_err(Error::thread)?;
        note(&format!("metrics: http://{address}/metrics"));
        Ok(SERVER.get_or_init(|| metrics).clone())
    }

    /// Sets the counters.
    pub fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// Serves clients for ever, the oldest first.
    fn answer_all(&self, listener: &TcpListener) {
        let mut clients: Vec<Client> = Vec::new();
        loop {
            let mut events = vec![PollFd::new(listener, PollFlags::IN)];
            events.extend(clients.iter().map(Client::event));
            let left = clients.first().map(|oldest| CLIENT_TIMEOUT.saturating_sub(oldest.begun.elapsed()));
            let left = left.map(|left| Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() });
            if poll(&mut events, left.as_ref()).is_err() {
                continue; // a signal
            }
            let is_ready: Vec<bool> = events.iter().map(|event| !event.revents().is_empty()).collect();
            let mut ready = is_ready[1..].iter();
            clients.retain_mut(|client| {
                let is_open = ready.next() != Some(&true) || client.advance(self);
                is_open && client.begun.elapsed() < CLIENT_TIMEOUT
            });
            if is_ready[0] {
                accept(listener, &mut clients);
            }
        }
    }

    /// Returns the answer to a request.
    fn answer(&self, request: &str) -> Vec<u8> {
        let mut words = request.split_whitespace();
        let (method, path) = (words.next(), words.next());
        let (status, text) = match (method, path.and_then(|path| path.split('?').next())) {
            (Some("GET" | "HEAD"), Some("/metrics")) => {
                ("200 OK", self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
            }
            (Some("GET" | "HEAD"), Some(_)) => ("404 Not Found", "the counters are at /metrics\n".to_string()),
            _ => ("405 Method Not Allowed", "the counters are read with GET /metrics\n".to_string()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            text.len()
        );
        let body = if method == Some("HEAD") { "" } else { &text };
        [head.as_bytes(), body.as_bytes()].concat()
    }
}

/// Listens, and returns the listener and its address with the actual port.
fn listen(address: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Returns the error for an address at which the server cannot listen.
fn cannot_listen(address: SocketAddr, source: std::io::Error) -> Error {
    let remedy = match source.kind() {
        ErrorKind::PermissionDenied => "choose a port from 1024 with --metrics; lower ones need CAP_NET_BIND_SERVICE",
        ErrorKind::AddrInUse => "choose another port with --metrics; 0 stands for any free port",
        _ => "choose an address of this machine with --metrics",
    };
    let why = format!("cannot serve metrics there: {source}");
    Error::new(linerate::ErrorKind::System, address.to_string(), why)
        .with_source(source)
        .with_remedy(Remedy::Step(remedy.into()))
}

/// Accepts the pending clients.
fn accept(listener: &TcpListener, clients: &mut Vec<Client>) {
    loop {
        let accepted = listener.accept().and_then(|(stream, _)| stream.set_nonblocking(true).map(|()| stream));
        match accepted {
            Ok(stream) => {
                if clients.len() == CLIENTS {
                    clients.remove(0);
                }
                clients.push(Client { stream, begun: Instant::now(), request: Vec::new(), answer: None });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            // Without free descriptors, drop the oldest client. Without clients, wait until the process closes some.
            Err(_) if clients.is_empty() => return std::thread::sleep(CLIENT_TIMEOUT / 20),
            Err(_) => drop(clients.remove(0)),
        }
    }
}

/// A connection.
struct Client {
    stream: TcpStream,
    begun: Instant,
    request: Vec<u8>,
    /// The answer, and how many of its bytes have been written.
    answer: Option<(Vec<u8>, usize)>,
}

impl Client {
    fn event(&self) -> PollFd<'_> {
        PollFd::new(&self.stream, if self.answer.is_some() { PollFlags::OUT } else { PollFlags::IN })
    }

    /// Reads more of the request, or writes more of the answer. Returns false at the end.
    fn advance(&mut self, metrics: &Metrics) -> bool {
        let Some((answer, written)) = &mut self.answer else {
            let mut bytes = [0; 1024];
            let read = self.stream.read(&mut bytes);
            let Ok(count) = read else { return read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) };
            self.request.extend_from_slice(&bytes[..count]);
            // Read the headers, too, although they are not needed: closing a connection with unread data resets it.
            let is_whole = self.request.windows(4).any(|bytes| bytes == b"\r\n\r\n");
            if is_whole || count == 0 || self.request.len() >= REQUEST {
                self.answer = Some((metrics.answer(&String::from_utf8_lossy(&self.request)), 0));
            }
            return true;
        };
        match self.stream.write(&answer[*written..]) {
            Ok(count) => *written += count,
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
        *written < answer.len()
    }
}
