//! Reading: `pcap_dispatch`, `pcap_loop`, `pcap_next`, `pcap_next_ex`.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uchar, c_void};
use std::ptr::null;

use crate::abi::*;
use crate::handle::{Handle, described, guarded};
use crate::real::real;

/// Frames that `pcap_dispatch` gives at most if the program does not say how many: a buffer, as Linux has blocks.
const BUFFER: c_int = 4096;

/// What became of an attempt to get a frame.
enum Next {
    /// Its bytes.
    Frame(*const c_uchar),
    Nothing,
    /// The end of a capture file.
    End,
    /// libpcap's number of an error, whose text is noted.
    Failed(c_int),
}

/// Gets the next frame, and fills in its header; without one, waits if the handle blocks and `waits`.
#[inline(always)]
fn next(handle: &Handle, waits: bool, header: &mut PacketHeader) -> Next {
    let mut has_received = false;
    loop {
        if handle.has_requests() {
            if handle.takes_break() {
                return Next::Failed(PCAP_ERROR_BREAK);
            }
            if let Ok(mut active) = handle.active.try_borrow_mut() {
                active.iter_mut().for_each(|active| handle.adopt_filter(active));
            }
        }
        if let Ok(mut active) = handle.active.try_borrow_mut()
            && let Some(active) = &mut *active
            && let Some((frame, captured)) = active.next(&handle.passed)
        {
            header.time.tv_sec = frame.seconds as _;
            header.time.tv_usec = match handle.settings.precision.get() {
                PCAP_TSTAMP_PRECISION_NANO => frame.nanoseconds.into(),
                _ => (frame.nanoseconds / 1000).into(),
            };
            (header.captured, header.len) = (captured, frame.len);
            return Next::Frame(frame.bytes);
        }
        if let Some(outcome) = receive(handle, waits, &mut has_received) {
            return outcome;
        }
    }
}

/// Receives frames, or waits for them; returns why there are none.
#[inline(never)]
fn receive(handle: &Handle, waits: bool, has_received: &mut bool) -> Option<Next> {
    // Taken if this is a signal handler that has interrupted a call.
    let Ok(mut active) = handle.active.try_borrow_mut() else { return Some(Next::Failed(handle.in_use())) };
    let Some(active) = &mut *active else { return Some(Next::Failed(handle.not_activated())) };
    handle.at_work.set();
    let outcome = guarded(Err(None), || {
        // An armed queue stays so until a frame comes: the thread sleeps after one more look.
        if active.receive() {
            active.disarm();
            *has_received = true;
            return Ok(None);
        }
        if active.is_exhausted(&handle.side).map_err(Some)? {
            return Ok(Some(Next::End));
        }
        // A program that was woken by frames that its filter refuses goes back to its other descriptors.
        let was_woken = handle.is_selected() && (*has_received || handle.ready.is_raised());
        if waits && !handle.is_nonblocking() && !was_woken {
            return active.wait(handle.waker(), &handle.at_work, &handle.side).map(|()| None).map_err(Some);
        }
        if was_woken {
            handle.ready.set(false);
        }
        Ok(Some(Next::Nothing))
    });
    handle.at_work.clear();
    outcome.unwrap_or_else(|error| {
        handle.fail(&error.map_or("a defect of linerate".to_string(), |error| described(&error)));
        Some(Next::Failed(PCAP_ERROR))
    })
}

/// Gives frames to the program's function: `most` of them, or without a number those that are there; `is_loop` goes on until
/// an error or a break.
///
/// Nothing here has to be dropped while the function runs: it may leave by longjmp(3), or end the thread.
fn give(handle: &Handle, most: c_int, is_loop: bool, callback: Callback, user: *mut c_uchar) -> c_int {
    let mut header = PacketHeader::EMPTY;
    let mut count = 0;
    let most = if most > 0 { most } else { c_int::MAX };
    loop {
        match next(handle, count == 0 || is_loop, &mut header) {
            Next::Frame(bytes) => {
                // SAFETY: the program's function; the header and the frame's bytes stay until it returns, the bytes until the
                // next frames are received.
                unsafe { callback(user, &raw const header, bytes) };
                count += 1;
                if is_loop && most == c_int::MAX {
                    count = 1;
                } else if count == most || !is_loop && count == BUFFER {
                    break;
                }
            }
            Next::Failed(error) => {
                count = error;
                break;
            }
            // A loop on a handle that does not block polls.
            Next::Nothing if is_loop => {}
            Next::End if is_loop => {
                count = 0;
                break;
            }
            Next::Nothing | Next::End => break,
        }
    }
    keep_watch(handle);
    if is_loop && count > 0 { 0 } else { count }
}

/// Keeps a frame until the next call. Its bytes are copied if the program's descriptor is kept up to date, which may receive.
fn kept(handle: &Handle, header: PacketHeader, bytes: *const c_uchar) -> (*const PacketHeader, *const c_uchar) {
    let kept = handle.last.keep(header, bytes, handle.is_selected());
    keep_watch(handle);
    kept
}

/// Brings the program's descriptor up to date, if it has one.
fn keep_watch(handle: &Handle) {
    if handle.is_selected()
        && let Ok(mut active) = handle.active.try_borrow_mut()
        && let Some(active) = &mut *active
    {
        handle.at_work.set();
        handle.adopt_filter(active);
        guarded((), || active.keep_watch(&handle.ready));
        handle.at_work.clear();
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_dispatch(pcap: *mut c_void, most: c_int, callback: Callback, user: *mut c_uchar) -> c_int {
    match Handle::of(pcap) {
        Some(handle) => give(handle, most, false, callback, user),
        None => real!(pcap_dispatch(
            pcap => *mut c_void, most => c_int, callback => Callback, user => *mut c_uchar
        ) -> c_int | PCAP_ERROR),
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_loop(pcap: *mut c_void, most: c_int, callback: Callback, user: *mut c_uchar) -> c_int {
    match Handle::of(pcap) {
        Some(handle) => give(handle, most, true, callback, user),
        None => real!(pcap_loop(
            pcap => *mut c_void, most => c_int, callback => Callback, user => *mut c_uchar
        ) -> c_int | PCAP_ERROR),
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_next(pcap: *mut c_void, header: *mut PacketHeader) -> *const c_uchar {
    let Some(handle) = Handle::of(pcap) else {
        return real!(pcap_next(pcap => *mut c_void, header => *mut PacketHeader) -> *const c_uchar | null());
    };
    let mut of_frame = PacketHeader::EMPTY;
    let Next::Frame(bytes) = next(handle, true, &mut of_frame) else {
        keep_watch(handle);
        return null();
    };
    let (of_frame, bytes) = kept(handle, of_frame, bytes);
    // SAFETY: the handle's header, and the program's memory for it.
    unsafe { header.copy_from(of_frame, 1) };
    bytes
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_next_ex(
    pcap: *mut c_void,
    header: *mut *const PacketHeader,
    data: *mut *const c_uchar,
) -> c_int {
    let Some(handle) = Handle::of(pcap) else {
        return real!(pcap_next_ex(
            pcap => *mut c_void, header => *mut *const PacketHeader, data => *mut *const c_uchar
        ) -> c_int | PCAP_ERROR);
    };
    let mut of_frame = PacketHeader::EMPTY;
    match next(handle, true, &mut of_frame) {
        Next::Frame(bytes) => {
            let (of_frame, bytes) = kept(handle, of_frame, bytes);
            // SAFETY: the program's memory for the two addresses.
            unsafe {
                header.write(of_frame);
                data.write(bytes);
            }
            1
        }
        Next::Nothing => {
            keep_watch(handle);
            0
        }
        Next::End => PCAP_ERROR_BREAK,
        Next::Failed(error) => error,
    }
}
