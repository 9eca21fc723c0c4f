//! `linerate edit`: edits the frames of a capture file; and the same edits in `replay`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use linerate::Error;
use linerate::capture::{Changes, Format, Output, Rewriter};
use linerate::traffic::{AddressMap, EditCounts, EditRules, Editor, Fields, Fit, PortMap, Tag};
use serde_json::{Value, json};

use crate::capture::is_standard_output;
use crate::grammar::usage;
use crate::options::{LONGEST_MTU, whole};
use crate::show::print;
use crate::signals::interrupts;
use crate::terminal::note;

/// Edits of frames, the same in `edit` and `replay`.
#[derive(Args, Clone)]
pub struct EditOptions {
    /// Map addresses by their prefixes, or MAC addresses: 10.0.0.0/8=198.18.0.0/15; can be repeated, and the first
    /// match is used
    #[arg(long, value_name = "OLD=NEW")]
    map: Vec<AddressMap>,
    /// Map ports of TCP, UDP and SCTP: 80=8080, 8000-8999=80; can be repeated, and the first match is used
    #[arg(long, value_name = "OLD=NEW")]
    port: Vec<PortMap>,
    /// Set fields of headers, in the language of gen's --packet: 'eth(dst=02:00:00:00:00:01)/ip(ttl=-1,dscp=46)'; can be
    /// repeated
    #[arg(long, value_name = "LAYERS")]
    set: Vec<Fields>,
    /// Map and set in the packets inside tunnels (GRE, VXLAN, GTP-U, IP in IP), and not in others
    #[arg(long)]
    inner: bool,
    /// Remove the outermost VLAN tag, before --push; can be repeated
    #[arg(long, action = clap::ArgAction::Count)]
    pop: u8,
    /// Insert a tag as the outermost: 'vlan(id=7,pcp=3)' or 'qinq(id=100)'; can be repeated
    #[arg(long, value_name = "TAG")]
    push: Vec<Tag>,
    /// Truncate or fragment packets longer than --mtu
    #[arg(long, value_enum)]
    fit: Option<FitMode>,
    /// Also correct checksums that are wrong in the capture
    #[arg(long)]
    fix_checksums: bool,
}

/// How frames are made to fit the MTU.
#[derive(Clone, Copy, ValueEnum)]
enum FitMode {
    /// Remove the end of packets; lengths in headers and checksums follow
    Truncate,
    /// Fragment IP packets
    Fragment,
}

impl EditOptions {
    /// Returns the rules; `mtu` is the longest payload of a frame.
    pub fn rules(&self, mtu: u16) -> EditRules {
        EditRules {
            addresses: self.map.clone(),
            ports: self.port.clone(),
            fields: self.set.clone(),
            inner: self.inner,
            pop: self.pop.into(),
            push: self.push.clone(),
            fit: self.fit.map(|fit| match fit {
                FitMode::Truncate => Fit::Truncate(mtu.into()),
                FitMode::Fragment => Fit::Fragment(mtu.into()),
            }),
            fix_checksums: self.fix_checksums,
            unique_addresses: false,
        }
    }
}

/// `linerate edit`.
#[derive(Args)]
pub struct Edit {
    /// The capture, pcap or pcapng: a file, a pipe, or - for standard input
    input: PathBuf,
    /// The edited capture: a file whose name ends with .pcap or .pcapng, or, in the input's format, a pipe or - for
    /// standard output
    output: PathBuf,
    #[command(flatten)]
    edit: EditOptions,
    /// The longest payload of a frame, for --fit
    #[arg(long, default_value_t = 1500, value_parser = whole::<u16>(46, LONGEST_MTU), requires = "fit")]
    mtu: u16,
    /// Add an Ethernet header to packets of other link types: IP, loopback, Linux cooked, PPP, Cisco
    /// HDLC, data frames of 802.11
    #[arg(long)]
    ethernet: bool,
    /// Print the counts as a JSON object
    #[arg(long)]
    json: bool,
}

/// Edits a capture.
pub fn run(asked: &Edit) -> Result<ExitCode, Error> {
    let to_standard = is_standard_output(&asked.output);
    if to_standard && asked.json {
        usage("standard output is the capture: leave out --json, or write to a file");
    }
    let rules = asked.edit.rules(asked.mtu);
    let format = format_of(&asked.output)?;
    let changes = Changes { format, adds_headers: asked.ethernet, growth: Some(4 * rules.push.len() as u32) };
    let from = input(&asked.input);
    let mut rewriter = match to_standard {
        true => Rewriter::to(&from, Output::standard(|| interrupts().should_end())?, changes)?,
        false => Rewriter::open(&from, &asked.output, changes)?,
    };
    if rewriter.drops_options() {
        note(
            "note: interfaces, comments and options are not written: that needs pcapng at both ends, and no --ethernet",
        );
    }
    let mut editor = Editor::new(rules);
    let end = edit_all(&mut rewriter, &mut editor);
    let (counts, of_file) = (editor.counts(), rewriter.counts());
    let finished = rewriter.finish();
    let (written, skipped, surplus) = (of_file.written[0], of_file.not_ethernet, of_file.surplus);
    note_counts(&counts);
    for (count, what) in [
        (
            skipped,
            if asked.ethernet { LEFT_OUT } else { "packets are not Ethernet, and were not edited (see --ethernet)" },
        ),
        (surplus, "frames had more bytes than their length, which were removed"),
    ] {
        if count > 0 {
            note(&format!("note: {count} {what}"));
        }
    }
    // The counts include frames that an unwritable file does not have; the error has the number that it has at least.
    finished?;
    let interrupted = interrupts().should_end();
    if interrupted {
        note(&format!("note: interrupted: {} frames were read, and not those after them", counts.frames));
    }
    if asked.json {
        let summary = json!({
            "command": "edit", "written": written, "not_ethernet": skipped, "surplus": surplus, "interrupted": interrupted,
            "edited": as_json(&counts),
        });
        print(&format!("{}\n", json!({ "summary": summary })));
    } else if !to_standard {
        let output = asked.output.display();
        print(&format!(
            "{} of {} frames changed; wrote {written} frames into {output}\n",
            counts.changed, counts.frames
        ));
    }
    end.map(|()| ExitCode::SUCCESS)
}

/// The note on packets that cannot get an Ethernet header.
const LEFT_OUT: &str = "packets were left out: Ethernet does not carry them";

/// Copies all packets, edited, until the end or a signal.
fn edit_all(rewriter: &mut Rewriter, editor: &mut Editor) -> Result<(), Error> {
    while !interrupts().should_end()
        && rewriter.next(|frame, each| match frame.is_editable {
            true => editor.edit(frame.bytes, frame.len, each),
            false => each(frame.bytes, frame.len),
        })?
    {}
    Ok(())
}

/// Returns the path of a capture to read; `-` is standard input.
pub fn input(path: &Path) -> PathBuf {
    if path.as_os_str() == "-" { PathBuf::from("/dev/stdin") } else { path.to_path_buf() }
}

/// Returns the format that the output's name asks for; `None` if that of the input is kept.
fn format_of(output: &Path) -> Result<Option<Format>, Error> {
    match output.extension().and_then(|ending| ending.to_str()) {
        Some("zst" | "gz" | "lz4") => Err(Error::file(
            output.display().to_string(),
            "an edited capture is not compressed: use a name that ends with .pcap or .pcapng".to_string(),
        )),
        Some("pcap" | "pcapng" | "ntar") => Ok(Some(Format::of(output))),
        _ => Ok(None),
    }
}

/// Prints what could not be edited.
pub fn note_counts(counts: &EditCounts) {
    let EditCounts { incomplete_headers, unknown_checksums, truncated, fragmented, fragments, too_long, .. } = *counts;
    let all = [
        (incomplete_headers, "frames end within their headers, and were edited up to there".to_string()),
        (
            unknown_checksums,
            "frames have a checksum that covers bytes that the capture lacks: it may be wrong".to_string(),
        ),
        (truncated, "frames were truncated to the MTU".to_string()),
        (fragmented, format!("frames were fragmented, into {fragments}")),
        (too_long, "frames are longer than the MTU, and cannot be fragmented".to_string()),
    ];
    for (count, what) in all.iter().filter(|(count, _)| *count > 0) {
        note(&format!("note: {count} {what}"));
    }
}

/// Returns the counts for the summary.
pub fn as_json(counts: &EditCounts) -> Value {
    json!({
        "frames": counts.frames, "changed": counts.changed, "incomplete_headers": counts.incomplete_headers,
        "unknown_checksums": counts.unknown_checksums, "truncated": counts.truncated, "fragmented": counts.fragmented,
        "fragments": counts.fragments, "too_long": counts.too_long,
    })
}
