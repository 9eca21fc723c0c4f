//! Filters in libpcap's language, which the system's libpcap compiles and runs (pcap-filter(7)).
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::str::FromStr;
use std::sync::Arc;

/// A compiled filter, for every thread.
#[derive(Clone)]
pub struct Expression(Arc<Compiled>);

struct Compiled {
    program: Program,
    run: Run,
}

// SAFETY: the program is not changed once it is compiled, and `bpf_filter` has no state.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

/// `struct bpf_program`.
#[repr(C)]
struct Program {
    len: c_uint,
    instructions: *mut c_void,
}

/// `bpf_filter`: instructions, the frame, its length and that of what is there of it.
type Run = unsafe extern "C" fn(*const c_void, *const u8, c_uint, c_uint) -> c_uint;
/// `pcap_open_dead`.
type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
/// `pcap_compile`.
type Compile = unsafe extern "C" fn(*mut c_void, *mut Program, *const c_char, c_int, c_uint) -> c_int;
/// `pcap_geterr`.
type Error = unsafe extern "C" fn(*mut c_void) -> *const c_char;

/// `DLT_EN10MB`.
const ETHERNET: c_int = 1;
/// `PCAP_NETMASK_UNKNOWN`: an expression that needs the network's mask is refused.
const NETMASK_UNKNOWN: c_uint = u32::MAX;
/// The longest frame that the filter may keep whole.
const SNAPLEN: c_int = 256 << 10;

impl Expression {
    /// Returns whether a frame is wanted.
    #[inline]
    pub fn matches(&self, frame: &[u8]) -> bool {
        let Compiled { program, run } = &*self.0;
        let len = frame.len() as c_uint;
        // SAFETY: libpcap has compiled the program, which reads only within `len` bytes.
        unsafe { run(program.instructions, frame.as_ptr(), len, len) != 0 }
    }
}

impl FromStr for Expression {
    type Err = String;

    fn from_str(text: &str) -> Result<Expression, String> {
        let expression = CString::new(text).map_err(|_| "it has a zero byte".to_string())?;
        // SAFETY: the initialisation of the system's library is trusted, as that of each program that is linked with it.
        let library = unsafe { libc::dlopen(c"libpcap.so.0.8".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err("the system has no libpcap, whose language this is: apt install libpcap0.8".to_string());
        }
        let [dead, compile, why, run] =
            [c"pcap_open_dead", c"pcap_compile", c"pcap_geterr", c"bpf_filter"].map(|name| {
                // SAFETY: the library stays open for good.
                unsafe { libc::dlsym(library, name.as_ptr()) }
            });
        if [dead, compile, why, run].iter().any(|symbol| symbol.is_null()) {
            return Err("the system's libpcap is not complete: apt install --reinstall libpcap0.8".to_string());
        }
        // SAFETY: the functions of these names have these types (pcap(3PCAP)).
        let (dead, compile, why, run) = unsafe {
            (
                std::mem::transmute::<*mut c_void, OpenDead>(dead),
                std::mem::transmute::<*mut c_void, Compile>(compile),
                std::mem::transmute::<*mut c_void, Error>(why),
                std::mem::transmute::<*mut c_void, Run>(run),
            )
        };
        // SAFETY: a handle for compiling only.
        let handle = unsafe { dead(ETHERNET, SNAPLEN) };
        if handle.is_null() {
            return Err("libpcap has no memory".to_string());
        }
        let mut program = Program { len: 0, instructions: std::ptr::null_mut() };
        // SAFETY: the handle is open, and the expression ends with a zero. Handle and program stay for good: there is one of each.
        if unsafe { compile(handle, &raw mut program, expression.as_ptr(), 1, NETMASK_UNKNOWN) } != 0 {
            // SAFETY: the message is the handle's, which stays.
            let why = unsafe { CStr::from_ptr(why(handle)) }.to_string_lossy();
            return Err(format!("libpcap does not understand it: {why}; see pcap-filter(7)"));
        }
        Ok(Expression(Arc::new(Compiled { program, run })))
    }
}
