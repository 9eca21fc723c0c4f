//! Custom ports: a program can define its own kind of port, which is opened by name and monitored like any other.

use std::sync::{Arc, Mutex};

use linerate::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate::port::{Address, Description, Device, Info, MTU, Opening, PortKind, Receive, Transmit};
use linerate::{Batch, Options, Result};

/// A port that receives the packets it sends.
#[derive(Clone)]
struct Loopback(String, Arc<Pool>, Arc<Mutex<Batch>>);

impl Device for Loopback {
    fn name(&self) -> &str {
        &self.0
    }
    fn pool(&self) -> &Arc<Pool> {
        &self.1
    }
    fn info(&self) -> Info {
        Info { ring: 1 << 40, ..Info::default() }
    }
    fn rx(&mut self, _: u16) -> Result<Box<dyn Receive>> {
        Ok(Box::new(self.clone()))
    }
    fn tx(&mut self, _: u16) -> Result<Box<dyn Transmit>> {
        Ok(Box::new(self.clone()))
    }
}
impl Receive for Loopback {
    fn recv(&mut self, batch: &mut Batch) -> usize {
        pass(&mut self.2.lock().unwrap(), batch)
    }
}
impl Transmit for Loopback {
    fn send(&mut self, batch: &mut Batch) -> usize {
        pass(batch, &mut self.2.lock().unwrap())
    }
}

/// Moves packets while there is room.
fn pass(from: &mut Batch, to: &mut Batch) -> usize {
    let before = from.len();
    while let Some(packet) = from.take() {
        if let Err(packet) = to.push_packet(packet) {
            packet.put_back();
            break;
        }
    }
    before - from.len()
}

static LOOP: PortKind =
    PortKind { description: Description { options: &[MTU], ..Description::new("loop", Address::Text) }, open: &open };

fn open(opening: Opening<'_>) -> Result<Box<dyn Device>> {
    let config = opening.config;
    Ok(Box::new(Loopback(config.name().to_string(), config.pool().clone(), Arc::default())))
}

fn options() -> Options {
    Options { local: true, ..Options::default() }.with_port_kind(&LOOP)
}

#[test]
fn packets_cross_a_custom_port_and_its_monitor() {
    // Use a small pool and no model's thread, since this also runs under Miri.
    let pages = Pages::Only(PageSize::Ordinary);
    let region = RegionOptions { buffers: 512, buffer_size: 2048, pages, numa_node: None };
    let options = Options { pool: Some(Pool::new(Region::new(&region).unwrap())), ..options() };
    let [mut port, mut seen, other] = options.open(["loop:x", "loop:x+rt", "null:"]).unwrap();
    assert!(Arc::ptr_eq(port.pool(), other.pool()));
    let (mut tx, mut rx, mut monitor) = (port.tx(0).unwrap(), port.rx(0).unwrap(), seen.rx(0).unwrap());
    let mut batch = Batch::new();
    (1..=3).for_each(|n| assert!(batch.push(port.pool(), &vec![n as u8; n * 300])));
    assert_eq!((tx.send(&mut batch), batch.len(), rx.recv(&mut batch)), (3, 0, 3));
    assert_eq!(batch.packets().map(|packet| packet.len()).collect::<Vec<_>>(), [300, 600, 900]);
    batch.clear();
    assert_eq!((monitor.recv(&mut batch), rx.recv(&mut batch)), (6, 0), "each sent and received");
    batch.clear();
    // The port has room for 32 packets.
    for expected in [20, 12] {
        (0..20).for_each(|n| assert!(batch.push(port.pool(), &[n; 60])));
        assert_eq!(tx.send(&mut batch), expected);
    }
    assert_eq!((batch.len(), batch.packets().next().unwrap()[0]), (8, 12), "the rest waits in order");
    batch.clear();
    assert_eq!(rx.recv(&mut batch), 32);
    assert_eq!((port.info().driver, port.mac().0[0]), ("own", 2));
    assert!(port.set_mac(other.mac()).unwrap_err().to_string().contains("loop:x"));
}

/// A ring length that exceeds any memory does not become the length of netmap rings.
#[test]
fn netmap_s_rings_of_a_custom_port_are_bounded() {
    let [port] = options().open(["loop:x"]).unwrap();
    let port = linerate::netmap::NetmapPort::new(port).unwrap();
    assert_eq!((port.tx[0].ring.slots(), port.rx[0].ring.slots()), (65_536, 65_536));
}

#[test]
fn names_of_a_custom_kind_are_checked() {
    let error = |name: &str| options().open([name]).map(drop).unwrap_err().to_string();
    assert!(error("loop:x?los=1").contains("there is no such option; there are mtu"));
    assert!(error("loop:x?mtu=10").contains("46 to"));
    assert!(error("lop:x").contains("there is no kind of port 'lop:'"));
    assert!(error("lop:x").contains("there are loop:, sim:NAME, PCI addresses, "), "{}", error("lop:x"));
    assert!(Options::default().open(["loop:x"]).is_err(), "only these options have this kind");
    // No name can begin with these kinds.
    for kind in ["", "a:b", "x?y"] {
        let options = Options::default().with_port_kind(PortKind::leak(kind, |_| panic!("it is never opened")));
        for name in ["eth0", ":x", "a:b:x", "x?y:x", &format!("{kind}:x"), kind] {
            assert!(options.open([name]).is_err(), "'{name}' with kind '{kind}'");
        }
    }
}
