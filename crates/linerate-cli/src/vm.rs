//! `linerate vm`: prints or runs the QEMU command of a machine with cards at `vhost:` ports.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;
use linerate::port::PortName;
use linerate::{Error, vhost};

use crate::grammar::usage;
use crate::options::{LONGEST_MTU, whole};
use crate::show::print;
use crate::terminal::note;

/// Options of the machine.
#[derive(Args)]
pub struct Machine {
    /// The ports of its cards: vhost:PATH, with the same options as in the command that opens the port
    #[arg(required = true)]
    ports: Vec<String>,
    /// Memory in MiB, which is shared with the ports
    #[arg(long, default_value_t = 512, value_parser = whole::<u32>(16, 1 << 20))]
    memory: u32,
    /// Number of processors; by default that of a port's queues, as Linux uses no more queues than processors
    #[arg(long, value_parser = whole::<u16>(1, 255))]
    processors: Option<u16>,
    /// Do not report link state to the machine, so that it keeps its peers' addresses when a port's process is replaced
    /// by another one
    #[arg(long)]
    no_link_state: bool,
    /// Emulate the processors, as is done if KVM cannot create a machine: inside another virtual machine it may fail later
    #[arg(long)]
    no_kvm: bool,
    /// The QEMU to use
    #[arg(long, default_value = "qemu-system-x86_64")]
    qemu: String,
    /// Run QEMU instead of printing the command
    #[arg(long)]
    run: bool,
    /// More options for QEMU, for example a disk: -- -nographic disk.qcow2
    #[arg(last = true)]
    others: Vec<String>,
}

/// Prints the command, or replaces this process with QEMU.
pub fn run(machine: &Machine) -> Result<ExitCode, Error> {
    let ports = machine.ports.iter().map(|text| card_of(text)).collect::<Result<Vec<_>, Error>>()?;
    for (n, port) in ports.iter().enumerate() {
        if ports[..n].iter().any(|other| other.short() == port.short()) {
            usage(&format!("'{}' is given twice; choose another port", port.short()));
        }
    }
    let words = words(machine, &ports, version(&machine.qemu)?)?;
    if machine.run {
        let source = Command::new(&machine.qemu).args(&words).exec();
        return Err(Error::system("running QEMU", source));
    }
    let words: Vec<String> = [&machine.qemu].into_iter().chain(&words).map(|word| quoted(word)).collect();
    print(&format!("{}\n", words.join(" ")));
    Ok(ExitCode::SUCCESS)
}

/// Parses the name of a port for a machine's card.
fn card_of(text: &str) -> Result<PortName, Error> {
    let port = linerate::parse(text)?;
    if !std::ptr::eq(port.kind(), &vhost::KIND.description) {
        usage(&format!("'{text}' cannot be the port of a machine: use vhost:PATH"));
    }
    Ok(port)
}

/// Returns QEMU's arguments.
fn words(machine: &Machine, ports: &[PortName], (major, minor): (u32, u32)) -> Result<Vec<String>, Error> {
    let mut words = Vec::new();
    let mut option = |name: &str, value: String| words.extend([name.to_string(), value]);
    let has_kvm = !machine.no_kvm && has_kvm();
    let accelerators = if has_kvm { "kvm:tcg" } else { "tcg" };
    option("-M", format!("q35,accel={accelerators},memory-backend=memory"));
    option("-cpu", "max".to_string());
    option("-m", format!("{}M", machine.memory));
    let queues = ports.iter().map(|port| port.number("queues", 1, 1..=64)).collect::<Result<Vec<_>, Error>>()?;
    let most = queues.iter().copied().max().unwrap_or(1);
    option("-smp", machine.processors.map_or(most, usize::from).to_string());
    option("-object", format!("memory-backend-memfd,id=memory,size={}M,share=on", machine.memory));
    for (n, port) in ports.iter().enumerate() {
        let path = port.address();
        let [is_client, is_packed] = [port.switch("client", false)?, port.switch("packed", false)?];
        port.switch("offloads", false)?;
        let queues = queues[n];
        let mtu = port.option("mtu").map(|_| port.number("mtu", 1500, 68..=LONGEST_MTU.into())).transpose()?;
        // A comma ends a value of QEMU's options, unless it is doubled.
        let path = path.replace(',', ",,");
        // QEMU reconnects to a restarted back end within a second or, from 9.2 on, within 20 ms: before the machine's
        // TCP repeats a segment after 200 ms. Linux then asks for its peer's address and, if the link is still down,
        // asks again only after 1 s.
        let again = if (major, minor) >= (9, 2) { "reconnect-ms=20" } else { "reconnect=1" };
        let mode = if is_client { "server=on,wait=off" } else { again };
        option("-chardev", format!("socket,id=socket{n},path={path},{mode}"));
        option("-netdev", format!("vhost-user,id=net{n},chardev=socket{n},queues={queues}"));
        // By default, QEMU gives the cards of all machines the same MAC addresses.
        let mac = port_mac(port.short());
        let mut card = format!("virtio-net-pci,netdev=net{n},mac={mac}");
        if queues > 1 {
            card += ",mq=on";
        }
        if major < 8 && !has_kvm {
            // QEMU 7.2 without KVM crashes with a null pointer at the first message-signalled interrupt of such a card.
            card += ",vectors=0";
        } else if queues > 1 {
            // Two vectors for each pair, one for the control queue, one for configuration changes.
            card += &format!(",vectors={}", 2 * queues + 2);
        }
        if is_packed {
            card += ",packed=on";
        }
        if machine.no_link_state {
            card += ",status=off";
        }
        if let Some(mtu) = mtu {
            card += &format!(",host_mtu={mtu}");
        }
        option("-device", card);
    }
    words.extend(machine.others.iter().cloned());
    Ok(words)
}

/// Returns a locally administered MAC address for the machine's card at a port, the same at each start.
fn port_mac(name: &str) -> String {
    // FNV-1a.
    let hash = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    format!("02:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}")
}

/// Asks QEMU for its version.
fn version(qemu: &str) -> Result<(u32, u32), Error> {
    let output = Command::new(qemu).arg("--version").output().map_err(|source| {
        Error::system("running QEMU (install it: sudo apt install qemu-system-x86; or name it: --qemu PATH)", source)
    })?;
    // "QEMU emulator version 7.2.22 (Debian …)"
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers = text.split("version ").nth(1).and_then(|rest| {
        let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    });
    Ok(numbers.unwrap_or_else(|| usage(&format!("'{qemu} --version' does not print QEMU's version: {text}"))))
}

/// Returns whether this user may use KVM, and KVM works. If it exists and does not, prints a note with the reason.
fn has_kvm() -> bool {
    let why = match File::options().read(true).write(true).open("/dev/kvm") {
        Err(error) if error.kind() == ErrorKind::NotFound => return false,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            format!("cannot open /dev/kvm: {error}; to get access: sudo usermod -aG kvm USER, and log in again")
        }
        Err(error) => format!("cannot open /dev/kvm: {error}"),
        Ok(kvm) => match create_machine(&kvm) {
            Ok(()) => return true,
            Err(error) => format!("/dev/kvm cannot create a virtual machine with a processor: {error}"),
        },
    };
    note(&format!("note: {why}; QEMU emulates the processors, which is slower"));
    false
}

/// Creates a machine with a processor, and removes it: inside another virtual machine, KVM may exist and not work.
#[allow(unsafe_code)]
fn create_machine(kvm: &File) -> io::Result<()> {
    // From linux/kvm.h; the last argument is the machine's type, or the processor's number.
    const CREATE_VM: libc::Ioctl = 0xAE01;
    const CREATE_VCPU: libc::Ioctl = 0xAE41;
    let create = |on: &dyn AsRawFd, request| {
        // SAFETY: the requests have a number as argument, and return a new descriptor or a negative number.
        match unsafe { libc::ioctl(on.as_raw_fd(), request, 0 as libc::c_ulong) } {
            ..0 => Err(io::Error::last_os_error()),
            // SAFETY: nothing else owns the new descriptor.
            descriptor => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        }
    };
    let machine = create(kvm, CREATE_VM)?;
    create(&machine, CREATE_VCPU).map(drop)
}

/// Returns a word, quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=,.:/+%@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
