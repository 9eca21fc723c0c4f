//! Test tools: the shared object, the C programs, and a server for their ports.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use linerate::share::Server;
#[allow(unused_imports)] // each test uses only a part
pub use linerate_testkit::{Deadline, Namespace, OutputTimeout, Process, Timely, end_of, until};
use linerate_testkit::{built, compiled};

/// Returns the path of the shared object, as built with this test.
fn object() -> PathBuf {
    built("liblinerate_netmap.so")
}

/// Compiles a C program of the tests with this crate's header.
fn compile(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let include = here.join("include").display().to_string();
    compiled(here.join(format!("tests/{name}.c")), &["-I", &include])
}

/// Returns the path of the program that sends and receives.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("program"))
}

/// Returns the path of the program that calls the C library's functions.
fn calls() -> &'static Path {
    static CALLS: OnceLock<PathBuf> = OnceLock::new();
    CALLS.get_or_init(|| compile("calls"))
}

/// A folder of sockets for one test, and its server, if any. Tests of a process share its switches, so each test uses
/// unique names.
pub struct World {
    pub folder: tempfile::TempDir,
    pub server: Option<Server>,
}

impl World {
    pub fn new() -> World {
        World { folder: tempfile::tempdir().unwrap(), server: None }
    }

    /// Makes a folder that this process serves, with a socket of mode `mode`.
    pub fn served(mode: u32) -> World {
        let mut world = World::new();
        let mut server = linerate::server();
        server.listen(&world.folder.path().join("any"), None, mode, None).unwrap();
        world.server = Some(server);
        world
    }

    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(program());
        command.args(words.split(' ')).env("LD_PRELOAD", object()).env("LINERATE_PORTS", self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Returns the process ID of the server that a program has started.
    pub fn server_process(&self) -> u32 {
        let mut socket = None;
        for entry in std::fs::read_dir(self.folder.path()).unwrap().flatten() {
            socket = socket.or(Some(entry.path()).filter(|path| path.to_string_lossy().contains("/any.")));
        }
        let address = rustix::net::SocketAddrUnix::new(socket.expect("a server's socket")).unwrap();
        let ours =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None).unwrap();
        rustix::net::connect(&ours, &address).unwrap();
        rustix::net::sockopt::socket_peercred(&ours).unwrap().pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Returns a command for a case of `calls.c`.
    pub fn calls(&self, words: &str) -> Command {
        let mut command = Command::new(calls());
        command.args(words.split(' ')).env("LD_PRELOAD", object()).env("LINERATE_PORTS", self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// As [`command`](World::command), as an unprivileged user, who has no access to the build's folders.
    pub fn command_of_nobody(&self, words: &str) -> Command {
        let copy = |file: &Path| {
            let copy = self.folder.path().join(".copies").join(file.file_name().unwrap());
            std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
            std::fs::copy(file, &copy).unwrap();
            copy
        };
        let mut command = Command::new(copy(program()));
        command.args(words.split(' ')).env("LD_PRELOAD", copy(&object())).env("LINERATE_PORTS", self.folder.path());
        command.current_dir("/").uid(65_534).gid(65_534);
        std::fs::set_permissions(self.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the program and waits until its ports are open.
    pub fn start(&self, words: &str) -> Process {
        let mut process = Process::start(&mut self.command(words));
        assert_eq!(process.line(), "ready", "{words}: {}", process.end().2);
        process
    }

    /// Runs the program, which must fail; returns its message.
    pub fn refused(&self, words: &str) -> String {
        let mut process = Process::start(&mut self.command(words));
        assert_eq!(process.line(), "", "{words}");
        let (status, _, errors) = process.end();
        assert_eq!(status.code(), Some(1), "{words}: {errors}");
        errors
    }

    /// As [`start`](World::start), but retries while a killed process still has the port.
    pub fn start_soon(&self, words: &str) -> Process {
        let deadline = Deadline::begin();
        loop {
            deadline.check(|| format!("the port of a killed process: {words}"));
            let mut process = Process::start(&mut self.command(words));
            if process.line() == "ready" {
                return process;
            }
            let errors = process.end().2;
            assert!(errors.contains("open already") || errors.contains("taken already"), "{errors}");
        }
    }
}
