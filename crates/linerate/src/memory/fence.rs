//! The one order of stores and loads that processors do not keep by themselves.
#![allow(unsafe_code)]

/// Everything stored before this is seen by others before anything is loaded after it: `fence(SeqCst)`, for memory that is
/// shared as ordinary memory is.
///
/// For that one, compilers write `mfence` on x86-64, which orders more than such memory (non-temporal stores, flushes of
/// lines). Any locked instruction orders this much (Intel's manual, volume 3, 9.2.3.9; AMD's, volume 2, 7.1.2), in a quarter
/// of the time: 15 cycles and 59 on an EPYC 9005. Linux's `smp_mb` and DPDK's `rte_smp_mb` do so, too.
#[inline(always)]
pub(crate) fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: it changes nothing of the stack, also where that is in use beyond its pointer.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp - 4], 0", options(nostack));
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

    use super::*;

    #[repr(align(128))]
    struct OnItsOwn(AtomicUsize);

    #[test]
    fn of_two_that_store_and_then_look_at_least_one_sees_the_other() {
        const ROUNDS: usize = if cfg!(miri) { 50 } else { 100_000 };
        let zeros = || [(); 2].map(|()| OnItsOwn(AtomicUsize::new(0)));
        let (stored, seen, done) = (zeros(), zeros(), zeros());
        let wait = |side: usize, round| {
            for turn in 0.. {
                if done[side].0.load(Acquire) >= round {
                    break;
                } else if turn % 1_000 == 999 {
                    std::thread::yield_now(); // the other one has no processor
                }
            }
        };
        let run = |own: usize| {
            let mut missed = 0;
            for round in 1..=ROUNDS {
                stored[own].0.store(round, Relaxed);
                full_fence();
                seen[own].0.store(stored[1 - own].0.load(Relaxed), Relaxed);
                done[own].0.store(2 * round, Release);
                wait(1 - own, 2 * round);
                missed += usize::from(seen.iter().all(|seen| seen.0.load(Relaxed) < round));
                done[own].0.store(2 * round + 1, Release);
                wait(1 - own, 2 * round + 1);
            }
            missed
        };
        let missed =
            std::thread::scope(|scope| [0, 1].map(|own| scope.spawn(move || run(own))).map(|it| it.join().unwrap()));
        assert_eq!(missed, [0, 0]);
    }
}
