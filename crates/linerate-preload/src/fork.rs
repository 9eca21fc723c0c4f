//! Locks across fork(2).

/// Holds locks while the process forks, so that the child finds them free and their data consistent:
/// `hold_at_fork!(Locks, lock, in_child)`.
///
/// The child has only the thread that forked. A lock that another thread held at that moment would stay locked in the
/// child. `lock()` returns the guards, `Locks`; it must lock in the same order as other code. `in_child(&mut Locks)` is
/// called in the child while the locks are held. A preloaded library uses the macro once, after
/// [`start`](crate::start).
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
        // SAFETY: the functions have no arguments, and stay loaded: the preloaded library is never unloaded while they
        // are needed.
        unsafe { $crate::libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }};
}
