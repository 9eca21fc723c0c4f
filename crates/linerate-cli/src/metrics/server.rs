//! The server of counters: it answers many clients at a time, and one that does nothing keeps no other from its answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use linerate::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Address, text};
use crate::run::Mode;
use crate::terminal::note;

/// A client that sends no request, or takes no answer, is left after this time.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most clients at a time; for another one the oldest is left.
const CLIENTS: usize = 64;
/// The longest request.
const REQUEST: usize = 8192;

/// A server of counters, as they were last set.
#[derive(Clone)]
pub struct Metrics(Arc<Mutex<String>>);

impl Metrics {
    /// Serves from now on, in a thread of its own, until the process ends; a command that opens ports several times has one
    /// server.
    ///
    /// # Errors
    /// [`ErrorKind::System`]: the address is in use, or not this machine's.
    pub fn serve(Address(address): Address, mode: &dyn Mode) -> Result<Metrics, Error> {
        static SERVER: OnceLock<Metrics> = OnceLock::new();
        if let Some(server) = SERVER.get() {
            return Ok(server.clone());
        }
        let (listener, address) =
            listen(address).map_err(|source| Error::system("listening at the address of --metrics", source))?;
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

    /// Answers clients for ever, the oldest first.
    fn answer_all(&self, listener: &TcpListener) {
        let mut clients: Vec<Client> = Vec::new();
        loop {
            let mut events = vec![PollFd::new(listener, PollFlags::IN)];
            events.extend(clients.iter().map(Client::event));
            let left = clients.first().map(|oldest| PATIENCE.saturating_sub(oldest.begun.elapsed()));
            let left = left.map(|left| Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() });
            if poll(&mut events, left.as_ref()).is_err() {
                continue; // a signal
            }
            let is_ready: Vec<bool> = events.iter().map(|event| !event.revents().is_empty()).collect();
            let mut ready = is_ready[1..].iter();
            clients.retain_mut(|client| {
                let goes_on = ready.next() != Some(&true) || client.go_on(self);
                goes_on && client.begun.elapsed() < PATIENCE
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

/// Listens, and returns the address with its port.
fn listen(address: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Accepts the clients that wait.
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
            // Without descriptors the oldest client gives up its own; without a client others of the process do, in time.
            Err(_) if clients.is_empty() => return std::thread::sleep(PATIENCE / 20),
            Err(_) => drop(clients.remove(0)),
        }
    }
}

/// A connection.
struct Client {
    stream: TcpStream,
    begun: Instant,
    request: Vec<u8>,
    /// The answer, and its bytes that are written.
    answer: Option<(Vec<u8>, usize)>,
}

impl Client {
    fn event(&self) -> PollFd<'_> {
        PollFd::new(&self.stream, if self.answer.is_some() { PollFlags::OUT } else { PollFlags::IN })
    }

    /// Reads more of the request, or writes more of the answer. Returns false at the end.
    fn go_on(&mut self, metrics: &Metrics) -> bool {
        let Some((answer, written)) = &mut self.answer else {
            let mut bytes = [0; 1024];
            let read = self.stream.read(&mut bytes);
            let Ok(count) = read else { return read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) };
            self.request.extend_from_slice(&bytes[..count]);
            // With its headers, which are not needed: a connection that is closed before they are read is reset.
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
