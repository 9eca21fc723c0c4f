//! Reading: `pcap_dispatch`, `pcap_loop`, `pcap_next`, `pcap_next_ex`.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uchar, c_void};
use std::ptr::null;
use std::sync::atomic::Ordering;

use crate::abi::*;
use crate::active::Frame;
use crate::handle::{Handle, described, guarded};
use crate::real::real;

/// Frames that `pcap_dispatch` gives at most if the program does not say how many: a buffer, as Linux has blocks.
const BUFFER: usize = 4096;

/// The outcome of an attempt to get a frame.
enum Next {
    /// It stays until frames are received again.
    Frame(*const Frame),
    Nothing,
    /// The end of a capture file.
    End,
    /// libpcap's number of an error, whose text is noted.
    Failed(c_int),
}

/// Takes the next of the frames that were received.
#[inline(always)]
fn take(handle: &Handle) -> Option<*const Frame> {
    let frame = handle.waiting.take()?;
    // Only this thread counts; others read.
    handle.passed.store(handle.passed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    Some(frame)
}

/// Gets the next frame; without one, waits if the handle blocks and `waits`.
#[inline(never)]
fn next(handle: &Handle, waits: bool) -> Next {
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
        if let Some(frame) = take(handle) {
            return Next::Frame(frame);
        }
        if let Some(outcome) = receive(handle, waits, &mut has_received) {
            return outcome;
        }
    }
}

/// Receives frames, or waits for them; returns why there are none.
fn receive(handle: &Handle, waits: bool, has_received: &mut bool) -> Option<Next> {
    // Taken if this is a signal handler that has interrupted a call.
    let Ok(mut active) = handle.active.try_borrow_mut() else { return Some(Next::Failed(handle.in_use())) };
    let Some(active) = &mut *active else { return Some(Next::Failed(handle.not_activated())) };
    handle.at_work.set();
    let outcome = guarded(Err(None), || {
        // An armed queue stays so until a frame comes: the thread sleeps after one more look.
        if active.receive(&handle.waiting) {
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
            return active
                .wait(handle.waker(), &handle.at_work, &handle.side, &handle.waiting)
                .map(|()| None)
                .map_err(Some);
        }
        if was_woken {
            handle.ready.set(false);
        }
        active.check_link(&handle.side, &handle.waiting).map_err(Some)?;
        Ok(handle.waiting.is_empty().then_some(Next::Nothing))
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
    let most = match most {
        1.. => most.cast_unsigned() as usize,
        _ if is_loop => usize::MAX,
        _ => BUFFER,
    };
    let mut count = 0;
    while count < most {
        // Most frames need no more than this.
        let frame = match if handle.has_requests() { None } else { take(handle) } {
            Some(frame) => frame,
            None => match next(handle, count == 0 || is_loop) {
                Next::Frame(frame) => frame,
                Next::Failed(error) => {
                    keep_watch(handle);
                    return error;
                }
                // A loop on a handle that does not block polls.
                Next::Nothing if is_loop => continue,
                Next::Nothing | Next::End => break,
            },
        };
        // SAFETY: the program's function; the header and the frame's bytes stay until the next frames are received.
        unsafe { callback(user, &raw const (*frame).header, (*frame).bytes) };
        count += 1;
    }
    keep_watch(handle);
    if is_loop { 0 } else { count as c_int }
}

/// Keeps a frame until the next call. Its bytes are copied if the program's descriptor is kept up to date, which may receive.
fn kept(handle: &Handle, frame: *const Frame) -> (*const PacketHeader, *const c_uchar) {
    // SAFETY: nothing was received since.
    let kept = unsafe { handle.last.keep(&*frame, handle.is_selected()) };
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
        guarded((), || active.keep_watch(&handle.waiting, &handle.ready));
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
    let Next::Frame(frame) = next(handle, true) else {
        keep_watch(handle);
        return null();
    };
    let (of_frame, bytes) = kept(handle, frame);
    // SAFETY: the frame's header, and the program's memory for it.
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
    match next(handle, true) {
        Next::Frame(frame) => {
            let (of_frame, bytes) = kept(handle, frame);
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
