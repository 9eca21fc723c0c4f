//! System calls without the C library.

/// Makes a system call; sets errno(3) if it fails. Returns a `c_long`.
///
/// It calls no function that the object replaces, and is no cancellation point. Arguments are integers and pointers.
///
/// # Safety
/// That of the call: the kernel checks the addresses that it is given, but not what else is at them.
#[macro_export]
macro_rules! call {
    ($number:expr, $($argument:expr),* $(,)?) => {
        $crate::libc::syscall($number, $($argument as $crate::libc::c_long),*)
    };
}
