"""Writes captures of many protocols into the current folder, with scapy."""
import struct
from scapy.all import *

A, B = "10.1.2.3", "10.200.0.7"
A6, B6 = "2001:db8:1::3", "2001:db8:2::7"
E = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
R = Ether(src="02:00:00:00:00:02", dst="02:00:00:00:00:01")

def tcp(there, back):
    return [
        E/there/TCP(sport=40000, dport=80, flags="S", seq=1, options=[("MSS", 1460), ("WScale", 7)]),
        R/back/TCP(sport=80, dport=40000, flags="SA", seq=9, ack=2, options=[("MSS", 1460)]),
        E/there/TCP(sport=40000, dport=80, flags="A", seq=2, ack=10),
        E/there/TCP(sport=40000, dport=80, flags="PA", seq=2, ack=10)/b"GET / HTTP/1.0\r\n\r\n",
        R/back/TCP(sport=80, dport=40000, flags="PA", seq=10, ack=20)/bytes(range(256))/bytes(1001),
        R/back/TCP(sport=80, dport=40000, flags="FA", seq=1267, ack=20)/b"odd",
    ]

def udp(there, back):
    query = DNS(id=7, qd=DNSQR(qname="example.org"))
    return [E/there/UDP(sport=5353, dport=53)/query, R/back/UDP(sport=53, dport=5353)/query/b"x",
            E/there/UDP(sport=80, dport=9)/bytes(1400), E/there/UDP(sport=80, dport=80)]

there, back = IP(src=A, dst=B, ttl=64, id=1), IP(src=B, dst=A, ttl=1, id=2)
there6, back6 = IPv6(src=A6, dst=B6, hlim=64), IPv6(src=B6, dst=A6, hlim=1)

def built(packets):
    return [Ether(bytes(packet)) for packet in packets]

def padded(packets):
    return [bytes(packet) + bytes(max(0, 60 - len(bytes(packet)))) for packet in packets]

def with_checksum(packets, value):
    changed = []
    for packet in built(packets):
        packet[IP].payload.chksum = value
        changed.append(packet)
    return changed

error = IP(src="10.9.9.9", dst=A, id=3)/ICMP(type=3, code=4, nexthopmtu=1300)/built(udp(there, back))[2][IP]
error_tcp = IP(src="10.9.9.9", dst=A, id=3)/ICMP(type=11)/Raw(bytes(built(tcp(there, back))[3][IP])[:28])
error6 = IPv6(src="2001:db8:9::9", dst=A6)/ICMPv6PacketTooBig(mtu=1280)/built(udp(there6, back6))[0][IPv6]

captures = {
    "tcp": tcp(there, back),
    "udp": udp(there, back),
    "tcp6": tcp(there6, back6),
    "udp6": udp(there6, back6),
    "icmp": [E/there/ICMP(id=1, seq=1)/bytes(56), R/back/ICMP(type=0, id=1, seq=1)/bytes(57)],
    "icmp6": [E/there6/ICMPv6EchoRequest(id=1)/bytes(56), R/back6/ICMPv6EchoReply(id=1)/bytes(57)],
    "vlan": [Ether(src=packet.src, dst=packet.dst)/Dot1Q(vlan=9, prio=5)/packet.payload for packet in tcp(there, back)],
    "qinq": [Ether(src=packet.src, dst=packet.dst, type=0x88a8)/Dot1Q(vlan=9)/Dot1Q(vlan=7)/packet.payload
             for packet in udp(there, back)],
    "arp": [Ether(src=E.src, dst="ff:ff:ff:ff:ff:ff")/ARP(hwsrc=E.src, psrc=A, pdst=B),
            R/ARP(op=2, hwsrc=R.src, hwdst=E.src, psrc=B, pdst=A)],
    "options": tcp(IP(src=A, dst=B, id=1, options=[IPOption_RR()]), IP(src=B, dst=A, id=2, options=[IPOption_NOP()])),
    "fragments": [packet for long in built(udp(there, back)) for packet in fragment(long, 600)],
    "extensions": [E/IPv6(src=A6, dst=B6)/IPv6ExtHdrHopByHop(options=[PadN(optdata=bytes(4))])/UDP(sport=80, dport=9)/bytes(50),
                   E/IPv6(src=A6, dst=B6)/IPv6ExtHdrHopByHop(options=[PadN(optdata=bytes(4))])/TCP(sport=80, dport=9)/bytes(51)],
    "fragments6": fragment6(IPv6(src=A6, dst=B6)/IPv6ExtHdrFragment(id=7)/UDP(sport=80, dport=9)/bytes(3000), 1280),
    "nochecksum": with_checksum(udp(there, back), 0),
    "wrong": with_checksum(udp(there, back) + tcp(there, back), 0x1234),
    "padded": padded(tcp(there, back) + udp(there, back)),
    "other": [Ether(src=E.src, dst="01:80:c2:00:00:0e", type=0x88cc)/bytes(50),
              Dot3(src=E.src, dst="01:80:c2:00:00:00")/LLC()/STP(), Ether(src=E.src, dst=E.dst, type=0x88b5)/bytes(100)],
    "multicast": [Ether(src=E.src, dst="01:00:5e:00:00:fb")/IP(src=A, dst="224.0.0.251", ttl=255)/UDP(sport=5353, dport=5353)/b"mdns!",
                  Ether(src=E.src, dst="ff:ff:ff:ff:ff:ff")/IP(src="0.0.0.0", dst="255.255.255.255")/UDP(sport=68, dport=67)/bytes(240)],
    "sctp": [E/there/SCTP(sport=80, dport=9)/SCTPChunkInit(init_tag=1)],
    "tunnels": [E/IP(src=A, dst=B, id=1)/GRE()/there/UDP(sport=1, dport=2)/b"gre",
                E/IP(src=A, dst=B, id=1)/there/UDP(sport=1, dport=2)/b"ipip",
                E/there/UDP(sport=1, dport=4789)/VXLAN(vni=7)/E/there/TCP()],
    "errors": [E/error, E/error_tcp],
    "errors6": [E/error6],
    "neighbours": [E/IPv6(src=A6, dst="ff02::1:ff00:7", hlim=255)/ICMPv6ND_NS(tgt=B6)/ICMPv6NDOptSrcLLAddr(lladdr=E.src),
                   R/IPv6(src=B6, dst=A6, hlim=255)/ICMPv6ND_NA(tgt=B6)/ICMPv6NDOptDstLLAddr(lladdr=R.src)],
}

def write(name, packets, order="<", snap=65535):
    with open(name + ".pcap", "wb") as file:
        file.write(struct.pack(order + "IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, packet in enumerate(packets):
            data = bytes(packet)
            file.write(struct.pack(order + "IIII", 1700000000 + number, number * 1001, min(len(data), snap), len(data)))
            file.write(data[:snap])

for name, packets in captures.items():
    packets = [packet if isinstance(packet, bytes) or Ether in packet or Dot3 in packet else E/packet for packet in packets]
    write(name, packets)
write("snapped", captures["tcp"] + captures["udp"] + captures["tcp6"] + captures["udp6"], snap=68)
write("bigendian", captures["tcp"], order=">")

def block(order, kind, body):
    length = 12 + (len(body) + 3) // 4 * 4
    return struct.pack(order + "II", kind, length) + body + bytes(length - 12 - len(body)) + struct.pack(order + "I", length)

def options(order, *all):
    fields = [struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4) for code, value in all]
    return b"".join(fields) + struct.pack(order + "HH", 0, 0)

# pcapng in both byte orders: interfaces, comments, other options, blocks of all kinds, and another section.
for name, order in [("little", "<"), ("big", ">")]:
    def enhanced(interface, time, data, original=None, *all):
        head = struct.pack(order + "IIIII", interface, time >> 32, time & 0xFFFFFFFF, len(data), original or len(data))
        return block(order, 6, head + data + bytes(-len(data) % 4) + (options(order, *all) if all else b""))
    tcp_frames = [bytes(packet) for packet in captures["tcp"]]
    time = 1700000000 * 10**9
    section = block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + options(order, (4, b"a test")))
    uplink = block(order, 1, struct.pack(order + "HHI", 1, 0, 96) + options(order, (2, b"uplink0"), (9, b"\x09"), (1, b"an interface")))
    raw = block(order, 1, struct.pack(order + "HHI", 101, 0, 0) + options(order, (2, b"tunnel0")))
    flags = struct.pack(order + "I", 2)
    parts = [
        section, uplink, raw,
        enhanced(0, time + 1, tcp_frames[0], None, (1, b"look here"), (2, flags), (4, bytes(8))),
        enhanced(1, 1700000000 * 10**6, tcp_frames[1][14:]),
        block(order, 0xBAD, b"another block"),
        block(order, 4, struct.pack(order + "HH", 0, 0)),
        enhanced(0, time + 1001, tcp_frames[4][:96], len(tcp_frames[4]), (1, b"first"), (1, b"second")),
        block(order, 3, struct.pack(order + "I", len(tcp_frames[2])) + tcp_frames[2]),
        block(order, 2, struct.pack(order + "HHIIII", 0, 3, time >> 32, time & 0xFFFFFFFF, 60, 71) + tcp_frames[3][:60]),
        enhanced(0, time + 500, bytes(60), None, (1, b"not IP"), (3, b"\x02" + bytes(4))),
        block(order, 5, struct.pack(order + "III", 0, 0, 0) + options(order, (4, bytes(8)))),
        section, uplink, enhanced(0, time + 9, tcp_frames[5], None, (1, b"in the second section")),
    ]
    open(name + ".pcapng", "wb").write(b"".join(parts))
