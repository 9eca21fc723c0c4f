//! Reading: `pcap_dispatch`, `pcap_loop`, `pcap_next`, `pcap_next_ex`.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uchar, c_void};
use std::ptr::null;
use std::sync::atomic::Ordering;

use linerate::Error;
use linerate_preload::{cancellation_point, deferred, guarded};

use crate::abi::*;
use crate::active::{Frame, ReceivingSide};
use crate::handle::{Handle, described};
use crate::real::real;
use crate::sleep::Sleep;

/// Maximum number of frames per `pcap_dispatch` without a count: one buffer, as libpcap on Linux reads one block.
const BUFFER: usize = 4096;

/// The outcome of an attempt to get a frame.
#[derive(Clone, Copy)]
enum Next {
    /// A frame; it is valid until frames are received again.
    Frame(*const Frame),
    NoFrame,
    /// The end of a capture file.
    End,
    /// libpcap's status code of an error, whose text the handle has.
    Failed(c_int),
}

/// The next step of a thread that has no frame.
#[derive(Clone, Copy)]
enum Step {
    Retry,
    Sleep(Sleep),
    Return(Next),
}

/// Takes the next received frame.
#[inline(always)]
fn take(handle: &Handle) -> Option<*const Frame> {
    let frame = handle.unread.take()?;
    // Only this thread writes the counter; others read it.
    handle.passed.store(handle.passed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    Some(frame)
}

/// Returns the next frame. If there is none, waits if the handle is blocking and `waits` is set. A cancellation point.
#[inline(never)]
fn next(handle: &Handle, waits: bool) -> Next {
    deferred(|| next_frame(handle, waits))
}

fn next_frame(handle: &Handle, waits: bool) -> Next {
    // SAFETY: neither this function nor its callers have anything to drop at this point.
    unsafe { cancellation_point() };
    handle.begin_reading();
    let mut was_woken = None;
    loop {
        if handle.has_requests() {
            if handle.take_break_request() {
                return Next::Failed(PCAP_ERROR_BREAK);
            }
            receiving(handle, |active| {
                handle.adopt_filter(active);
                Ok(Step::Retry)
            });
        }
        if let Some(frame) = take(handle) {
            return Next::Frame(frame);
        }
        let mut step = receiving(handle, |active| receive(handle, active, waits, &mut was_woken));
        if let Step::Sleep(sleep) = step {
            // Without locks: a signal handler may use the handle meanwhile, and the thread may be cancelled.
            sleep.sleep();
            step = receiving(handle, |active| {
                active.wake(handle.waker(), &handle.side, &handle.unread).map(|()| Step::Retry)
            });
        }
        if let Step::Return(outcome) = step {
            return outcome;
        }
    }
}

/// Runs `work` on the receiving side. Stores an error's text in the handle.
fn receiving(handle: &Handle, work: impl FnOnce(&mut ReceivingSide) -> Result<Step, Error>) -> Step {
    let failed = |error| Step::Return(Next::Failed(error));
    let step = guarded(None, || {
        // The parent uses the same rings.
        if handle.fails_without_threads("") {
            return Some(Step::Return(Next::Failed(PCAP_ERROR)));
        }
        // Fails in a signal handler that has interrupted a call of this thread.
        let Some(mut active) = handle.active.lock() else { return Some(failed(handle.in_use())) };
        let Some(active) = &mut *active else { return Some(failed(handle.not_activated())) };
        Some(work(active).unwrap_or_else(|error| {
            handle.fail(&described(&error));
            failed(PCAP_ERROR)
        }))
    });
    step.unwrap_or_else(|| {
        handle.fail("a defect of linerate");
        failed(PCAP_ERROR)
    })
}

/// Receives frames. If none arrived, returns what to wait for, or the result of the call. `was_woken`: the program's
/// descriptor was readable when the call began.
fn receive(
    handle: &Handle,
    active: &mut ReceivingSide,
    waits: bool,
    was_woken: &mut Option<bool>,
) -> Result<Step, Error> {
    let waits = waits && !handle.is_nonblocking();
    let was_woken = *was_woken.get_or_insert_with(|| waits && handle.is_selected() && active.is_readable());
    // An armed queue stays armed until a frame arrives: the thread sleeps after one more poll.
    if active.receive(&handle.unread) {
        active.disarm();
        return Ok(Step::Retry);
    }
    if active.is_exhausted(&handle.side)? {
        return Ok(Step::Return(Next::End));
    }
    // If the program was woken by frames that its filter rejects, return, so that it can serve its other descriptors. A
    // program that does not wait for the descriptor gets a frame.
    if waits && !was_woken {
        return Ok(active.sleep(handle.waker()).map_or(Step::Retry, Step::Sleep));
    }
    active.check_link(&handle.side, &handle.unread)?;
    Ok(if handle.unread.is_empty() { Step::Return(Next::NoFrame) } else { Step::Retry })
}

/// Passes frames to the program's callback: at most `most`, or `BUFFER` if `most` is not positive. `is_loop` waits for
/// them, without a limit if `most` is not positive; an error or a break ends it.
///
/// Nothing here must need dropping while the callback runs: it may leave by longjmp(3), or end the thread.
fn deliver(handle: &Handle, most: c_int, is_loop: bool, callback: Callback, user: *mut c_uchar) -> c_int {
    let most = match most {
        1.. => most.cast_unsigned() as usize,
        _ if is_loop => usize::MAX,
        _ => BUFFER,
    };
    let mut count = 0;
    while count < most {
        // The fast path.
        let frame = match if handle.has_requests() { None } else { take(handle) } {
            Some(frame) => frame,
            None => match next(handle, count == 0 || is_loop) {
                Next::Frame(frame) => frame,
                Next::Failed(error) => {
                    keep_watch(handle);
                    return error;
                }
                // A loop on a non-blocking handle polls.
                Next::NoFrame if is_loop => continue,
                Next::NoFrame | Next::End => break,
            },
        };
        // SAFETY: the program's callback; the frame's header and bytes are valid until frames are received again.
        unsafe { callback(user, &raw const (*frame).header, (*frame).bytes) };
        count += 1;
    }
    keep_watch(handle);
    if is_loop { 0 } else { count as c_int }
}

/// Keeps a frame until the next call. Copies its bytes if the program has the descriptor: keeping that up to date may
/// receive.
fn keep_frame(handle: &Handle, frame: *const Frame) -> (*const PacketHeader, *const c_uchar) {
    let kept = deferred(|| {
        // SAFETY: no frames have been received since `next` returned the frame.
        guarded((null(), null()), || unsafe { handle.last.keep(&*frame, handle.is_selected()) })
    });
    keep_watch(handle);
    kept
}

/// Brings the program's descriptor up to date, if it has one.
fn keep_watch(handle: &Handle) {
    if handle.is_selected() {
        deferred(|| {
            guarded((), || {
                if !handle.is_without_its_threads()
                    && let Some(mut active) = handle.active.lock()
                    && let Some(active) = &mut *active
                {
                    handle.adopt_filter(active);
                    active.keep_watch(&handle.unread, &handle.ready);
                }
            });
        });
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_dispatch(pcap: *mut c_void, most: c_int, callback: Callback, user: *mut c_uchar) -> c_int {
    match Handle::of(pcap) {
        Some(handle) => deliver(handle, most, false, callback, user),
        None => real!(pcap_dispatch(
            pcap => *mut c_void, most => c_int, callback => Callback, user => *mut c_uchar
        ) -> c_int | PCAP_ERROR),
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn pcap_loop(pcap: *mut c_void, most: c_int, callback: Callback, user: *mut c_uchar) -> c_int {
    match Handle::of(pcap) {
        Some(handle) => deliver(handle, most, true, callback, user),
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
    let (of_frame, bytes) = keep_frame(handle, frame);
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
            let (of_frame, bytes) = keep_frame(handle, frame);
            // SAFETY: the program's memory for the two addresses.
            unsafe {
                header.write(of_frame);
                data.write(bytes);
            }
            1
        }
        Next::NoFrame => {
            keep_watch(handle);
            0
        }
        Next::End => PCAP_ERROR_BREAK,
        Next::Failed(error) => error,
    }
}
