//! `NIOCCTRL`: the requests and options of netmap's API 14.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linerate::port::{is_vale, switch_and_port};
use linerate::share::netmap_object::{MemoryChoice, Offsets, Plan, STATE, SharedPort, memory_of, open_by};
use linerate::share::{Client, OpenRequest, RingCounts, RingSelection, folder};
use linerate::{Error, Result};
use linerate_preload::call;

use crate::csb;
use crate::descriptor::{Bound, client, gone, with_server};
use crate::header::{
    API, Header, MOST_API, NmOption, OptExtmem, OptOffsets, PoolsInfo, PortHdr, PortInfo, Register, ValeAttach,
    ValeDetach, ValeList, ValeNewif, ValePolling, flag, mode, option, request, set_text, text,
};
use crate::real::borrow;
use crate::request::{At, LONGEST_REQUEST, body, fault, options, refused, set_status, with};
use crate::table::{DescriptorRef, renew};

/// Answers `NIOCCTRL` for a header in the program's memory.
///
/// # Errors
/// As in netmap.
pub fn answer_at(descriptor: &DescriptorRef, address: u64) -> Result<()> {
    body(address, |header| answer(descriptor, header))
}

pub fn answer(descriptor: &DescriptorRef, header: &mut Header) -> Result<()> {
    if !(API..=MOST_API).contains(&header.version) {
        let why = format!("the program asks for version {} of netmap's API; this is {API}", header.version);
        header.version = API;
        return refused(why, libc::EINVAL);
    }
    if header.reserved != 0 {
        return refused("the request's reserved field is not zero", libc::EINVAL);
    }
    let name = text(&header.name);
    let at = header.body;
    match header.reqtype {
        request::REGISTER => body(at, |body| register(descriptor, &name, header.options, body)),
        request::PORT_INFO_GET => body(at, |body| port_info(descriptor, &name, body)),
        request::VALE_ATTACH => body(at, |body| attach(&name, body)),
        request::VALE_DETACH => body(at, |body| detach(&name, body)),
        request::VALE_LIST => body(at, |body| list(header, body)),
        request::PORT_HDR_SET => body(at, |body| set_header(&name, body)),
        request::PORT_HDR_GET => body(at, |body: &mut PortHdr| {
            body.hdr_len = find(&name)?.header(&name, None)?;
            Ok(())
        }),
        request::VALE_NEWIF => body(at, |body| create(&name, body)),
        request::VALE_DELIF | request::SYNC_KLOOP_STOP | request::CSB_ENABLE if at != 0 => {
            refused("this request has no body", libc::EINVAL)
        }
        request::VALE_DELIF => find(&name)?.destroy(&name),
        request::VALE_POLLING_ENABLE => body(at, |body| polling(&name, body)),
        request::VALE_POLLING_DISABLE => body(at, |_: &mut ValePolling| is_polled(&name)),
        request::POOLS_INFO_GET if name.is_empty() => refused("a port's name is missing", libc::EINVAL),
        request::POOLS_INFO_GET => body(at, |body| pools(descriptor, &name, body)),
        request::SYNC_KLOOP_START => csb::run(descriptor, header),
        request::SYNC_KLOOP_STOP => csb::stop(descriptor),
        request::CSB_ENABLE => csb::enable(descriptor, header.options),
        other => refused(format!("there is no request {other} (net/netmap.h)"), libc::EINVAL),
    }
}

/// The options of a registration.
#[derive(Default)]
struct Chosen {
    /// External memory: its address, its layout, and the address of the option.
    external: Option<(u64, Plan, u64)>,
    csb: Option<At>,
    offsets: Offsets,
    /// The address of the offsets option, and the maximum offset of a packet.
    max_offset: Option<(u64, u64)>,
}

/// Reads the options of a registration. An option must not occur twice.
fn choose(first: u64) -> Result<Chosen> {
    let (mut chosen, mut seen) = (Chosen::default(), 0u32);
    let mut bytes = (size_of::<Header>() + size_of::<Register>()) as u64;
    let options = options(first)?;
    for (_, option) in &options {
        let kind = option.reqtype;
        let more = if kind == option::SYNC_KLOOP_EVENTFDS { option.size } else { 0 };
        bytes = bytes.saturating_add((size_of::<NmOption>() + size_of::<u64>()) as u64).saturating_add(more);
        let is_known = (option::EXTMEM..=option::OFFSETS).contains(&kind);
        if is_known && seen & 1 << kind != 0 {
            let mut result = Ok(Chosen::default());
            for (at, _) in options.iter().filter(|(_, same)| same.reqtype == kind) {
                result = set_status(*at, refused("an option occurs twice", libc::EINVAL));
            }
            return result;
        }
        seen |= if is_known { 1 << kind } else { 0 };
    }
    if bytes > LONGEST_REQUEST {
        return refused("the options are longer than a request can be", libc::EMSGSIZE);
    }
    for (at, option) in options {
        let result = match option.reqtype {
            option::EXTMEM => with(at, |option: &mut OptExtmem| {
                chosen.external = Some((option.usrptr, external(option)?, at));
                Ok(())
            }),
            option::OFFSETS => with(at, |option| {
                chosen.offsets = offsets(option)?;
                chosen.max_offset = Some((at, option.max_offset));
                Ok(())
            }),
            option::CSB => {
                chosen.csb = Some((at, option));
                Ok(())
            }
            _ => refused("a registration does not have this option", libc::EOPNOTSUPP),
        };
        set_status(at, result)?;
    }
    let size = chosen.external.map_or(Plan::default(), |(_, plan, _)| plan).buffers.size as u64;
    if let Some((at, max)) = chosen.max_offset.filter(|(_, max)| *max > size) {
        let why = format!("packets cannot begin at {max}: buffers have {size} bytes");
        return set_status(at, refused(why, libc::EINVAL));
    }
    Ok(chosen)
}

fn register(descriptor: &DescriptorRef, name: &str, first: u64, register: &mut Register) -> Result<()> {
    let is_bound = || refused("the descriptor is bound to a port already", libc::EBUSY);
    if descriptor.bound().is_some() {
        return is_bound();
    }
    let chosen = choose(first)?;
    if register.mode == mode::NULL && register.mem_id == 0 && chosen.external.is_none() {
        return refused("memory without a port must exist: its number is missing", libc::EINVAL);
    }
    let bind = || {
        let wanted = wanted(name, register)?;
        let memory = MemoryChoice {
            number: register.mem_id,
            process: process(),
            plan: chosen.external.map(|(_, plan, _)| plan),
            extra: register.extra_bufs,
            offsets: chosen.offsets,
        };
        let (fd, folder) = (borrow(descriptor.fd), folder());
        let open = || open_by(fd, &folder, wanted.clone(), memory.clone());
        let port = with_server(&wanted.name, open)?;
        // The server has already bound the descriptor's socket to the port. On an error, the descriptor needs a new
        // socket.
        complete(descriptor, port, &chosen, register).inspect_err(|_| renew(descriptor))
    };
    match descriptor.bind(bind) {
        Some(bound) => bound.map(drop),
        None => is_bound(),
    }
}

/// Completes a registration after the port was opened.
fn complete(descriptor: &DescriptorRef, port: SharedPort, chosen: &Chosen, register: &mut Register) -> Result<Bound> {
    if let Some((address, plan, at)) = chosen.external {
        map_over(address, plan.len(), descriptor)?;
        let mem_id = port.region().0;
        with(at, |option: &mut OptExtmem| {
            option.info = PoolsInfo { memsize: option.info.memsize, ..pools_of(&plan, mem_id) };
            Ok(())
        })?;
    }
    register.extra_bufs = port.extra_buffers();
    fill(register, &port);
    let bound = Bound::new(port);
    if let Some(option) = chosen.csb {
        csb::enable_by(&bound, option)?;
    }
    Ok(bound)
}

/// Validates the packet offsets of an option.
fn offsets(option: &mut OptOffsets) -> Result<Offsets> {
    let bits = if option.bits == 0 { 64 } else { option.bits };
    if bits > 64 || option.tx_align > 64 || option.initial_offset > option.max_offset || option.max_offset >= 65_536 {
        return refused(
            "invalid packet offsets: bits and tx_align are at most 64, and initial_offset <= max_offset < 65536",
            libc::EINVAL,
        );
    }
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    if option.max_offset > mask {
        return refused("max_offset does not fit the offset's bits", libc::EINVAL);
    }
    option.bits = bits;
    Ok(Offsets { mask, first: option.initial_offset })
}

/// Converts a registration to a request to the server.
fn wanted(name: &str, register: &Register) -> Result<OpenRequest> {
    let selection = match register.mode {
        mode::ALL_NIC => RingSelection::All,
        mode::SW => RingSelection::Host,
        mode::NIC_SW => RingSelection::AllAndHost,
        mode::ONE_NIC => RingSelection::One(register.ringid & 0xFFF),
        mode::ONE_SW => RingSelection::OneOfHost(register.ringid & 0xFFF),
        mode::NULL => RingSelection::Memory,
        other => return refused(format!("there is no mode {other} (NR_REG_*)"), libc::EINVAL),
    };
    if name.ends_with(['{', '}']) {
        return refused(format!("the number of pipe '{name}' is missing"), libc::EINVAL);
    }
    let has = |flag: u64| register.flags & flag != 0;
    Ok(OpenRequest {
        name: name.to_string(),
        selection,
        receive_only: has(flag::RX_RINGS_ONLY),
        transmit_only: has(flag::TX_RINGS_ONLY),
        monitor_rx: has(flag::MONITOR_RX) || has(flag::ZCOPY_MON),
        monitor_tx: has(flag::MONITOR_TX) || has(flag::ZCOPY_MON),
        zero_copy: has(flag::ZCOPY_MON),
        exclusive: has(flag::EXCLUSIVE),
        rings: RingCounts {
            tx: register.tx_rings,
            rx: register.rx_rings,
            host_tx: register.host_tx_rings,
            host_rx: register.host_rx_rings,
            tx_slots: register.tx_slots,
            rx_slots: register.rx_slots,
        },
        takes_header: has(flag::ACCEPT_VNET_HDR),
        timestamps: false,
        cluster: None,
        shares: true,
        flags: register.flags,
    })
}

/// Writes the port's actual values to the registration.
fn fill(register: &mut Register, port: &SharedPort) {
    let (rings, (number, len)) = (port.rings(), port.region());
    register.offset = port.layout().at as u64;
    register.memsize = len as u64;
    (register.tx_slots, register.rx_slots) = (rings.tx_slots, rings.rx_slots);
    (register.tx_rings, register.rx_rings) = (rings.tx, rings.rx);
    (register.host_tx_rings, register.host_rx_rings) = (rings.host_tx, rings.host_rx);
    register.mem_id = number;
}

/// Plans the layout of external memory (EXTMEM): the port's memory, which is shared with the server, replaces the
/// program's at the same address.
fn external(option: &mut OptExtmem) -> Result<Plan> {
    let info = &mut option.info;
    let mut plan = Plan::default();
    // The limits of counts and sizes are netmap's.
    for (objects, count, size, most, longest) in [
        (&mut plan.ports, info.if_total, info.if_size, 10_000, 4096),
        (&mut plan.rings, info.ring_total, info.ring_size, 1024, 32 * 4096),
        (&mut plan.buffers, info.buf_total, info.buf_size, 1_000_000, 65_536),
    ] {
        if count > most || size > longest || size != 0 && size < 64 {
            let why = format!("{count} objects of {size} bytes are not possible: at most {most}, of 64 to {longest}");
            return refused(why, libc::EINVAL);
        }
        objects.count = if count == 0 { objects.count } else { count as usize };
        objects.size = if size == 0 { objects.size } else { (size as usize).next_multiple_of(64) };
    }
    if info.ring_size != 0 {
        plan.rings.size += STATE;
    }
    // Use only full pages: the rest of the last page may hold other data of the program.
    let len = info.memsize as usize / PAGE * PAGE;
    // If no number was requested, rings use at most an eighth of the memory.
    if info.ring_total == 0 {
        plan.rings.count = plan.rings.count.min((len / 8 / plan.rings.size).max(8));
    }
    let Some(plan) = plan.within(len) else {
        return refused("the external memory is too small for a port, its rings and their buffers", libc::ENOMEM);
    };
    if !option.usrptr.is_multiple_of(PAGE as u64) || option.usrptr == 0 {
        return refused("external memory must begin at a page", libc::EINVAL);
    }
    // Reject read-only memory: the mapping would make it writable.
    match is_all_writable(option.usrptr, plan.len() as u64) {
        true => Ok(plan),
        false => fault(),
    }
}

const PAGE: usize = 4096;

/// Maps a port's memory over the program's own.
fn map_over(address: u64, len: usize, descriptor: &DescriptorRef) -> Result<()> {
    let memory = memory_of(borrow(descriptor.fd))?.ok_or_else(gone)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: the program passed this memory for the purpose, and can write all of it (`external`).
    let mapped = unsafe { call!(libc::SYS_mmap, address, len, protection, flags, memory.as_raw_fd(), 0) };
    match mapped as u64 == address {
        true => Ok(()),
        false => refused("external memory cannot be shared", libc::EINVAL),
    }
}

/// Returns whether the program may read and write all of this memory, by the kernel's list (`/proc/self/maps`,
/// proc(5)).
fn is_all_writable(address: u64, len: u64) -> bool {
    let Some(end) = address.checked_add(len) else { return false };
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let mut at = address;
    for line in maps.lines() {
        let Some((range, rest)) = line.split_once(' ') else { continue };
        let mut bounds = range.split('-').map(|bound| u64::from_str_radix(bound, 16).unwrap_or_default());
        let (from, to) = (bounds.next().unwrap_or_default(), bounds.next().unwrap_or_default());
        if (from..to).contains(&at) && rest.starts_with("rw") {
            at = to;
        }
    }
    at >= end
}

fn pools_of(plan: &Plan, number: u16) -> PoolsInfo {
    let Plan { ports, rings, buffers, .. } = *plan;
    PoolsInfo {
        memsize: plan.len() as u64,
        mem_id: number,
        _pad: [0; 3],
        if_offset: 0,
        if_total: ports.count as u32,
        if_size: ports.size as u32,
        ring_offset: plan.rings_at() as u64,
        ring_total: rings.count as u32,
        ring_size: rings.size as u32,
        buf_offset: plan.buffers_at() as u64,
        buf_total: buffers.count as u32,
        buf_size: buffers.size as u32,
    }
}

/// Returns the random number by which the server identifies the program's memory. Child processes inherit it together
/// with the mapped memory.
fn process() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    if NUMBER.load(Relaxed) == 0 {
        let mut number = 0u64;
        // SAFETY: `number` has this size.
        unsafe { call!(libc::SYS_getrandom, &raw mut number, size_of::<u64>(), 0) };
        // If two threads race, the first one sets it. The top bit keeps it distinct from process IDs.
        let _ = NUMBER.compare_exchange(0, number | 1 << 63, Relaxed, Relaxed);
    }
    NUMBER.load(Relaxed)
}

fn pools(descriptor: &DescriptorRef, name: &str, info: &mut PoolsInfo) -> Result<()> {
    let asked = match descriptor.bound() {
        Some(bound) if info.mem_id == 0 => bound.port().region().0,
        _ => info.mem_id,
    };
    let server = client(name)?;
    server.info(name)?;
    let (number, plan) = server.pools(asked, process())?;
    *info = pools_of(&plan, number);
    Ok(())
}

fn port_info(descriptor: &DescriptorRef, name: &str, info: &mut PortInfo) -> Result<()> {
    let server = client(if name.is_empty() { "any" } else { name })?;
    let (number, plan) = server.pools(info.mem_id, process())?;
    info.memsize = plan.len() as u64;
    info.mem_id = number;
    let rings = match descriptor.bound() {
        Some(bound) => *bound.port().rings(),
        // Without a port, only the size and number of the memory are known.
        None if name.is_empty() => return Ok(()),
        None => server.info(name)?,
    };
    (info.tx_slots, info.rx_slots) = (rings.tx_slots, rings.rx_slots);
    (info.tx_rings, info.rx_rings) = (rings.tx, rings.rx);
    (info.host_tx_rings, info.host_rx_rings) = (rings.host_tx, rings.host_rx);
    Ok(())
}

/// Connects to the server of a name without starting one: requests that change or describe ports need an existing
/// server.
fn find(name: &str) -> Result<Client> {
    let folder = folder();
    Client::find(&folder, name)?.ok_or_else(|| Error::no_server(name, &folder))
}

/// Splits a name into the switch's and the port's.
fn parts(name: &str) -> Result<(&str, &str)> {
    match switch_and_port(name) {
        Some(parts) => Ok(parts),
        None => refused(format!("'{name}' is not a port of a switch (valeS:P)"), libc::EINVAL),
    }
}

fn attach(name: &str, request: &mut ValeAttach) -> Result<()> {
    let (switch, port) = parts(name)?;
    let register = &request.register;
    let host = matches!(register.mode, mode::NIC_SW | mode::SW | mode::ONE_SW);
    let rings = RingCounts { tx: register.tx_rings, rx: register.rx_rings, ..RingCounts::default() };
    request.port_index = client(name)?.attach(switch, port, host, rings).map_err(|error| match error.errno() {
        libc::ENXIO => error.with_source(std::io::Error::from_raw_os_error(libc::EINVAL)),
        _ => error,
    })?;
    Ok(())
}

fn detach(name: &str, request: &mut ValeDetach) -> Result<()> {
    let (switch, port) = parts(name)?;
    request.port_index = find(name)?.detach(switch, port)?;
    Ok(())
}

/// The index of a missing port (`NM_BDG_NOPORT`).
const NO_PORT: u32 = 254;

/// Finds a port by name; without a name, the first one at or after the given bridge and port index.
fn list(header: &mut Header, request: &mut ValeList) -> Result<()> {
    let mut all = Client::list_all(&Client::all(&folder())?)?;
    all.retain(|port| is_vale(&port.name));
    all.sort_by(|a, b| (linerate::share::base(&a.name), a.number).cmp(&(linerate::share::base(&b.name), b.number)));
    let mut bridges: Vec<String> = all.iter().map(|port| linerate::share::base(&port.name).to_string()).collect();
    bridges.dedup();
    let bridge_of = |name: &str| bridges.iter().position(|bridge| bridge == linerate::share::base(name)).unwrap_or(0);
    let name = text(&header.name);
    let found = match name.is_empty() {
        false => all.iter().find(|port| port.name == name),
        true => all.iter().find(|port| {
            let at = (bridge_of(&port.name), u32::from(port.number));
            at >= (request.bridge_idx.into(), request.port_idx)
        }),
    };
    let Some(port) = found else {
        return match parts(&name) {
            _ if name.is_empty() => refused("there are no more ports", libc::ENOENT),
            Ok((switch, _)) if bridges.iter().any(|bridge| bridge == switch) => {
                request.bridge_idx = bridge_of(&name) as u16;
                request.port_idx = NO_PORT;
                Ok(())
            }
            Ok(_) => refused(format!("there is no port '{name}'"), libc::ENOENT),
            Err(error) => Err(error),
        };
    };
    (request.bridge_idx, request.port_idx) = (bridge_of(&port.name) as u16, port.number.into());
    set_text(&mut header.name, &port.name);
    Ok(())
}

/// Sets the length of the virtio-net header that precedes each packet.
fn set_header(name: &str, request: &mut PortHdr) -> Result<()> {
    request.hdr_len = find(name)?.header(name, Some(request.hdr_len as usize))?;
    Ok(())
}

fn create(name: &str, request: &mut ValeNewif) -> Result<()> {
    let rings = RingCounts {
        tx: request.tx_rings,
        rx: request.rx_rings,
        host_tx: 0,
        host_rx: 0,
        tx_slots: request.tx_slots,
        rx_slots: request.rx_slots,
    };
    client(name)?.create(name, rings)?;
    request.mem_id = 1;
    Ok(())
}

/// Accepts requests for polling threads on an attached port, which has its own threads. These sleep when there are no
/// packets.
fn polling(name: &str, request: &ValePolling) -> Result<()> {
    if !(1..=2).contains(&request.mode) {
        return refused("a mode of polling is 1 (one processor) or 2 (several)", libc::EINVAL);
    }
    is_polled(name)
}

/// Checks that a port of a switch belongs to an interface: only ports of interfaces can be polled.
fn is_polled(name: &str) -> Result<()> {
    let (_, port) = parts(name)?;
    if !find(name)?.list()?.iter().any(|there| there.name == name) {
        return refused(format!("there is no port '{name}'"), libc::ENXIO);
    }
    match linerate::kernel::Interface::open(port).is_ok() {
        true => Ok(()),
        false => {
            refused(format!("'{name}' is not the port of an interface: there is nothing to poll"), libc::EOPNOTSUPP)
        }
    }
}
