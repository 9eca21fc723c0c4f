//! The system's libpcap.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;

use linerate_preload::{Function, deferred, guarded};

/// The handle of the library, which is never closed; null if there is none.
struct Library(*mut c_void);

// SAFETY: any thread may call dlsym(3) with it.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// File names of libpcap, Debian's first.
const NAMES: [&str; 3] = ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"];

fn library() -> *mut c_void {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| Library(open())).0
}

/// Opens the first libpcap that is not this library. It is opened by path, since its name would find this library, and
/// with `RTLD_DEEPBIND`, so that its internal calls do not reach this library.
fn open() -> *mut c_void {
    let arch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let folders = [Path::new("/usr/lib").join(&arch), Path::new("/lib").join(&arch)];
    let others = ["/usr/lib64", "/lib64", "/usr/lib", "/lib", "/usr/local/lib"].map(PathBuf::from);
    let ours = own_file();
    for folder in folders.iter().chain(&others) {
        for path in NAMES.map(|name| folder.join(name)) {
            let Ok(file) = std::fs::metadata(&path) else { continue };
            if ours == Some((file.dev(), file.ino())) {
                continue;
            }
            let Ok(path) = CString::new(path.into_os_string().into_encoded_bytes()) else { continue };
            // SAFETY: the path ends with a zero; the library's initialisation is trusted, as in every program linked
            // with it.
            let library =
                unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND) };
            if !library.is_null() {
                return library;
            }
        }
    }
    eprintln!("linerate: the system's libpcap is not installed; try: apt install libpcap0.8");
    null_mut()
}

/// A shared object of this process.
pub struct Object {
    pub base: *mut c_void,
    path: &'static CStr,
}

impl Object {
    /// Returns whether the name of the object's file begins with `begin`.
    pub fn is_named(&self, begin: &str) -> bool {
        let name = Path::new(self.path.to_str().unwrap_or_default()).file_name();
        name.is_some_and(|name| name.as_encoded_bytes().starts_with(begin.as_bytes()))
    }
}

/// Returns the shared object that contains an address.
pub fn object_of(address: *const c_void) -> Option<Object> {
    // SAFETY: all fields are pointers.
    let mut info = unsafe { std::mem::zeroed::<libc::Dl_info>() };
    // SAFETY: `info` has room for the result.
    let is_found = unsafe { libc::dladdr(address, &raw mut info) } != 0;
    if !is_found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr(3) has set it to a path that ends with a zero and lives as long as the object.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Object { base: info.dli_fbase, path })
}

/// Returns the device and inode of this library's file.
fn own_file() -> Option<(u64, u64)> {
    let object = object_of(own_file as *const c_void)?;
    let file = std::fs::metadata(object.path.to_str().ok()?).ok()?;
    Some((file.dev(), file.ino()))
}

/// Returns the address of some function of the system's libpcap; null without that library.
pub fn any_library_function() -> *const c_void {
    static FUNCTION: Function = Function::new("pcap_create\0", find);
    FUNCTION.address()
}

/// Finds a function of the system's libpcap; null if the function or the library is missing.
pub fn find(name: &CStr) -> *mut c_void {
    let find = || {
        let library = library();
        // SAFETY: the library is open, and the name ends with a zero.
        if library.is_null() { null_mut() } else { unsafe { libc::dlsym(library, name.as_ptr()) } }
    };
    deferred(|| guarded(null_mut(), find))
}

/// Calls the system's function with integer and pointer arguments, or returns `$absent` if it is missing.
macro_rules! real {
    ($name:ident($($argument:expr => $type:ty),* $(,)?) -> $result:ty | $absent:expr) => {{
        static FUNCTION: linerate_preload::Function =
            linerate_preload::Function::new(concat!(stringify!($name), "\0"), $crate::real::find);
        let address = FUNCTION.address();
        if address.is_null() {
            $absent
        } else {
            // SAFETY: libpcap's function of this name, which has this signature (`pcap/pcap.h`).
            let function: unsafe extern "C-unwind" fn($($type),*) -> $result = unsafe { std::mem::transmute(address) };
            // SAFETY: the arguments are the program's own, or valid by the caller's promise.
            unsafe { function($($argument),*) }
        }
    }};
}
pub(crate) use real;

/// Copies text with a terminating zero to the program's buffer, truncated to `size` bytes.
///
/// # Safety
/// `to` is null, or has room for `size` bytes.
pub unsafe fn put_text(to: *mut c_char, size: usize, text: &str) {
    if to.is_null() || size == 0 {
        return;
    }
    let len = text.floor_char_boundary(size - 1);
    // SAFETY: `len` bytes and the zero fit.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), len);
        *to.add(len) = 0;
    }
}
