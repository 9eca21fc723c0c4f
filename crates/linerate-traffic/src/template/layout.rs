//! From layers to bytes: the constant part of a template's frames, the bytes that change, and the dependent checksums.

use linerate_core::port::Random;

use super::grammar::{Fill, Layer};
use super::protocol::{Field, Protocol};
use super::source::{BLOCK, Share, Source};
use super::values::Values;
use crate::checksum::{complement, folded, sum_of};
use crate::stamp;

/// Bytes that change from frame to frame: one or several fields.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// The offset in the frame, and the number of bytes, at most 8.
    pub at: usize,
    pub width: usize,
    /// The bits around the fields.
    pub base: u64,
    /// The fields' sources, and their shift from the last bit.
    pub parts: Vec<(Source, u32)>,
    /// The sums of the values' 16-bit words, for the frames of a block.
    pub words: [u32; BLOCK],
}

/// A checksum that changes from frame to frame (RFC 1071).
#[derive(Clone, Debug)]
pub(super) struct Sum {
    pub at: usize,
    /// The indexes of the covered cells and of other covered sums. The shift is 8 if the last byte is the upper one of
    /// a word, otherwise 0.
    pub cells: Vec<(usize, u32)>,
    pub sums: Vec<(usize, u32)>,
    /// 0 would mean no checksum, so 0xFFFF is sent instead (RFC 768).
    pub is_never_zero: bool,
    /// The checksums of the frames of a block.
    pub values: [u32; BLOCK],
}

/// The constant bytes of the frames of one size, and the constant part of each [`Sum`].
#[derive(Clone, Debug)]
pub(super) struct Variant {
    pub bytes: Vec<u8>,
    pub bases: Vec<u32>,
}

/// The layout of a template's frames.
pub(super) struct Layout<'a> {
    layers: &'a [Layer],
    /// The offset of each layer's header, and of the payload.
    starts: Vec<usize>,
    headers: Vec<u8>,
    pub cells: Vec<Cell>,
    pub sums: Vec<Sum>,
    /// All checksums, from the innermost to the outermost.
    scopes: Vec<ChecksumScope>,
    seed: u64,
}

/// A checksum and what it covers.
struct ChecksumScope {
    layer: usize,
    at: usize,
    /// The layer whose addresses it covers, too.
    addresses: Option<usize>,
    /// Its index among the sums that change.
    sum: Option<usize>,
}

/// The minimum length of a frame without CRC (IEEE 802.3).
pub(super) const SHORTEST: usize = 60;

impl<'a> Layout<'a> {
    /// Computes the layout of a share's frames.
    ///
    /// # Errors
    /// Why these layers cannot form a valid frame.
    pub fn new(layers: &'a [Layer], share: Share, seed: u64) -> Result<Layout<'a>, String> {
        let (mut starts, mut headers, mut cells) = (Vec::new(), Vec::new(), Vec::new());
        for (n, layer) in layers.iter().enumerate() {
            let start = headers.len();
            starts.push(start);
            let next = layers.get(n + 1).map(|layer| layer.protocol);
            headers.extend(header(layer, next));
            let header = &mut headers[start..];
            for (field, values) in &layer.given {
                set_bits(header, bit_of(layer, field), field.bits.into(), constant_of(values));
            }
            let changing = layer.given.iter().flat_map(|(field, values)| {
                // Each field has separate random values.
                let [high, low] = Source::new(values, share, seed, (start * 8 + field.bit) as u64);
                cells_of(bit_of(layer, field), field.bits.into(), high, low)
            });
            cells.extend(merge(changing.collect()).into_iter().map(|cell| cell.taken_from(header, start)));
        }
        if let Some(at) = layers.iter().position(|layer| layer.protocol == Protocol::Stamp) {
            if at == 0 || layers[at - 1].protocol != Protocol::Udp {
                return Err("a stamp is the payload of udp: eth/ip/udp/stamp".to_string());
            }
            if starts[at] > stamp::LAST {
                return Err(format!("a stamp is in the first {} bytes of a frame: use fewer layers", stamp::LAST));
            }
        }
        starts.push(headers.len());
        let mut layout = Layout { layers, starts, headers, cells, sums: Vec::new(), scopes: Vec::new(), seed };
        layout.find_sums()?;
        Ok(layout)
    }

    /// Returns the length of the headers, without a payload.
    pub fn headers(&self) -> usize {
        self.headers.len()
    }

    /// Returns the offset of a layer.
    pub fn start_of(&self, layer: usize) -> usize {
        self.starts[layer]
    }

    /// Returns whether UDP has a checksum that covers a stamp after it.
    pub fn covers_stamp(&self) -> bool {
        let last = self.layers.len().saturating_sub(2);
        self.layers[last].protocol == Protocol::Udp && self.scopes.iter().any(|scope| scope.layer == last)
    }

    /// Finds the checksums, from the last layer to the first, and which of them change.
    fn find_sums(&mut self) -> Result<(), String> {
        for (n, layer) in self.layers.iter().enumerate().rev() {
            let is_stamped = self.layers.get(n + 1).is_some_and(|next| next.protocol == Protocol::Stamp);
            let has_none = match layer.protocol {
                Protocol::Gre => !layer.has_checksum,
                // The stamp has its own check. IPv6 requires a checksum, and outer checksums may cover this one.
                Protocol::Udp => {
                    is_stamped
                        && self.starts[n + 1] == stamp::USUAL
                        && n > 0
                        && self.layers[n - 1].protocol == Protocol::Ip
                }
                Protocol::Ip | Protocol::Tcp | Protocol::Icmp | Protocol::Icmp6 => false,
                _ => true,
            };
            if has_none || layer.has("checksum") {
                continue;
            }
            let Some(field) = layer.protocol.fields().iter().find(|field| field.name == "checksum") else { continue };
            let at = self.starts[n] + bit_of(layer, field) / 8;
            let carriers = self.layers[..n].iter();
            let carrier = carriers.clone().rposition(|layer| matches!(layer.protocol, Protocol::Ip | Protocol::Ip6));
            let addresses = match (layer.protocol.covers_addresses(), carrier) {
                (false, _) => None,
                (true, Some(carrier)) => Some(carrier),
                (true, None) => {
                    let name = layer.protocol.name();
                    return Err(format!(
                        "the checksum of {name} covers addresses, and no ip or ip6 is in front of it; give one, as \
                         {name}(checksum=0)"
                    ));
                }
            };
            let mut sum = Sum {
                at,
                cells: Vec::new(),
                sums: Vec::new(),
                is_never_zero: layer.protocol == Protocol::Udp,
                values: [0; BLOCK],
            };
            let region = (self.starts[n], self.end_of(n, usize::MAX));
            for (start, end) in
                [Some(region), addresses.map(|carrier| self.addresses_of(carrier))].into_iter().flatten()
            {
                let shift = |last: usize| if (last - start) % 2 == 1 { 8 } else { 0 };
                let cells = self.cells.iter().enumerate().filter(|(_, cell)| (start..end).contains(&cell.at));
                sum.cells.extend(cells.map(|(number, cell)| (number, shift(cell.at + cell.width))));
                let sums = self.sums.iter().enumerate().filter(|(_, inner)| (start..end).contains(&inner.at));
                sum.sums.extend(sums.map(|(number, inner)| (number, shift(inner.at + 2))));
            }
            let changes = !sum.cells.is_empty() || !sum.sums.is_empty();
            self.scopes.push(ChecksumScope { layer: n, at, addresses, sum: changes.then_some(self.sums.len()) });
            self.sums.extend(changes.then_some(sum));
        }
        Ok(())
    }

    /// Returns the end of the bytes that a layer's checksum covers, in a packet that ends at `end`.
    fn end_of(&self, layer: usize, end: usize) -> usize {
        if self.layers[layer].protocol == Protocol::Ip { self.starts[layer + 1] } else { end }
    }

    /// Returns the range of an IP header's addresses.
    fn addresses_of(&self, layer: usize) -> (usize, usize) {
        let start = self.starts[layer];
        if self.layers[layer].protocol == Protocol::Ip { (start + 12, start + 20) } else { (start + 8, start + 40) }
    }

    /// Builds the constant bytes of frames of `len` bytes, with `payload` bytes after the headers.
    ///
    /// # Errors
    /// The packet is too long for its headers.
    pub fn variant(&self, payload: usize, len: usize) -> Result<Variant, String> {
        let end = self.headers.len() + payload;
        let mut bytes = self.headers.clone();
        match self.layers.last().and_then(|layer| layer.fill) {
            None => bytes.extend((0..payload).map(|n| n as u8)),
            Some(Fill::Byte(byte)) => bytes.resize(end, byte),
            Some(Fill::Random) => {
                let mut random = Random::new(self.seed, u64::MAX);
                bytes.extend((0..payload).map(|_| random.next_u64() as u8));
            }
        }
        bytes.resize(len, 0);
        for (n, layer) in self.layers.iter().enumerate().filter(|(_, layer)| !layer.has("len")) {
            let (at, counted) = match layer.protocol {
                Protocol::Ip => (2, end - self.starts[n]),
                Protocol::Ip6 => (4, end - self.starts[n + 1]),
                Protocol::Udp => (4, end - self.starts[n]),
                _ => continue,
            };
            let counted = u16::try_from(counted)
                .map_err(|_| format!("{} carries at most 65535 bytes, not {counted}", layer.protocol.name()))?;
            let at = self.starts[n] + at;
            bytes[at..at + 2].copy_from_slice(&counted.to_be_bytes());
        }
        let mut bases = vec![0; self.sums.len()];
        for scope in &self.scopes {
            let (start, stop) = (self.starts[scope.layer], self.end_of(scope.layer, end));
            let mut base = sum_of(&bytes[start..stop]);
            if let Some(carrier) = scope.addresses {
                let (first, last) = self.addresses_of(carrier);
                let number = self.layers[carrier].protocol.number_of(Some(self.layers[scope.layer].protocol));
                base += sum_of(&bytes[first..last]) + u64::from(number.unwrap_or(0)) + (end - start) as u64;
            }
            match scope.sum {
                Some(number) => bases[number] = u32::from(!complement(folded(base), false)),
                None => {
                    let is_never_zero = self.layers[scope.layer].protocol == Protocol::Udp;
                    bytes[scope.at..scope.at + 2]
                        .copy_from_slice(&complement(folded(base), is_never_zero).to_be_bytes());
                }
            }
        }
        Ok(Variant { bytes, bases })
    }
}

/// Returns the constant bits of a field.
fn constant_of(values: &Values) -> u128 {
    match values {
        Values::Constant(value) => *value,
        // The upper half of an IPv6 address, if it has no source.
        Values::Range { first, .. } | Values::Random { first, .. } => first >> 64 << 64,
        Values::List { .. } => 0,
    }
}

/// Returns a layer's header with the number of the next layer, but without checksums and lengths.
fn header(layer: &Layer, next: Option<Protocol>) -> Vec<u8> {
    let mut bytes = layer.protocol.header().to_vec();
    let number = layer.protocol.number_of(next).unwrap_or(0).to_be_bytes();
    let words = (layer.bytes.len() / 4) as u8;
    match layer.protocol {
        Protocol::Eth => {
            bytes[12..].copy_from_slice(&number);
            if next == Some(Protocol::Arp) {
                bytes[..6].fill(0xFF);
            }
        }
        Protocol::Vlan | Protocol::Qinq => bytes[2..].copy_from_slice(&number),
        Protocol::Mpls => bytes[2] |= u8::from(next != Some(Protocol::Mpls)),
        Protocol::Ip => {
            bytes[0] += words;
            bytes[9] = number[1];
        }
        Protocol::Ip6 => bytes[6] = number[1],
        Protocol::Udp => bytes[2..4].copy_from_slice(&number),
        Protocol::Tcp => bytes[12] += words << 4,
        Protocol::Gre => {
            bytes[2..4].copy_from_slice(&number);
            let present = gre_words(layer);
            bytes[0] =
                [0x80, 0x20, 0x10].iter().zip(present).filter(|(_, is_there)| *is_there).map(|(bit, _)| bit).sum();
            bytes.truncate(4 + 4 * present.iter().filter(|is_there| **is_there).count());
        }
        _ => {}
    }
    bytes.extend(&layer.bytes);
    bytes
}

/// Returns which of GRE's optional words are present: checksum, key, sequence number (RFC 2890).
fn gre_words(layer: &Layer) -> [bool; 3] {
    [layer.has_checksum || layer.has("checksum"), layer.has("key"), layer.has("seq")]
}

/// Returns a field's first bit in its header.
fn bit_of(layer: &Layer, field: &Field) -> usize {
    if layer.protocol != Protocol::Gre || field.bit < 32 {
        return field.bit;
    }
    let missing = gre_words(layer)[..field.bit / 32 - 1].iter().filter(|is_there| !**is_there).count();
    field.bit - 32 * missing
}

/// Sets the bits of a field.
pub(crate) fn set_bits(header: &mut [u8], bit: usize, bits: usize, value: u128) {
    for n in 0..bits {
        let at = bit + bits - 1 - n;
        let mask = 0x80 >> (at % 8);
        match value >> n & 1 {
            1 => header[at / 8] |= mask,
            _ => header[at / 8] &= !mask,
        }
    }
}

/// Creates the cells of a field with these sources, with offsets in the header.
fn cells_of(first: usize, bits: usize, high: Option<Source>, low: Option<Source>) -> Vec<Cell> {
    let end = first + bits;
    let cell = |source: Option<Source>, first: usize, end: usize| {
        let (at, last) = (first / 8, end.div_ceil(8));
        let shift = (last * 8 - end) as u32;
        source.map(|source| Cell { at, width: last - at, base: 0, parts: vec![(source, shift)], words: [0; BLOCK] })
    };
    let middle = if bits > 64 { end - 64 } else { first };
    [cell(high, first, middle), cell(low, middle, end)].into_iter().flatten().collect()
}

/// Merges cells that share bytes.
fn merge(mut cells: Vec<Cell>) -> Vec<Cell> {
    cells.sort_by_key(|cell| cell.at);
    let mut merged: Vec<Cell> = Vec::new();
    for mut cell in cells {
        match merged.last_mut().filter(|last| last.at + last.width > cell.at) {
            Some(last) => {
                let end = (last.at + last.width).max(cell.at + cell.width);
                last.extend_to(end);
                cell.extend_to(end);
                last.parts.append(&mut cell.parts);
            }
            None => merged.push(cell),
        }
    }
    merged
}

impl Cell {
    /// Extends the cell by bytes after the fields.
    fn extend_to(&mut self, end: usize) {
        let bytes = end - self.at - self.width;
        self.parts.iter_mut().for_each(|(_, shift)| *shift += 8 * bytes as u32);
        self.width += bytes;
    }

    /// Moves the bits around the fields from the header, which is at `start` in the frame, into the cell.
    fn taken_from(self, header: &mut [u8], start: usize) -> Cell {
        let bytes = &mut header[self.at..self.at + self.width];
        let base = bytes.iter().fold(0, |base, byte| base << 8 | u64::from(*byte));
        bytes.fill(0);
        Cell { at: start + self.at, base, ..self }
    }
}
