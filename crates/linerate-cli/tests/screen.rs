//! The full-screen view and its keys on terminals of several sizes: script(1) creates a pseudo-terminal, and the crate
//! vt100 emulates the screen.

mod kit;

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use kit::{Deadline, Folder, end_of, expect, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const MINUTE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// A terminal that runs a command.
struct Terminal {
    script: Child,
    keys: ChildStdin,
    output: ChildStdout,
    screen: vt100::Parser,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

/// Returns a command of script(1) that runs a shell line on a terminal of this size.
fn script(line: &str, columns: u16, rows: u16) -> Command {
    let line = format!("stty cols {columns} rows {rows}; {line}");
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm");
    command
}

/// Returns a shell line that runs the command.
fn line(arguments: &[&str]) -> String {
    let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
    format!("exec '{}' {}", env!("CARGO_BIN_EXE_linerate"), words.join(" "))
}

impl Terminal {
    fn start(arguments: &[&str], columns: u16, rows: u16) -> Terminal {
        Terminal::shell(&line(arguments), columns, rows)
    }

    fn shell(line: &str, columns: u16, rows: u16) -> Terminal {
        let mut script =
            script(line, columns, rows).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script(1)");
        let (keys, output) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
        Terminal { script, keys, output, screen: vt100::Parser::new(rows, columns, 0) }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Returns the lines of the screen.
    fn lines(&self) -> Vec<String> {
        let screen = self.screen.screen();
        screen.rows(0, screen.size().1).collect()
    }

    /// Reads the output until the screen is as expected.
    fn until(&mut self, what: &str, is_so: impl Fn(&Terminal) -> bool) {
        let begin = Instant::now();
        let mut bytes = [0; 4096];
        while !is_so(self) {
            let count = if self.has_output(MINUTE) { self.output.read(&mut bytes).unwrap() } else { 0 };
            let is_over = count == 0 || begin.elapsed() > Duration::from_secs(60);
            assert!(!is_over, "{what} is not shown:\n{}", self.lines().join("\n"));
            self.screen.process(&bytes[..count]);
        }
        println!("{what}:\n{}\n", self.lines().join("\n"));
    }

    /// Waits for output; returns false if there is none in this time.
    fn has_output(&self, time: Timespec) -> bool {
        poll(&mut [PollFd::new(&self.output, PollFlags::IN)], Some(&time)).unwrap() > 0
    }

    fn until_shown(&mut self, text: &str) {
        self.until(text, |terminal| terminal.lines().iter().any(|line| line.contains(text)));
    }

    /// Reads to the end, and returns the exit code and the text that is printed outside the full screen from now on.
    fn end(mut self) -> (Option<i32>, String) {
        let (mut rest, mut bytes) = (Vec::new(), [0; 4096]);
        loop {
            assert!(self.has_output(MINUTE), "it does not end:\n{}", String::from_utf8_lossy(&rest));
            match self.output.read(&mut bytes).unwrap() {
                0 => break,
                count => rest.extend_from_slice(&bytes[..count]),
            }
        }
        self.screen.process(&rest);
        assert!(!self.screen.screen().alternate_screen(), "the terminal's own screen is back");
        assert!(!self.screen.screen().hide_cursor(), "with its cursor");
        let text = String::from_utf8_lossy(&rest);
        let text = text.rsplit("\x1b[?1049l").next().unwrap().replace('\r', "");
        (end_of(&mut self.script).code(), text)
    }
}

#[test]
fn a_forwarder_is_shown_on_80_columns() {
    let long = format!("faulty:sim:{}", "long-name-".repeat(6));
    let mut terminal = Terminal::start(&["fwd", &long, "sim:1", "--profile", "--seconds", "600"], 80, 24);
    terminal.until_shown("cycles/packet: receive ");
    let lines = terminal.lines();
    assert!(terminal.screen.screen().alternate_screen());
    assert!(
        lines[0].starts_with("linerate fwd faulty:sim:l…-long-name- sim:1 ") && lines[0].ends_with(" of 600 s"),
        "{lines:#?}"
    );
    assert!(lines[1].ends_with("rx pps  Gbit/s    wire   tx pps  Gbit/s    wire    dropped"), "{lines:#?}");
    assert!(lines[2].starts_with("faulty:si…ong-name-") && lines[3].starts_with("sim:1   "), "{lines:#?}");
    assert!(lines[2..4].iter().all(|line| line.chars().count() == 80), "columns do not shift: {lines:#?}");
    assert!(lines.iter().any(|line| line.contains(" cycles/packet, on processor")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("rx sim:1: peak ")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains('█')), "the graph of a rate: {lines:#?}");
    assert!(lines[23].starts_with("q end  ? keys  p pause  r reset"), "{lines:#?}");

    terminal.press("v");
    terminal.until_shown("no descriptor");
    terminal.until_shown("faulty:sim:l…-long-name- 0 ");
    terminal.until_shown("sim:1 0 ");
    terminal.press("?");
    terminal.until_shown("end the run and print its summary");
    terminal.press("?+");
    terminal.until_shown("fwd has no rate that can change; gen has");
    terminal.press("p");
    terminal.until("the pause", |terminal| terminal.lines()[0].ends_with("  paused"));
    // Frames in flight are still forwarded; then nothing moves.
    terminal.until("no rate", |terminal| terminal.lines().iter().any(|line| line.starts_with("no packets")));
    terminal.press(" ");
    terminal.until("the end of the pause", |terminal| !terminal.lines()[0].ends_with("paused"));
    terminal.until_shown(" cycles/packet, on processor");
    terminal.press("q");
    let (code, text) = terminal.end();
    // Nothing is lost, as wires at full speed wait for the cards.
    assert_eq!(code, Some(0), "{text}");
    for part in ["\nfwd: ", "lost 0", "s: paused\n", "s: resumed\n", "fwd has no rate that can change"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Returns whether the first port's row has about this rate, in thousands per second.
fn sends_about(terminal: &Terminal, thousands: f64) -> bool {
    let lines = terminal.lines();
    let mut rates = lines[2].split_whitespace().filter_map(|word| word.strip_suffix('k')?.parse::<f64>().ok());
    rates.any(|rate| (rate / thousands - 1.0).abs() < 0.01)
}

#[test]
fn a_generator_is_shown_on_200_columns_and_takes_other_rates() {
    let mut terminal = Terminal::start(&["gen", "sim:0?wire=sink", "--rate", "10k"], 200, 60);
    terminal.until("10k in the table", |terminal| sends_about(terminal, 10.0));
    assert!(terminal.lines()[0].contains("10k packets/s  "), "{:?}", terminal.lines()[0]);
    terminal.press("+");
    terminal.until("a rate 10 % higher", |terminal| terminal.lines()[0].contains("11k packets/s  "));
    terminal.until("11k in the table", |terminal| sends_about(terminal, 11.0));
    terminal.press("\x1b[6~\x1b[6~");
    terminal.until("a quarter", |terminal| terminal.lines()[0].contains("2.75k packets/s  "));
    terminal.until("2.75k in the table", |terminal| sends_about(terminal, 2.75));
    let lines = terminal.lines();
    assert!(lines[59].starts_with("q end  ? keys  p pause  + - rate"), "{lines:#?}");
    assert!(lines[10..40].iter().any(|line| line.contains('█')), "the graph has the room: {lines:#?}");
    terminal.press("r");
    terminal.until_shown("counters reset");
    terminal.press("\x03");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("s: the rate is 11k packets/s\n") && text.contains("\ngen: "), "{text}");
    assert!(text.contains("lost 0") && !text.contains(" requested, "), "{text}");
}

#[test]
fn keys_go_up_to_full_speed() {
    let mut terminal = Terminal::start(&["gen", "null:", "--rate", "600M"], 80, 24);
    terminal.until("the rate", |terminal| terminal.lines()[0].contains("600M packets/s  "));
    terminal.press("\x1b[5~");
    terminal.until("no rate", |terminal| !terminal.lines()[0].contains("packets/s"));
    terminal.press("q");
    let (code, text) = terminal.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("s: full speed\n"), "{text}");
}

/// Keys raise, lower and type options of a link, whose present state is shown.
#[test]
fn a_link_is_shown_and_changed_by_keys() {
    let words = ["link", "sim:0?wire=traffic&rate=10k&size=1000", "null:", "--delay", "20ms/5ms", "--rate", "1Gbit"];
    let mut terminal = Terminal::start(
        &[&words[..], &["--queue", "100kB", "--packets", "100k", "--seconds", "600"]].concat(),
        120,
        24,
    );
    terminal.until_shown("to null:: 1.00Gbit/s  queue ");
    let lines = terminal.lines();
    assert!(lines.iter().any(|line| line.contains("delay 20.0 ms  ")), "{lines:#?}");
    assert!(
        lines.iter().any(|line| line.starts_with("null: to sim:0?") && line.contains("delay 5.00 ms  ")),
        "{lines:#?}"
    );
    assert!(lines[23].contains("p pause  Tab + - delay  e edit  "), "{lines:#?}");
    terminal.press("+");
    terminal.until_shown("delay 22.0 ms  ");
    terminal.until_shown("delay 5.50 ms  ");
    // The rate is the next option. The 80 Mbit/s that arrive exceed it, and fill the queue.
    terminal.press("\t");
    terminal.until_shown("Tab + - rate");
    terminal.press("\x1b[6~\x1b[6~\x1b[6~\x1b[6~");
    terminal.until_shown("to null:: 62.5Mbit/s  queue ");
    terminal.until_shown("  dropped: ");
    terminal.until_shown(" queue full");
    // 100 kB at 62.5 Mbit/s are 12.8 ms, and the packet that is sent.
    terminal.until_shown("B = 12.");
    // An option that is not set, and any other option.
    terminal.press("\t-");
    terminal.until_shown("the link has no loss to change; e sets one");
    terminal.press("elos=1%\r");
    terminal.until_shown("a link has no option los");
    terminal.press("e");
    terminal.until_shown("options (Enter applies, Esc cancels): _");
    terminal.press("q delay\x1b");
    terminal.until_shown("Tab + - loss");
    terminal.press("eloss=50%/0 delax\x7fy=3ms\r");
    terminal.until_shown("delay 3.00 ms  ");
    terminal.until_shown(" lost, ");
    terminal.press("?");
    terminal.until_shown("select the next option of the link");
    terminal.press("q");
    let (_, text) = terminal.end();
    for part in ["s: delay=22ms/5.5ms\n", "s: rate=0.0625Gbit\n", "s: delay=3ms, loss=50%/0\n", " lost as configured"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A terminal with few lines shows the title and the rates; on a narrow one no figure is cut.
#[test]
fn small_terminals_show_what_fits() {
    for (columns, rows) in [(80, 3), (30, 24), (5, 2)] {
        let mut terminal = Terminal::start(&["fwd", "sim:0", "sim:1"], columns, rows);
        match (columns, rows) {
            (80, _) => terminal.until("a port", |terminal| terminal.lines()[2].starts_with("sim:0   ")),
            (30, _) => terminal.until("both rates", |terminal| {
                let lines = terminal.lines();
                lines[1].contains("rx pps") && lines[1].contains("tx pps") && lines[3].starts_with("sim:1")
            }),
            _ => terminal.until("the screen", |terminal| terminal.screen.screen().alternate_screen()),
        }
        terminal.press("q");
        let (code, text) = terminal.end();
        assert_eq!(code, Some(0), "{columns}x{rows}: {text}");
        assert!(text.contains("\nfwd: "), "{text}");
    }
}

/// The second Ctrl-C ends the process immediately, even while the run is ending, and the terminal is restored.
#[test]
fn the_second_interrupt_ends_at_once() {
    let mut terminal = Terminal::start(&["gen", "sim:0?wire=none", "--rate", "10k"], 80, 24);
    terminal.until_shown("tx sim:0: ");
    let (mut pressed, mut bytes) = (None::<Instant>, [0; 4096]);
    let deadline = Deadline::begin();
    while terminal.screen.screen().alternate_screen() {
        deadline.check(|| format!("the end of the full screen:\n{}", terminal.lines().join("\n")));
        // Within a tenth of a second, another one counts as the same.
        if pressed.is_none_or(|time| time.elapsed() > Duration::from_millis(150)) {
            terminal.press("\x03");
            pressed = Some(Instant::now());
        }
        if terminal.has_output(Timespec { tv_sec: 0, tv_nsec: 50_000_000 }) {
            let count = terminal.output.read(&mut bytes).unwrap();
            terminal.screen.process(&bytes[..count]);
        }
    }
    let (code, text) = terminal.end();
    assert_eq!(code, Some(130), "{text}");
}

/// A closed terminal ends its run, like an output that cannot be written.
#[test]
fn a_run_ends_with_its_terminal() {
    let folder = Folder::new("closed");
    let status = folder.path("status");
    let run = line(&["gen", "sim:0?wire=sink", "--rate", "10k"]);
    let run = run.trim_start_matches("exec ");
    let mut terminal = Terminal::shell(&format!("trap : HUP; {run}; echo $? >'{status}'"), 80, 24);
    terminal.until_shown("tx sim:0: ");
    drop(terminal);
    let ended = || std::fs::read_to_string(&status).unwrap_or_default();
    until("the run ends", || ended().ends_with('\n'));
    assert_eq!(ended(), "1\n");
}

/// Ctrl-Z returns the terminal to the shell, and `fg` resumes the full screen.
#[test]
fn a_run_is_suspended_and_goes_on() {
    let mut terminal = Terminal::shell("PS1='ready> ' exec bash --norc --noprofile -i", 80, 24);
    terminal.until_shown("ready>");
    terminal.press(&format!("{}\n", line(&["fwd", "sim:0", "sim:1"]).trim_start_matches("exec ")));
    terminal.until_shown("rx sim:1: peak ");
    terminal.press("\x1a");
    terminal.until("the shell's screen", |terminal| {
        !terminal.screen.screen().alternate_screen() && terminal.lines().iter().any(|line| line.contains("Stopped"))
    });
    terminal.press("fg\n");
    terminal.until_shown("rx sim:1: peak ");
    terminal.press("q");
    terminal.until("the summary", |terminal| {
        !terminal.screen.screen().alternate_screen() && terminal.lines().iter().any(|line| line.starts_with("fwd: "))
    });
    terminal.press("exit\n");
    assert_eq!(terminal.end().0, Some(0));
}

/// Without keys, or on a terminal that cannot move its cursor, the rates are printed as lines, as for a pipe.
#[test]
fn lines_are_printed_where_there_is_no_full_screen() {
    let run = line(&["fwd", "sim:0", "sim:1", "--seconds", "1.5"]);
    for line in [format!("{run} --plain"), format!("TERM=dumb; export TERM; {run}"), format!("{run} </dev/null")] {
        let printed = expect(0, script(&line, 80, 24).stdin(Stdio::null())).stdout;
        let text = String::from_utf8_lossy(&printed);
        assert!(text.contains("rx pps") && text.contains("\nfwd: ") && !text.contains('\x1b'), "{line}: {text}");
    }
}
