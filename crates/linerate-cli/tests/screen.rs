//! The live view, as a terminal of 80 columns and 24 lines shows it.

mod kit;

use std::process::{Command, Stdio};

use kit::expect;

/// Runs a command on a pseudo-terminal, which script(1) makes, and returns all that it printed there.
fn on_a_terminal(arguments: &[&str], columns: u16, rows: u16) -> Vec<u8> {
    let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
    let program = env!("CARGO_BIN_EXE_linerate");
    let line = format!("stty cols {columns} rows {rows}; exec '{program}' {} 2>/dev/null", words.join(" "));
    expect(0, Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null())).stdout
}

/// Returns the lines that are left on a screen without end, and how many lines were redrawn.
fn shown(bytes: &[u8], columns: usize) -> (Vec<String>, usize) {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let (mut lines, mut at, mut redrawn) = (vec![String::new()], 0, 0);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\r' => {}
            '\n' => {
                at += 1;
                if at == lines.len() {
                    lines.push(String::new());
                }
            }
            '\x1b' => {
                assert_eq!(rest.next(), Some('['));
                let mut number = String::new();
                while let Some(digit) = rest.next_if(char::is_ascii_digit) {
                    number.push(digit);
                }
                match rest.next() {
                    Some('A') => {
                        let up: usize = number.parse().unwrap();
                        (at, redrawn) = (at - up, redrawn + up);
                    }
                    Some('J') => {
                        lines.truncate(at);
                        lines.push(String::new());
                    }
                    other => panic!("an unknown sequence {other:?}"),
                }
            }
            c => {
                // A terminal continues a long line in the next one, and a redrawn table is then torn.
                assert!(lines[at].chars().count() < columns, "longer than {columns} columns: {}", lines[at]);
                lines[at].push(c);
            }
        }
    }
    (lines, redrawn)
}

/// Replaces each number by one of the same length.
fn without_numbers(line: &str) -> String {
    line.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect()
}

#[test]
fn the_live_view_is_redrawn_in_place_on_80_columns() {
    let long = format!("faulty:sim:{}", "long-name-".repeat(6));
    let printed = on_a_terminal(&["fwd", &long, "sim:1", "--seconds", "3", "--profile"], 80, 24);
    // The summary is not redrawn and may be longer.
    let end = printed.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let (lines, redrawn) = shown(&printed[..end], 80);
    assert!(redrawn > 0 && redrawn % 5 == 0, "each table is in the first one's place: {redrawn}");
    assert!(lines.len() < 24, "{lines:#?}");
    assert_eq!(
        without_numbers(&lines[0]).replace("0.0 s  ", "0 s    "),
        "0 s                  rx Mpps  Gbit/s    wire  tx Mpps  Gbit/s    wire    dropped",
        "{lines:#?}"
    );
    assert!(lines[0].starts_with("3"), "the last second is shown: {lines:#?}");
    assert!(lines[1].starts_with("faulty:si…ong-name-"), "{lines:#?}");
    assert!(lines[2].starts_with("sim:1   "), "{lines:#?}");
    assert!(lines[1..3].iter().all(|line| line.chars().count() == 80), "columns do not shift: {lines:#?}");
    assert!(lines[3].contains(" cycles/packet, on processor"), "{lines:#?}");
    assert!(lines[4].starts_with("cycles/packet: receive "), "{lines:#?}");
    assert!(String::from_utf8_lossy(&printed[end..]).contains("\nfwd: "), "the summary follows");
    assert_eq!(lines.iter().filter(|line| line.contains("rx Mpps")).count(), 1, "no torn copy is left: {lines:#?}");
}

#[test]
fn the_live_view_fits_a_narrow_terminal() {
    let printed = on_a_terminal(&["fwd", "sim:0", "sim:1", "--seconds", "2"], 30, 24);
    // The summary is not redrawn and may be longer.
    let end = printed.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let (lines, redrawn) = shown(&printed[..end], 30);
    assert!(redrawn > 0 && redrawn % 4 == 0, "{redrawn}");
    assert!(lines[0].contains("rx Mpps") && lines[0].contains("tx Mpps"), "{lines:#?}");
}

/// The cursor cannot move above the screen: a table that is higher than it would leave a torn copy each second.
#[test]
fn the_live_view_fits_a_low_terminal() {
    let printed = on_a_terminal(&["fwd", "sim:0", "sim:1", "--seconds", "2"], 80, 3);
    let end = printed.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let (lines, redrawn) = shown(&printed[..end], 80);
    assert!(redrawn > 0 && redrawn % 2 == 0, "{redrawn}");
    assert!(lines.len() <= 3, "two lines and the cursor's: {lines:#?}");
    assert!(lines[0].contains("rx Mpps") && lines[1].starts_with("sim:0 "), "{lines:#?}");
}
