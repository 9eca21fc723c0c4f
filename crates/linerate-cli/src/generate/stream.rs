//! A stream of frames: their content, rate and number, from options or from a file of streams.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use linerate::Error;
use linerate::capture::{FramePoll, Frames};
use linerate::offload::{Headers as OffloadHeaders, Offload};
use linerate::port::MacAddress;
use linerate::traffic::{self, Generator, Rate, Sizes, Template};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};

use super::source::Source;
use crate::grammar::usage;
use crate::host::HostOptions;
use crate::notes::unread;
use crate::options::{packets, whole};
use crate::signals::interrupts;
use crate::terminal::note;

/// The options of one stream. In a file of streams each is a key of the same name.
#[derive(Args, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// The stream's name in the summary; only in files
    #[arg(skip)]
    pub name: Option<String>,
    /// Layers of the frames: 'eth/ip(src=10.0.0.1-10.0.0.250)/udp(dport=53)/payload(64)'; see docs/generate.md
    #[arg(long, value_name = "LAYERS", value_parser = template, conflicts_with_all = ["template", "flows"])]
    #[serde(default, deserialize_with = "read_template")]
    pub packet: Option<Template>,
    /// Use the first packet of this capture file as the template
    #[arg(long, conflicts_with = "size")]
    pub template: Option<PathBuf>,
    /// Frame size in bytes, CRC included: 64 to 9732; a range 64-1518, a mix 64:7,594:4,1518:1, or imix for that mix;
    /// default 64
    #[arg(long, value_name = "SIZES")]
    #[serde(default, deserialize_with = "from_text")]
    pub size: Option<Sizes>,
    /// Rate in packets (14.88M) or bits (10Gbit) per second, or as a part of the line rate (50%); default full speed
    #[arg(long)]
    #[serde(default, deserialize_with = "from_text")]
    pub rate: Option<Rate>,
    /// Send bursts of this many frames back to back, at the same mean rate
    #[arg(long, value_name = "FRAMES", requires = "rate", value_parser = whole::<u16>(1, u16::MAX))]
    #[serde(default, deserialize_with = "read_number")]
    pub burst: Option<u16>,
    /// Gaps between frames, or bursts
    #[arg(long, value_enum, requires = "rate")]
    #[serde(default)]
    pub gaps: Option<Gaps>,
    /// Number of packets; accepts k, M or G
    #[arg(long, value_parser = packets)]
    #[serde(default, deserialize_with = "read_packets")]
    pub count: Option<u64>,
    /// Number of UDP flows, which differ in their source port; default 1
    #[arg(long, value_parser = whole::<u16>(1, u16::MAX))]
    #[serde(default, deserialize_with = "read_number")]
    pub flows: Option<u16>,
    /// Leave it to the port to cut each packet of --packet into segments with this many bytes of TCP or UDP payload
    #[arg(long, value_name = "BYTES", requires = "packet", value_parser = whole::<u16>(1, u16::MAX))]
    #[serde(default, deserialize_with = "read_number")]
    pub segment: Option<u16>,
    /// Seed of random fields and gaps; default 1, in files the stream's number
    #[arg(long)]
    #[serde(default)]
    pub seed: Option<u64>,
}

/// The gaps between frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gaps {
    /// All equal
    Even,
    /// Random, as from many independent senders
    Poisson,
}

/// A file of streams.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    stream: Vec<Stream>,
}

/// The destination of frames without a text; it is reserved for benchmarks (RFC 2544).
const DEFAULT_DESTINATION: [u8; 4] = [198, 19, 0, 1];
/// How often a pipe is checked for a packet.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The largest file of streams, in bytes.
const LONGEST: u64 = 1 << 20;

/// Reads a file of streams as text.
fn read(path: &Path) -> Result<String, String> {
    let said = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::InvalidData => "it is not UTF-8".to_string(),
        _ => error.to_string(),
    };
    // A pipe or a device may have no end, or never deliver data.
    let about = path.metadata().map_err(said)?;
    match about.len() {
        _ if !about.is_file() => Err("it is not a regular file".to_string()),
        0..=LONGEST => std::fs::read_to_string(path).map_err(said),
        len => Err(format!("it has {len} bytes; the limit is {LONGEST}")),
    }
}

impl Stream {
    /// Reads a file of streams: TOML, with a table `[[stream]]` for each. Ends the program if it is invalid.
    pub fn read_all(path: &Path) -> Vec<Stream> {
        let bad = |why: &str| -> ! { usage(&format!("{}: {}", path.display(), why.trim_end())) };
        let text = read(path).unwrap_or_else(|why| bad(&why));
        let streams = toml::from_str::<File>(&text).unwrap_or_else(|error| match error.to_string() {
            text if text.contains("expected a sequence") => bad(&format!("{text}each stream is a table [[stream]]")),
            text => bad(&text),
        });
        let mut streams = streams.stream;
        for (n, stream) in streams.iter_mut().enumerate() {
            if let Some(why) = stream.contradiction() {
                bad(&format!("{}: {why}", stream.label(n)));
            }
            // By default, the streams' random numbers are independent of each other.
            stream.seed.get_or_insert(n as u64 + 1);
        }
        let labels: Vec<_> = streams.iter().enumerate().map(|(n, stream)| stream.label(n)).collect();
        if let Some(n) = (0..labels.len()).find(|n| labels[..*n].contains(&labels[*n])) {
            bad(&format!("two streams are named {}", labels[n]));
        }
        if streams.is_empty() { bad("it has no stream: add a table [[stream]]") } else { streams }
    }

    /// As [`read_all`](Stream::read_all), for streams that share the rate of a measurement, in proportion to their own
    /// rates. Ends the program if they have keys that the measurement sets.
    pub fn read_shares(path: &Path) -> Vec<Stream> {
        let streams = Stream::read_all(path);
        let bad = |n: usize, why: &str| -> ! { usage(&format!("{}: {}: {why}", path.display(), streams[n].label(n))) };
        for (n, stream) in streams.iter().enumerate() {
            let others = [
                (stream.template.is_some(), "template"),
                (stream.burst.is_some(), "burst"),
                (stream.gaps.is_some(), "gaps"),
                (stream.count.is_some(), "count"),
                (stream.segment.is_some(), "segment"),
            ];
            if let Some((_, key)) = others.iter().find(|(is_set, _)| *is_set) {
                bad(n, &format!("a measurement sets the load: leave out {key}"));
            }
            let unit = |stream: &Stream| stream.rate.map(|rate| std::mem::discriminant(&rate));
            if unit(stream) != unit(&streams[0]) {
                bad(n, "the streams' rates are shares of the load: give all in the same unit, or none");
            }
        }
        streams
    }

    /// Returns the stream's weight among streams that share a rate. Its frames have `len` bytes on average, without CRC.
    pub fn share(&self, len: f64) -> f64 {
        self.rate.map_or(1.0, |rate| rate.packets_per_second(len))
    }

    /// Returns why keys contradict each other. For options, clap checks this.
    fn contradiction(&self) -> Option<&'static str> {
        match self {
            Stream { packet: Some(_), template: Some(_), .. } => Some("packet and template exclude each other"),
            Stream { packet: Some(_), flows: Some(_), .. } => {
                Some("packet makes flows by the range of a field: sport=1024-2023")
            }
            Stream { template: Some(_), size: Some(_), .. } => Some("frames of a template have the template's size"),
            Stream { rate: None, burst: Some(_), .. } => Some("bursts need a rate"),
            Stream { rate: None, gaps: Some(_), .. } => Some("gaps need a rate"),
            Stream { burst: Some(0), .. } => Some("a burst has at least one frame"),
            Stream { packet: None, segment: Some(_), .. } => Some("segment needs a packet"),
            Stream { segment: Some(0), .. } => Some("a segment has at least one byte"),
            Stream { flows: Some(0), .. } => Some("there is at least one flow"),
            Stream { name: Some(name), .. } if name.is_empty() => Some("a name has at least one character"),
            _ => None,
        }
    }

    /// Gives the frames the port's IP address and VLAN, unless the stream's text has others. Without a text, the frames
    /// have sequence numbers, and are sent to `to`.
    pub fn set_addresses(&mut self, host: &HostOptions, to: Option<IpAddr>) {
        if self.template.is_some() {
            usage("the frames of a capture file have their own addresses: leave out --address, or give only --reply");
        }
        let packet = self.take_layers(to).and_then(|packet| host.complete(packet));
        self.packet = Some(packet.unwrap_or_else(|error| usage(error.why())));
    }

    /// Gives the frames these MAC addresses, unless the stream's text has others. Without a text, the frames have
    /// sequence numbers.
    pub fn set_macs(&mut self, from: MacAddress, to: MacAddress) -> Result<(), Error> {
        let packet = self.take_layers(None)?.with_default("eth", "src", &from.to_string())?;
        self.packet = Some(packet.with_default("eth", "dst", &to.to_string())?);
        Ok(())
    }

    /// Returns the stream's text, or that of its flows of frames to `to`.
    fn take_layers(&mut self, to: Option<IpAddr>) -> Result<Template, Error> {
        let to = to.unwrap_or(DEFAULT_DESTINATION.into());
        let last = 1023u16.saturating_add(self.flows.take().unwrap_or(1));
        let ip = if to.is_ipv4() { "ip" } else { "ip6" };
        let default = || format!("eth/{ip}(dst={to})/udp(sport=1024-{last})/stamp").parse();
        self.packet.take().map_or_else(default, Ok)
    }

    /// Returns whether the text has a destination IP address, but no MAC address.
    pub fn has_invented_mac(&self) -> bool {
        let has_ip = |packet: &Template| packet.sets("ip", "dst") || packet.sets("ip6", "dst");
        self.packet.as_ref().is_some_and(|packet| has_ip(packet) && !packet.sets("eth", "dst"))
    }

    /// Returns the stream's name, or its number from 1 on.
    pub fn label(&self, number: usize) -> String {
        // Escaped, as it may be printed on a terminal.
        let name = self.name.as_ref().filter(|name| !name.is_empty());
        name.map_or_else(|| format!("stream {}", number + 1), |name| name.escape_debug().to_string())
    }

    /// Returns the number of flows, at least one for each queue.
    pub fn flow_count(&self, queues: u16) -> u16 {
        self.flows.unwrap_or(1).max(queues)
    }

    /// Reads the first frame of the template's file, and waits for it if the file is a pipe. Ends the program if there
    /// is none.
    ///
    /// # Errors
    /// [`ErrorKind::File`]: a signal arrived first.
    pub fn first_frame(&self, position: &str) -> Result<Option<Vec<u8>>, Error> {
        let Some(path) = &self.template else { return Ok(None) };
        let none = |why: String| Error::file(path.display().to_string(), why);
        let wrong = |error: Error| -> ! { usage(&format!("{position}{error}")) };
        let (mut frames, mut bytes) = (Frames::open(path).unwrap_or_else(|error| wrong(error)), Vec::new());
        loop {
            match frames.next(&mut bytes).unwrap_or_else(|error| wrong(error)) {
                FramePoll::Frame { captured_len, original_len, .. } => {
                    if captured_len < original_len {
                        note("note: the template is incomplete: it was cut by the capture's snap length");
                    }
                    return Ok(Some(bytes));
                }
                FramePoll::Pending if interrupts().wait(POLL_INTERVAL) => {
                    return Err(none("no packet arrived".to_string()));
                }
                FramePoll::Pending => {}
                FramePoll::End => {
                    let others: String = unread(&frames.defects()).iter().map(|line| format!("; {line}")).collect();
                    wrong(none(format!("it has no packet to use as a template{others}")));
                }
            }
        }
    }

    /// Prepares the frames of each of `queues`. The numbers of its flows start at `first_flow`.
    ///
    /// `first_frame` is the first frame of the template's file, if there is one. `position` is the stream's position in
    /// a file, for messages; it is empty for options.
    pub fn sources(&self, queues: u16, first_flow: u16, first_frame: Option<&[u8]>, position: &str) -> Vec<Source> {
        let flows = u64::from(self.flow_count(queues));
        let share = |n: u16| first_flow.saturating_add((flows * u64::from(n) / u64::from(queues)) as u16);
        // Each queue has its own flows, at least one.
        let flows_of = |queue: u16| share(queue)..share(queue + 1);
        if let Some(frame) = first_frame {
            let generator = Generator::from_template(frame, 1);
            return (0..queues).map(|queue| generator.clone().with_flows(flows_of(queue)).into()).collect();
        }
        let size = self.size.as_ref().map_or(Some(Sizes::LEAST), Sizes::only);
        let template = match (&self.packet, size) {
            (None, Some(size)) => {
                let generator = Generator::new(size.into(), 1);
                return (0..queues).map(|queue| generator.clone().with_flows(flows_of(queue)).into()).collect();
            }
            // Frames of several sizes have sequence numbers, too.
            (None, None) => {
                let last = 1023u16.checked_add(self.flows.unwrap_or(1)).unwrap_or_else(|| {
                    usage(&format!("{position}frames of several sizes allow at most 64512 flows, one per source port"))
                });
                template(&format!("eth/ip/udp(sport=1024-{last})/stamp")).unwrap_or_else(|error| usage(error.why()))
            }
            (Some(template), _) => template.clone(),
        };
        let template = match &self.size {
            Some(sizes) => {
                let option = if position.is_empty() { "--size" } else { "size" };
                template
                    .with_sizes(sizes.clone())
                    .unwrap_or_else(|error| usage(&format!("{position}{option}: {}", error.why())))
            }
            None => template,
        };
        let template = template.with_seed(self.seed.unwrap_or(1)).with_flow(first_flow);
        let frames = (0..queues).map(|queue| template.clone().with_share(queue, queues).frames());
        frames
            .map(|frames| frames.unwrap_or_else(|error| usage(&format!("{position}{}", error.why()))).into())
            .collect()
    }

    /// Returns the length of the longest frame on the wire: with segments, that of the first. Ends the program if the
    /// packets cannot be cut into segments.
    pub fn longest_frame(&self, source: &Source, position: &str) -> usize {
        let Some(size) = self.segment.and_then(NonZeroU16::new) else { return source.longest() };
        let option = if position.is_empty() { "--segment" } else { "segment" };
        let bad = |why: &str| -> ! { usage(&format!("{position}{option}: {why}")) };
        if source.is_stamped() {
            bad("only the first segment of a packet would have its stamp: leave out the layer stamp");
        }
        let mut source = source.clone();
        let mut packet = vec![0; source.next_len()];
        source.fill(&mut packet);
        let len = packet.len();
        let headers =
            Offload::leave(&mut packet, len, Some(size)).and_then(|left| OffloadHeaders::of(&packet, len, left));
        match headers {
            Some(headers) => len.min(headers.len + headers.size),
            None => bad("the packets are not TCP or UDP with a payload for at most 2048 segments"),
        }
    }

    /// Returns the gaps between a queue's frames.
    pub fn gaps(&self, queue: u16) -> traffic::Gaps {
        match self.gaps {
            Some(Gaps::Poisson) => traffic::Gaps::Poisson(self.seed.unwrap_or(1).wrapping_add(u64::from(queue) << 32)),
            Some(Gaps::Even) | None => traffic::Gaps::Even,
        }
    }
}

/// Parses the layers of frames.
fn template(text: &str) -> Result<Template, Error> {
    text.parse()
}

fn read_template<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Template>, D::Error> {
    let text = String::deserialize(from)?;
    template(&text).map(Some).map_err(D::Error::custom)
}

/// A number, or a number with a unit, as text.
struct Plain(String);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Plain, D::Error> {
        from.deserialize_any(PlainVisitor)
    }
}

struct PlainVisitor;

impl Visitor<'_> for PlainVisitor {
    type Value = Plain;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or a text such as '1M'")
    }

    fn visit_i64<E>(self, number: i64) -> Result<Plain, E> {
        Ok(Plain(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Plain, E> {
        Ok(Plain(number.to_string()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Plain, E> {
        Ok(Plain(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Plain, E> {
        Ok(Plain(number.to_string()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Plain, E> {
        Ok(Plain(text.to_string()))
    }
}

fn from_text<'de, D: Deserializer<'de>, T: std::str::FromStr<Err = Error>>(from: D) -> Result<Option<T>, D::Error> {
    Plain::deserialize(from)?.0.parse().map(Some).map_err(D::Error::custom)
}

fn read_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    let text = Plain::deserialize(from)?.0;
    let wrong = |_| D::Error::custom(format!("'{text}' is not a whole number of at most {}", u16::MAX));
    text.parse().map(Some).map_err(wrong)
}

fn read_packets<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    packets(&Plain::deserialize(from)?.0).map(Some).map_err(D::Error::custom)
}
