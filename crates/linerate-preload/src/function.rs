//! Access to the original functions that the preloaded library replaces.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of a function of another shared library. It is looked up once.
pub struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    find: fn(&CStr) -> *mut c_void,
}

impl Function {
    /// Declares a function that `find` looks up by its name. The name ends with a zero byte.
    ///
    /// # Panics
    /// If the name does not end with a zero byte, or contains another.
    pub const fn new(name: &'static str, find: fn(&CStr) -> *mut c_void) -> Function {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Function { name, address: AtomicPtr::new(null_mut()), find },
            Err(_) => panic!("a function's name ends with a zero"),
        }
    }

    /// Declares the function of this name in the libraries that were loaded after this one, such as the C library.
    ///
    /// # Panics
    /// As [`new`](Function::new).
    pub const fn next(name: &'static str) -> Function {
        Function::new(name, |name| {
            // SAFETY: the name ends with a zero byte.
            unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
        })
    }

    /// Returns the address; null if there is no such function.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.found() } else { known }
    }

    #[cold]
    fn found(&self) -> *mut c_void {
        let found = (self.find)(self.name);
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Declares functions of the C library that the preloaded library replaces: `name: fn(types) -> result;`.
///
/// Each becomes a function that returns the original function's address with this signature, or `None` if no other
/// loaded library has it. Calling the address is unsafe: the caller vouches for the signature and the arguments. The
/// original may be a cancellation point (pthreads(7)): a thread that is cancelled there is unwound through the caller,
/// which must have nothing to drop.
///
/// `find_all` looks up all of them. A library calls it when it is loaded, so that dlsym(3), which uses locks, is not
/// called in a child or a signal handler. If a library calls a function before that, the function is looked up in that
/// call.
#[macro_export]
macro_rules! functions {
    ($($name:ident: fn($($type:tt)*) $(-> $result:ty)?;)*) => {
        $(
            pub fn $name() -> Option<unsafe extern "C-unwind" fn($($type)*) $(-> $result)?> {
                // SAFETY: null, or a function's address. Callers of the function vouch for the signature.
                unsafe {
                    std::mem::transmute::<
                        *mut std::ffi::c_void,
                        Option<unsafe extern "C-unwind" fn($($type)*) $(-> $result)?>,
                    >(found::$name.address())
                }
            }
        )*

        /// The functions' addresses.
        #[allow(non_upper_case_globals)]
        mod found {
            $(pub static $name: $crate::Function = $crate::Function::next(concat!(stringify!($name), "\0"));)*
        }

        /// Looks up all functions.
        pub fn find_all() {
            $($name();)*
        }
    };
}
