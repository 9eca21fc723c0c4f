//! Captures as other programs write them: link types, versions, lengths, blocks and damage, as in public bug reports.
//! Each is built from its parts here, so a test knows every byte.

/// The first frame's time, in seconds since 1970.
const BEGIN: u64 = 1_700_000_000;
const MICROS: u64 = 1_000_000;
/// Frames of most captures. They are 0.1 s apart.
pub const FRAMES: usize = 20;
/// The length of those frames.
pub const LEN: usize = 88;

/// A frame of UDP, from port 4000 + `number` to port 9, with `payload` bytes.
pub fn frame(number: usize, payload: usize) -> Vec<u8> {
    tagged(number, payload, &[])
}

fn tagged(number: usize, payload: usize, tags: &[(u16, u16)]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    tags.iter().for_each(|(kind, tag)| frame.extend([kind.to_be_bytes(), tag.to_be_bytes()].as_flattened()));
    let half = |value: usize| (value as u16).to_be_bytes();
    let mut header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1];
    header[2..4].copy_from_slice(&half(28 + payload));
    header[4..6].copy_from_slice(&half(number));
    let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    header[10..12].copy_from_slice(&(!(sum + (sum >> 16)) as u16).to_be_bytes());
    frame.extend([0x08, 0x00]);
    frame.extend(header);
    frame.extend([half(4000 + number), half(9), half(8 + payload), [0; 2]].as_flattened());
    frame.extend((number..number + payload).map(|value| value as u8));
    frame
}

/// The 20 frames of 88 bytes.
fn plain() -> Vec<Vec<u8>> {
    (0..FRAMES).map(|number| frame(number, 46)).collect()
}

/// A packet of a capture: its time in microseconds since 1970, its captured bytes, and its length.
type Packet = (u64, Vec<u8>, usize);

/// Packets of these bytes, 0.1 s apart.
fn apart(all: impl IntoIterator<Item = Vec<u8>>) -> Vec<Packet> {
    at(all, |number| number * MICROS / 10)
}

/// Packets of these bytes, at times after the first in microseconds.
fn at(all: impl IntoIterator<Item = Vec<u8>>, time: impl Fn(u64) -> u64) -> Vec<Packet> {
    (0..).zip(all).map(|(number, bytes)| (BEGIN * MICROS + time(number), bytes.clone(), bytes.len())).collect()
}

/// The parts of a pcap file's header that differ.
struct Pcap {
    magic: u32,
    is_big: bool,
    version: [u16; 2],
    snap_len: u32,
    link: u32,
}

const PCAP: Pcap = Pcap { magic: 0xA1B2_C3D4, is_big: false, version: [2, 4], snap_len: 262_144, link: 1 };
const ANNOUNCED_FCS: u32 = 1 | 1 << 26 | 2 << 28;

impl Pcap {
    fn of(link: u32) -> Pcap {
        Pcap { link, ..PCAP }
    }

    /// Builds a file. Records of Kuznetzov's variant have 8 more bytes.
    fn file(&self, packets: &[Packet]) -> Vec<u8> {
        let is_modified = self.magic == 0xA1B2_CD34;
        let unit = if self.magic == 0xA1B2_3C4D { 1000 } else { 1 };
        let mut file = Vec::new();
        let [word, half] = [4, 2].map(|len| move |value: u32| ordered(self.is_big, value.into(), len));
        file.extend(word(self.magic));
        self.version.iter().for_each(|part| file.extend(half(u32::from(*part))));
        [0, 0, self.snap_len, self.link].iter().for_each(|value| file.extend(word(*value)));
        for (time, bytes, len) in packets {
            let fraction = (time % MICROS * unit) as u32;
            let words = [(time / MICROS) as u32, fraction, bytes.len() as u32, *len as u32];
            words.iter().for_each(|value| file.extend(word(*value)));
            if is_modified {
                file.extend(word(1));
                file.extend(half(0x0800));
                file.extend([0, 0]);
            }
            file.extend(bytes);
        }
        file
    }
}

/// Returns the last `len` bytes of a number, in big-endian order or reversed.
fn ordered(is_big: bool, value: u64, len: usize) -> Vec<u8> {
    let mut bytes = value.to_be_bytes()[8 - len..].to_vec();
    if !is_big {
        bytes.reverse();
    }
    bytes
}

/// A pcapng file under construction, little-endian.
struct Blocks(Vec<u8>);

const END_OF_OPTIONS: [u8; 4] = [0; 4];

/// An option of a block.
fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let mut option = [&code.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat();
    option.resize(option.len().next_multiple_of(4), 0);
    option
}

impl Blocks {
    /// A file with a section header of version 1.`minor`.
    fn section(minor: u16, len: u64) -> Blocks {
        let mut blocks = Blocks(Vec::new());
        let parts = [&0x1A2B_3C4Du32.to_le_bytes()[..], &[1, 0], &minor.to_le_bytes(), &len.to_le_bytes()];
        blocks.add(0x0A0D_0D0A, &parts.concat());
        blocks
    }

    fn new() -> Blocks {
        Blocks::section(0, u64::MAX)
    }

    fn add(&mut self, kind: u32, body: &[u8]) -> &mut Blocks {
        let len = (12 + body.len() as u32).to_le_bytes();
        self.0.extend([&kind.to_le_bytes()[..], &len, body, &len].concat());
        self
    }

    fn interface(&mut self, link: u16, snap_len: u32, options: &[u8]) -> &mut Blocks {
        let end = if options.is_empty() { &[][..] } else { &END_OF_OPTIONS };
        let parts = [&link.to_le_bytes()[..], &[0, 0], &snap_len.to_le_bytes(), options, end];
        self.add(1, &parts.concat())
    }

    fn ethernet(&mut self) -> &mut Blocks {
        self.interface(1, 0, &[])
    }

    fn enhanced(&mut self, interface: u32, time: u64, bytes: &[u8], len: usize, options: &[u8]) -> &mut Blocks {
        let words = [interface, (time >> 32) as u32, time as u32, bytes.len() as u32, len as u32];
        self.packet(6, &words, bytes, options)
    }

    /// An enhanced packet that is complete and has no options.
    fn whole(&mut self, interface: u32, time: u64, bytes: &[u8]) -> &mut Blocks {
        self.enhanced(interface, time, bytes, bytes.len(), &[])
    }

    fn packet(&mut self, kind: u32, words: &[u32], bytes: &[u8], options: &[u8]) -> &mut Blocks {
        let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        body.extend(bytes);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(options);
        self.add(kind, &body)
    }

    fn done(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// The CRC of Ethernet, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

fn with_fcs(frame: Vec<u8>) -> Vec<u8> {
    let crc = crc32(&frame).to_le_bytes();
    [frame, crc.to_vec()].concat()
}

/// UDP over IPv6 after chains of extension headers; fragments; and a packet without a payload.
fn extended() -> Vec<Vec<u8>> {
    let address = |last: u8| [0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let packet = |next: u8, chain: &[&[u8]], rest: &[u8]| {
        let payload = [&chain.concat()[..], rest].concat();
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xDD, 0x60, 0, 0, 0];
        frame.extend((payload.len() as u16).to_be_bytes());
        frame.extend([next, 64]);
        [&frame[..], &address(1), &address(2), &payload].concat()
    };
    let udp = [&[0x04, 0xD2, 0, 53, 0, 28, 0, 0][..], &[0; 20]].concat();
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let routing = [60, 0, 4, 0, 0, 0, 0, 0];
    let fragment = |offset: u8, more: u8| [17, 0, 0, offset << 3 | more, 0, 0, 0, 77];
    let authentication = [&[17, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1][..], &[0; 12]].concat();
    vec![
        packet(17, &[], &udp),
        packet(0, &[&options(17)], &udp),
        packet(0, &[&options(43), &routing, &options(17)], &udp),
        packet(44, &[&fragment(0, 1)], &udp),
        packet(44, &[&fragment(4, 0)], &[0; 24]),
        packet(44, &[&fragment(0, 0)], &udp),
        packet(51, &[&authentication], &udp),
        packet(60, &[&options(60).repeat(8), &options(17)], &udp),
        packet(59, &[], &[]),
    ]
}

/// Returns all captures with their names.
pub fn all() -> Vec<(&'static str, Vec<u8>)> {
    [pcap_variants(), pcap_links(), pcap_lengths(), pcap_times(), pcap_contents(), pcapng()].concat()
}

/// Versions, byte orders, and files that are none.
fn pcap_variants() -> Vec<(&'static str, Vec<u8>)> {
    let frames = apart(plain());
    let std = PCAP.file(&frames);
    let modified = Pcap { magic: 0xA1B2_CD34, ..PCAP };
    let version = |version: [u16; 2]| Pcap { version, ..PCAP }.file(&frames);
    let checked = apart(plain().into_iter().map(with_fcs));
    vec![
        ("std.pcap", std.clone()),
        ("kuz.pcap", modified.file(&frames)),
        ("kuz_be.pcap", Pcap { is_big: true, ..modified }.file(&frames)),
        ("be_ns.pcap", Pcap { magic: 0xA1B2_3C4D, is_big: true, ..PCAP }.file(&frames)),
        ("ver23.pcap", version([2, 3])),
        ("ver25.pcap", version([2, 5])),
        ("ver3.pcap", version([3, 0])),
        ("fcs4.pcap", Pcap::of(ANNOUNCED_FCS).file(&checked)),
        ("fcs_class.pcap", Pcap::of(0x0224_0001).file(&frames)),
        ("text.pcap", b"hello world this is not a capture\n".repeat(5)),
        ("nothing.pcap", Vec::new()),
        ("hdr10.pcap", std[..10].to_vec()),
        ("empty.pcap", PCAP.file(&[])),
        ("cat.pcap", std.repeat(2)),
    ]
}

/// Link types other than Ethernet.
fn pcap_links() -> Vec<(&'static str, Vec<u8>)> {
    let after = |header: &[u8]| apart(plain().into_iter().map(|frame| [header, &frame[14..]].concat()));
    let of = |link: u32, header: &[u8]| Pcap::of(link).file(&after(header));
    let alike = |packet: &[u8]| apart(vec![packet.to_vec(); FRAMES]);
    let wireless = [8, 0].repeat(20);
    vec![
        ("raw101.pcap", of(101, &[])),
        ("raw12.pcap", of(12, &[])),
        ("raw14.pcap", of(14, &[])),
        ("ipv4_228.pcap", of(228, &[])),
        ("null0.pcap", of(0, &[2, 0, 0, 0])),
        ("sll113.pcap", of(113, &COOKED)),
        ("sll276.pcap", of(276, &[8, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0])),
        ("wifi105.pcap", Pcap::of(105).file(&alike(&wireless))),
        ("wifi127.pcap", Pcap::of(127).file(&alike(&[&[0, 0, 8, 0, 0, 0, 0, 0], &wireless[..]].concat()))),
    ]
}

/// Linux cooked capture: from this host, Ethernet, a sender's address of 6 bytes, IPv4.
const COOKED: [u8; 16] = [0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0];

/// Snap lengths, and lengths that contradict each other.
fn pcap_lengths() -> Vec<(&'static str, Vec<u8>)> {
    let frames = apart(plain());
    let snapped: Vec<Packet> = frames.iter().map(|(time, bytes, len)| (*time, bytes[..68].to_vec(), *len)).collect();
    let snap = |snap_len: u32, packets: &[Packet]| Pcap { snap_len, ..PCAP }.file(packets);
    let mut longer = at([frame(1, 100), [frame(2, 743), vec![0xEE; 16]].concat(), frame(3, 100)], |n| n * 1000);
    longer[1].2 = 785;
    let mut huge = frame(2, 60_000);
    huge.resize(92_442, 0x55);
    let short = [vec![], frame(1, 46), vec![1], frame(2, 46)[..13].to_vec(), frame(3, 46)[..14].to_vec()];
    let payloads = [46, 1000, 1472, 1472, 1300, 46].into_iter().enumerate();
    vec![
        ("snap0.pcap", snap(0, &frames)),
        ("snapmax.pcap", snap(u32::MAX, &frames)),
        ("snap68.pcap", snap(68, &snapped)),
        ("snaplie.pcap", snap(40, &frames)),
        ("calongerthanlen.pcap", PCAP.file(&longer)),
        ("big92442.pcap", PCAP.file(&at([frame(1, 46), huge, frame(3, 46)], |n| n * 1000))),
        ("zero.pcap", PCAP.file(&at(short, |n| n * 1000))),
        ("mtu.pcap", PCAP.file(&at(payloads.map(|(number, payload)| frame(number, payload)), |n| n * 1000))),
    ]
}

/// Gaps, and times that are early, late or out of order.
fn pcap_times() -> Vec<(&'static str, Vec<u8>)> {
    let timed = |times: &[u64]| -> Vec<u8> {
        let packets: Vec<Packet> = (0..).zip(times).map(|(n, time)| (*time, frame(n, 46), LEN)).collect();
        PCAP.file(&packets)
    };
    let after = |times: &[u64]| timed(&times.iter().map(|time| BEGIN * MICROS + time).collect::<Vec<_>>());
    // The second record has 1,500,000 microseconds after the first second.
    let mut overflowing = after(&[0, 0, 2 * MICROS]);
    overflowing[24 + 104 + 4..][..4].copy_from_slice(&1_500_000u32.to_le_bytes());
    let last = 0xFFFF_FFF0 * MICROS;
    vec![
        ("gap418.pcap", after(&[0, 700_000, 800_000, MICROS])),
        ("ooo.pcap", after(&[0, 300_000, 100_000, 400_000])),
        ("usec2M.pcap", overflowing),
        ("y2106.pcap", timed(&[last, last + 500_000])),
        ("epoch0.pcap", timed(&[0, BEGIN * MICROS, BEGIN * MICROS + 100_000])),
    ]
}

/// Tags and extension headers.
fn pcap_contents() -> Vec<(&'static str, Vec<u8>)> {
    let tags: [&[(u16, u16)]; 6] = [
        &[(0x8100, 7)],
        &[(0x88A8, 100), (0x8100, 7)],
        &[(0x8100, 1), (0x8100, 2)],
        &[(0x8100, 0)],
        &[(0x9100, 5), (0x8100, 6)],
        &[(0x8100, 0xEFFF)],
    ];
    let tagged = tags.iter().enumerate().map(|(number, tags)| tagged(number, 46, tags));
    vec![("vlans.pcap", PCAP.file(&at(tagged, |n| n * 20_000))), ("ip6ext.pcap", PCAP.file(&at(extended(), |n| n)))]
}

/// Blocks and options of pcapng.
fn pcapng() -> Vec<(&'static str, Vec<u8>)> {
    let now = BEGIN * MICROS;
    let frames = plain();
    let [a, b, c, d] = [0, 1, 2, 3].map(|number| &frames[number][..]);
    let resolution = |value: u8| option(9, &[value]);
    let offset = |seconds: i64| option(14, &seconds.to_le_bytes());
    let cooked = [&COOKED[..], &b[14..]].concat();
    let obsolete = |blocks: &mut Blocks, time: u64, frame: &[u8]| {
        let len = frame.len() as u32;
        blocks.packet(2, &[0xFFFF_0000, (time >> 32) as u32, time as u32, len, len], frame, &[]);
    };
    let mut obsolete_blocks = Blocks::new();
    obsolete_blocks.ethernet();
    obsolete(&mut obsolete_blocks, now, a);
    obsolete(&mut obsolete_blocks, now + 100_000, b);
    // A frame check sequence of 4 bytes, received.
    let flags = [option(2, &(4u32 << 5 | 1).to_le_bytes()), END_OF_OPTIONS.to_vec()].concat();
    let mut checked = Blocks::new();
    checked.ethernet();
    for (time, frame) in (now..).step_by(1000).zip(&frames) {
        let frame = with_fcs(frame.clone());
        checked.enhanced(0, time, &frame, frame.len(), &flags);
    }
    let comment = [option(1, b"look here"), END_OF_OPTIONS.to_vec()].concat();
    let arp = [&[0xFF; 6][..], &[2, 0, 0, 0, 0, 1, 8, 6], &[0; 28]].concat();
    let unnamed_end = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &option(2, b"eth\xFF\xFE")].concat();
    let mut section_len = Blocks(Vec::new());
    section_len.ethernet().whole(0, 1, a);
    let cut = Blocks(Vec::new()).whole(0, now, b).done()[..50].to_vec();
    let too_long = [&[0; 12][..], &5000u32.to_le_bytes().repeat(2), &a[..40]].concat();
    vec![
        (
            "ng_res.pcapng",
            Blocks::new()
                .ethernet()
                .interface(1, 0, &resolution(9))
                .interface(1, 0, &resolution(0x8A))
                .interface(1, 0, &resolution(3))
                .whole(0, now, a)
                .whole(1, now * 1000 + 200_000_000, b)
                .whole(2, BEGIN * 1024 + 409, c)
                .whole(3, BEGIN * 1000 + 600, d)
                .done(),
        ),
        (
            "ng_off.pcapng",
            Blocks::new()
                .interface(1, 0, &offset(BEGIN as i64))
                .interface(1, 0, &offset(-3600))
                .whole(0, 100_000, a)
                .whole(1, (BEGIN + 3600) * MICROS + 300_000, b)
                .done(),
        ),
        (
            "ng_spb.pcapng",
            Blocks::new()
                .interface(1, 64, &[])
                .ethernet()
                .packet(3, &[88], &a[..64], &[])
                .enhanced(0, now, &b[..64], 88, &[])
                .done(),
        ),
        ("ng_opb.pcapng", obsolete_blocks.done()),
        (
            "ng_unknown.pcapng",
            Blocks::new()
                .ethernet()
                .add(0x0BAD, b"\x01\0\0\0abcdefgh")
                .add(10, b"KSLT\x08\0\0\0SECRETS!")
                .add(0x8000_0001, &b"jrnl".repeat(4))
                .whole(0, now, a)
                .add(4, &[0; 4])
                .add(5, &[0; 12])
                .done(),
        ),
        ("ng_ver12.pcapng", Blocks::section(2, u64::MAX).ethernet().whole(0, now, a).done()),
        ("ng_seclen.pcapng", Blocks::section(0, section_len.0.len() as u64).ethernet().whole(0, now, a).done()),
        ("ng_noend.pcapng", Blocks::new().add(1, &unnamed_end).whole(0, now, a).done()),
        ("ng_noidb.pcapng", Blocks::new().whole(0, now, a).done()),
        (
            "ng_badif.pcapng",
            Blocks::new().ethernet().whole(0, now, a).whole(5, now + 1000, b).whole(0, now + 2000, c).done(),
        ),
        ("ng_trunc.pcapng", [Blocks::new().ethernet().whole(0, now, a).done(), cut].concat()),
        ("ng_epb_badlen.pcapng", Blocks::new().ethernet().add(6, &too_long).whole(0, now, b).done()),
        (
            "ng_mixlink.pcapng",
            Blocks::new()
                .ethernet()
                .interface(113, 0, &[])
                .interface(101, 0, &[])
                .whole(0, now, a)
                .whole(1, now + 1000, &cooked)
                .whole(2, now + 2000, &c[14..])
                .whole(0, now + 3000, d)
                .done(),
        ),
        (
            "ng_rawonly.pcapng",
            Blocks::new().interface(101, 0, &[]).whole(0, now, &a[14..]).whole(0, now + 1, &b[14..]).done(),
        ),
        ("ng_epbflagsfcs.pcapng", checked.done()),
        (
            "ng_comment.pcapng",
            Blocks::new()
                .interface(1, 0, &option(2, b"uplink0"))
                .enhanced(0, now, &a[..60], 88, &comment)
                .whole(0, now + 5, &arp)
                .done(),
        ),
    ]
}
