//! `linerate vm`: the line that starts QEMU with a card at a `vhost:` port.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;
use linerate::port::PortName;
use linerate::{Error, vhost};

use crate::grammar::usage;
use crate::options::{LONGEST_MTU, whole};
use crate::show::print;

/// The machine.
#[derive(Args)]
pub struct Machine {
    /// The ports that it has cards at: vhost:PATH, with the options of the command that opens it
    #[arg(required = true)]
    ports: Vec<String>,
    /// Its memory in MiB, which is shared with the ports
    #[arg(long, default_value_t = 512, value_parser = whole::<u32>(16, 1 << 20))]
    memory: u32,
    /// Its processors; by default as many as a port has queues: Linux uses no more queues than processors
    #[arg(long, value_parser = whole::<u16>(1, 255))]
    processors: Option<u16>,
    /// Its cards do not tell it whether their links are up: when a port's process ends and another one goes on, the machine does
    /// not forget the addresses of its peers
    #[arg(long)]
    no_link_state: bool,
    /// Emulate its processors, even if there is KVM: inside of another machine it may not work
    #[arg(long)]
    no_kvm: bool,
    /// The QEMU to use
    #[arg(long, default_value = "qemu-system-x86_64")]
    qemu: String,
    /// Start it, instead of printing the line
    #[arg(long)]
    run: bool,
    /// Other options of QEMU, for example its disk: -- -nographic disk.qcow2
    #[arg(last = true)]
    others: Vec<String>,
}

/// Prints the line, or becomes QEMU.
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

/// Reads the name of a port that a machine can have its card at.
fn card_of(text: &str) -> Result<PortName, Error> {
    let port = linerate::parse(text)?;
    if !std::ptr::eq(port.kind(), &vhost::KIND.about) {
        usage(&format!("'{text}' is no port for a machine: a machine has its card at vhost:PATH"));
    }
    Ok(port)
}

/// Returns QEMU's arguments.
fn words(machine: &Machine, ports: &[PortName], (major, minor): (u32, u32)) -> Result<Vec<String>, Error> {
    let mut words = Vec::new();
    let mut option = |name: &str, value: String| words.extend([name.to_string(), value]);
    // KVM runs the guest's code on the processor itself.
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
        let path = port.rest();
        let [is_client, is_packed] = [port.switch("client", false)?, port.switch("packed", false)?];
        port.switch("offloads", false)?;
        let queues = queues[n];
        let mtu = port.option("mtu").map(|_| port.number("mtu", 1500, 68..=LONGEST_MTU.into())).transpose()?;
        // A comma ends a value of QEMU's options, unless it is doubled.
        let path = path.replace(',', ",,");
        // A connection that is lost with its back end is made again within a second, or, where QEMU can, before the machine's TCP
        // repeats a segment, after 200 ms: Linux asks for its peer's address then, and, if the link is still down, again after 1 s.
        let again = if (major, minor) >= (9, 2) { "reconnect-ms=20" } else { "reconnect=1" };
        let mode = if is_client { "server=on,wait=off" } else { again };
        option("-chardev", format!("socket,id=socket{n},path={path},{mode}"));
        option("-netdev", format!("vhost-user,id=net{n},chardev=socket{n},queues={queues}"));
        // QEMU gives the cards of all machines the same addresses.
        let mac = port_mac(port.short());
        let mut card = format!("virtio-net-pci,netdev=net{n},mac={mac}");
        if queues > 1 {
            card += ",mq=on";
        }
        if major < 8 && !has_kvm {
            // QEMU 7.2 without KVM ends with a null pointer at the first message-signalled interrupt of such a card.
            card += ",vectors=0";
        } else if queues > 1 {
            // Two for each pair, one for the control queue, one for changes of the configuration.
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

/// Returns an address of the local kind for the machine's card at a port: the same for each start.
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
    Ok(numbers.unwrap_or_else(|| usage(&format!("'{qemu} --version' names no version of QEMU: {text}"))))
}

/// Returns whether this user may use KVM.
fn has_kvm() -> bool {
    std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Returns a word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=,.:/+%@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
