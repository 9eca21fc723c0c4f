//! The system's libpcap.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;

use linerate_preload::{Function, deferred, guarded};

/// The library, open for good; null if there is none.
struct Library(*mut c_void);

// SAFETY: dlsym(3) may be called with it by all threads.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// Names of libpcap, Debian's first.
const NAMES: [&str; 3] = ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"];

fn library() -> *mut c_void {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| Library(open())).0
}

/// Opens the first libpcap that is not this object. It is opened by its path, since the name is this object's, and its own
/// calls stay inside it.
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
            // SAFETY: a path that ends with a zero; the library's initialisation is trusted as that of each program that is
            // linked with it.
            let library =
                unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND) };
            if !library.is_null() {
                return library;
            }
        }
    }
    eprintln!("linerate: the system's libpcap is not there; try: apt install libpcap0.8");
    null_mut()
}

/// A shared object of this process.
pub struct Object {
    pub base: *mut c_void,
    path: &'static CStr,
}

impl Object {
    /// Returns whether its file's name begins so.
    pub fn is_named(&self, begin: &str) -> bool {
        let name = Path::new(self.path.to_str().unwrap_or_default()).file_name();
        name.is_some_and(|name| name.as_encoded_bytes().starts_with(begin.as_bytes()))
    }
}

/// Returns the object that an address is in.
pub fn object_of(address: *const c_void) -> Option<Object> {
    // SAFETY: all fields are pointers.
    let mut about = unsafe { std::mem::zeroed::<libc::Dl_info>() };
    // SAFETY: there is room for the answer.
    let is_found = unsafe { libc::dladdr(address, &raw mut about) } != 0;
    if !is_found || about.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr(3) has filled it in with a path that ends with a zero, and stays as long as the object.
    let path = unsafe { CStr::from_ptr(about.dli_fname) };
    Some(Object { base: about.dli_fbase, path })
}

/// Returns device and inode of the file that this code is in.
fn own_file() -> Option<(u64, u64)> {
    let object = object_of(own_file as *const c_void)?;
    let file = std::fs::metadata(object.path.to_str().ok()?).ok()?;
    Some((file.dev(), file.ino()))
}

/// Returns the address of a function of the system's libpcap; null if that is not there.
pub fn library_s_function() -> *const c_void {
    static FUNCTION: Function = Function::new("pcap_create\0", find);
    FUNCTION.address()
}

/// Finds a function of the system's libpcap; null if that lacks it, or is not there.
pub fn find(name: &CStr) -> *mut c_void {
    let find = || {
        let library = library();
        // SAFETY: an open library, and a name that ends with a zero.
        if library.is_null() { null_mut() } else { unsafe { libc::dlsym(library, name.as_ptr()) } }
    };
    deferred(|| guarded(null_mut(), find))
}

/// Calls the system's function with integers and pointers, or returns `$absent` if it is not there.
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
            // SAFETY: the arguments are the program's own, or those that the caller vouches for.
            unsafe { function($($argument),*) }
        }
    }};
}
pub(crate) use real;

/// Copies text to where the program reads it, cut at `size` bytes with its zero.
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
