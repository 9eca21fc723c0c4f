//! A recorded run is repeated: the same packets are dropped, damaged, duplicated, marked and delayed.

use std::sync::Arc;
use std::time::Instant;

use etherparse::{IpNumber, Ipv4Header};
use linerate_core::Batch;
use linerate_core::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate_core::port::{PortClass, Random};
use linerate_link::{Direction, Event, LINK, Line, Link, Parameters, Recorder, Recording, Row};

const PACKETS: u32 = if cfg!(miri) { 30 } else { 3000 };

fn pool() -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers: 8192, buffer_size: 512, pages, numa_node: None }).unwrap())
}

/// Returns an IPv4 packet with a number, of a transport that supports ECN.
fn packet(number: u32) -> Vec<u8> {
    let len = 60 + number as usize * 37 % 300;
    let mut header = Ipv4Header::new(len as u16 - 34, 64, IpNumber::UDP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
    header.ecn = 1u8.try_into().unwrap();
    header.header_checksum = header.calc_header_checksum();
    [&[2; 12][..], &[8, 0], &header.to_bytes(), &number.to_be_bytes(), &vec![7; len - 38]].concat()
}

/// The results of a run: the arrived frames with their times, and the rows of the recording.
struct Seen {
    frames: Vec<(u64, Vec<u8>)>,
    rows: Vec<Row>,
    counts: Vec<u64>,
    text: String,
}

/// Sends packets through a line at random times, and records it.
fn run(parameters: &Parameters, packets: u32, times: u64) -> Seen {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.csv");
    let recorder = Recorder::create(&path, |why| panic!("{why}")).unwrap();
    let (pool, mut random) = (pool(), Random::new(times, 1));
    let mut line = Line::new(parameters, &pool, 0);
    line.record(recorder.clone(), Instant::now());
    let (mut entering, mut leaving) = (Batch::new(), Batch::with_capacity(64));
    let mut frames = Vec::new();
    let mut until = |line: &mut Line, end: u64| {
        while let Some(now) = line.next_event().filter(|now| *now <= end) {
            line.release(now, &mut leaving);
            frames.extend(leaving.packets().map(|packet| {
                let mut bytes = Vec::new();
                packet.append_to(&mut bytes);
                (now, bytes)
            }));
            leaving.clear();
        }
    };
    let mut now = 0;
    for number in 0..packets {
        now += random.below(400_000);
        until(&mut line, now);
        assert!(entering.push(&pool, &packet(number)));
        line.accept(now, &mut entering);
        assert!(entering.is_empty());
    }
    until(&mut line, u64::MAX);
    recorder.finish().unwrap();
    assert_eq!(recorder.rows(0)[1], 0, "lines are missing");
    let text = std::fs::read_to_string(&path).unwrap();
    let rows = text.lines().filter_map(|line| Row::parse(line.strip_prefix("forward,")?).unwrap()).collect();
    let counters = line.counters().clone();
    drop((line, entering, leaving));
    assert_eq!(pool.available(), 8192);
    Seen { frames, rows, counts: Event::ALL.map(|event| counters.get(event)).to_vec(), text }
}

fn played(text: &str) -> Parameters {
    let [play, back] = Recording::parse(text.as_bytes()).unwrap();
    assert_eq!(back.packets(), 0);
    Parameters { play: Some(play), packets: Some(4000), ..Parameters::default() }
}

/// Returns the rows in the order of packets, without their times: those depend on the sender.
fn decisions(seen: &Seen) -> Vec<Row> {
    let mut rows: Vec<Row> = seen.rows.iter().map(|row| Row { time: 0, ..*row }).collect();
    rows.sort_by_key(|row| (row.packet, row.is_copy));
    rows
}

/// Compares decisions, and shows only the first that differ.
fn assert_same(found: &Seen, wanted: &Seen, options: &[(&str, &str)]) {
    let (found, wanted) = (decisions(found), decisions(wanted));
    let different = found.iter().zip(&wanted).find(|(found, wanted)| found != wanted);
    assert_eq!((different, found.len()), (None, wanted.len()), "{options:?}");
}

/// The file is complete when the last recorder of it is dropped.
#[test]
fn a_dropped_recorder_completes_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.csv");
    let recorder = Recorder::create(&path, |why| panic!("{why}")).unwrap();
    let pool = pool();
    let mut line = Line::new(&Parameters::default(), &pool, 0);
    line.record(recorder.clone(), Instant::now());
    drop(recorder);
    let mut entering = Batch::new();
    for number in 0..PACKETS {
        assert!(entering.push(&pool, &packet(number)));
        line.accept(0, &mut entering);
        line.release(0, &mut entering);
        entering.clear();
    }
    drop(line);
    // The columns, the parameters, and a line for each packet.
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), PACKETS as usize + 2);
}

#[test]
fn a_recorded_run_is_repeated_with_the_same_decisions() {
    let faults =
        [("loss", "5%"), ("burst", "3"), ("corrupt", "5%"), ("truncate", "5%"), ("duplicate", "5%"), ("reorder", "5%")];
    let jitter = [("delay", "10ms"), ("jitter", "8ms"), ("distribution", "pareto")];
    let rate = [("rate", "8Mbit"), ("queue", "20p")];
    let codel = [("aqm", "codel"), ("ecn", "on"), ("target", "1ms"), ("interval", "5ms")];
    let dropping = [("aqm", "codel"), ("target", "1ms"), ("interval", "5ms")];
    for options in [
        [&faults[..], &jitter].concat(),
        [&faults[..], &jitter, &[("order", "off")]].concat(),
        [&faults[..], &jitter, &rate].concat(),
        [&jitter[..], &rate, &codel].concat(),
        [&jitter[..], &rate, &dropping, &[("loss", "1%")]].concat(),
    ] {
        let parameters = Parameters::of([&options[..], &[("packets", "4000")]].concat()).unwrap();
        let recorded = run(&parameters, PACKETS, 1);
        assert!(recorded.rows.len() >= PACKETS as usize && recorded.frames.len() > PACKETS as usize / 4);
        // The same packets at the same times: everything is the same.
        let repeated = run(&played(&recorded.text), PACKETS, 1);
        assert_same(&repeated, &recorded, &options);
        assert_eq!(repeated.counts, recorded.counts, "{options:?}");
        assert!(repeated.frames == recorded.frames, "{options:?}");
        // At other times, the decisions are the same.
        let elsewhen = run(&played(&recorded.text), PACKETS, 2);
        assert_same(&elsewhen, &recorded, &options);
        // Without the recording, they are not.
        let other = Parameters { seed: 2, ..parameters };
        assert!(decisions(&run(&other, PACKETS, 2)) != decisions(&recorded), "{options:?}");
    }
}

#[test]
fn packets_beyond_a_recording_are_counted() {
    let parameters = Parameters::of([("delay", "5ms"), ("pattern", "..x"), ("packets", "4000")]).unwrap();
    let recorded = run(&parameters, 10, 1);
    let longer = run(&played(&recorded.text), 30, 1);
    assert_eq!(decisions(&longer)[..10], decisions(&recorded));
    let beyond = Event::ALL.iter().position(|event| *event == Event::BeyondRecording).unwrap();
    assert_eq!((longer.counts[beyond], longer.frames.len()), (20, 27));
    assert!(longer.rows[10..].iter().all(|row| row.decision.delay == 5_000_000), "with the last delay");
}

/// The first line is written by `create`, so that a full disk is an error before packets flow.
#[test]
#[cfg_attr(miri, ignore)]
fn a_full_disk_is_an_error() {
    assert!(Recorder::create("/dev/full".as_ref(), |_| ()).is_err_and(|error| error.raw_os_error() == Some(28)));
}

/// A recording in use stays as it is: one that is being written, and one that is played.
#[test]
#[cfg_attr(miri, ignore)]
fn a_recording_in_use_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.csv");
    let recorder = Recorder::create(&path, |why| panic!("{why}")).unwrap();
    let refused = Recorder::create(&path, |_| ()).err().unwrap();
    assert_eq!(refused.to_string(), "another recording is being written to it");
    recorder.finish().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let path = path.to_str().unwrap();
    let options = [("play", path), ("record", path)];
    let refused = Link::of_options(&LINK, &options, PortClass::Peer, Direction::ToPort).err().unwrap();
    assert_eq!(refused.option, "record");
    assert_eq!(std::fs::read_to_string(path).unwrap(), text);
    // Afterwards, the file can be replaced.
    Recorder::create(path.as_ref(), |why| panic!("{why}")).unwrap();
}
