//! The functions behind the replaced ones.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of a function of another object, which is looked up once.
pub struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    find: fn(&CStr) -> *mut c_void,
}

impl Function {
    /// A function that `find` finds by its name. The name ends with a zero.
    ///
    /// # Panics
    /// If the name has no zero at its end, or another one.
    pub const fn new(name: &'static str, find: fn(&CStr) -> *mut c_void) -> Function {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Function { name, address: AtomicPtr::new(null_mut()), find },
            Err(_) => panic!("a function's name ends with a zero"),
        }
    }

    /// The function of this name in the objects that were loaded after this one: the C library's.
    ///
    /// # Panics
    /// As [`new`](Function::new).
    pub const fn next(name: &'static str) -> Function {
        Function::new(name, |name| {
            // SAFETY: the name ends with a zero.
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

/// Declares functions of the C library that the object replaces: `name: fn(types) -> result;`.
///
/// Each becomes a function that returns its address with this signature, or `None` if no other object has it. A call
/// by this address is unsafe: the caller vouches for the signature and the arguments. The function may be a cancellation
/// point (pthreads(7)): a thread that is cancelled there is unwound through the caller, which must have nothing to drop.
///
/// `find_all` looks all of them up. An object calls it when it is loaded, so that dlsym(3), which has locks, is not
/// called in a child or a signal handler. A function that an earlier object calls before that is looked up then.
#[macro_export]
macro_rules! functions {
    ($($name:ident: fn($($type:tt)*) $(-> $result:ty)?;)*) => {
        $(
            pub fn $name() -> Option<unsafe extern "C-unwind" fn($($type)*) $(-> $result)?> {
                // SAFETY: null, or a function's address. The caller of the function vouches for the signature.
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

        /// Finds all functions.
        pub fn find_all() {
            $($name();)*
        }
    };
}
