//! Stamped frames through networks that change their headers: Linux as a router, nftables' NAT, a VLAN switch (Open
//! vSwitch), and a VXLAN tunnel. Payloads arrive intact, and the changed fields are counted.
//!
//! `LINERATE_FRAMES=2000000 cargo test -p linerate-guest --test networks` sends more frames.

use std::net::IpAddr;

use linerate::Batch;
use linerate::port::{Port, RxQueue, TxQueue};
use linerate::traffic::HeaderField::{self, *};
use linerate::traffic::{Checker, Host, Report, Template};
use linerate_guest::{Namespace, OpenVswitch};
use linerate_testkit::{Deadline, Debian};

/// The frames in flight at any time: fewer than the kernel's queues hold.
const WINDOW: u64 = 64;

/// A tester with the interfaces a0 and a1, and a network between m0 and m1 that connects them.
struct Net {
    tester: Namespace,
    network: Namespace,
}

impl Net {
    fn new(name: &str) -> Net {
        let net = Net { tester: Namespace::new(&format!("{name}t")), network: Namespace::new(&format!("{name}n")) };
        for n in [0, 1] {
            let there = net.network.name();
            net.tester.run(&format!("ip link add a{n} type veth peer name m{n} netns {there} && ip link set a{n} up"));
            net.network.run(&format!("ip link set m{n} up"));
        }
        net
    }

    /// Makes the network a router between 10.87.0.0/24 and 10.87.1.0/24.
    fn route(&self) {
        self.network.run("echo 1 >/proc/sys/net/ipv4/ip_forward");
        (0..2).for_each(|n| drop(self.network.run(&format!("ip address add 10.87.{n}.1/24 dev m{n}"))));
    }

    /// Sends frames from the tester's port `from` to the other one, and one frame with a damaged payload. `hosts` are
    /// the tester's addresses, if there is a router.
    fn cross(&self, from: usize, layers: &str, hosts: Option<[&str; 2]>) -> Report {
        self.tester.inside(|| {
            let mut ports = linerate::open(["packet:a0", "packet:a1"]).unwrap();
            ports.swap(0, from);
            let mut ends = ports.map(End::new);
            let mut template: Template = layers.parse().unwrap();
            if let Some(addresses) = hosts {
                let macs = [0, 1].map(|n| ends[n].find_router(addresses[n].parse().unwrap()));
                template = template.with_default("eth", "dst", &macs[0]).unwrap();
            }
            transfer(&mut ends, &template)
        })
    }
}

struct End {
    port: Port,
    rx: RxQueue,
    tx: TxQueue,
    batch: Batch,
    /// Answers the router, which asks again from time to time.
    host: Option<Host>,
}

impl End {
    fn new(mut port: Port) -> End {
        let (rx, tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        End { port, rx, tx, batch: Batch::new(), host: None }
    }

    /// Receives frames: checks stamped frames, and answers the router.
    fn receive(&mut self, checker: &mut Checker) {
        self.rx.recv(&mut self.batch);
        let mut replies = Batch::new();
        for packet in self.batch.packets() {
            let mut frame = packet.to_vec();
            match &self.host {
                Some(host) if host.answer_arp(&mut frame) => assert!(replies.push(self.port.pool(), &frame)),
                _ => checker.check(&packet),
            }
        }
        self.batch.clear();
        self.tx.send(&mut replies);
    }

    /// Asks the router, whose address ends in 1, for its MAC address. So it learns this port's.
    fn find_router(&mut self, own: IpAddr) -> String {
        let IpAddr::V4(address) = own else { panic!("{own} is IPv4") };
        let [a, b, c, _] = address.octets();
        let (host, router) = (Host::new(self.port.mac().0, [own]), IpAddr::from([a, b, c, 1]));
        let (request, deadline) = (host.ask(router).unwrap(), Deadline::begin());
        loop {
            deadline.check(|| format!("{router} has not answered {own}"));
            assert!(self.batch.push(self.port.pool(), &request));
            self.tx.send(&mut self.batch);
            for _ in 0..1000 {
                self.rx.recv(&mut self.batch);
                let found = self.batch.packets().find_map(|packet| host.learn(&packet, router));
                self.batch.clear();
                if let Some(mac) = found {
                    self.host = Some(host);
                    return linerate::port::MacAddress(mac).to_string();
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
}

/// Returns the packets that the kernel has dropped because a processor's queue of arriving packets was full: column 2
/// of softnet_stat, of all processors and namespaces.
fn backlog_drops() -> u64 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
    text.lines().map(|line| u64::from_str_radix(line.split(' ').nth(1).unwrap(), 16).unwrap()).sum()
}

/// Sends the template's frames, never more than the window in flight, and the last one with a damaged bit.
fn transfer([from, to]: &mut [End; 2], template: &Template) -> Report {
    let count: u64 = std::env::var("LINERATE_FRAMES").map_or(100_000, |text| text.parse().unwrap());
    let mut frames = template.clone().with_sizes("300".parse().unwrap()).unwrap().frames().unwrap();
    let (mut checker, mut bytes, mut sent) = (Checker::default(), vec![0; frames.longest()], 0);
    let (mut deadline, mut last, before) = (Deadline::begin(), 0, backlog_drops());
    loop {
        // A busy machine may drop frames; then fewer are in flight.
        let dropped = backlog_drops() - before;
        let arrived = checker.report().arrived() - checker.report().foreign;
        let missing = sent - arrived;
        if sent > count && missing <= dropped {
            assert!(checker.report().lost <= dropped, "{:?}", checker.report());
            return checker.report();
        }
        while sent <= count && sent - arrived < WINDOW + dropped.min(missing) && from.batch.len() < 32 {
            frames.fill(&mut bytes);
            if sent == count {
                *bytes.last_mut().unwrap() ^= 4;
            }
            assert!(from.batch.push(from.port.pool(), &bytes));
            sent += 1;
        }
        from.tx.send(&mut from.batch);
        to.receive(&mut checker);
        if from.batch.is_empty() {
            from.receive(&mut Checker::default());
        }
        if checker.report().received > last {
            (deadline, last) = (Deadline::begin(), checker.report().received);
        }
        deadline.check(|| format!("{missing} of {sent} frames have not arrived: {:?}", checker.report()));
    }
}

/// Checks that all frames arrived, one of them damaged, with exactly these fields changed in all of them. The hash of
/// the headers has 16 bits, so a few changes are missed if each frame has other headers.
#[track_caller]
fn check(report: Report, changed: &[HeaderField]) {
    let intact = report.received - report.foreign - report.corrupted;
    assert_eq!((report.corrupted, report.reordered, report.duplicated), (1, 0, 0), "{report:?}");
    let found = report.changed.frames;
    assert!(found <= intact && found >= intact - intact / 1000 && report.changed.unknown == 0, "{report:?}");
    let fields: Vec<_> = report.changed.fields().collect();
    assert_eq!(fields, changed.iter().map(|field| (*field, found)).collect::<Vec<_>>());
}

#[test]
fn a_router_changes_addresses_and_ttl() {
    let net = Net::new("rt");
    net.route();
    let report =
        net.cross(0, "eth/ip(src=10.87.0.2,dst=10.87.1.2,dscp=46)/udp/stamp", Some(["10.87.0.2", "10.87.1.2"]));
    check(report, &[DestinationMac, SourceMac, Ttl]);
}

#[test]
fn nat_changes_addresses_and_ports() {
    let net = Net::new("nat");
    net.route();
    net.network.run(
        "nft add table ip t && nft 'add chain ip t post { type nat hook postrouting priority 100; }' && \
         nft add rule ip t post oifname m1 ip protocol udp masquerade to :40000-50000 && \
         nft 'add chain ip t pre { type nat hook prerouting priority -100; }' && \
         nft add rule ip t pre iifname m0 udp dport 9 dnat to 10.87.1.2:7",
    );
    let report =
        net.cross(0, "eth/ip(src=10.87.0.2,dst=10.87.1.9)/udp(sport=1024)/stamp", Some(["10.87.0.2", "10.87.1.2"]));
    check(report, &[DestinationMac, SourceMac, Ttl, SourceAddress, DestinationAddress, SourcePort, DestinationPort]);
}

/// Open vSwitch adds a tag in one direction, and removes it in the other.
#[test]
fn a_vlan_switch_adds_and_removes_tags() {
    let (net, folder) = (Net::new("vlan"), tempfile::tempdir().unwrap());
    let switch = OpenVswitch::start(Debian::Own, &net.network, folder.path());
    switch.configure("add-br br0 -- set bridge br0 datapath_type=netdev");
    switch.configure("add-port br0 m0 tag=7 -- add-port br0 m1 trunks=7");
    for (from, layers) in [(0, "eth/ip/udp/stamp"), (1, "eth/vlan(id=7)/ip/udp/stamp")] {
        check(net.cross(from, layers, None), &[Vlan]);
    }
}

/// Linux's VXLAN wraps frames in one direction, and unwraps them in the other.
#[test]
fn a_tunnel_adds_and_removes_headers() {
    let net = Net::new("vx");
    net.network.run(
        "ip address add 10.87.1.1/24 dev m1 && ip neigh add 10.87.1.2 lladdr 02:00:00:00:00:02 dev m1 && \
         ip link add br0 type bridge && ip link set br0 up && ip link set m0 master br0 && \
         ip link add vx0 type vxlan id 5 remote 10.87.1.2 dstport 4789 && ip link set vx0 master br0 up",
    );
    check(net.cross(0, "eth/ip/udp/stamp", None), &[DestinationMac, SourceMac, Encapsulation]);
    let outer = net.network.run("cat /sys/class/net/m1/address");
    let outer = format!("eth(dst={})/ip(src=10.87.1.2,dst=10.87.1.1)/udp(checksum=0)", outer.trim());
    // The source address of a template is the same in both Ethernet headers.
    let report = net.cross(1, &format!("{outer}/vxlan(vni=5)/eth/ip/udp/stamp"), None);
    check(report, &[DestinationMac, Encapsulation]);
}
