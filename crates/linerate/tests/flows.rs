//! Several queues with receive-side scaling on several threads: each flow keeps its order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{Device, Rss};
use linerate::sim82599::{Card, CardKind, Runner, Traffic};
use linerate::traffic::Generator;
use linerate::{Batch, Error, Options};
use linerate_testkit::Deadline;

fn pool(buffers: usize) -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers, buffer_size: 2048, pages, numa_node: None }).unwrap())
}

fn generator(flows: u16, count: u64) -> Box<Traffic> {
    Box::new(Traffic::new(Generator::new(64, flows), None, Some(count)))
}

/// Two threads forward between two cards, each with four queues of both. Buffers migrate between the threads through
/// the pool.
#[test]
fn two_threads_with_four_queues_each_keep_each_flow_in_order() {
    const FRAMES: u64 = 400_000;
    let pool = pool(32_768);
    let runner = Arc::new(Runner::start().unwrap());
    let mut ports = Vec::new();
    for name in ["left", "right"] {
        let card = Card::new(name, generator(256, FRAMES));
        runner.run(&card);
        let config = Options { rx_queues: 8, tx_queues: 8, ring: Some(256), ..Options::default() }
            .of_port(name, pool.clone())
            .unwrap();
        let device = linerate::drive_model(&card, Some(runner.clone()), config).unwrap();
        ports.push((card, device));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for first in [0, 4] {
        let mut ways = Vec::new();
        for queue in first..first + 4 {
            let (a, b) = ports.split_at_mut(1);
            let (a, b) = (&mut a[0].1, &mut b[0].1);
            ways.push((a.rx(queue).unwrap(), b.tx(queue).unwrap(), Batch::new()));
            ways.push((b.rx(queue).unwrap(), a.tx(queue).unwrap(), Batch::new()));
        }
        let stop = stop.clone();
        threads.push(std::thread::spawn(move || {
            let deadline = Deadline::begin();
            while !stop.load(Ordering::Relaxed) {
                deadline.check(|| "the end of the test");
                let mut moved = 0;
                for (rx, tx, batch) in &mut ways {
                    if batch.is_empty() {
                        rx.recv(batch);
                        batch.into_iter().for_each(|mut packet| linerate::traffic::touch(&mut packet));
                    }
                    moved += tx.send(batch);
                }
                if moved == 0 {
                    std::thread::yield_now();
                }
            }
        }));
    }
    let deadline = Deadline::begin();
    while ports.iter().any(|(card, _)| card.wire_report().unwrap().received < FRAMES) {
        deadline.check(|| {
            let ports = ports.iter().map(|(card, device)| (card.wire_report(), card.frames(), device.statistics()));
            format!("{FRAMES} frames at each wire: {:?}", ports.collect::<Vec<_>>())
        });
        assert!(threads.iter().all(|thread| !thread.is_finished()), "a thread has ended");
        std::thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for (card, device) in &ports {
        let report = card.wire_report().unwrap();
        let faults = (report.lost, report.reordered, report.corrupted, report.touched[0], report.foreign);
        assert_eq!(faults, (0, 0, 0, 0, 0), "{}", card.name());
        let slots = device.queue_statistics().rx_slots;
        assert_eq!(slots.iter().sum::<u64>(), FRAMES);
        assert!(slots.iter().all(|&slots| slots > FRAMES / 32), "the flows are not spread: {slots:?}");
        assert_eq!(card.breaches(), []);
    }
    drop(ports);
    assert_eq!(pool.available(), 32_768);
}

/// All 64 queues per direction can be opened. RSS reaches only the first 16, since the card's table has 4-bit entries.
#[test]
fn sixty_four_queues_each_way() -> Result<(), Error> {
    let pool = pool(16_384);
    let card = Card::new("many", generator(1000, 10_000));
    let config = Options { rx_queues: 64, tx_queues: 64, ring: Some(64), ..Options::default() }
        .of_port("many", pool.clone())
        .unwrap();
    let mut device = linerate::drive_model(&card, None, config)?;
    let mut queues = (0..64).map(|n| Ok((device.rx(n)?, device.tx(n)?))).collect::<Result<Vec<_>, Error>>()?;
    assert!(device.rx(64).is_err());
    let (mut batch, mut received) = (Batch::new(), [0; 64]);
    let deadline = Deadline::begin();
    while received.iter().sum::<usize>() < 10_000 {
        deadline.check(|| format!("of 10,000 packets {received:?} were received, {:?}", device.statistics()));
        card.step(64);
        for (n, (rx, tx)) in queues.iter_mut().enumerate() {
            received[n] += rx.recv(&mut batch);
            batch.into_iter().for_each(|mut packet| linerate::traffic::touch(&mut packet));
            // Use every transmit queue.
            tx.send(&mut batch);
            batch.clear();
        }
    }
    assert!(received[..16].iter().all(|&count| count > 0) && received[16..].iter().all(|&count| count == 0));
    while card.step(64) > 0 {}
    let report = card.wire_report().unwrap();
    assert_eq!((report.received, report.reordered, report.lost, report.touched[0]), (10_000, 0, 0, 0));
    assert_eq!(card.breaches(), []);
    drop(queues);
    drop(batch);
    assert_eq!(pool.available(), 16_384);
    Ok(())
}

/// A program's table selects the queue for all frames of a flow, even if the card's table is longer, as in an X550.
#[test]
fn the_table_and_key_decide_the_queue() -> Result<(), Error> {
    for kind in [CardKind::X82599Sfp, CardKind::X550] {
        let card = Card::of_kind(kind, 0, "table", generator(64, 6400));
        let config = Options { rx_queues: 4, ..Options::default() }.of_port("table", pool(8192)).unwrap();
        let config = config.with_device(kind.device());
        let mut device = linerate::drive_model(&card, None, config)?;
        device.set_rss(&Rss { key: [0x5A; 40], table: vec![1, 3] })?;
        let mut queues = (0..4).map(|n| device.rx(n)).collect::<Result<Vec<_>, Error>>()?;
        let (mut batch, mut received) = (Batch::new(), [0; 4]);
        let deadline = Deadline::begin();
        while received.iter().sum::<usize>() < 6400 {
            deadline.check(|| format!("of 6,400 packets {received:?} were received, {:?}", device.statistics()));
            card.step(64);
            for (n, rx) in queues.iter_mut().enumerate() {
                received[n] += rx.recv(&mut batch);
                batch.clear();
            }
        }
        assert_eq!((received[0], received[2]), (0, 0));
        assert_eq!(received[1] + received[3], 6400);
        assert_eq!(card.breaches(), []);
    }
    Ok(())
}

/// No frame is lost while queues are started one after the other.
#[test]
fn a_port_receives_once_all_queues_of_its_table_are_open() -> Result<(), Error> {
    let card = Card::new("late", Box::new(Traffic::new(Generator::new(64, 64), "1G".parse().ok(), Some(400))));
    let config = Options { rx_queues: 4, ..Options::default() }.of_port("late", pool(8192)).unwrap();
    let mut device = linerate::drive_model(&card, None, config)?;
    let sent = || card.wire_report().unwrap().sent;
    let first = device.rx(2)?;
    assert_eq!((card.step(1000), sent()), (0, 0));
    // With a table of fewer queues, fewer must be open.
    device.set_rss(&Rss { table: vec![2], ..Rss::evenly(1) })?;
    // The wire's clock starts with the first poll.
    let deadline = Deadline::begin();
    while sent() == 0 {
        deadline.check(|| "the first frame of the wire");
        card.step(1);
    }
    assert_eq!(sent(), 1);
    drop(first);
    device.reset()?;
    device.set_rss(&Rss::evenly(4))?;
    let _queues = [device.rx(0)?, device.rx(1)?, device.rx(2)?];
    assert_eq!((card.step(1000), sent()), (0, 1));
    Ok(())
}
