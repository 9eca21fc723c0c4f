//! The control thread: it attaches to one back end after another.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use linerate_cards::nic::virtio::Virtio;
use linerate_core::error::{Error, ErrorKind, Result};
use linerate_core::event::{Handover, Interrupt};
use linerate_core::port::{Config, Device, FRAME_HEADERS, span_of};
use linerate_core::unix_socket::{ControlThread, FirstMessage, Peers, RETRY_INTERVAL, connect};
use rustix::event::{PollFd, PollFlags, poll};

use super::Forms;
use super::back_end::{BackEnd, Wanted};

/// The state shared by the control thread, the port and its queues.
pub struct Shared {
    pub path: String,
    config: Config,
    wanted: Arc<Wanted>,
    /// The back end's device, if there is one.
    pub device: Handover<Option<Arc<Virtio>>>,
}

impl Shared {
    /// # Errors
    /// [`ErrorKind::System`](linerate_core::ErrorKind::System) if the process has no descriptors left.
    pub fn new(path: &str, forms: Forms, config: &Config) -> Result<Shared> {
        let options = &config.options;
        let interrupts = if options.interrupts.is_some() { options.rx_queues } else { 0 };
        let wanted = Wanted {
            port: config.name.clone(),
            pairs: options.rx_queues.max(options.tx_queues),
            forms,
            mtu: (options.max_frame - FRAME_HEADERS) as u64,
            interrupts: (0..interrupts).map(|_| Interrupt::shared()).collect::<Result<Vec<_>>>()?,
        };
        Ok(Shared {
            path: path.to_string(),
            config: config.clone(),
            wanted: Arc::new(wanted),
            device: Handover::default(),
        })
    }

    /// Returns the port's name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Returns the size of the rings.
    pub fn ring(&self) -> usize {
        self.config.ring()
    }

    /// Returns the interrupt of a receive queue, if the port has any.
    pub fn interrupt(&self, queue: u16) -> Option<&Interrupt> {
        self.wanted.interrupts.get(usize::from(queue))
    }

    /// Replaces the device. Queues notice at their next poll; sleeping queues are woken.
    fn change(&self, device: Option<Arc<Virtio>>) {
        drop(self.device.change(|current| std::mem::replace(current, device)));
        self.wanted.interrupts.iter().for_each(Interrupt::raise);
    }

    /// Attaches to a back end, and starts its device.
    fn attach(&self, socket: UnixStream) -> std::result::Result<Arc<BackEnd>, Unusable> {
        let name = &self.config.name;
        let unusable = |error| Unusable { error, device: None };
        let back_end = BackEnd::new(socket, &self.wanted).map_err(unusable)?;
        // A failed request explains all later failures.
        let explained = |error: Error| match (back_end.check(), error) {
            (Err(reason), _) => reason,
            (_, error) if error.kind() == ErrorKind::BadDevice => {
                Error::card(name, error.why().to_string(), back_end.link.remedy())
            }
            (_, error) => error,
        };
        // SAFETY: only this driver uses the connection. The other side can access only the memory sent over it: the
        // port's region and its rings.
        let device = unsafe { Virtio::attach(back_end.clone(), back_end.clone(), self.config.clone()) };
        let mut device = device.map_err(|error| unusable(explained(error)))?;
        match device.reset().map_err(explained).and_then(|()| back_end.check()) {
            Ok(()) => {
                self.change(Some(Arc::new(device)));
                Ok(back_end)
            }
            Err(error) => Err(Unusable { error, device: Some((back_end, device)) }),
        }
    }
}

/// A back end that cannot be used.
struct Unusable {
    error: Error,
    /// The back end and its device, if the back end may still use the memory that it was sent.
    device: Option<(Arc<BackEnd>, Virtio)>,
}

/// Attaches to the back end that listens at the port's path, or listens there, and starts the control thread.
///
/// # Errors
/// See [`VirtioUser::open`](super::VirtioUser::open).
pub fn start(is_server: bool, shared: Arc<Shared>) -> Result<ControlThread> {
    let _of_port = span_of(shared.name()).entered();
    let path = Path::new(&shared.path);
    let (peers, first) = match is_server {
        true => (Peers::listen(path, FirstMessage::of_server())?, None),
        false => {
            let peers = Peers::connect_to(&shared.config.name, path)?;
            let socket = connect(path).map_err(|error| unreachable_at(&shared, &error))?;
            // Records the user of the first peer.
            peers.is_trusted(&socket);
            (peers, Some(shared.attach(socket).map_err(|unusable| unusable.error)?))
        }
    };
    ControlThread::start("virtio-user", peers, move |peers, stop| run(peers, stop, &shared, first))
}

/// Returns the error of a path without a back end.
fn unreachable_at(shared: &Shared, error: &std::io::Error) -> Error {
    let mend = format!(
        "linerate fwd vhost:{0} null:, or start another back end there; 'virtio-user:{0}?server=on' waits for one",
        shared.path
    );
    Error::card(&shared.config.name, format!("no back end can be reached there: {error}"), mend)
}

/// Serves one back end after another.
fn run(peers: &Peers, stop: &Interrupt, shared: &Shared, first: Option<Arc<BackEnd>>) {
    let _of_port = span_of(shared.name()).entered();
    let mut attached = first;
    let mut last_error = String::new();
    loop {
        if let Some(back_end) = attached.take() {
            if !watch(&back_end, stop) {
                return;
            }
            tracing::debug!("the back end has disconnected");
            shared.change(None);
            peers.pause(stop);
        }
        let Some(socket) = peers.next(stop) else { return };
        match shared.attach(socket) {
            Ok(back_end) => {
                tracing::debug!("attached to a back end");
                last_error.clear();
                attached = Some(back_end);
            }
            Err(Unusable { error, device }) => {
                // The span names the port.
                let text = error.to_string().trim_start_matches(&format!("{}: ", shared.config.name)).to_string();
                if text != last_error {
                    tracing::warn!("{text}");
                    last_error = text;
                }
                // The memory must stay mapped while the device may use it.
                let is_stopped =
                    device.is_some_and(|(back_end, _device)| !back_end.link.is_alive() && !watch(&back_end, stop));
                let pause = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&RETRY_INTERVAL));
                if is_stopped || pause.is_ok_and(|count| count > 0) {
                    return;
                }
            }
        }
    }
}

/// Waits until a back end is gone. Returns false if the port is closed first.
fn watch(back_end: &BackEnd, stop: &Interrupt) -> bool {
    let Ok(socket) = back_end.link.socket() else { return true };
    while !back_end.link.is_gone() {
        // Data from a back end after its failure is not read.
        let flags = if back_end.link.is_alive() { PollFlags::IN } else { PollFlags::empty() };
        let mut events = [PollFd::new(stop, PollFlags::IN), PollFd::from_borrowed_fd(socket.as_fd(), flags)];
        if poll(&mut events, None).is_err() {
            continue; // a signal
        }
        if !events[0].revents().is_empty() {
            return false;
        }
        if events[1].revents().contains(PollFlags::HUP) {
            back_end.link.hung_up();
        } else if !events[1].revents().is_empty() {
            back_end.link.check_socket();
        }
    }
    true
}
