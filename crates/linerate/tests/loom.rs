//! Lock-free shared state, tested under all interleavings that loom finds:
//! `RUSTFLAGS="--cfg loom" cargo test -p linerate --no-default-features --features netmap --test loom --release`
#![cfg(loom)]

use linerate_core::memory::Depot;
use loom::sync::Arc;
use loom::thread;

/// Explores all interleavings with at most three preemptions. More preemptions take minutes and have found no further
/// errors.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Fetches a magazine, if there is one, and puts it back. Meanwhile this thread must own it exclusively.
fn exchange(depot: &Depot) {
    let mut bufs = Vec::new();
    if depot.fetch(&mut bufs) {
        assert_eq!(bufs[0] / 10, bufs[1] / 10, "two magazines were mixed: {bufs:?}");
        assert!(depot.put(&bufs), "there must be an empty magazine: this thread has just emptied one");
    }
}

fn drain(depot: &Depot) -> Vec<u32> {
    let mut bufs = Vec::new();
    while depot.fetch(&mut bufs) {}
    bufs.sort_unstable();
    bufs
}

#[test]
fn two_threads_exchange_magazines() {
    check(|| {
        let depot = Arc::new(Depot::new(2, 2));
        assert!(depot.put(&[10, 11]) && depot.put(&[20, 21]));
        let other = depot.clone();
        let thread = thread::spawn(move || exchange(&other));
        exchange(&depot);
        thread.join().unwrap();
        assert_eq!(depot.stored(), 4);
        assert_eq!(drain(&depot), [10, 11, 20, 21]);
    });
}

/// One thread fetches and puts back twice while another fetches once: an index must not be mistaken for its older value
/// (ABA).
#[test]
fn an_old_index_is_not_mistaken_for_a_new_one() {
    check(|| {
        let depot = Arc::new(Depot::new(2, 2));
        assert!(depot.put(&[10, 11]) && depot.put(&[20, 21]));
        let other = depot.clone();
        let thread = thread::spawn(move || {
            exchange(&other);
            exchange(&other);
        });
        let mut kept = Vec::new();
        let _ = depot.fetch(&mut kept);
        thread.join().unwrap();
        kept.extend(drain(&depot));
        kept.sort_unstable();
        assert_eq!(kept, [10, 11, 20, 21]);
    });
}

/// The receiver gets each value once and in order, even where the ring wraps.
#[test]
fn a_channel_keeps_order() {
    use linerate::netmap::channel;
    check(|| {
        let (mut sender, mut receiver) = channel::<u32>(2);
        let thread = thread::spawn(move || {
            let (mut sent, all) = (0, [1, 2, 3]);
            for _ in 0..3 {
                sent += sender.send(&all[sent..]);
                thread::yield_now();
            }
            sent
        });
        let mut received = Vec::new();
        for _ in 0..3 {
            let mut words = [0; 2];
            let count = receiver.receive(&mut words);
            received.extend_from_slice(&words[..count]);
            thread::yield_now();
        }
        let sent = thread.join().unwrap();
        loop {
            let mut words = [0; 1];
            if receiver.receive(&mut words) == 0 {
                break;
            }
            received.push(words[0]);
        }
        assert_eq!(received, [1, 2, 3][..sent]);
    });
}

/// The control thread replaces a value while a queue polls. After its wait, no poll uses the old value, and the queue
/// finds the new one.
#[test]
fn no_poll_works_with_a_value_that_was_taken_away() {
    use linerate_core::event::{Handover, Seen};
    use loom::sync::atomic::{AtomicBool, Ordering};

    /// A value that records when it is gone.
    struct Value {
        number: u32,
        is_gone: AtomicBool,
    }
    let value = |number| Arc::new(Value { number, is_gone: AtomicBool::new(false) });
    check(move || {
        let handover = Arc::new(Handover::new(value(1)));
        let shared = handover.clone();
        let queue = thread::spawn(move || {
            let (mut seen, mut taken) = (Seen::NONE, None::<Arc<Value>>);
            for _ in 0..2 {
                if shared.enter(seen) {
                    taken = Some(shared.take(&mut seen, |value| value.clone()));
                }
                assert!(!taken.as_ref().unwrap().is_gone.load(Ordering::Relaxed), "a poll with an old value");
                shared.leave();
            }
            (seen, taken)
        });
        let old = handover.change(|current| std::mem::replace(current, value(2)));
        assert!(handover.wait_until_idle(|| {
            thread::yield_now();
            true
        }));
        old.is_gone.store(true, Ordering::Relaxed);
        let (mut seen, taken) = queue.join().unwrap();
        let last = match handover.is_changed(seen) {
            true => handover.take(&mut seen, |value| value.clone()),
            false => taken.unwrap(),
        };
        assert_eq!(last.number, 2);
    });
}
