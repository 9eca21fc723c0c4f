//! `linerate serve` with other users, and with programs that start, end and stop.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kit::{Deadline, OutputTimeout, Process, expect, linerate, text, until, with_mounts};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};

mod kit;

/// An unprivileged user, and another one.
const NOBODY: u32 = 65_534;
const STRANGER: u32 = 65_533;

/// A folder for sockets that all users may access, with a copy of the command that all may run.
struct Place {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("linerate");
        // Copied by a separate process: a file that this process writes may still be open in another test's child
        // when it is run.
        expect(0, Command::new("cp").arg(env!("CARGO_BIN_EXE_linerate")).arg(&program));
        std::fs::create_dir(folder.path().join("ports")).unwrap();
        for path in [folder.path(), &folder.path().join("ports")] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        Place { folder, program }
    }

    fn ports(&self) -> PathBuf {
        self.folder.path().join("ports")
    }

    fn command(&self, user: u32, words: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words.split(' ')).env("LINERATE_PORTS", self.ports()).current_dir("/").uid(user).gid(user);
        command
    }

    fn started(&self, user: u32, words: &str, sign: &str) -> Process {
        let mut process = Process::start(&mut self.command(user, words));
        process.await_output(sign);
        process
    }

    /// Starts a command with the first end of a pipe.
    fn waiting(&self, user: u32, words: &str) -> Process {
        let mut process = Process::start(&mut self.command(user, words));
        process.await_error("is the pipe's other end open?");
        process
    }

    fn fails(&self, user: u32, words: &str) -> String {
        text(&expect(1, &mut self.command(user, words)).stderr)
    }
}

fn connected(path: &Path) -> Option<std::os::fd::OwnedFd> {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).ok().map(|()| socket)
}

#[test]
fn a_server_of_another_user_is_not_used() {
    let place = Place::new();
    std::os::unix::fs::chown(place.ports(), Some(NOBODY), None).unwrap();
    let _server = place.started(NOBODY, "serve --mode 0666", "ports/any");
    for words in ["gen vale0:a --count 1", "switch list"] {
        let said = place.fails(STRANGER, words);
        assert!(said.contains("of user 65534, neither root nor you"), "{words}: {said}");
    }
    // The server's own user may use it.
    expect(0, &mut place.command(NOBODY, "gen vale0:a --count 10 --seconds 30 --pages ordinary"));
    std::fs::set_permissions(place.ports(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let said = place.fails(STRANGER, "switch list");
    assert!(said.contains("it cannot be read: Permission denied") && said.contains("LINERATE_PORTS"), "{said}");
    std::fs::set_permissions(place.ports(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // No other user can serve in its place.
    let said = place.fails(STRANGER, "serve");
    assert!(said.contains("belongs to user 65534, neither to root nor to you"), "{said}");
}

/// A socket to which this user may not connect may have a server. So it is not replaced as an old one, even in a folder
/// where this user could.
#[test]
fn a_server_of_another_user_keeps_its_socket() {
    let place = Place::new();
    std::fs::set_permissions(place.ports(), std::fs::Permissions::from_mode(0o777)).unwrap();
    for kind in ["vhost", "memif"] {
        let path = place.ports().join(kind);
        let role = if kind == "memif" { "?role=server" } else { "" };
        let name = format!("{kind}:{}{role}", path.display());
        let server = Process::start(linerate(&["sink", &name, "--seconds", "100", "--json"]).current_dir("/"));
        until("it listens", || path.exists());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let said = place.fails(STRANGER, &format!("gen {name} --count 1 --pages ordinary"));
        assert!(
            said.contains("a socket that this user may not access exists there") && said.contains("another path"),
            "{said}"
        );
        assert!(path.exists(), "{said}");
        // The server still ends normally.
        assert_eq!(server.interrupt().0, Some(0));
    }
}

/// A server that ends removes only its own socket, not that of the next server at the same path.
#[test]
fn a_server_that_ends_leaves_another_s_socket() {
    let place = Place::new();
    for (words, sign) in
        [("sink vhost:PATH", ""), ("sink memif:PATH?role=server", ""), ("sim --socket PATH", "-device")]
    {
        let path = place.ports().join("socket");
        let words = words.replace("PATH", &path.display().to_string());
        let words: Vec<&str> = words.split(' ').collect();
        let start = || {
            let mut process = Process::start(linerate(&words).current_dir("/"));
            match sign {
                "" => until("it listens", || path.exists()),
                sign => drop(process.await_error(sign)),
            }
            process
        };
        let first = start();
        std::fs::remove_file(&path).unwrap();
        let second = start();
        first.interrupt();
        assert!(path.exists(), "{words:?}");
        second.interrupt();
        assert!(!path.exists(), "{words:?}");
    }
}

/// In such a folder another user could replace the socket of a trusted server.
#[test]
fn a_folder_that_others_can_write_to_is_not_used() {
    let place = Place::new();
    let _server = place.started(0, "serve --mode 0666", "ports/any");
    std::fs::set_permissions(place.ports(), std::fs::Permissions::from_mode(0o777)).unwrap();
    for words in ["gen vale0:a --count 1 --pages ordinary", "switch list", "serve vale1"] {
        let said = place.fails(0, words);
        let mend = format!("chmod go-w {}", place.ports().display());
        assert!(said.contains("others may write to") && said.contains(&mend), "{words}: {said}");
    }
}

#[test]
fn ends_of_a_pipe_are_of_one_user() {
    let place = Place::new();
    for (joins, code) in [("", 1), (" --join-users", 0)] {
        let server = place.started(0, &format!("serve --mode 0666{joins}"), "ports/any");
        let sink = place.waiting(NOBODY, "sink own{1 --seconds 60 --json --pages ordinary");
        let generator = "gen own}1 --count 10 --seconds 30 --pages ordinary";
        let said = text(&expect(code, &mut place.command(STRANGER, generator)).stderr);
        assert_eq!(said.contains("belongs to user 65534, and both ends share memory"), code == 1, "{said}");
        expect(0, &mut place.command(NOBODY, generator));
        sink.interrupt();
        server.interrupt();
    }
}

#[test]
fn other_users_cannot_monitor_a_port() {
    let place = Place::new();
    let _server = place.started(0, "serve --mode 0666", "ports/any");
    let sinks = [
        place.waiting(NOBODY, "sink own{1 --seconds 60 --json --pages ordinary"),
        place.started(NOBODY, "sink vale0:a --seconds 60 --json --pages ordinary", "ports"),
    ];
    for port in ["own{1", "own}1", "vale0:a"] {
        let said = place.fails(STRANGER, &format!("sink {port}+rt --count 1 --seconds 5 --pages ordinary"));
        assert!(said.contains("a monitor sees all packets") && said.contains("--join-users"), "{said}");
    }
    // The port's own user and root may monitor it.
    for user in [NOBODY, 0] {
        expect(0, &mut place.command(user, "sink vale0:a+rt --seconds 1 --pages ordinary"));
    }
    sinks.into_iter().for_each(|sink| drop(sink.interrupt()));
}

#[test]
fn interfaces_are_for_users_admitted_by_their_sockets() {
    let place = Place::new();
    let _server = place.started(0, "serve --mode 0666", "ports/any");
    let said = place.fails(NOBODY, "gen netmap:lo --count 1 --pages ordinary");
    assert!(said.contains("is for root and the server's own user") && said.contains("linerate serve lo"), "{said}");
}

#[test]
fn a_server_without_descriptors_reports_it_and_continues() {
    // Limits for eight connections of a user, and for none, as the server itself needs about ten descriptors.
    for limit in [256, 10] {
        let place = Place::new();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" serve")]);
        let mut server = Process::start(command.arg(&place.program).env("LINERATE_PORTS", place.ports()));
        server.await_output("ports/any");
        let list = || linerate(&["switch", "list"]).env("LINERATE_PORTS", place.ports()).output_in_time().unwrap();
        let eventually = |wanted: bool, held: &mut Vec<_>| {
            let deadline = Deadline::begin();
            loop {
                let output = list();
                if output.status.success() == wanted {
                    return text(&output.stderr);
                }
                deadline.check(|| format!("a list (or none: {wanted}): {output:?}"));
                if !wanted {
                    // Silent connections are closed after two seconds, and on a busy machine the list may take as long:
                    // open new ones.
                    held.clear();
                    held.extend((0..200).map_while(|_| connected(&place.ports().join("any"))));
                }
                std::thread::yield_now();
            }
        };
        for _ in 0..3 {
            eventually(true, &mut Vec::new());
            let mut many = Vec::new();
            let said = eventually(false, &mut many);
            assert!(said.contains("no room for more connections") || said.contains("no descriptor left"), "{said}");
            drop(many);
        }
        eventually(true, &mut Vec::new());
    }
}

#[test]
fn ends_of_pipes_that_come_and_go_leave_no_descriptor() {
    let place = Place::new();
    let server = place.started(0, "serve", "ports/any");
    let _sink = place.waiting(0, "sink p{1 --seconds 60 --json");
    let open_and_close = || expect(0, &mut place.command(0, "gen p}1 --count 1 --seconds 30"));
    open_and_close();
    let before = server.proc_count("fd");
    (0..20).for_each(|_| drop(open_and_close()));
    let deadline = Deadline::begin();
    while server.proc_count("fd") > before {
        deadline.check(|| format!("the {before} descriptors of before, there are {}", server.proc_count("fd")));
        std::thread::yield_now();
    }
}

/// After a back end has ended, another user's server at its path does not get the port's packets, but one of the first
/// user does.
#[test]
fn another_user_does_not_take_a_back_ends_place() {
    let place = Place::new();
    let folder = place.folder.path().join("open");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let socket = folder.join("s").display().to_string();
    let served = |user: u32, words: &str| {
        let back = Process::start(&mut place.command(user, &format!("sink vhost:{socket} {words} --json")));
        until("its socket", || Path::new(&socket).exists());
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
        back
    };
    let first = served(NOBODY, "--seconds 60");
    let name = format!("gen virtio-user:{socket} --rate 10k --seconds 120 --json");
    let mut front = Process::start(&mut place.command(STRANGER, &name));
    front.await_output("ports");
    first.interrupt();
    front.await_error("the link is down");
    // A third user is rejected: only the front end's own user, root and the first user are admitted.
    let (code, said) = served(1234, "--seconds 1").ended();
    assert_eq!((code, kit::summary(said.as_bytes())["packets"].as_u64()), (Some(0), Some(0)), "{said}");
    let (code, said) = served(NOBODY, "--count 1000 --seconds 60").ended();
    assert_eq!((code, kit::summary(said.as_bytes())["packets"].as_u64()), (Some(0), Some(1000)), "{said}");
}

/// The layout of containers: each process is another user, in its own mount namespace, with its own path to the folder
/// of the sockets. The group of the folder, which the socket inherits, decides which clients may connect.
#[test]
fn users_in_mount_namespaces_of_their_own_share_a_socket() {
    const GROUP: u32 = 64_100;
    let place = Place::new();
    let path = |name: &str| place.folder.path().join(name);
    for (name, mode) in [("shared", 0o2770), ("host", 0o755), ("pod", 0o755)] {
        std::fs::create_dir(path(name)).unwrap();
        std::os::unix::fs::chown(path(name), None, Some(GROUP)).unwrap();
        std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let container = |user: u32, group: u32, folder: &str, words: &str| {
        let script = "umask 007; mount --bind $1 $2 && shift 2 && cd / && exec setpriv \"$@\"";
        let mut command = with_mounts(script);
        command.args([path("shared"), path(folder)]);
        command.args([format!("--reuid={user}"), format!("--regid={user}"), format!("--groups={group}")]);
        command.arg(&place.program).args(words.split(' ')).args(["--pages", "ordinary", "--json"]);
        command
    };
    for (socket, server, client) in [
        ("0958c8871b32-net1", "vhost:@", "virtio-user:@"),
        ("memif-0958c8871b32-net1.sock", "memif:@?role=server", "memif:@"),
    ] {
        let server = server.replace('@', &path("host").join(socket).display().to_string());
        let client = client.replace('@', &path("pod").join(socket).display().to_string());
        let sink = format!("sink {server} --count 1000 --seconds 60");
        let sink = Process::start(&mut container(NOBODY, GROUP, "host", &sink));
        until(format!("{server} listens"), || path("shared").join(socket).exists());
        let generate = format!("gen {client} --seconds 60");
        let refused = text(&expect(1, &mut container(STRANGER, STRANGER, "pod", &generate)).stderr);
        assert!(refused.contains("Permission denied") && refused.contains("owner for access"), "{refused}");
        let generator = Process::start(&mut container(STRANGER, GROUP, "pod", &generate));
        let (code, output) = sink.ended();
        assert_eq!(code, Some(0), "{output}");
        let summary = kit::summary(output.as_bytes());
        let counts = ["packets", "lost", "corrupted", "reordered"].map(|count| summary[count].as_u64());
        assert_eq!(counts, [Some(1000), Some(0), Some(0), Some(0)], "{server}: {summary}");
        generator.interrupt();
        assert!(!path("pod").join(socket).exists(), "the mount is the container's own");
    }
}

/// A front end with repeated invalid requests does not flood the log, and does not hide messages about another port.
#[test]
fn warnings_of_one_kind_are_bounded() {
    let place = Place::new();
    let [socket, other, log] = ["vhost", "other", "log"].map(|name| place.folder.path().join(name));
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" fwd \"vhost:$1\" \"vhost:$2\" --seconds 60 2>\"$3\""]);
    let forwarder = Process::start(command.arg(&place.program).args([&socket, &other, &log]));
    for (socket, times) in [(&socket, 30), (&other, 1)] {
        until("the port listens", || UnixStream::connect(socket).is_ok());
        for _ in 0..times {
            let mut front = UnixStream::connect(socket).unwrap();
            // Request 99, version 1, without a payload.
            front.write_all(&[99, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
            assert_eq!(front.read(&mut [0]).unwrap(), 0, "the connection ends");
        }
    }
    forwarder.interrupt();
    let said = std::fs::read_to_string(&log).unwrap();
    let lines = ["vhost\"}: request 99", "more messages like the last one", "other\"}: request 99"];
    assert_eq!(lines.map(|line| said.matches(line).count()), [20, 1, 1], "{said}");
}
