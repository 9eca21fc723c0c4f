//! Frames from a text: `eth/ip(src=10.0.0.1-10.0.0.250)/udp(dport=53)/payload(64)`.
//!
//! - `grammar`: parses the text into layers; `protocol`: their headers and fields; `values`: the notation of a field's
//!   values
//! - `layout`: from layers to bytes: constant bytes, changing bytes, and the checksums that depend on them
//! - `source`: the state of a changing field
//! - here: the public types, and the generation of frames: a block of headers is updated and summed, each frame is a
//!   copy

mod grammar;
mod layout;
mod protocol;
mod source;
mod values;

use std::net::IpAddr;
use std::str::FromStr;

use grammar::Layer;
pub(crate) use grammar::{field_of, split, split_layer};
pub(crate) use layout::set_bits;
use layout::{Cell, Layout, SHORTEST, Sum, Variant};
use linerate_core::error::Error;
pub(crate) use protocol::{Field, Protocol};
use source::{BLOCK, CyclicIndex, Share};
pub(crate) use values::{Values, parse_mac};

use super::checksum::{complement, folded, sum_of};
use super::sizes::Sizes;
use super::stamp;

/// A template for frames, as a text: layers from the outermost to the innermost, separated by `/`.
///
/// ```text
/// eth/ip(src=10.0.0.1-10.0.0.250,dst=198.18.0.1)/udp(sport=random,dport=53)/payload(64)
/// ```
///
/// | layer | fields |
/// |---|---|
/// | `eth` | `dst`, `src`, `type` |
/// | `vlan` (802.1Q), `qinq` (802.1ad) | `pcp`, `dei`, `id`, `type` |
/// | `mpls` | `label`, `tc`, `bottom`, `ttl` |
/// | `arp` | `op`, `sha`, `spa`, `tha`, `tpa` |
/// | `ip` | `tos` or `dscp` and `ecn`, `len`, `id`, `df`, `mf`, `offset`, `ttl`, `proto`, `checksum`, `src`, `dst`, `options` |
/// | `ip6` | `tc` or `dscp` and `ecn`, `flow`, `len`, `next`, `hop`, `src`, `dst` |
/// | `udp` | `sport`, `dport`, `len`, `checksum` |
/// | `tcp` | `sport`, `dport`, `seq`, `ack`, `flags`, `window`, `checksum`, `urgent`, `options` |
/// | `icmp`, `icmp6` | `type`, `code`, `checksum`, `id`, `seq` |
/// | `gre` | `proto`, `key`, `seq`, `checksum` (present only if named) |
/// | `vxlan` | `vni` |
/// | `payload(64)`, `payload` | incrementing bytes, of this length or to the frame's end; `fill=0`; or `random` |
/// | `stamp` | a payload of `udp` with sequence numbers that a [`Checker`](super::Checker) reads |
/// | `hex(00 ff)`, `text(hello)` | these bytes; a frame may begin with `hex` |
///
/// Values of fields:
///
/// | text | values |
/// |---|---|
/// | `53`, `0x35`, `10.0.0.1`, `2001:2::1`, `02:00:00:00:00:01`, `SA` | a constant (the last: TCP flags) |
/// | `1024-65535`, `10.0.0.1-10.0.0.250`, `10.0.0.0/24` | a range: one value per frame, cyclically |
/// | `0-100+10` | with a step |
/// | `53\|80\|443` | a list: one value per frame, cyclically |
/// | `10.0.0.0/24*1000` | each value 1,000 times before the next: with a field that has 1,000 values, all pairs |
/// | `random`, `random(1024-65535)` | random values, uniformly distributed |
///
/// Other fields have defaults: addresses reserved for benchmarks, lengths, the numbers of the next layers, and
/// checksums. All of them can be set, also to wrong values, for example `udp(checksum=0xBAD)`.
///
/// ```
/// use linerate::traffic::Template;
/// let template: Template = "eth/ip(dst=10.0.0.0/24)/udp(dport=53|80)".parse().unwrap();
/// let mut frames = template.frames().unwrap();
/// let mut frame = vec![0; frames.next_len()];
/// frames.fill(&mut frame);
/// frames.fill(&mut frame);
/// assert_eq!((&frame[30..34], &frame[36..38]), (&[10, 0, 0, 1][..], &[0, 80][..]));
/// ```
#[derive(Clone, Debug)]
pub struct Template {
    layers: Vec<Layer>,
    sizes: Option<Sizes>,
    seed: u64,
    share: Share,
    flow: u16,
}

impl FromStr for Template {
    type Err = Error;

    fn from_str(text: &str) -> std::result::Result<Template, Error> {
        let layers = grammar::layers(text).map_err(Error::bad_value)?;
        let template = Template { layers, sizes: None, seed: 1, share: Share { first: 0, stride: 1 }, flow: 0 };
        // Reports layers that cannot form a frame.
        template.frames()?;
        Ok(template)
    }
}

impl Template {
    /// Sets the sizes of the frames, CRC included; the payload fills them. Without sizes, a frame is as long as its
    /// layers, and at least 64 bytes.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption): the last layer has a fixed length, or a size has
    /// no room for the headers.
    pub fn with_sizes(self, sizes: Sizes) -> Result<Template, Error> {
        let mut template = Template { sizes: Some(sizes), ..self };
        match template.layers.last().map(|layer| (layer.protocol, layer.len)) {
            Some((Protocol::Payload, Some(len))) => {
                let why = format!("the frames have a size, and payload({len}) another one: write payload");
                return Err(Error::bad_value(why));
            }
            Some((Protocol::Hex | Protocol::Text, _)) => {
                let why = "the frames have a size, and their bytes are given: append /payload";
                return Err(Error::bad_value(why.to_string()));
            }
            Some((Protocol::Payload | Protocol::Stamp, _)) => {}
            _ => template.layers.extend(grammar::layers("eth/payload").map_err(Error::bad_value)?.pop()),
        }
        template.frames()?;
        Ok(template)
    }

    /// Sets the seed of random values; 1 by default.
    pub fn with_seed(self, seed: u64) -> Template {
        Template { seed, ..self }
    }

    /// Generates only every `stride`-th frame, beginning with number `first`. So `stride` queues together send the
    /// frames of one: each value as often, and random values that differ.
    pub fn with_share(self, first: u16, stride: u16) -> Template {
        Template { share: Share { first: first.into(), stride: stride.max(1).into() }, ..self }
    }

    /// Sets the flow of the stamps' sequence numbers; a share uses the flow `first` after it. So several templates can
    /// share a checker. The default is 0.
    pub fn with_flow(self, flow: u16) -> Template {
        Template { flow, ..self }
    }

    /// Sets a field of the first layer with this name, unless the text sets it. Without such a layer, nothing changes.
    ///
    /// ```
    /// use linerate::traffic::Template;
    /// let template: Template = "eth/ip(src=10.0.0.1)".parse().unwrap();
    /// let template = template.with_default("ip", "src", "10.0.0.2").unwrap();
    /// let template = template.with_default("ip", "dst", "10.0.0.3").unwrap();
    /// let mut frames = template.frames().unwrap();
    /// let mut frame = vec![0; frames.next_len()];
    /// frames.fill(&mut frame);
    /// assert_eq!(frame[26..34], [10, 0, 0, 1, 10, 0, 0, 3]);
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption): the layer does not have the field, or the value
    /// is not one of the field's.
    pub fn with_default(mut self, layer: &str, field: &str, value: &str) -> Result<Template, Error> {
        let layer = self.layers.iter_mut().find(|known| known.protocol.name() == layer);
        if let Some(layer) = layer.filter(|layer| !layer.has(field)) {
            layer.set(&format!("{field}={value}")).map_err(Error::bad_value)?;
        }
        Ok(self)
    }

    /// Inserts a VLAN tag (802.1Q) after the Ethernet header, unless the text has a tag there.
    pub fn with_vlan(mut self, id: u16) -> Result<Template, Error> {
        let is_tag = |layer: &Layer| matches!(layer.protocol, Protocol::Vlan | Protocol::Qinq);
        if self.layers[0].protocol == Protocol::Eth && !self.layers.get(1).is_some_and(is_tag) {
            let tag = grammar::layers(&format!("eth/vlan(id={id})")).map_err(Error::bad_value)?.pop();
            self.layers.splice(1..1, tag);
            self.frames()?;
        }
        Ok(self)
    }

    /// Returns the destination address of the first frame's outermost IP header.
    pub fn destination(&self) -> Option<IpAddr> {
        let layout = Layout::new(&self.layers, self.share, self.seed).ok()?;
        let at = self.layers.iter().position(|layer| matches!(layer.protocol, Protocol::Ip | Protocol::Ip6))?;
        let mut frames = self.frames().ok()?;
        let mut frame = vec![0; frames.next_len()];
        frames.fill(&mut frame);
        let ip = &frame[layout.start_of(at)..];
        match self.layers[at].protocol {
            Protocol::Ip => ip.get(16..20)?.first_chunk::<4>().map(|address| IpAddr::from(*address)),
            _ => ip.get(24..40)?.first_chunk::<16>().map(|address| IpAddr::from(*address)),
        }
    }

    /// Returns whether the text sets a field of the first layer with this name.
    pub fn sets(&self, layer: &str, field: &str) -> bool {
        self.layers.iter().find(|known| known.protocol.name() == layer).is_some_and(|layer| layer.has(field))
    }

    /// Returns whether the frames have sequence numbers.
    pub fn is_stamped(&self) -> bool {
        self.layers.last().is_some_and(|layer| layer.protocol == Protocol::Stamp)
    }

    /// Computes the layout of the frames.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`](linerate_core::ErrorKind::BadOption): a size has no room for the headers, or a packet
    /// is too long for its headers.
    pub fn frames(&self) -> Result<TemplateFrames, Error> {
        self.build_frames().map_err(Error::bad_value)
    }

    fn build_frames(&self) -> Result<TemplateFrames, String> {
        let layout = Layout::new(&self.layers, self.share, self.seed)?;
        let headers = layout.headers();
        let last = self.layers.last().map_or((Protocol::Hex, None), |layer| (layer.protocol, layer.len));
        let least = if self.is_stamped() { stamp::LEN } else { 0 };
        let (variants, order) = match &self.sizes {
            None => {
                let payload = match last {
                    (Protocol::Payload, Some(len)) => len,
                    (Protocol::Payload | Protocol::Stamp, None) => SHORTEST.saturating_sub(headers).max(least),
                    _ => 0,
                };
                (vec![layout.variant(payload, (headers + payload).max(SHORTEST))?], vec![0])
            }
            Some(sizes) => {
                let payload = |size: usize| match (size - 4).checked_sub(headers).filter(|payload| *payload >= least) {
                    Some(payload) => layout.variant(payload, size - 4),
                    None => Err(format!(
                        "a frame of {size} bytes, CRC included, has no room for these headers; the smallest has {}",
                        (headers + least + 4).max(SHORTEST + 4)
                    )),
                };
                let variants = sizes.each().map(payload).collect::<Result<Vec<_>, _>>()?;
                (variants, sizes.order())
            }
        };
        let lens = order.iter().map(|variant| variants[*variant as usize].bytes.len());
        let (longest, mean_len) = (lens.clone().max().unwrap_or(0), lens.sum::<usize>() as f64 / order.len() as f64);
        // Short frames are copied in one piece; long frames, and those of several sizes, as headers and payload.
        let head = match &variants[..] {
            [only] if only.bytes.len() <= ROW => only.bytes.len(),
            _ => headers.min(ROW),
        };
        let changing =
            layout.cells.iter().map(|cell| cell.at + cell.width).chain(layout.sums.iter().map(|sum| sum.at + 2));
        if let Some(end) = changing.max().filter(|end| *end > ROW) {
            return Err(format!("fields and checksums that change are in the first {ROW} bytes, not up to byte {end}"));
        }
        let stamps = self.is_stamped().then(|| Stamps {
            flow: self.flow.wrapping_add(self.share.first as u16),
            at: headers,
            replaced: layout.covers_stamp().then(|| {
                let longest = variants.iter().max_by_key(|variant| variant.bytes.len());
                let sum = |len: usize| {
                    longest.and_then(|longest| longest.bytes.get(headers..headers + len)).map_or(0, sum_of)
                };
                [sum(stamp::LEN), sum(stamp::written(headers, usize::MAX))]
            }),
        });
        let mut row = Row([0; ROW]);
        row.0[..head].copy_from_slice(&variants[0].bytes[..head]);
        let variant_index = CyclicIndex::new(order.len() as u64 - 1, 1, self.share);
        let mut frames = TemplateFrames {
            variants,
            order,
            variant_index,
            longest,
            mean_len,
            cells: layout.cells,
            sums: layout.sums,
            rows: vec![row; BLOCK],
            head,
            kinds: [0; BLOCK],
            at: 0,
            stamps,
            sent: 0,
        };
        frames.prepare();
        Ok(frames)
    }
}

/// The number of bytes of a frame that can change.
const ROW: usize = 256;

/// The first bytes of a frame, aligned to cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Row([u8; ROW]);

/// The frames of a [`Template`], in order.
///
/// Headers are prepared for a block of frames at a time. Only changing bytes are written, since the others remain from
/// the previous block. A frame is then a copy.
#[derive(Clone, Debug)]
pub struct TemplateFrames {
    /// One for each size.
    variants: Vec<Variant>,
    /// The indexes of the variants in the order of the frames.
    order: Vec<u32>,
    variant_index: CyclicIndex,
    longest: usize,
    mean_len: f64,
    cells: Vec<Cell>,
    /// From the innermost to the outermost.
    sums: Vec<Sum>,
    /// The first `head` bytes of each frame of the block.
    rows: Vec<Row>,
    head: usize,
    /// The variants of the block's frames.
    kinds: [u32; BLOCK],
    /// The next frame's index in the block.
    at: usize,
    stamps: Option<Stamps>,
    sent: u64,
}

/// The stamps of frames with sequence numbers.
#[derive(Clone, Debug)]
struct Stamps {
    flow: u16,
    /// Their offset in each frame.
    at: usize,
    /// If UDP's checksum covers the stamp: the sum of the bytes that it replaces in short and in long frames.
    replaced: Option<[u64; 2]>,
}

impl Stamps {
    #[inline]
    fn write(&self, frame: &mut [u8], sequence: u64) {
        stamp::write_over(frame, self.at, self.flow, sequence);
        if let Some(replaced) = self.replaced {
            let (headers, payload) = frame.split_at_mut(self.at);
            let Some(checksum) = headers.last_chunk_mut::<2>() else { return };
            let written = stamp::written(self.at, payload.len());
            let replaced = replaced[usize::from(written > stamp::LEN)];
            // RFC 1624: the sum without the replaced bytes, by their complement.
            let rest = u64::from(!u16::from_be_bytes(*checksum)) + u64::from(complement(folded(replaced), false));
            *checksum = complement(folded(rest + sum_of(&payload[..written])), true).to_be_bytes();
        }
    }
}

impl TemplateFrames {
    /// Returns the length of the next frame in bytes, without CRC.
    #[inline]
    pub fn next_len(&self) -> usize {
        self.variants[self.kinds[self.at] as usize].bytes.len()
    }

    /// Returns the length of the longest frame in bytes, without CRC.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the mean length of the frames in bytes, without CRC.
    pub fn mean_len(&self) -> f64 {
        self.mean_len
    }

    /// Returns whether the frames have sequence numbers.
    pub fn is_stamped(&self) -> bool {
        self.stamps.is_some()
    }

    /// Returns the number of frames generated.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Writes the next frame to `frame`, which has [`next_len`](TemplateFrames::next_len) bytes.
    ///
    /// # Panics
    /// If `frame` has another length.
    #[inline]
    pub fn fill(&mut self, frame: &mut [u8]) {
        let constant = &self.variants[self.kinds[self.at] as usize].bytes;
        assert_eq!(frame.len(), constant.len(), "the length of the next frame");
        let (head, payload) = frame.split_at_mut(self.head);
        copy(head, &self.rows[self.at].0[..self.head]);
        if !payload.is_empty() {
            payload.copy_from_slice(&constant[self.head..]);
        }
        if let Some(stamps) = &self.stamps {
            stamps.write(frame, self.sent);
        }
        self.sent += 1;
        self.at += 1;
        if self.at == BLOCK {
            self.prepare();
        }
    }

    /// Prepares the next block.
    #[inline(never)]
    fn prepare(&mut self) {
        let TemplateFrames { variants, cells, sums, rows, head, .. } = self;
        if variants.len() > 1 {
            for (kind, row) in self.kinds.iter_mut().zip(&mut *rows) {
                *kind = self.order[self.variant_index.next() as usize];
                row.0[..*head].copy_from_slice(&variants[*kind as usize].bytes[..*head]);
            }
        }
        for cell in &mut *cells {
            let mut values = [cell.base; BLOCK];
            cell.parts.iter_mut().for_each(|(source, shift)| source.add_to(&mut values, *shift));
            store(rows, cell.at, cell.width, &values);
            for (words, value) in cell.words.iter_mut().zip(values) {
                let halves = (value & 0xFFFF_FFFF) + (value >> 32);
                *words = ((halves & 0xFFFF) + (halves >> 16)) as u32;
            }
        }
        for number in 0..sums.len() {
            let (inner, rest) = sums.split_at_mut(number);
            let Sum { at, cells: of_cells, sums: of_sums, is_never_zero, values } = &mut rest[0];
            match &variants[..] {
                [only] => *values = [only.bases[number]; BLOCK],
                _ => values
                    .iter_mut()
                    .zip(&self.kinds)
                    .for_each(|(total, kind)| *total = variants[*kind as usize].bases[number]),
            }
            let covered = of_cells.iter().map(|&(cell, shift)| (&cells[cell].words, shift));
            for (covered, shift) in covered.chain(of_sums.iter().map(|&(sum, shift)| (&inner[sum].values, shift))) {
                values.iter_mut().zip(covered).for_each(|(total, words)| *total += words << shift);
            }
            values.iter_mut().for_each(|total| *total = complement(*total, *is_never_zero).into());
            store(rows, *at, 2, values);
        }
        self.at = 0;
    }
}

/// Stores the last `width` bytes of each value, big-endian, into its row.
fn store<V: Copy + Into<u64>>(rows: &mut [Row], at: usize, width: usize, values: &[V; BLOCK]) {
    /// Stores `WIDTH` bytes.
    fn of<const WIDTH: usize, V: Copy + Into<u64>>(rows: &mut [Row], at: usize, values: &[V; BLOCK]) {
        for (row, value) in rows.iter_mut().zip(values) {
            let value: u64 = (*value).into();
            if let (Some(bytes), Some(value)) =
                (row.0[at..].first_chunk_mut::<WIDTH>(), value.to_be_bytes().last_chunk())
            {
                *bytes = *value;
            }
        }
    }
    match width {
        1 => of::<1, V>(rows, at, values),
        2 => of::<2, V>(rows, at, values),
        3 => of::<3, V>(rows, at, values),
        4 => of::<4, V>(rows, at, values),
        5 => of::<5, V>(rows, at, values),
        6 => of::<6, V>(rows, at, values),
        7 => of::<7, V>(rows, at, values),
        _ => of::<8, V>(rows, at, values),
    }
}

/// Copies a row. The compiler inlines copies of constant length; two overlapping ones copy any length in between.
#[inline(always)]
fn copy(to: &mut [u8], from: &[u8]) {
    /// Copies `HALF` to `2 * HALF` bytes.
    #[inline(always)]
    fn halves<const HALF: usize>(to: &mut [u8], from: &[u8]) {
        if let (Some(start), Some(end)) = (from.first_chunk::<HALF>(), from.last_chunk::<HALF>()) {
            to[..HALF].copy_from_slice(start);
            let behind = to.len() - HALF;
            to[behind..].copy_from_slice(end);
        }
    }
    match from.len() {
        32..=64 => halves::<32>(to, from),
        65..=128 => halves::<64>(to, from),
        _ => to.copy_from_slice(from),
    }
}

#[cfg(test)]
mod tests;
