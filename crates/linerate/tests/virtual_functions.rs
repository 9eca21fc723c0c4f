//! Virtual functions of the model, each served to the driver as a card: which frames arrive where, and what happens if
//! the physical function refuses, stalls or is reset.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use linerate::port::{Drops, Link, MacAddress, Port};
use linerate::port::{RxQueue, TxQueue};
use linerate::sim82599::{Cable, Card, CardKind, Function, Runner};
use linerate::vfio_user::Server;
use linerate::{Batch, Options};
use linerate_testkit::until;
use tempfile::TempDir;

/// A card with two virtual functions, and a card at the other end of its cable.
struct Bench {
    cards: [Arc<Card>; 2],
    folder: TempDir,
    _servers: Vec<Server>,
    _runner: Runner,
}

impl Bench {
    fn new(kind: CardKind) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = Cable::pair();
        let cards = [Card::of_kind(kind, 2, "a", Box::new(one)), Card::of_kind(kind, 0, "b", Box::new(other))];
        let runner = Runner::start().unwrap();
        cards.iter().for_each(|card| runner.run(card));
        let functions = [
            ("a", Function::new(cards[0].clone())),
            ("a.vf0", Function::of_virtual(cards[0].clone(), 0)),
            ("a.vf1", Function::of_virtual(cards[0].clone(), 1)),
            ("b", Function::new(cards[1].clone())),
        ];
        let start = |(name, function): (&str, linerate::Result<Function>)| {
            Server::start(&folder.path().join(name), Box::new(function.unwrap())).unwrap()
        };
        let servers = functions.into_iter().map(start).collect();
        Bench { cards, folder, _servers: servers, _runner: runner }
    }

    fn name(&self, card: &str) -> String {
        format!("vfio-user:{}", self.folder.path().join(card).display())
    }

    /// Opens the physical function, both virtual functions and the far card, on one region. They receive packets to
    /// their own address only.
    fn open(&self, options: &Options) -> Vec<Port> {
        let names = ["a", "a.vf0", "a.vf1", "b"].map(|card| self.name(card));
        let mut ports = options.open_all(&names.each_ref().map(String::as_str)).unwrap();
        ports.iter_mut().for_each(|port| port.set_promiscuous(false).unwrap());
        until("all links are up", || ports.iter().all(|port| matches!(port.link(), Ok(Link::Up { .. }))));
        ports
    }

    /// Checks that nothing was dropped, and that no driver violated the datasheet.
    #[track_caller]
    fn finish(&self, ends: &[End]) {
        ends.iter().for_each(|end| assert_eq!(end.port.statistics().unwrap().drops, Drops::default()));
        self.cards.iter().for_each(|card| assert_eq!(card.breaches(), []));
    }
}

/// A frame with a number at its end.
fn frame(to: MacAddress, from: MacAddress, length: usize, number: u32) -> Vec<u8> {
    let mut bytes = [&to.0[..], &from.0, &[0x88, 0xB5]].concat();
    bytes.extend((bytes.len()..length - 4).map(|at| (at as u32 ^ number) as u8));
    bytes.extend(number.to_be_bytes());
    bytes
}

/// The queues of an open port.
struct End {
    port: Port,
    rx: RxQueue,
    tx: TxQueue,
}

impl End {
    fn new(mut port: Port) -> End {
        let (rx, tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        End { port, rx, tx }
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        let mut batch = Batch::new();
        for frames in frames.chunks(16) {
            let pool = self.port.pool().clone();
            for frame in frames {
                until("there is a buffer", || batch.push(&pool, frame));
            }
            assert_eq!(self.tx.send_all(&mut batch, TIME), frames.len());
        }
    }

    /// Receives this many frames.
    fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let (mut batch, mut received) = (Batch::new(), Vec::new());
        let name = self.port.name().to_string();
        until(format!("{count} frames arrive at {name}"), || {
            self.rx.recv(&mut batch);
            received.extend(batch.packets().map(|packet| packet.segments().flatten().copied().collect::<Vec<u8>>()));
            batch.clear();
            received.len() >= count
        });
        received
    }
}

const TIME: Duration = Duration::from_secs(20);

/// Sends frames of many lengths from one end to another, and compares what arrives.
#[track_caller]
fn check(ends: &mut [End], from: usize, to: usize, lengths: impl Iterator<Item = usize>) {
    let [source, destination] = [from, to].map(|end| ends[end].port.mac());
    let frames: Vec<Vec<u8>> =
        lengths.enumerate().map(|(n, length)| frame(destination, source, length, n as u32)).collect();
    for frames in frames.chunks(64) {
        ends[from].send(frames);
        let received = ends[to].receive(frames.len());
        for (at, (is, should)) in received.iter().zip(frames).enumerate() {
            assert!(is == should, "{from} to {to}, frame {at}: {} bytes {is:x?}, sent {should:x?}", is.len());
        }
        assert_eq!(received.len(), frames.len(), "{from} to {to}");
    }
}

const WAYS: [(usize, usize); 8] = [(1, 3), (3, 1), (1, 2), (2, 1), (0, 1), (1, 0), (2, 3), (0, 3)];

/// Physical function, virtual functions and the other end of the cable exchange frames of all lengths.
#[test]
fn functions_and_the_wire_exchange_frames() {
    for kind in [CardKind::X82599Sfp, CardKind::X550] {
        let bench = Bench::new(kind);
        let ports = bench.open(&Options::default());
        let own: Vec<MacAddress> = ports.iter().map(Port::mac).collect();
        assert_eq!(own.iter().collect::<HashSet<_>>().len(), 4, "{own:?}");
        assert_eq!([1, 2].map(|n| ports[n].info().driver), ["ixgbevf"; 2]);
        assert!(ports[1].info().description.contains("VF (vfio-user)"), "{}", ports[1].info().description);
        let mut ends: Vec<End> = ports.into_iter().map(End::new).collect();
        for (from, to) in WAYS {
            let lengths = if (from, to) == (1, 3) { 60..1515 } else { 60..130 };
            check(&mut ends, from, to, lengths.chain([1023, 1024, 1025, 1514]));
            if (from, to) == WAYS[0] {
                let [function, far] = [1, 3].map(|end| ends[end].port.statistics().unwrap());
                assert_eq!((function.tx_packets, function.tx_bytes), (far.rx_packets, far.rx_bytes));
            }
        }
        bench.finish(&ends);
    }
}
