//! Interrupts on the model: a sleeping thread is woken, and a polling thread gets no interrupts.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use linerate::Batch;
use linerate::Options;
use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::nic::ixgbe::Config;
use linerate::port::{Port, Rss, RxQueue, Wait, Waiter, Waker};
use linerate::sim82599::{Card, Frame, Runner, from_fn};
use linerate::traffic::Generator;
use linerate_testkit::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Makes a card, and the counter of frames that its wire still supplies, of 16 flows.
fn card(name: &str) -> (Arc<Card>, Arc<AtomicUsize>) {
    let waiting = Arc::<AtomicUsize>::default();
    let (left, mut generator) = (waiting.clone(), Generator::new(64, 16));
    let wire = from_fn(
        |_| {},
        move |frame: &mut Frame| {
            let come = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok();
            if come {
                frame.bad_crc = false;
                frame.bytes.resize(generator.frame_len(), 0);
                generator.fill(&mut frame.bytes);
            }
            come
        },
    );
    (Card::new(name, wire), waiting)
}

fn open(card: &Arc<Card>, queues: u16, throttle: Duration) -> Port {
    let pages = Pages::Only(PageSize::Ordinary);
    let options = RegionOptions { buffers: 8192, buffer_size: 2048, pages, numa_node: None };
    let pool = Pool::new(Region::new(&options).unwrap());
    let config = Options { interrupts: Some(throttle), rx_queues: queues, ..Options::default() }
        .of_port(card.name(), pool)
        .unwrap();
    Port::new(linerate::drive_model(card, None, config).unwrap())
}

fn is_raised(interrupt: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(&interrupt, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
}

/// Returns whether the queue's interrupt was raised; leaves the queue armed.
fn raised(rx: &mut RxQueue) -> bool {
    is_raised(rx.arm().unwrap())
}

#[test]
fn a_packet_raises_an_armed_interrupt_once() {
    let (card, wire) = card("interrupts");
    let mut device = open(&card, 2, Duration::ZERO);
    let mut queues = [device.rx(0).unwrap(), device.rx(1).unwrap()];
    device.set_rss(&Rss { table: vec![1], ..Rss::evenly(2) }).unwrap();
    let mut batch = Batch::new();

    // A polled queue gets no interrupt.
    wire.store(1, Ordering::Release);
    card.step(32);
    assert_eq!(queues[1].recv(&mut batch), 1);
    assert!(raised(&mut queues[1]), "a packet from before arming raises it at once");
    queues[1].disarm();

    // With both queues armed, a packet interrupts only its own queue.
    assert!(!raised(&mut queues[0]) && !raised(&mut queues[1]));
    device.set_rss(&Rss { table: vec![0], ..Rss::evenly(2) }).unwrap();
    wire.store(1, Ordering::Release);
    card.step(32);
    assert!(raised(&mut queues[0]) && !raised(&mut queues[1]));
    queues[0].disarm();
    assert_eq!(queues[0].recv(&mut batch), 1);

    // An interrupt masks itself when it is raised, so several packets cause only one.
    queues[0].arm();
    queues[0].disarm();
    let interrupt = queues[0].arm().unwrap();
    for _ in 0..3 {
        wire.store(1, Ordering::Release);
        card.step(32);
    }
    let mut count = [0; 8];
    rustix::io::read(interrupt, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    queues[0].disarm();
    assert_eq!(queues[0].recv(&mut batch), 3);
    assert_eq!(card.breaches(), []);
}

#[test]
fn interrupts_are_throttled() {
    let (card, wire) = card("throttled");
    let interval = Duration::from_millis(1);
    let mut device = open(&card, 1, interval);
    let mut rx = device.rx(0).unwrap();
    let mut batch = Batch::new();
    let start = std::time::Instant::now();
    for turn in 0..5 {
        rx.arm();
        wire.store(1, Ordering::Release);
        let deadline = Deadline::begin();
        while !is_raised(rx.arm().unwrap()) {
            deadline.check(|| format!("interrupt {turn}"));
            card.step(1);
        }
        rx.disarm();
        rx.recv(&mut batch);
        batch.clear();
        assert!(start.elapsed() >= interval * turn, "interrupt {turn} came after {:?}", start.elapsed());
    }
}

#[test]
fn a_sleeping_thread_misses_no_packet() {
    for wait in [Wait::Interrupt, Wait::Adaptive] {
        let (card, wire) = card("sleeper");
        let mut device = open(&card, 1, Duration::from_micros(10));
        let mut rx = device.rx(0).unwrap();
        let runner = Runner::start().unwrap();
        runner.run(&card);
        let (mut batch, mut waiter) = (Batch::new(), Waiter::new(wait));
        let (mut received, mut offered) = (0, 0);
        // Bursts of 1 to 64 frames. Each is sent when the previous one has arrived, so the thread may be asleep for any
        // of them.
        for burst in (1..=64).cycle().take(1000) {
            wire.fetch_add(burst, Ordering::AcqRel);
            offered += burst;
            let deadline = Deadline::begin();
            while received < offered {
                deadline.check(|| format!("{received} of {offered} packets were received, {:?}", device.statistics()));
                let count = rx.recv(&mut batch);
                received += count;
                batch.clear();
                waiter.turn(count, &mut [&mut rx]);
            }
        }
        assert_eq!((received, card.breaches()), (offered, vec![]));
    }
}

#[test]
fn a_port_without_interrupts_is_polled() {
    let (card, wire) = card("polled");
    let pages = Pages::Only(PageSize::Ordinary);
    let options = RegionOptions { buffers: 2048, buffer_size: 2048, pages, numa_node: None };
    let pool = Pool::new(Region::new(&options).unwrap());
    let mut device = Port::new(linerate::drive_model(&card, None, Config::new("polled", pool)).unwrap());
    let mut rx = device.rx(0).unwrap();
    assert!(rx.arm().is_none());
    let (mut batch, mut waiter) = (Batch::new(), Waiter::new(Wait::Interrupt));
    waiter.turn(0, &mut [&mut rx]);
    wire.store(1, Ordering::Release);
    card.step(1);
    assert_eq!(rx.recv(&mut batch), 1);
}

#[test]
fn another_thread_ends_a_sleep() {
    let (card, _) = card("woken");
    let mut device = open(&card, 1, Duration::ZERO);
    let mut rx = device.rx(0).unwrap();
    let waker = Waker::new().unwrap();
    let mut waiter = Waiter::new(Wait::Interrupt).woken_by(waker.clone());
    let (done, ended) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        // All turns except the first few would sleep for a quarter of a second.
        (0..10_000).for_each(|_| waiter.turn(0, &mut [&mut rx]));
        done.send(()).unwrap();
    });
    waker.wake();
    ended.recv_timeout(Duration::from_secs(300)).expect("it sleeps on");
    sleeper.join().unwrap();
}
