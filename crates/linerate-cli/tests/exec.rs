//! `linerate exec` and `linerate link … -- COMMAND`, as a user without privileges.

mod kit;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use kit::{Debian, Folder, Namespace, OutputTimeout, Process, end_of, expect, text, until};

use nix::sys::signal::Signal;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// The number of a user without privileges, in Debian.
const USER: u32 = 65534;

/// A user without privileges who has a copy of the command, as the test's folder may be closed to others.
struct Unprivileged {
    folder: Folder,
}

impl Unprivileged {
    fn new(test: &str) -> Unprivileged {
        let folder = Folder::new(&format!("exec-{test}"));
        std::fs::copy(env!("CARGO_BIN_EXE_linerate"), folder.path("linerate")).unwrap();
        std::fs::set_permissions(folder.path("linerate"), PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(&folder.0, Some(USER), None).unwrap();
        Unprivileged { folder }
    }

    fn path(&self) -> String {
        self.folder.path("linerate")
    }

    /// Returns a command of the user.
    fn command<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("env");
        // The test may have been started with ignored signals, as by nohup(1).
        command.args(["--default-signal", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]).args(words);
        // Root's PATH may have folders that the user cannot read.
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LINERATE_PORTS", self.folder.path("ports"));
        command
    }

    /// Returns the command that runs words in a namespace with one interface.
    fn exec(&self, port: &str, options: &str, words: &[&str]) -> Command {
        let path = self.path();
        let before = [&path, "exec", "--port", port].into_iter().chain(options.split_whitespace()).chain(["--"]);
        self.command(before.chain(words.iter().copied()))
    }

    /// Starts a server of ports in the user's folder.
    fn serve(&self) -> Process {
        let mut server = Process::start(&mut self.command([&*self.path(), "serve"]));
        server.await_output("any");
        server
    }
}

/// Returns the processes whose command lines contain a text.
fn processes_with(text: &str) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(text.len()).any(|bytes| bytes == text.as_bytes())
    };
    numbers.filter(has).collect()
}

/// A command behaves as it does under env(1): exit codes, signals, streams, descriptors, arguments and groups.
#[test]
fn a_command_behaves_as_under_env() {
    let user = Unprivileged::new("env");
    let file = user.folder.path("3");
    for (words, input) in [
        (&["true"][..], ""),
        (&["sh", "-c", "exit 7"], ""),
        (&["sh", "-c", "kill -TERM $$"], ""),
        (&["sh", "-c", "kill -KILL $$"], ""),
        (&["sh", "-c", "kill -SEGV $$"], ""),
        (&["nosuch"], ""),
        (&["/etc/passwd"], ""),
        (&["cat"], "in\nout"),
        (&["sh", "-c", "echo out; echo err >&2; exit 3"], ""),
        (&["sh", "-c", "id -u; id -g; id -G; pwd; umask; echo $HOME $LINERATE_PORTS"], ""),
        (&["printf", "<%s>", "", "a b", "--", "\u{e4}", "-x"], ""),
        (&["sh", "-c", "echo three >&3"], ""),
        (&["yes"], "closed"),
    ] {
        let run = |mut command: Command| {
            let _ = std::fs::remove_file(&file);
            let line = format!("exec \"$@\" 3>'{file}'{}", if input == "closed" { " | head -1" } else { "" });
            let shell = ["bash", "-c", &line, "bash"].map(String::from);
            let words: Vec<String> = command.get_args().map(|word| word.to_str().unwrap().to_string()).collect();
            let mut whole = Command::new(command.get_program());
            let envs = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
            whole.envs(envs).args(&words[..5]).args(shell).args(&words[5..]);
            command = whole;
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = child.spawn().unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            let output = kit::output_of(child);
            let three = std::fs::read_to_string(&file).unwrap_or_default();
            (output.status.code(), output.status.signal(), text(&output.stdout), text(&output.stderr), three)
        };
        let (code, signal, out, err, three) = run(user.exec("null:", "", words));
        let (wanted_code, wanted_signal, wanted_out, wanted_err, wanted_three) =
            run(user.command(["env"].iter().chain(words)));
        assert_eq!(
            (code, signal, &out, &three),
            (wanted_code, wanted_signal, &wanted_out, &wanted_three),
            "{words:?}: {err}"
        );
        // The shell's and env's messages have their names.
        assert_eq!(err.is_empty(), wanted_err.is_empty(), "{words:?}: {err}; {wanted_err}");
    }
    // Closed streams, blocked and ignored signals; a script without "#!".
    let script = user.folder.path("script");
    std::fs::write(&script, "echo ran\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    // Without signals 32 and above: posix_spawn(3) of the C library ignores two that it uses itself.
    let state = "ls -l /proc/self/fd/0 /proc/self/fd/1 2>/dev/null | wc -l >&3; \
                 sed -nE 's/^(Sig(Blk|Ign):).*(.{8})$/\\1\\3/p' /proc/self/status >&3";
    const BLOCK: &str = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1]); \
                         [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE)]; \
                         os.execvp(sys.argv[1], sys.argv[1:])";
    let through = |line: &str, command: &Command| {
        let _ = std::fs::remove_file(&file);
        let words = command.get_args().map(|word| word.to_str().unwrap());
        let mut whole = user.command(["bash", "-c", &format!("exec 3>'{file}'; exec {line}"), "bash"]);
        let output = whole.args(words.skip(5)).output_in_time().unwrap();
        (output.status.code(), text(&output.stdout), std::fs::read_to_string(&file).unwrap_or_default())
    };
    for (line, words) in [
        ("\"$@\"", &[&*script][..]),
        ("\"$@\" <&- >&-", &["sh", "-c", state]),
        ("\"$@\" >&-", &["sh", "-c", "echo lost"]),
        (&format!("python3 -c '{BLOCK}' \"$@\""), &["sh", "-c", state]),
        (&format!("python3 -c '{BLOCK}' \"$@\""), &["sh", "-c", "exit 5"]),
    ] {
        let under = through(line, &user.command(["env"].iter().chain(words)));
        assert_eq!(through(line, &user.exec("null:", "", words)), under, "{line} {words:?}");
    }
    let (code, said) = (125, text(&expect(125, &mut user.exec("sim:0?nosuch=1", "", &["true"])).stderr));
    assert!(said.starts_with("linerate exec: sim:0: ") || said.contains("nosuch"), "{code}: {said}");
}

/// Signals that linerate receives reach the command, which may handle them.
#[test]
fn signals_reach_the_command() {
    let user = Unprivileged::new("signals");
    let script = "trap 'echo got; exit 3' USR1 TERM INT HUP; echo ready; while :; do sleep 0.1; done";
    for number in [Signal::SIGUSR1, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut process = Process::start(&mut user.exec("null:", "", &["sh", "-c", script]));
        process.await_output("ready");
        signal(process.id(), number);
        let (status, said, errors) = process.end();
        assert_eq!((status.code(), said.as_str()), (Some(3), "got\n"), "{number}: {errors}");
    }
    // The command gets a signal, too, and ends before linerate passes it on: timeout(1) signals a process group.
    let marker = format!("{}8888", 70_000 + std::process::id() % 10_000);
    let script = format!("echo ready; exec sleep {marker}");
    let mut process = Process::start(&mut user.exec("null:", "", &["sh", "-c", &script]));
    process.await_output("ready");
    process.pause(true);
    let is_sleep =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep");
    let mut sleep = None;
    until("the command", || {
        sleep = processes_with(&marker).into_iter().find(is_sleep);
        sleep.is_some()
    });
    signal(sleep.unwrap(), Signal::SIGINT);
    until("the end of the namespaces", || processes_with(&marker) == [process.id()]);
    signal(process.id(), Signal::SIGINT);
    process.pause(false);
    let (status, _, errors) = process.end();
    assert_eq!(status.signal(), Some(libc::SIGINT), "{status} {errors}");
}

/// Nothing remains when linerate, its process in the namespaces, or the command is killed, or the command ends and
/// leaves processes.
#[test]
fn nothing_remains() {
    let user = Unprivileged::new("remains");
    let interfaces = || text(&expect(0, Command::new("ip").args(["-o", "link"])).stdout);
    let before = interfaces();
    let times = std::env::var("LINERATE_KILLS").map_or(12, |count| count.parse().unwrap());
    for n in 0..times {
        // Each process has the marker: a number of seconds.
        let marker = format!("{}{n:04}", 70_000 + std::process::id() % 10_000);
        let script = format!(
            "setsid sleep {marker} & sh -c 'sleep {marker} & sleep {marker}; :' & echo ready; sleep {marker}; :"
        );
        let mut process = Process::start(&mut user.exec("null:", "--address 10.9.0.1/24", &["sh", "-c", &script]));
        process.await_output("ready");
        // linerate, two processes in the namespaces, three shells and four sleeps; setsid may not have run yet.
        until("the processes", || processes_with(&marker).len() >= 9);
        let all = processes_with(&marker);
        let name = |pid: &&u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let shell = *all.iter().find(|pid| name(pid).trim() == "sh").unwrap();
        let [outer, inner] = [0, 1]
            .map(|n| all.iter().filter(|pid| name(pid).contains("linerate") || name(pid).trim() == "exe").nth(n + 1));
        let killed = match n % 4 {
            0 => process.id(),
            1 => shell,
            2 => *inner.or(outer).unwrap(),
            _ => *outer.unwrap(),
        };
        if n % 4 == 3 {
            // The middle process may end: the command does not, until it is told to.
            kill(killed);
            kill(process.id());
        } else {
            kill(killed);
        }
        until(format_args!("the end of {:?} after {killed} was killed", processes_with(&marker)), || {
            processes_with(&marker).is_empty()
        });
        let status = end_of(&mut process.child);
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{n}: {status}");
    }
    // Ends normally, and leaves processes.
    let marker = format!("{}9999", 70_000 + std::process::id() % 10_000);
    let script = format!("setsid sleep {marker} & exit 4");
    let output = user.exec("null:", "", &["sh", "-c", &script]).output_in_time().unwrap();
    assert_eq!((output.status.code(), processes_with(&marker)), (Some(4), Vec::new()));
    assert_eq!(interfaces(), before);
}

fn kill(pid: u32) {
    signal(pid, Signal::SIGKILL);
}

fn signal(pid: u32, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), signal).unwrap();
}

/// On a terminal: the command stops and continues with linerate, a shell has job control, and a script can read the
/// terminal afterwards.
#[test]
fn a_command_has_the_terminal() {
    let user = Unprivileged::new("terminal");
    let exec = format!("{} exec --port null: --", user.path());
    let mut script = user.command(["script", "-qec", "bash --norc -i", "/dev/null"]);
    script.env("PS1", "$ ").env("TERM", "dumb");
    let mut terminal = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keys, mut output) = (terminal.stdin.take().unwrap(), kit::Timely(terminal.stdout.take().unwrap()));
    let mut seen = String::new();
    let mut until = |what: &str, seen: &mut String| {
        let mut bytes = [0; 1024];
        while !seen.contains(what) {
            let count = output.read(&mut bytes).unwrap_or_else(|error| panic!("'{what}': {error}: {seen}"));
            assert!(count > 0, "'{what}': {seen}");
            *seen += &String::from_utf8_lossy(&bytes[..count]);
        }
        let end = seen.find(what).unwrap() + what.len();
        println!("{:?}", &seen[..end]);
        seen.drain(..end);
    };
    // The echo of a line does not contain its result.
    for (line, results) in [
        (
            format!("{exec} sh -c 'tty -s && echo is-$((1+1))-tty; stty size >/dev/null && echo has-$((1+1))-size'\n"),
            &["is-2-tty", "has-2-size"][..],
        ),
        (format!("{exec} sh -c 'echo go-$((1+1)); exec cat'\n"), &["go-2"]),
        ("\u{1a}".to_string(), &["Stopped"]),
        ("echo shell-$((1+1)); fg\n".to_string(), &["shell-2", "exec cat"]),
        ("back\n".to_string(), &["back\r\nback"]),
        ("\u{3}".to_string(), &["$ "]),
        ("echo code-$?\n".to_string(), &["code-130"]),
        (format!("{exec} bash --norc -i\n"), &["$ "]),
        ("sh -c 'echo sleeps-$((1+1)); exec sleep 1000'\n".to_string(), &["sleeps-2"]),
        ("\u{1a}".to_string(), &["Stopped"]),
        // If the job has not ended yet, the shell exits only when it is told again.
        ("jobs; kill %1; exit 5; exit 5\n".to_string(), &["sleep 1000"]),
        ("echo code-$?; read -p 'name-'$((1+1)) name\n".to_string(), &["code-5", "name-2"]),
        ("me\n".to_string(), &["$ "]),
        ("echo read-$name\n".to_string(), &["read-me"]),
    ] {
        keys.write_all(line.as_bytes()).unwrap();
        for result in results {
            until(result, &mut seen);
        }
    }
    keys.write_all(b"exit\n").unwrap();
    drop(keys);
    let mut rest = String::new();
    let _ = output.read_to_string(&mut rest);
    end_of(&mut terminal);
}

/// Two commands exchange data over each kind of port, and over a link around it.
#[test]
fn data_crosses_each_kind_of_port() {
    let user = Unprivileged::new("data");
    let _server = user.serve();
    let [socket, other] = ["memif", "vhost"].map(|name| user.folder.path(name));
    let models = ["sim:0?wire=vale1:a", "sim:0?wire=vale1:b"].map(String::from);
    for [a, b] in [
        ["vale0:a".to_string(), "vale0:b".to_string()],
        [format!("memif:{socket}?role=server"), format!("memif:{socket}")],
        [format!("vhost:{other}"), format!("virtio-user:{other}")],
        models,
        ["p{1".to_string(), "p}1".to_string()],
    ] {
        for link in [false, true] {
            let around = |port: &str| match link {
                true => {
                    format!("link:{port}{}delay=1ms&rate=500Mbit&queue=1MB", if port.contains('?') { '&' } else { '?' })
                }
                false => port.to_string(),
            };
            let words = |role| kit::exchange(role, "10.8.0.1");
            let start = |port: &str, address: &str, role| {
                let words = words(role);
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                Process::start(&mut user.exec(&around(port), &format!("--address {address}/24"), &words))
            };
            let mut server = start(&a, "10.8.0.1", "server");
            server.await_output("listening");
            let client = start(&b, "10.8.0.2", "client");
            let [(status, sums, errors), (other, others, more)] = [client.end(), server.end()];
            assert!(status.success() && other.success(), "{a} {b}: {errors}{more}");
            assert!(sums == others && sums.lines().count() == 2, "{a} {b}: {sums}{others}");
        }
    }
}

/// Starts servers in the working directory, prepares what they serve, and waits until all listen at 10.8.0.1.
const SERVERS: &str = r#"
set -e
head -c 300000 /dev/urandom >file
mkdir -p temporary deb/DEBIAN apt .ssh repository
cat >nginx.conf <<END
daemon off; pid nginx.pid; events {}
http {
  access_log off;
  client_body_temp_path temporary; proxy_temp_path temporary; fastcgi_temp_path temporary;
  uwsgi_temp_path temporary; scgi_temp_path temporary;
  server { listen 10.8.0.1:80; root $PWD; }
}
END
printf '%s\n' 'Package: a-package' 'Version: 1' 'Architecture: all' 'Maintainer: Test <test@localhost>' \
  'Description: a package' >deb/DEBIAN/control
dpkg-deb --build deb apt/a.deb >/dev/null
(cat deb/DEBIAN/control; echo 'Filename: ./a.deb'; stat -c 'Size: %s' apt/a.deb
 echo "SHA256: $(sha256sum <apt/a.deb | cut -d ' ' -f 1)") >apt/Packages
rm -f key host-key
ssh-keygen -q -t ed25519 -N '' -f key
cp key.pub .ssh/authorized_keys
dropbearkey -t ed25519 -f host-key >/dev/null 2>&1
git init -q repository
cp file repository/
git -C repository add file
git -C repository -c user.name=Test -c user.email=test@localhost commit -q -m 'Add a file'

$NGINX -e stderr -p . -c "$PWD/nginx.conf" &
python3 -m http.server 8000 --bind 10.8.0.1 >/dev/null 2>&1 &
./busybox httpd -f -p 10.8.0.1:8001 -h . &
iperf3 -s -B 10.8.0.1 >/dev/null &
dropbear -F -E -s -r host-key -p 10.8.0.1:22 -P dropbear.pid &
git daemon --export-all --base-path=. --listen=10.8.0.1 &
for port in 80 8000 8001 5201 22 9418; do
  until grep -q " 0100080A:$(printf %04X $port) 00000000:0000 0A" /proc/net/tcp; do sleep 0.05; done
  echo "listens at $port"
done
wait
"#;

/// Uses these servers, and prints the name of each program that works.
const CLIENTS: &str = r#"
curl -sf -m 60 http://10.8.0.1/file | cmp - file && echo nginx
curl -sf -m 60 http://10.8.0.1:8000/file | cmp - file && echo http.server
./busybox wget -q -O - http://10.8.0.1:8001/file | cmp - file && echo static
iperf3 -c 10.8.0.1 -n 4M >/dev/null && echo iperf3
ssh -F none -i key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR \
  -l "$(id -un)" 10.8.0.1 'cat file' | cmp - file && echo ssh
rm -rf clone && git clone -q git://10.8.0.1/repository clone && cmp clone/file file && echo git
mkdir -p lists/lists/partial cache/archives/partial
echo 'deb [trusted=yes] http://10.8.0.1/apt ./' >sources.list
options="-qq -o APT::Sandbox::User=root -o Dir::Etc::SourceList=$PWD/sources.list -o Dir::Etc::SourceParts=/dev/null
  -o Dir::State=$PWD/lists -o Dir::Cache=$PWD/cache"
apt-get $options update && (cd cache && apt-get $options download a-package) && cmp cache/*.deb apt/a.deb && echo apt-get
"#;

/// Ordinary programs of each Debian release work as client and as server, for a user without privileges.
#[test]
fn ordinary_programs_work_as_nobody() {
    for debian in Debian::all() {
        let user = Unprivileged::new("programs");
        let _server = user.serve();
        let of =
            |file: &str| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/nginx").join(file);
        for (program, path) in [("busybox", "/bin/busybox".into()), ("nginx", of("usr/sbin/nginx"))] {
            std::fs::copy(&path, user.folder.path(program)).unwrap_or_else(|e| panic!("{path:?}: ./test has it: {e}"));
        }
        // A login needs a shell.
        let home = user.folder.path("");
        let passwd = user.folder.path("passwd");
        std::fs::write(&passwd, format!("root:x:0:0::/:/bin/sh\nnobody:x:{USER}:{USER}::{home}:/bin/sh\n")).unwrap();
        let at = |port: &str, address: &str, script: &str| {
            let exec = user.exec(port, &format!("--address {address}"), &["sh", "-c", script]);
            let mount = format!("mount --bind {passwd} /etc/passwd && cd {home} && exec \"$@\"");
            let mut words = debian.command_prefix();
            words
                .extend(["unshare", "--mount", "--propagation", "private", "sh", "-c", &mount, "sh"].map(String::from));
            words.extend(
                ["env"].into_iter().chain(exec.get_args().map(|word| word.to_str().unwrap())).map(String::from),
            );
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).envs(exec.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command.env("HOME", &home).env("NGINX", if debian == Debian::Own { "./nginx" } else { "nginx" });
            command
        };
        let mut servers = Process::start(&mut at("vale0:a", "10.8.0.1/24", SERVERS));
        for port in [80, 8000, 8001, 5201, 22, 9418] {
            servers.await_output(&format!("listens at {port}"));
        }
        let output = at("vale0:b", "10.8.0.2/24", CLIENTS).output_in_time().unwrap();
        let works = "nginx\nhttp.server\nstatic\niperf3\nssh\ngit\napt-get\n";
        assert_eq!(text(&output.stdout), works, "{debian:?}: {}", text(&output.stderr));
    }
}

/// Interfaces of another namespace as ports, for a command of root; ordinary programs at both ends.
#[test]
fn programs_work_over_interfaces() {
    let (user, far) = (Unprivileged::new("veth"), Namespace::new("execf"));
    far.script("ip link set lo up && ip link add v0 type veth peer name v1 && ip link set v0 up && ip link set v1 up && ip addr add 10.7.0.1/24 dev v1");
    std::fs::write(user.folder.path("index.html"), "it works").unwrap();
    let mut web =
        far.start(&format!("python3 -u -m http.server 80 --bind 10.7.0.1 --directory {}", user.folder.0.display()));
    web.await_output("Serving");
    let mut iperf = far.start("iperf3 -s --forceflush");
    iperf.await_output("listening");
    for port in ["packet:v0", "xdp:v0", "link:packet:v0?delay=2ms"] {
        let script = "curl -sf -m 60 http://10.7.0.1/ && iperf3 -c 10.7.0.1 -n 4M >/dev/null && ping -c 1 -W 60 10.7.0.1 >/dev/null && echo and-pings; id -u";
        let words = [
            &*user.path(),
            "exec",
            "--port",
            port,
            "--address",
            "10.7.0.2/24",
            "--user",
            "daemon",
            "--",
            "sh",
            "-c",
            script,
        ];
        let output = far.of(words).output_in_time().unwrap();
        let said = text(&output.stdout);
        assert!(said.starts_with("it worksand-pings\n1\n"), "{port}: {said}{}", text(&output.stderr));
    }
}

/// An ordinary command gets its address by DHCP, with router and name server, and finds a name.
#[test]
fn a_network_gives_its_addresses() {
    let (user, near, far) = (Unprivileged::new("dhcp"), Namespace::new("execc"), Namespace::new("execd"));
    kit::pair((&near, "v0"), (&far, "v1"), 56);
    far.run("ip addr add fd06::1/64 dev v1 nodad");
    let hosts = user.folder.path("hosts");
    std::fs::write(&hosts, "10.87.56.2 there.test\n").unwrap();
    let folder = user.folder.path("leases");
    let mut dnsmasq = far.start(&format!(
        "dnsmasq --keep-in-foreground --conf-file=/dev/null --user=root --interface=v1 --bind-interfaces --no-resolv --no-hosts --addn-hosts={hosts} --dhcp-range=10.87.56.50,10.87.56.60,1h --dhcp-range=fd06::,ra-only,64 --enable-ra --dhcp-leasefile={folder} --pid-file= --log-facility=-"
    ));
    dnsmasq.await_error("started");
    let script = "ip -4 -br addr show eth0; ip route; ip -6 route show default; cat /etc/resolv.conf; getent ahostsv4 there.test; ip -6 -br addr show eth0 scope global; grep -q there /etc/resolv.conf || echo ok";
    let words = [&*user.path(), "exec", "--port", "packet:v0", "--address", "dhcp,auto", "--", "sh", "-c", script];
    let output = near.of(words).output_in_time().unwrap();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    for part in [
        "10.87.56.",
        "default via 10.87.56.2",
        "default via fe80::",
        "nameserver 10.87.56.2",
        "10.87.56.2  ",
        "fd06::",
        "ok",
    ] {
        assert!(said.contains(part), "{part}: {said}{errors}");
    }
}

/// Without `/etc/resolv.conf`, granted name servers are left out.
#[test]
fn a_machine_without_resolv_conf_is_no_obstacle() {
    let (user, near, far) = (Unprivileged::new("resolv"), Namespace::new("execv"), Namespace::new("execw"));
    kit::pair((&near, "v0"), (&far, "v1"), 57);
    let leases = user.folder.path("leases");
    let mut dnsmasq = far.start(&format!(
        "dnsmasq --keep-in-foreground --conf-file=/dev/null --user=root --interface=v1 --bind-interfaces --no-resolv --no-hosts --dhcp-range=10.87.57.50,10.87.57.60,1h --dhcp-leasefile={leases} --pid-file= --log-facility=-"
    ));
    dnsmasq.await_error("started");
    let script = "mount -t tmpfs none /etc && exec \"$@\"";
    let path = user.path();
    let exec = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", &path, "exec", "--verbose"];
    let of = |options: &[&str]| {
        let words = [&exec, options, &["--", "ip", "-4", "-br", "addr", "show", "eth0"]].concat();
        let output = near.of(words).output_in_time().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, said, errors) = of(&["--port", "packet:v0", "--address", "dhcp"]);
    assert!(code == Some(0) && said.contains("10.87.57.") && errors.contains("has no /etc/resolv.conf"), "{errors}");
    let (code, _, errors) = of(&["--port", "null:", "--dns", "10.0.0.1"]);
    assert!(code == Some(125) && errors.contains("sudo touch /etc/resolv.conf"), "{errors}");
}

/// `--net` takes free addresses, one after the other.
#[test]
fn a_private_network_has_free_addresses() {
    let user = Unprivileged::new("net");
    let said = text(&expect(125, &mut user.exec("link:vale0:a?delay=1ms", "--net", &["true"])).stderr);
    assert!(said.contains("no server has the switch vale0") && said.contains("linerate serve"), "{said}");
    let _server = user.serve();
    let mut first = Process::with_input(
        &mut user.exec("vale0:a", "--net", &["sh", "-c", "ip -4 -br addr show eth0; read end; exit 0"]),
        Stdio::piped(),
    );
    assert!(first.line().contains("10.53.0.1/24"));
    let script = "ip -4 -br addr show eth0; ping -c 1 -W 60 10.53.0.1 >/dev/null && echo reached";
    let second = expect(0, &mut user.exec("vale0:b", "--net", &["sh", "-c", script]));
    let said = text(&second.stdout);
    assert!(said.contains("10.53.0.2/24") && said.contains("reached"), "{said}");
    // Its probes, and their replies, take longer than the time between probes.
    let slow = expect(0, &mut user.exec("link:vale0:c?delay=400ms", "--net", &["ip", "-4", "addr", "show", "eth0"]));
    assert!(text(&slow.stdout).contains("10.53.0.2/24"), "{}", text(&slow.stdout));
    drop(first.child.stdin.take());
    first.must_end("the end of its input");
}

/// Without a port, passt connects a command to the network around it; links nest.
#[test]
fn links_nest_around_the_network() {
    let (user, near) = (Unprivileged::new("nest"), Namespace::new("execn"));
    let far = Namespace::new("execr");
    kit::pair((&near, "v0"), (&far, "v1"), 55);
    // Not the router's address, which passt answers itself.
    far.run("ip address add 10.78.0.1/32 dev lo");
    near.run("ip route add default via 10.87.55.2");
    near.of(["sysctl", "-qw", "net.ipv4.ping_group_range=0 65534"]).output_in_time().unwrap();
    std::fs::write(user.folder.path("index.html"), "it works").unwrap();
    let mut web =
        far.start(&format!("python3 -u -m http.server 80 --bind 10.78.0.1 --directory {}", user.folder.0.display()));
    web.await_output("Serving");
    let path = user.path();
    let run = |words: &[&str]| {
        let prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let output = near.of(prefix.iter().chain(words)).output_in_time().unwrap();
        (text(&output.stdout), text(&output.stderr))
    };
    // passt counts padding as data, and then repeats what was received.
    std::fs::write(user.folder.path("large"), vec![7; 3 << 20]).unwrap();
    let large = ["curl", "-sf", "-m", "60", "-o", "/dev/null", "-w", "%{size_download}", "http://10.78.0.1/large"];
    let (said, errors) = run(&[&[&*path, "exec", "--"], &large[..]].concat());
    assert_eq!(said, (3 << 20).to_string(), "{errors}");
    let curl = ["curl", "-sf", "-m", "60", "-w", "%{time_connect}", "http://10.78.0.1/"];
    let (said, errors) = run(&[&[&*path, "exec", "--"], &curl[..]].concat());
    assert!(said.starts_with("it works"), "{said}{errors}");
    let nested = [&*path, "link", "--delay", "60ms/40ms", "--", &path, "link", "--delay", "50ms", "--"];
    let (said, errors) = run(&[&nested[..], &curl].concat());
    // A handshake is one round trip: 100 ms of the outer link and 100 ms of the inner one.
    let time = said.strip_prefix("it works").and_then(|time| time.parse::<f64>().ok());
    assert!(time.is_some_and(|time| time >= 0.2), "{said}{errors}");

    // A passt that does not end when its socket is closed is not left behind: this one is followed by a sleep.
    let (stubborn, pid) = (user.folder.path("passt"), user.folder.path("pid"));
    let script = format!("#!/bin/sh\necho $$ >{pid}\n/usr/bin/passt \"$@\" &\nexec sleep 3600\n");
    std::fs::write(&stubborn, script).unwrap();
    std::fs::set_permissions(&stubborn, std::fs::Permissions::from_mode(0o755)).unwrap();
    let search = format!("PATH={}:/usr/bin:/bin", user.folder.0.display());
    let (said, errors) = run(&["env", &search, &path, "exec", "--", "echo", "done"]);
    assert_eq!(said, "done\n", "{errors}");
    let pid = std::fs::read_to_string(&pid).unwrap();
    until("passt is gone", || !std::path::Path::new("/proc").join(pid.trim()).exists());
}

/// The link of a command is recorded and repeated: `forward` is from the command.
#[test]
fn the_link_of_a_command_is_recorded_and_repeated() {
    let user = Unprivileged::new("recorded");
    let _server = user.serve();
    let mut far = Process::with_input(
        &mut user.exec("vale0:far", "--net", &["sh", "-c", "echo ready; read end; exit 0"]),
        Stdio::piped(),
    );
    far.await_output("ready");
    let [first, second] = ["first.csv", "second.csv"].map(|file| user.folder.path(file));
    let path = user.path();
    // The times of packets in the link, by direction.
    let delays = |file: &str, way: &str| {
        let text = std::fs::read_to_string(file).unwrap();
        let rows = text.lines().filter(|line| line.starts_with(way) && line.contains(",arrived,"));
        rows.map(|line| line.split(',').nth(6).unwrap().to_string()).collect::<Vec<_>>()
    };
    for (options, file) in [
        (&["--delay", "40ms/1ms", "--record", &first][..], &first),
        (&["--play", &first, "--record", &second], &second),
    ] {
        let ping = ["--port", "vale0:near", "--", "ping", "-q", "-c", "3", "-i", "0.2", "-W", "60", "10.53.0.1"];
        let words = [&[&*path, "link"], options, &ping].concat();
        let said = text(&expect(0, &mut user.command(words)).stdout);
        let (forward, back) = (delays(file, "forward"), delays(file, "back"));
        assert!(forward.len() >= 3 && forward.iter().all(|delay| delay == "40000000"), "{options:?}: {forward:?}");
        assert!(back.len() >= 3 && back.iter().all(|delay| delay == "1000000"), "{options:?}: {back:?}");
        let least = said.split("= ").nth(1).and_then(|times| times.split('/').next()?.parse::<f64>().ok());
        assert!(least.is_some_and(|least| least >= 41.0), "{options:?}: {said}");
    }
    drop(far.child.stdin.take());
    far.must_end("the end of its input");
    // A full disk is reported at the end, and does not stop the command.
    let script = "mount -t tmpfs -o size=16k none /mnt && exec \"$@\"";
    let port = "link:null:?delay=1ms&record=/mnt/full.csv";
    let pings = "ping -q -b -c 1000 -i 0.001 -W 1 10.9.0.255 >/dev/null; echo ends";
    let words = [&*path, "exec", "--port", port, "--address", "10.9.0.1/24", "--", "sh", "-c", pings];
    let output = expect(0, kit::with_mounts(script).args(words));
    let said = text(&output.stderr);
    assert_eq!(text(&output.stdout), "ends\n", "{said}");
    assert!(said.contains("/mnt/full.csv: the recording ends here: No space left on device"), "{said}");
}

/// Packets that the command sends faster than they are forwarded are counted; the queue holds thousands.
#[test]
fn packets_that_overflow_the_interface_are_counted() {
    let user = Unprivileged::new("overflow");
    let send = r#"import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
print("ready", flush=True); input()
for _ in range(12000): s.sendto(b"x", ("10.9.0.255", 9))
print("sent", flush=True); input()"#;
    let mut exec = user.exec("null:", "--address 10.9.0.1/24 --verbose", &["/usr/bin/python3", "-c", send]);
    let mut run = Process::with_input(&mut exec, Stdio::piped());
    run.await_output("ready");
    run.pause(true);
    let mut input = run.child.stdin.take().unwrap();
    input.write_all(b"\n").unwrap();
    run.await_output("sent");
    run.pause(false);
    input.write_all(b"\n").unwrap();
    let (status, _, said) = run.end();
    assert!(status.success(), "{said}");
    let after = |text: &str| {
        let digits = said.rsplit_once(text).map(|(_, after)| after).unwrap_or_else(|| panic!("no {text}: {said}"));
        digits.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()
    };
    let (received, dropped) = (after("eth0: "), after("\"no_descriptor\":"));
    // Linux itself sends a few packets, too.
    assert!(received >= 10_000 && dropped >= 1_900 && received + dropped >= 12_000, "{said}");
}

/// The last packets of a command are delivered over a link, however long it delays them.
#[test]
fn the_last_packets_cross_a_slow_link() {
    let user = Unprivileged::new("last");
    let file = user.folder.path("arrived.pcap");
    let send = r#"import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
for n in range(20): s.sendto(b"the last packets", ("10.9.0.255", 9))"#;
    let port = format!("link:recorded:null:?to={file}&delay=4s");
    let options = "--address 10.9.0.1/24 --verbose";
    let said = text(&expect(0, &mut user.exec(&port, options, &["/usr/bin/python3", "-c", send])).stderr);
    let captured = std::fs::read(&file).unwrap();
    let count = captured.windows(16).filter(|bytes| bytes == b"the last packets").count();
    assert_eq!(count, 20, "{said}");
    // With a command, the link tells what it has done.
    let words = [&*user.path(), "link", "--loss", "100%/0", "-v", "--port", "null:", "--"];
    let words = words.iter().copied().chain(["ping", "-c", "1", "-W", "1", "10.53.0.200"]);
    let said = text(&expect(1, &mut user.command(words)).stderr);
    assert!(said.contains("link, from the command: ") && said.contains(" lost as configured"), "{said}");
}

/// A setting that prevents namespaces or interfaces is named, with the command that changes it.
#[test]
fn what_prevents_it_is_named() {
    let user = Unprivileged::new("refused");
    let exec = user.exec("null:", "", &["true"]);
    let words: Vec<&str> = std::iter::once("env").chain(exec.get_args().map(|word| word.to_str().unwrap())).collect();
    // The limit of a user namespace, in which root lacks a capability, so that the machine's limit stays as it is.
    let limited = r#"echo 0 >/proc/sys/user/max_user_namespaces; shift 6; exec setpriv --bounding-set=-sys_admin "$@""#;
    for (of, script, parts) in [
        ("--map-root-user", limited, ["user.max_user_namespaces=1000", "sudo linerate exec --user"]),
        ("--mount", r#"mount -t tmpfs none /dev; exec "$@""#, ["/dev/net/tun", "modprobe tun"]),
    ] {
        let mut command = Command::new("unshare");
        command.args([of, "sh", "-c", script, "sh"]).args(&words).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let output = command.output_in_time().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(125) && parts.iter().all(|part| said.contains(part)), "{script}: {said}");
    }
    // A filter of system calls, as in a container.
    let said = filtered(&words);
    assert!(said.contains("filter of system calls") && said.contains("--security-opt seccomp=unconfined"), "{said}");
    for (options, part) in [
        ("--address 10.0.0.1", "no prefix length"),
        ("--address 10.0.0.1/24 --address 10.0.1.1/24", "one for each --port"),
        ("--net --address 10.0.0.1/24", "and all have one"),
        ("--user daemon", "--user needs root"),
        ("--net=10.0.0.0/31", "8 to 30 bits"),
        ("--address 10.0.0.255/24", "its broadcast address"),
        ("--mtu 1000 --address fd00::1/64", "IPv6 needs --mtu 1280"),
    ] {
        let said = text(&expect(2, &mut user.exec("null:", options, &["true"])).stderr);
        assert!(said.contains(part), "{options}: {said}");
    }
    let said = text(&expect(2, &mut user.command([&*user.path(), "exec", "--net", "--", "true"])).stderr);
    assert!(said.contains("--net needs a --port"), "{said}");
    let said = text(&expect(2, &mut user.command([&*user.path(), "link", "--delay", "20", "--", "true"])).stderr);
    assert!(said.contains("--delay: "), "{said}");
    let words = [&*user.path(), "link", "--record", "/nosuch/file", "--", "true"];
    let said = text(&expect(2, &mut user.command(words)).stderr);
    assert!(said.contains("--record: /nosuch/file: cannot write it: "), "{said}");
    // Options of a link between two ports.
    for option in ["--mtu=9000", "--seconds=1", "--control=socket", "--count=1"] {
        let words = [&*user.path(), "link", option, "--port", "null:", "--", "true"];
        let said = text(&expect(2, &mut user.command(words)).stderr);
        assert!(said.contains("cannot be used with"), "{option}: {said}");
    }
}

/// Runs the command with a filter that forbids namespaces, as Docker's does, and returns its messages.
fn filtered(words: &[&str]) -> String {
    let (allow, refuse) = (SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32));
    let rules = [(libc::SYS_unshare, Vec::new())].into();
    let filter = SeccompFilter::new(rules, allow, refuse, std::env::consts::ARCH.try_into().unwrap());
    let filter: BpfProgram = filter.unwrap().try_into().unwrap();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    // The filter applies to the thread, and its children inherit it.
    let run = move || {
        seccompiler::apply_filter(&filter).unwrap();
        text(&expect(125, &mut command).stderr)
    };
    std::thread::spawn(run).join().unwrap()
}
