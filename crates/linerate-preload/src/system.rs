//! System calls without the C library.

/// Makes a system call, and returns a `c_long`. Sets errno(3) if the call fails.
///
/// This calls no function that the preloaded library replaces, and is not a cancellation point. Arguments are integers
/// and pointers.
///
/// # Safety
/// As for the system call. The kernel checks that addresses are mapped, but not which data it overwrites there.
#[macro_export]
macro_rules! call {
    ($number:expr, $($argument:expr),* $(,)?) => {
        $crate::libc::syscall($number, $($argument as $crate::libc::c_long),*)
    };
}
