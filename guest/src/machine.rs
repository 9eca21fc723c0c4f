//! Configures and boots the virtual machine of a test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use linerate_testkit::{Debian, until};
use tempfile::TempDir;

use crate::guest::Guest;
use crate::initramfs;
use crate::namespace::Namespace;
use crate::wire::Wire;

/// A machine before its boot: q35, 768 MiB, and one processor by default. With two, the processor emulation of QEMU
/// 10.0 sometimes fails an assertion (`iotlb_to_section`).
pub struct Machine {
    arguments: Vec<String>,
    kernel_arguments: Vec<String>,
    kernel: Kernel,
    qemu: Qemu,
    cards: usize,
    folder: TempDir,
    namespace: Option<String>,
    programs: Vec<String>,
    processors: usize,
    has_exact_time: bool,
    is_incoming: bool,
    memory: Memory,
    /// The ports for `linerate vm`; without ports, the test starts QEMU itself.
    ports: Vec<String>,
}

/// The backing of a machine's memory, which is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// A memfd, sealed against shrinking.
    #[default]
    Memfd,
    /// A file in a folder.
    File,
    /// POSIX shared memory; needs QEMU 9.1.
    Shm,
}

/// The kernel of a guest; all come from `guest/prepare`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kernel {
    /// The distribution's kernel.
    #[default]
    Default,
    /// Linux 6.12, from Debian 13 or from Debian 12's backports.
    Newer,
    /// Linux 6.12 with iommufd.
    Iommufd,
}

/// The QEMU that runs a guest; all come from `guest/prepare`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Qemu {
    /// QEMU 11.1, from Debian 13's backports.
    #[default]
    Newest,
    /// The distribution's QEMU: 7.2 on Debian 12, 10.0 on Debian 13.
    Distribution,
    /// Debian 13's QEMU 10.0, on a host with another distribution.
    Trixie,
}

impl Qemu {
    /// Returns the distributions' QEMUs: the host's and Debian 13's.
    pub fn of_distributions() -> Vec<Qemu> {
        let of = |debian| match debian {
            Debian::Own => Qemu::Distribution,
            Debian::Trixie => Qemu::Trixie,
        };
        Debian::all().into_iter().map(of).collect()
    }
}

/// The guest's memory, in MiB.
const MEMORY: u32 = 768;

/// The address of the first card's port on the root bus.
const FIRST: usize = 4;

impl Default for Machine {
    fn default() -> Self {
        Machine::new()
    }
}

impl Machine {
    /// Creates a machine without cards and without an IOMMU.
    pub fn new() -> Machine {
        let folder = tempfile::Builder::new().prefix("guest").tempdir().expect("a temporary folder");
        Machine {
            arguments: Vec::new(),
            kernel_arguments: Vec::new(),
            kernel: Kernel::default(),
            qemu: Qemu::default(),
            cards: 0,
            folder,
            namespace: None,
            programs: Vec::new(),
            processors: 1,
            has_exact_time: false,
            is_incoming: false,
            memory: Memory::default(),
            ports: Vec::new(),
        }
    }

    /// Receives a guest by live migration at this socket instead of booting one. The source machine must have the same
    /// configuration.
    pub fn incoming(mut self, socket: &Path) -> Machine {
        self.arguments(&["-incoming", &format!("unix:{}", socket.display())]);
        self.is_incoming = true;
        self
    }

    /// Adds an Intel IOMMU with interrupt remapping.
    pub fn iommu(mut self) -> Machine {
        self.arguments.extend(["-device", "intel-iommu,intremap=on,device-iotlb=on"].map(String::from));
        self.kernel_arguments.push("intel_iommu=on".to_string());
        self
    }

    /// Adds an IOMMU that supports [served](Machine::served) cards: QEMU reports each mapping of the guest to the
    /// cards' servers.
    pub fn iommu_for_served(mut self) -> Machine {
        self.arguments.extend(["-device", "intel-iommu,intremap=on,caching-mode=on"].map(String::from));
        // Strict: the guest removes mappings immediately, not in batches.
        self.kernel_arguments.push("intel_iommu=on iommu.strict=1".to_string());
        self
    }

    /// Selects the kernel.
    pub fn kernel(mut self, kernel: Kernel) -> Machine {
        self.kernel = kernel;
        self
    }

    /// Adds a QEMU card, `device` with options, whose cable ends in the test. The first card has the address
    /// 0000:01:00.0, the next 0000:02:00.0, and so on. Each has its own PCIe port, so that it can be unplugged. Its
    /// `id` is `card0`, `card1` ...
    pub fn card(&mut self, device: &str) -> Wire {
        let number = self.port();
        let wire = Wire::new(self.folder.path(), number);
        let path = |name: &str| self.folder.path().join(format!("{name}{number}")).display().to_string();
        let (local, remote) = (path("card"), path("test"));
        self.add_card(
            number,
            device,
            &format!("dgram,local.type=unix,local.path={local},remote.type=unix,remote.path={remote}"),
        );
        wire
    }

    /// Adds a card as [`card`](Machine::card) does, whose cable ends at a TAP interface of the
    /// [namespace](Machine::in_namespace).
    pub fn card_at_tap(&mut self, device: &str, tap: &str, queues: u16) {
        let number = self.port();
        self.add_card(number, device, &format!("tap,ifname={tap},script=no,downscript=no,queues={queues}"));
    }

    /// Adds a card as [`card`](Machine::card) does, whose cable ends at a QEMU hub.
    pub fn card_at_hub(&mut self, device: &str, hub: usize) {
        let number = self.port();
        self.add_card(number, device, &format!("hubport,hubid={hub}"));
    }

    /// Adds a VirtIO card with these options, whose back end is at a socket. QEMU's socket options may follow the path:
    /// `,server=on` if the back end connects, `,reconnect-ms=N` if it may restart.
    pub fn card_at_back_end(&mut self, options: &str, socket: &str, queues: u16) {
        let number = self.port();
        self.arguments(&["-chardev", &format!("socket,id=socket{number},path={socket}")]);
        // Without KVM, QEMU 7.2 crashes on a null pointer at the first message-signalled interrupt of such a card.
        let vectors = if self.qemu == Qemu::Distribution { 0 } else { 2 * queues + 2 };
        let device = format!("virtio-net-pci,mq=on,vectors={vectors},{options}");
        self.add_card(number, &device, &format!("vhost-user,chardev=socket{number},queues={queues}"));
    }

    /// Adds a model that is served at a socket.
    pub fn served(&mut self, socket: &Path) {
        let number = self.port();
        let socket = format!("{{\"type\":\"unix\",\"path\":\"{}\"}}", socket.display());
        let card = format!(
            "{{\"driver\":\"vfio-user-pci\",\"id\":\"card{number}\",\"bus\":\"port{number}\",\"socket\":{socket}}}"
        );
        self.arguments(&["-device", &card]);
    }

    /// Sets the number of processors.
    pub fn processors(mut self, count: usize) -> Machine {
        self.processors = count;
        self
    }

    /// Makes the guest's clock count instructions, one per nanosecond. Times in the guest do not depend on the host's
    /// load then, and an idle guest does not wait.
    pub fn exact_time(mut self) -> Machine {
        self.has_exact_time = true;
        self.arguments(&["-icount", "shift=0,sleep=off"]);
        self
    }

    /// Selects the backing of the machine's memory.
    pub fn memory(mut self, memory: Memory) -> Machine {
        self.memory = memory;
        self
    }

    /// Starts the machine through `linerate vm`, with cards at these ports and without a PCIe root port for each.
    pub fn at_ports(mut self, ports: &[&str]) -> Machine {
        self.ports = ports.iter().map(ToString::to_string).collect();
        self
    }

    /// Adds an argument to the kernel's command line.
    pub fn kernel_argument(mut self, argument: &str) -> Machine {
        self.kernel_arguments.push(argument.to_string());
        self
    }

    /// Selects QEMU.
    pub fn qemu(mut self, qemu: Qemu) -> Machine {
        self.qemu = qemu;
        self
    }

    /// Adds one of the host's programs, with its libraries.
    pub fn program(&mut self, name: &str) {
        self.programs.push(name.to_string());
    }

    /// Adds DPDK's `dpdk-testpmd` with the memory pool driver that it needs, and returns its command line.
    pub fn testpmd(&mut self) -> String {
        self.program("dpdk-testpmd");
        let folder = Path::new("/usr/lib/x86_64-linux-gnu/dpdk");
        let drivers = fs::read_dir(folder).expect("guest/prepare installs DPDK").flatten().map(|entry| entry.path());
        let drivers = drivers.into_iter().find(|path| path.is_dir()).expect("a folder of drivers");
        let files = fs::read_dir(&drivers).expect("a folder").flatten().map(|entry| entry.path());
        let pool = files
            .into_iter()
            .find(|file| file.extension().is_some() && file.to_string_lossy().ends_with("librte_mempool_ring.so"))
            .expect("the driver of memory pools")
            .display()
            .to_string();
        self.programs.push(pool.clone());
        format!("dpdk-testpmd -d {pool}")
    }

    /// Adds a PCIe port for the next card, and returns its number.
    fn port(&mut self) -> usize {
        let number = self.cards;
        self.cards += 1;
        let port = format!("pcie-root-port,id=port{number},chassis={number},addr={:02x}.0", number + FIRST);
        self.arguments(&["-device", &port]);
        number
    }

    /// Adds a card with its cable.
    fn add_card(&mut self, number: usize, device: &str, cable: &str) {
        let card =
            format!("{device},id=card{number},bus=port{number},netdev=net{number},mac=52:54:00:00:00:{number:02x}");
        self.arguments(&["-netdev", &format!("{cable},id=net{number}"), "-device", &card]);
    }

    /// Adds arguments for QEMU.
    pub fn arguments(&mut self, arguments: &[&str]) {
        self.arguments.extend(arguments.iter().map(|argument| argument.to_string()));
    }

    /// Runs QEMU in this network namespace, where its TAP interfaces are.
    pub fn in_namespace(&mut self, namespace: &Namespace) {
        self.namespace = Some(namespace.name().to_string());
    }

    /// Builds the programs in advance; otherwise [`boot`](Machine::boot) does.
    pub fn prepare(&self) {
        programs();
    }

    /// Boots the machine, and waits for its shell (except for an [incoming](Machine::incoming) guest).
    pub fn boot(self) -> Guest {
        let folder = self.folder.path();
        let kernel = kernel(self.kernel);
        let initramfs = folder.join("initramfs");
        fs::write(&initramfs, initramfs::pack(&kernel, programs(), &self.programs))
            .expect("a file in the test's folder");
        let listen = |name: &str| UnixListener::bind(folder.join(name)).expect("a socket in the test's folder");
        let (shell, monitor) = (listen("shell"), listen("monitor"));
        let file = |name: &str| folder.join(name).display().to_string();

        // QEMU ends with the test, even if the test is killed.
        let mut words = ["setpriv", "--pdeathsig", "KILL", "--"].map(String::from).to_vec();
        if let Some(namespace) = &self.namespace {
            words.splice(0..0, ["ip", "netns", "exec", namespace].map(String::from));
        }
        let unpacked = unpacked(match self.qemu {
            Qemu::Newest => "qemu",
            Qemu::Distribution => "distribution-qemu",
            Qemu::Trixie => "trixie-qemu",
        });
        if self.ports.is_empty() {
            words.extend(qemu(&unpacked));
        } else {
            let script = folder.join("qemu");
            let line = qemu(&unpacked).join("' '");
            fs::write(&script, format!("#!/bin/sh\nexec '{line}' \"$@\"\n")).expect("a file in the test's folder");
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("a file of ours");
            words.extend([programs()[0].display().to_string(), "vm".to_string()]);
            words.extend(self.ports.iter().cloned());
            words.extend([format!("--qemu={}", script.display()), format!("--memory={MEMORY}")]);
            words.extend([format!("--processors={}", self.processors), "--no-kvm".to_string()]);
            words.extend(["--run", "--"].map(String::from));
        }
        let mut qemu = Command::new(&words[0]);
        qemu.args(&words[1..]).env("QEMU_MODULE_DIR", unpacked.join("usr/lib/x86_64-linux-gnu/qemu"));
        let image = image(&kernel);
        let mut append = vec![
            "console=ttyS0 quiet loglevel=5 panic=-1 oops=panic random.trust_cpu=on cryptomgr.notests".to_string(),
            // On a busy host, a virtual processor may not run for seconds. The kernel would report that as a stall.
            "rcupdate.rcu_cpu_stall_suppress=1".to_string(),
            // On a busy host, timer interrupts may be too late for the kernel's timer check, which then panics.
            "no_timer_check".to_string(),
            // These protections are useless here, and cost an emulated processor a third of its time.
            "mitigations=off apparmor=0 audit=0 init_on_alloc=0 nowatchdog rcupdate.rcu_expedited=1".to_string(),
        ];
        append.extend(self.kernel_arguments);
        if self.ports.is_empty() {
            // Shared memory, for devices that other processes serve.
            let memory = match self.memory {
                Memory::Memfd => "memory-backend-memfd",
                Memory::File => "memory-backend-file,mem-path=/dev/shm",
                Memory::Shm => "memory-backend-shm",
            };
            // Instructions can be counted only in one thread.
            let accelerator = if self.has_exact_time { "tcg,thread=single" } else { "tcg,thread=multi" };
            qemu.args(["-accel", accelerator, "-cpu", "max", "-M"])
                .args(["q35,kernel-irqchip=split,hpet=off,memory-backend=memory"])
                // With one slot to plug in more memory.
                .args(["-m", &format!("{MEMORY}M,slots=1,maxmem=1G"), "-object"])
                .arg(format!("{memory},id=memory,size={MEMORY}M,share=on"))
                .args(["-smp", &self.processors.to_string()]);
        }
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-serial", &format!("file:{}", file("console"))])
            .args(["-chardev", &format!("socket,id=shell,path={}", file("shell")), "-serial", "chardev:shell"])
            .args(["-chardev", &format!("socket,id=monitor,path={}", file("monitor"))])
            .args(["-mon", "chardev=monitor,mode=control"])
            .arg("-kernel")
            .arg(image)
            .arg("-initrd")
            .arg(&initramfs)
            .args(["-append", &append.join(" ")])
            .args(&self.arguments)
            .stdin(Stdio::null());
        let mut child = qemu.spawn().expect("QEMU is installed: guest/prepare does it");
        let [shell, monitor] = [shell, monitor].map(|listener| accept(&listener, &mut child));
        Guest::new(child, shell, monitor, self.folder, self.is_incoming)
    }
}

/// Accepts QEMU's connection. If QEMU fails to start, it prints the reason itself.
fn accept(listener: &UnixListener, qemu: &mut Child) -> UnixStream {
    listener.set_nonblocking(true).expect("a socket");
    let mut stream = None;
    until("QEMU to connect to its shell and monitor", || {
        if let Some(status) = qemu.try_wait().expect("a child of ours") {
            panic!("QEMU did not start ({status}): see its message above");
        }
        stream = listener.accept().ok();
        stream.is_some()
    });
    stream.expect("a connection").0
}

/// Returns the folder of an unpacked kernel.
fn kernel(kernel: Kernel) -> PathBuf {
    match kernel {
        Kernel::Default => unpacked("default"),
        Kernel::Newer => unpacked("newer"),
        Kernel::Iommufd => unpacked("iommufd"),
    }
}

/// Returns a folder that `guest/prepare` unpacked.
pub fn unpacked(name: &str) -> PathBuf {
    let folder = root().join("target/guest").join(name);
    assert!(folder.join("ready").exists(), "there is nothing in {}: run guest/prepare, or ./test", folder.display());
    folder
}

/// Returns the command line that runs an unpacked program of Debian 13 with Debian 13's libraries.
pub fn with_debian13_libraries(program: &Path) -> Vec<String> {
    with_libraries_of(&unpacked("qemu"), program)
}

/// Returns the command line that runs a program with all libraries, including the C library, from a folder.
fn with_libraries_of(folder: &Path, program: &Path) -> Vec<String> {
    // Before Debian 13, packages had files outside of /usr.
    let folders = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|part| folder.join(part));
    let loader = folders.iter().map(|folder| folder.join("ld-linux-x86-64.so.2")).find(|file| file.exists());
    let loader = loader.expect("the loader of programs").display().to_string();
    let libraries = folders.each_ref().map(|folder| folder.display().to_string()).join(":");
    vec![loader, "--library-path".to_string(), libraries, program.display().to_string()]
}

/// Returns the command line of an unpacked QEMU.
fn qemu(folder: &Path) -> Vec<String> {
    let path = |part: &str| folder.join(part).display().to_string();
    let mut words = with_libraries_of(folder, &folder.join("usr/bin/qemu-system-x86_64"));
    for data in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
        words.extend(["-L".to_string(), path(data)]);
    }
    words
}

/// Returns the kernel's image in its folder: the uncompressed one, if it exists.
fn image(kernel: &Path) -> PathBuf {
    let files = fs::read_dir(kernel.join("boot")).expect("an unpacked kernel").flatten().map(|entry| entry.path());
    let mut images: Vec<PathBuf> = files.filter(|path| path.to_string_lossy().contains("/vmlinu")).collect();
    // "vmlinux" sorts before "vmlinuz".
    images.sort();
    images.into_iter().next().expect("a kernel image")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// Returns the command `linerate` for the host side of the cards. Its process ends with the test, even if the test is
/// killed.
pub fn linerate() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(&programs()[0]);
    command
}

/// Returns the programs under test, without symbols. They are built once, as in README's first command.
fn programs() -> &'static [PathBuf] {
    static PROGRAMS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        // All packages together: a single package would have other features, and cause a second build.
        let names = ["stray", "control", "stored", "received", "described"];
        let examples: Vec<&str> = names.iter().flat_map(|name| ["--example", name]).collect();
        for targets in [&["--bins"][..], &examples] {
            let mut build = Command::new(env!("CARGO"));
            build.current_dir(root()).args(["build", "--quiet", "--release", "--workspace"]).args(targets);
            let built = build.env("CARGO_TARGET_DIR", root().join("target")).status();
            assert!(built.is_ok_and(|status| status.success()), "the programs cannot be built for the guest");
        }
        let folder = root().join("target/guest/programs");
        fs::create_dir_all(&folder).expect("a folder");
        let strip = |program: &str| {
            let built = root().join("target/release").join(program);
            let stripped = folder.join(built.file_name().expect("a file"));
            let status = Command::new("strip").arg("-o").arg(&stripped).arg(&built).status();
            assert!(status.is_ok_and(|status| status.success()), "{program} cannot be stripped: gcc's binutils do it");
            stripped
        };
        let examples = names.iter().map(|name| strip(&format!("examples/{name}")));
        std::iter::once(strip("linerate")).chain(examples).collect()
    })
}
