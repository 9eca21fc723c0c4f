//! A custom switch that separates VLANs: each port is in one VLAN, which frames without a tag belong to, and
//! addresses are learned per VLAN.
//!
//! `cargo run -p linerate --example vlan_bridge`

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use linerate::Batch;
use linerate::netmap::{Destination, Forward, Frames, Switch};

/// The VLAN of each port.
struct VlanBridge {
    vlans: Vec<u16>,
    /// The port of each VLAN and address.
    known: Mutex<HashMap<(u16, [u8; 6]), u8>>,
}

impl Forward for VlanBridge {
    fn forward(&self, source: u8, packets: &Frames<'_>, to: &mut [Destination]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(&own) = self.vlans.get(usize::from(source)) else { return };
        for (packet, to) in packets.iter().zip(to) {
            let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, e0, e1, t0, t1]) = packet.first_chunk() else {
                continue;
            };
            let tag = [e0, e1] == [0x81, 0x00];
            let vlan = if tag { u16::from_be_bytes([t0, t1]) & 0xFFF } else { own };
            // Frames of other VLANs are not accepted.
            if vlan != own {
                continue;
            }
            known.insert((vlan, [s0, s1, s2, s3, s4, s5]), source);
            if let Some(&port) = known.get(&(vlan, [d0, d1, d2, d3, d4, d5])) {
                *to = Destination::Port(port);
            } else {
                *to = Destination::Group(vlan);
            }
        }
    }
}

fn main() -> linerate::Result<()> {
    let switch = Switch::named("vale0");
    let vlans = vec![10, 20, 10, 20, 10];
    for vlan in [10, 20] {
        let ports: Vec<u8> = (0..).zip(&vlans).filter(|(_, of_port)| **of_port == vlan).map(|(port, _)| port).collect();
        switch.set_group(vlan, &ports);
    }
    switch.set_forward(Arc::new(VlanBridge { vlans, known: Mutex::default() }));
    let mut ports = linerate::open(["vale0:a", "vale0:b", "vale0:c", "vale0:d", "vale0:e"])?;
    let mut queues = Vec::new();
    for port in &mut ports {
        queues.push((port.rx(0)?, port.tx(0)?));
    }
    let mut frame = [0u8; 60];
    frame[..12].copy_from_slice(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2, 0, 0, 0, 0, 1]);
    let mut batch = Batch::new();
    batch.push(ports[0].pool(), &frame);
    queues[0].1.send(&mut batch);
    for (port, (rx, _)) in ports.iter().zip(&mut queues) {
        println!("{} received {} frames", port.name(), rx.recv(&mut batch));
        batch.clear();
    }
    Ok(())
}
