//! Filters in libpcap's language (pcap-filter(7)), compiled and run by the system's libpcap.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::str::FromStr;
use std::sync::Arc;

/// A compiled filter, shared by all threads.
#[derive(Clone)]
pub struct Expression(Arc<Compiled>);

struct Compiled {
    program: Program,
    run: Run,
}

// SAFETY: the program is not changed after it is compiled, and `bpf_filter` has no state.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

/// `struct bpf_program`.
#[repr(C)]
struct Program {
    len: c_uint,
    instructions: *mut c_void,
}

/// `bpf_filter`: instructions, the frame, its original length and its captured length.
type Run = unsafe extern "C" fn(*const c_void, *const u8, c_uint, c_uint) -> c_uint;
/// `pcap_open_dead`.
type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
/// `pcap_compile`.
type Compile = unsafe extern "C" fn(*mut c_void, *mut Program, *const c_char, c_int, c_uint) -> c_int;
/// `pcap_geterr`.
type Error = unsafe extern "C" fn(*mut c_void) -> *const c_char;

/// `DLT_EN10MB`.
const ETHERNET: c_int = 1;
/// `PCAP_NETMASK_UNKNOWN`: expressions that need the netmask are rejected.
const NETMASK_UNKNOWN: c_uint = u32::MAX;
/// The snap length of accepted frames.
const SNAPLEN: c_int = 256 << 10;

impl Expression {
    /// Returns whether the filter accepts a frame of `len` bytes, of which `captured` are known.
    #[inline]
    pub fn matches(&self, captured: &[u8], len: usize) -> bool {
        let Compiled { program, run } = &*self.0;
        let (len, known) = (len.try_into().unwrap_or(c_uint::MAX), captured.len() as c_uint);
        // SAFETY: libpcap compiled the program, and `bpf_filter` reads only within the `known` bytes of the frame.
        unsafe { run(program.instructions, captured.as_ptr(), len, known) != 0 }
    }
}

impl FromStr for Expression {
    type Err = String;

    fn from_str(text: &str) -> Result<Expression, String> {
        let expression = CString::new(text).map_err(|_| "it contains a zero byte".to_string())?;
        // SAFETY: the initialisation code of the system's library is trusted, as by every program that is linked with
        // it.
        let library = unsafe { libc::dlopen(c"libpcap.so.0.8".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() && cfg!(target_feature = "crt-static") {
            return Err("a static binary cannot load libpcap, which compiles it; use --only or --drop".to_string());
        }
        if library.is_null() {
            return Err("libpcap, which compiles it, is not installed: apt install libpcap0.8".to_string());
        }
        let [dead, compile, why, run] =
            [c"pcap_open_dead", c"pcap_compile", c"pcap_geterr", c"bpf_filter"].map(|name| {
                // SAFETY: the library is never closed.
                unsafe { libc::dlsym(library, name.as_ptr()) }
            });
        if [dead, compile, why, run].iter().any(|symbol| symbol.is_null()) {
            return Err("the system's libpcap is incomplete: apt install --reinstall libpcap0.8".to_string());
        }
        // SAFETY: libpcap's functions of these names have these types (pcap(3PCAP)).
        let (dead, compile, why, run) = unsafe {
            (
                std::mem::transmute::<*mut c_void, OpenDead>(dead),
                std::mem::transmute::<*mut c_void, Compile>(compile),
                std::mem::transmute::<*mut c_void, Error>(why),
                std::mem::transmute::<*mut c_void, Run>(run),
            )
        };
        // SAFETY: the call has no preconditions; the handle is used for compiling only.
        let handle = unsafe { dead(ETHERNET, SNAPLEN) };
        if handle.is_null() {
            return Err("libpcap is out of memory".to_string());
        }
        let mut program = Program { len: 0, instructions: std::ptr::null_mut() };
        // SAFETY: the handle is open, and the expression ends with a zero. Neither handle nor program is ever freed.
        if unsafe { compile(handle, &raw mut program, expression.as_ptr(), 1, NETMASK_UNKNOWN) } != 0 {
            // SAFETY: the message belongs to the handle, which is never closed.
            let why = unsafe { CStr::from_ptr(why(handle)) }.to_string_lossy();
            return Err(format!("libpcap cannot compile it: {why}; see pcap-filter(7)"));
        }
        Ok(Expression(Arc::new(Compiled { program, run })))
    }
}
