//! Locks across fork(2).

/// Holds locks while the process forks, so that a child finds them free, and what they guard whole: `hold_at_fork!(Locks,
/// lock, in_child)`.
///
/// A child has the one thread that has forked. A lock that another thread had at that moment would stay locked in the
/// child. `lock()` returns the guards, `Locks`, which it locks in the order in which they are locked elsewhere;
/// `in_child(&mut Locks)` is called in the child while they are held. An object uses it once, after [`start`](crate::start).
#[macro_export]
macro_rules! hold_at_fork {
    ($locks:ty, $lock:expr, $in_child:expr) => {{
        std::thread_local! {
            static HELD: std::cell::RefCell<Option<$locks>> = const { std::cell::RefCell::new(None) };
        }
        unsafe extern "C" fn before() {
            $crate::guarded((), || {
                let locks: $locks = $lock();
                let _ = HELD.try_with(|held| held.replace(Some(locks)));
            });
        }
        unsafe extern "C" fn in_parent() {
            $crate::guarded((), || {
                let _ = HELD.try_with(|held| held.take());
            });
        }
        unsafe extern "C" fn in_child() {
            $crate::guarded((), || {
                let _ = HELD.try_with(|held| {
                    if let Some(locks) = &mut *held.borrow_mut() {
                        $in_child(locks);
                    }
                    held.take()
                });
            });
        }
        // SAFETY: the functions have no arguments and stay loaded: an object is never unloaded while they are needed.
        unsafe { $crate::libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }};
}
