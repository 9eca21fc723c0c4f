//! `NIOCREGIF` and `NIOCGINFO`: the API before version 12, translated to `NIOCCTRL`.

use std::ffi::c_char;

use linerate::Result;
use linerate_preload::memory::Plain;

use crate::control;
use crate::header::{
    API, Header, Nmreq, PortHdr, PortInfo, Register, ValeAttach, ValeDetach, ValeList, ValeNewif, ValePolling, command,
    flag, mode, request, ringid, set_text, text,
};
use crate::request::{body, refused};
use crate::table::DescriptorRef;

/// The last version of the older API.
const LEAST_API: u32 = 11;

fn header(name: &[c_char], reqtype: u16, body: u64) -> Header {
    let mut header = Header { version: API, reqtype, reserved: 0, name: [0; 64], options: 0, body };
    set_text(&mut header.name, &text(name));
    header
}

/// Answers `NIOCREGIF` or `NIOCGINFO` for a request in the program's memory.
///
/// # Errors
/// As in netmap.
pub fn answer_at(address: u64, answer: impl FnOnce(&mut Nmreq) -> Result<()>) -> Result<()> {
    body(address, answer)
}

fn ask<T: Plain>(descriptor: &DescriptorRef, name: &[c_char], reqtype: u16, body: &mut T) -> Result<Header> {
    let mut header = header(name, reqtype, std::ptr::from_mut(body) as u64);
    control::answer(descriptor, &mut header)?;
    Ok(header)
}

fn check(nmreq: &mut Nmreq) -> Result<()> {
    // Programs with newer versions may use this API too.
    if nmreq.version < LEAST_API {
        let why = format!("the program asks for version {} of netmap's API; this is {API}", nmreq.version);
        nmreq.version = API.into();
        return refused(why, libc::EINVAL);
    }
    Ok(())
}

pub fn info(descriptor: &DescriptorRef, nmreq: &mut Nmreq) -> Result<()> {
    check(nmreq)?;
    if nmreq.cmd == command::BDG_LIST {
        return list(descriptor, nmreq);
    }
    let mut info = PortInfo {
        memsize: 0,
        tx_slots: 0,
        rx_slots: 0,
        tx_rings: 0,
        rx_rings: 0,
        host_tx_rings: 0,
        host_rx_rings: 0,
        mem_id: nmreq.arg2,
        _pad: [0; 3],
    };
    ask(descriptor, &nmreq.name, request::PORT_INFO_GET, &mut info)?;
    nmreq.memsize = info.memsize as u32;
    (nmreq.tx_slots, nmreq.rx_slots) = (info.tx_slots, info.rx_slots);
    (nmreq.tx_rings, nmreq.rx_rings) = (info.tx_rings, info.rx_rings);
    (nmreq.arg2, nmreq.version) = (info.mem_id, API.into());
    Ok(())
}

pub fn register(descriptor: &DescriptorRef, nmreq: &mut Nmreq) -> Result<()> {
    check(nmreq)?;
    match nmreq.cmd {
        0 => bind(descriptor, nmreq),
        command::BDG_ATTACH => {
            let register = registration(nmreq);
            let mut body = ValeAttach { register, port_index: 0, _pad: 0 };
            if nmreq.arg1 == 1 {
                body.register.mode = mode::NIC_SW;
            }
            ask(descriptor, &nmreq.name, request::VALE_ATTACH, &mut body).map(drop)
        }
        command::BDG_DETACH => {
            let mut body = ValeDetach { port_index: 0, _pad: 0 };
            ask(descriptor, &nmreq.name, request::VALE_DETACH, &mut body).map(drop)
        }
        command::BDG_LIST => list(descriptor, nmreq),
        command::BDG_VNET_HDR => {
            let mut body = PortHdr { hdr_len: nmreq.arg1.into(), _pad: 0 };
            ask(descriptor, &nmreq.name, request::PORT_HDR_SET, &mut body).map(drop)
        }
        command::VNET_HDR_GET => {
            let mut body = PortHdr { hdr_len: 0, _pad: 0 };
            ask(descriptor, &nmreq.name, request::PORT_HDR_GET, &mut body)?;
            nmreq.arg1 = body.hdr_len as u16;
            Ok(())
        }
        command::BDG_NEWIF => {
            let mut body = ValeNewif {
                tx_slots: nmreq.tx_slots,
                rx_slots: nmreq.rx_slots,
                tx_rings: nmreq.tx_rings,
                rx_rings: nmreq.rx_rings,
                mem_id: nmreq.arg2,
                _pad: 0,
            };
            ask(descriptor, &nmreq.name, request::VALE_NEWIF, &mut body).map(drop)
        }
        command::BDG_DELIF => control::answer(descriptor, &mut header(&nmreq.name, request::VALE_DELIF, 0)),
        command::BDG_POLLING_ON => {
            let cpu = u32::from(nmreq.ringid & ringid::MASK);
            let mut body = ValePolling { mode: 1, first_cpu_id: cpu, num_polling_cpus: nmreq.arg1.into(), _pad: 0 };
            ask(descriptor, &nmreq.name, request::VALE_POLLING_ENABLE, &mut body).map(drop)
        }
        command::BDG_POLLING_OFF => {
            let mut body = ValePolling { mode: 0, first_cpu_id: 0, num_polling_cpus: 0, _pad: 0 };
            ask(descriptor, &nmreq.name, request::VALE_POLLING_DISABLE, &mut body).map(drop)
        }
        other => refused(format!("there is no command {other} (net/netmap_legacy.h)"), libc::EINVAL),
    }
}

fn bind(descriptor: &DescriptorRef, nmreq: &mut Nmreq) -> Result<()> {
    let mut body = registration(nmreq);
    let mut header = header(&nmreq.name, request::REGISTER, std::ptr::from_mut(&mut body) as u64);
    // Translate the older form of pipe names.
    let end = match body.mode {
        mode::PIPE_MASTER => Some('{'),
        mode::PIPE_SLAVE => Some('}'),
        _ => None,
    };
    if let Some(end) = end {
        set_text(&mut header.name, &format!("{}{end}{}", text(&nmreq.name), body.ringid));
        body.mode = mode::ALL_NIC;
    }
    control::answer(descriptor, &mut header)?;
    let Ok(memsize) = u32::try_from(body.memsize) else {
        return refused("the memory is longer than the older API can report", libc::ENOMEM);
    };
    (nmreq.offset, nmreq.memsize, nmreq.version) = (body.offset as u32, memsize, API.into());
    (nmreq.tx_slots, nmreq.rx_slots) = (body.tx_slots, body.rx_slots);
    (nmreq.tx_rings, nmreq.rx_rings) = (body.tx_rings, body.rx_rings);
    (nmreq.arg2, nmreq.arg3) = (body.mem_id, body.extra_bufs);
    Ok(())
}

/// Translates a registration to the newer API.
fn registration(nmreq: &Nmreq) -> Register {
    const MODES: u32 = 0xF;
    let mode = match (nmreq.flags & MODES, nmreq.ringid) {
        (mode::DEFAULT, id) if id & ringid::HW_RING != 0 => mode::ONE_NIC,
        (mode::DEFAULT, id) if id & ringid::SW_RING != 0 => mode::SW,
        (mode::DEFAULT, _) => mode::ALL_NIC,
        (mode, _) => mode,
    };
    let mut flags = u64::from(nmreq.flags & !MODES);
    if nmreq.ringid & ringid::NO_TX_POLL != 0 {
        flags |= flag::NO_TX_POLL;
    }
    if nmreq.ringid & ringid::DO_RX_POLL != 0 {
        flags |= flag::DO_RX_POLL;
    }
    Register {
        offset: 0,
        memsize: 0,
        tx_slots: nmreq.tx_slots,
        rx_slots: nmreq.rx_slots,
        tx_rings: nmreq.tx_rings,
        rx_rings: nmreq.rx_rings,
        host_tx_rings: 0,
        host_rx_rings: 0,
        mem_id: nmreq.arg2,
        ringid: nmreq.ringid & ringid::MASK,
        mode,
        extra_bufs: nmreq.arg3,
        _pad: 0,
        flags,
    }
}

fn list(descriptor: &DescriptorRef, nmreq: &mut Nmreq) -> Result<()> {
    let mut body = ValeList { bridge_idx: nmreq.arg1, _pad: 0, port_idx: nmreq.arg2.into() };
    let header = ask(descriptor, &nmreq.name, request::VALE_LIST, &mut body)?;
    set_text(&mut nmreq.name, &text(&header.name));
    (nmreq.arg1, nmreq.arg2) = (body.bridge_idx, body.port_idx as u16);
    Ok(())
}
