//! The kernel's network stack behind an interface (`IF^`, netmap(4)). Packets that Linux sends to the interface are
//! received here and do not reach the wire. Packets sent here are received by Linux as if from the wire.
//!
//! Two BPF programs of four instructions redirect the packets, at the interface's egress and at a hidden TAP
//! interface's ingress. They are detached when the port is dropped or the process ends (kernel documentation,
//! bpf/prog_sched_cls; TCX since Linux 6.6).
//!
//! [`Exclusive`] drops Linux's packets instead, for an interface that a program uses exclusively.

use linerate_core::error::Result;
use linerate_core::port::{Address, Config, Description, Device, Form, Opening, PortKind};

use super::bpf::{Kind, Link, Order, Program, TrafficDirection};
use super::capabilities;
use super::instructions::{Assembler, R};
use super::interface::Interface;
use super::port::KernelPort;
use super::tap::{OF_STACK, TAP, Tap};

/// `netmap:IF^`
pub static STACK: PortKind = PortKind {
    description: Description {
        form: Form::STACK,
        options: OF_STACK,
        example: "netmap:eth0^",
        summary: "the kernel's network stack, detached from the interface",
        prefix: "netmap",
        address: Address::Text,
        ..TAP.description
    },
    open: &open,
};

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let name = opening.name.address();
    let interface = Interface::open(name.strip_suffix('^').unwrap_or(name))?;
    Ok(Box::new(open_stack(&interface, opening.config)?))
}

/// `bpf_redirect`: sends a packet to an interface; with `INGRESS`, into the stack as if received from it.
const REDIRECT: i32 = 23;
const INGRESS: i32 = 1;

/// `TC_ACT_SHOT`
const DROP: i32 = 2;

/// Detaches an interface from Linux until dropped, as netmap does: sets it up, and drops the packets that Linux sends
/// to it. Packets of AF_XDP sockets bypass the program.
pub(super) struct Exclusive {
    /// The interface, if it was down before and must be set down again.
    was_down: Option<Interface>,
    _silence: Option<Link>,
}

impl Exclusive {
    /// # Errors
    /// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable) if it cannot be set up.
    pub fn new(interface: &Interface) -> Result<Exclusive> {
        // Without TCX (before Linux 6.6), Linux can still send.
        let silence = || -> std::io::Result<Link> {
            let mut code = Assembler::default();
            code.set(R(0), DROP);
            code.exit();
            let program = Program::load(&code.finish().unwrap_or_default(), Kind::Traffic)?;
            program.attach_to_traffic(interface.index(), TrafficDirection::Out, Order::Last)
        };
        let _silence = silence().ok();
        let was_down = if interface.is_up()? { None } else { Some(Interface::find(interface.name())?) };
        was_down.as_ref().map(Interface::set_up).transpose()?;
        Ok(Exclusive { was_down, _silence })
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        // The interface may be gone.
        let _ = self.was_down.take().map(|interface| interface.set_down());
    }
}

/// Loads a program that redirects all packets to an interface.
fn redirect(interface: &Interface, flags: i32) -> std::io::Result<Program> {
    let mut code = Assembler::default();
    code.set(R(1), interface.index() as i32);
    code.set(R(2), flags);
    code.call(REDIRECT);
    code.exit();
    Program::load(&code.finish().unwrap_or_default(), Kind::Traffic)
}

/// Opens the kernel's network stack of an interface.
///
/// # Errors
/// [`ErrorKind::Unusable`](linerate_core::ErrorKind::Unusable): a kernel before 6.6, no privilege.
pub fn open_stack(interface: &Interface, config: Config) -> Result<KernelPort<Tap>> {
    Tap::hidden(config, |tap| {
        let attach = || -> std::io::Result<[Link; 2]> {
            let out = redirect(tap, 0)?.attach_to_traffic(interface.index(), TrafficDirection::Out, Order::First)?;
            let back =
                redirect(interface, INGRESS)?.attach_to_traffic(tap.index(), TrafficDirection::In, Order::First)?;
            Ok([out, back])
        };
        attach().map_err(|error| {
            let why = format!("cannot detach it from Linux: {error}");
            let mend = match error.kind() {
                std::io::ErrorKind::PermissionDenied => capabilities::remedy(capabilities::TRAFFIC),
                _ => "it needs Linux 6.6".to_string(),
            };
            linerate_core::Error::interface(interface.name().to_string(), why, mend)
        })
    })
}
