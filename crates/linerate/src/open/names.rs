//! Tests of names with all kinds of ports.

use crate::parse;
use crate::port::{Form, count, escaped};

fn kind(text: &str) -> &'static str {
    parse(text).unwrap().kind().prefix
}

#[test]
fn names_come_apart() {
    let name = parse("sim:a-1?rate=14.88M&size=128&size=128").unwrap();
    assert_eq!((name.kind().prefix, name.rest(), name.short()), ("sim", "a-1", "sim:a-1"));
    assert_eq!((name.option("rate"), name.option("flows")), (Some("14.88M"), None));
    assert_eq!(name.number("size", 64, 64..=1518).unwrap(), 128);
    for (text, value) in
        [("18446744073709551615", Some(u64::MAX)), ("99999999999999999999", None), ("18446744074G", None), ("", None)]
    {
        assert_eq!(count(text), value, "{text}");
    }
    for text in
        ["e6", "1e", "1e999", "1e19", "infinite", "-1e3", "k", "-1", "+1", "1.0001k", "1.k", ".5k", "1kk", "1é", "é"]
    {
        assert_eq!(count(text), None, "{text}");
    }
    assert_eq!(parse("sim:0?count=2k").unwrap().number("count", 0, 0..=9999).unwrap(), 2000);
}

#[test]
fn kinds_that_come_later_are_known() {
    assert_eq!(kind("0000:03:00.0?queues=2"), "pci");
    assert_eq!(parse("03:00.0").unwrap().short(), "03:00.0");
    assert!(parse("03:00.0?wire=none").unwrap_err().with_hint().contains("no such option"));
    assert_eq!(parse("vfio-user:/tmp/x?ring=64").unwrap().rest(), "/tmp/x");
    let xdp = parse("xdp:eth0-3?flow=udp:1+from:fd00::/8").unwrap();
    assert_eq!((xdp.kind().prefix, xdp.rest(), xdp.option("flow")), ("xdp", "eth0-3", Some("udp:1+from:fd00::/8")));
    assert!(matches!(parse("netmap:if0^").unwrap().kind().form, Form::Other("netmap:IF^", _)));
    let capture = parse("pcap:x.pcap?write").unwrap();
    assert_eq!((capture.kind().prefix, capture.rest(), capture.option("write")), ("pcap", "x.pcap", Some("on")));
}

#[test]
fn special_characters_are_escaped() {
    for (text, interface) in [
        ("packet:a%3Fb?flow=udp", "a?b"),
        ("xdp:%C3%b6-3", "ö-3"),
        ("netmap:a%26b", "a&b"),
        // Not an escape.
        ("packet:100%", "100%"),
        ("packet:x%4", "x%4"),
        ("packet:t%d", "t%d"),
    ] {
        assert_eq!(parse(text).unwrap().interface(), Some(interface), "{text}");
    }
    for c in (1..=255u8).map(char::from).filter(|c| !c.is_whitespace() && *c != '/') {
        let interface = format!("a{c}r");
        for text in [escaped(&interface), format!("{}?flow=udp", escaped(&interface))] {
            let name = parse(&format!("packet:{text}")).unwrap();
            assert_eq!(
                (name.interface(), name.to_string()),
                (Some(&*interface), format!("packet:{}", escaped(&interface)))
            );
        }
    }
    for text in ["packet:a%2Fb", "packet:a%20b", "packet:"] {
        assert!(parse(text).unwrap_err().to_string().contains("it needs the name of an interface"), "{text}");
    }
    assert!(parse("xdp:%FF").unwrap_err().to_string().contains("not UTF-8; write % itself as %25"));
    let file = parse("faulty:pcap:/tmp/a%3Fb?write").unwrap();
    assert_eq!(file.path(), Some(std::path::Path::new("/tmp/a?b")));
    let socket = parse("vhost:/tmp/a%3F{b?queues=2").unwrap_err();
    assert_eq!(socket.kind(), crate::ErrorKind::BadName);
    let socket = parse("vhost:/tmp/a%3F%7Bb?queues=2").unwrap();
    assert_eq!(socket.with_absolute_path().unwrap(), "vhost:/tmp/a%3F%7Bb?queues=2");
}

#[test]
fn ports_in_memory_have_names() {
    assert_eq!(parse("vale0:a/zrt").unwrap().rest(), "vale0:a");
    for text in ["sim:0+rt", "p{1/tr", "vale0:a/z"] {
        let name = parse(text).unwrap();
        assert!(name.monitored().is_some_and(|monitored| monitored.receive && monitored.transmit), "{text}");
    }
    for (text, expected) in [
        ("null:", "null"),
        ("vale0:p", "vale"),
        ("vale0:p{3", "pipe"),
        ("a}12?ring=64", "pipe"),
        ("sim:0+r", "monitor"),
    ] {
        assert_eq!(kind(text), expected, "{text}");
    }
}

#[test]
fn a_wrapped_port_is_known_by_its_inner_name() {
    let wrapped = parse("faulty:recorded:sim:a?to=x&drop=1%").unwrap();
    assert_eq!((wrapped.kind().prefix, wrapped.rest(), wrapped.model()), ("faulty", "recorded:sim:a", Some("a")));
    assert!(parse("faulty:xdp:eth0").unwrap().is_xdp() && !wrapped.is_xdp());
    assert_eq!(kind("recorded:pcap:/tmp/rt?to=x"), "recorded", "no monitor of /tmp");
    let written = parse("recorded:pcap:a?to=x").unwrap().with_option("write", "on").unwrap();
    assert_eq!((written.as_str(), written.inner_name().as_str()), ("recorded:pcap:a?to=x&write=on", "pcap:a?write=on"));
    assert!(written.is_capture_to_write() && written.with_option("wirte", "on").is_err());
    assert_eq!(parse("faulty:sim:a+rt").unwrap().rest(), "faulty:sim:a");
    assert_eq!(parse("faulty:sim:a+rt").unwrap().model(), None, "a monitor is no model");
}

#[test]
fn bad_names_are_explained() {
    let bad = [
        ("", "begin with a kind"),
        ("eth0", "begin with a kind"),
        ("eth0", "did you mean xdp:eth0 or packet:eth0?"),
        ("eth0?flow=udp", "did you mean xdp:eth0 or packet:eth0?"),
        ("foo:1", "there are sim:NAME, PCI addresses, "),
        ("sim:", "1 to 64"),
        ("vfio-user:", "path of a socket"),
        ("xdp:", "name of an interface"),
        ("xdp:eth0?wire=none", "no such option"),
        ("vfio-user:/x?wire=none", "no such option"),
        ("sim:a b", "1 to 64"),
        ("foo:1", "no kind of port 'foo:'"),
        ("sim:0?x", "no such option"),
        ("sim:0?size=64&size=128", "option size=64: it is also given as size=128"),
        ("faulty:sim:0?drop=1%&drop=2%", "option drop=1%: it is also given as drop=2%"),
        ("pcap:", "path of a file"),
        ("pcap:x?mtu=1500", "no such option; there are write, loop, speed"),
        ("sim:0?x=1", "no such option"),
        ("x{", "where N is a number"),
        ("{1", "where N is a number"),
        ("x{1}2", "where N is a number"),
        ("x{123456", "where N is a number"),
        ("vale0:p?wire=none", "no such option"),
        ("netmap:if0*", "two ports"),
        ("sim:0?ring=x", "sim:0: option ring=x: it must be a number from 64 to 4096"),
        ("pcap:x?loop=x", "pcap:x: option loop=x: it must be a number, such as 1000"),
        ("memif:/x?role=sever", "it must be client or server"),
        ("xdp:eth0?steer=no", "it must be auto, on or off"),
        ("vhost:/x?packed=yes", "it must be on or off"),
        ("memif:/x?secrte=a", "no such option (did you mean secret?); there are queues, "),
        ("faulty:sim:0?dorp=1%", "no such option (did you mean drop?); there are queues, "),
        ("faulty:sim:0?dorp=1%", "; faulty has drop, corrupt"),
        ("faulty:?drop=1%", "faulty:: no port has this name: it needs the name of another port: faulty:sim:0"),
        ("faulty:foo:0", "no kind of port 'foo:'"),
        ("vhots:/x", "no kind of port 'vhots:' (did you mean vhost:?)"),
    ];
    for (name, why) in bad {
        let message = parse(name).unwrap_err().with_hint();
        assert!(message.contains(why), "{name}: {message}");
    }
}
