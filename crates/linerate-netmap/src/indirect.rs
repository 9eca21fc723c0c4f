//! Packets that are not in netmap's buffers but somewhere in the program's memory (`NS_INDIRECT`), on ports of switches.
#![allow(unsafe_code)]

use linerate::Result;

use crate::descriptor::Bound;
use crate::real::call;

/// Syncs transmit rings, with what is elsewhere fetched first.
pub fn sync_tx(bound: &Bound) -> Result<()> {
    if bound.port().wanted().name.starts_with("vale") {
        bound.port().fetch(read);
    }
    bound.port().sync_tx()
}

/// Bytes of the program's memory; `None` if they are not there.
fn read(address: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0u8; len];
    let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
    let theirs = libc::iovec { iov_base: address as *mut _, iov_len: len };
    let process = std::process::id();
    let count = call!(libc::SYS_process_vm_readv, process, &raw const ours, 1, &raw const theirs, 1, 0);
    (count == len as i64).then_some(bytes)
}
