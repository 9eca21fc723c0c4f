//! `linerate vm`: the line that starts QEMU, in the words of the QEMU that is there.

mod kit;

use std::os::unix::fs::PermissionsExt;

use kit::{Folder, expect, linerate, text};

/// Returns a program that says it is QEMU of that version, and prints its other arguments, one in a line.
fn qemu(folder: &Folder, version: &str) -> String {
    let path = folder.path(version);
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'QEMU emulator version {version} (Debian)'; else printf '%s\\n' \"$@\"; fi\n"
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_line_has_the_words_of_the_qemu_that_is_there() {
    let folder = Folder::new("vm");
    for (version, again) in [
        ("7.2.22", "reconnect=1"),
        ("9.1.0", "reconnect=1"),
        ("9.2.0", "reconnect-ms=20"),
        ("11.1.3", "reconnect-ms=20"),
    ] {
        let qemu = qemu(&folder, version);
        let line = text(&expect(0, &mut linerate(&["vm", "vhost:/tmp/a,b", "--qemu", &qemu])).stdout);
        let socket = format!("-chardev socket,id=socket0,path=/tmp/a,,b,{again} ");
        assert!(line.starts_with(&qemu) && line.contains(&socket), "{line}");
        assert!(line.contains("size=512M,share=on") && line.contains("memory-backend=memory"), "{line}");
        // QEMU 7.2 without KVM ends at an MSI-X of a card like this.
        assert_eq!(line.contains(",vectors=0"), version.starts_with("7.") && line.contains("accel=tcg"), "{line}");
    }
}

#[test]
fn the_card_has_the_options_of_its_port() {
    let folder = Folder::new("vmo");
    let qemu = qemu(&folder, "10.0.13");
    let ports = ["vhost:/tmp/s?queues=4&packed=on&mtu=9000", "vhost:/tmp/t?client=on"];
    let options = ["--memory", "2048", "--processors", "4", "--qemu", &qemu, "--run", "--", "-append", "a b"];
    let given = text(&expect(0, &mut linerate(&[&["vm"], &ports[..], &options].concat())).stdout);
    for word in [
        "2048M",
        "4",
        "vhost-user,id=net0,chardev=socket0,queues=4",
        ",mq=on,vectors=10,packed=on,host_mtu=9000",
        "socket,id=socket1,path=/tmp/t,server=on,wait=off",
        "virtio-net-pci,netdev=net1,mac=02:",
        "a b",
    ] {
        assert!(given.lines().any(|line| line.contains(word)), "{word}: {given}");
    }
    let macs: Vec<_> = given.lines().filter_map(|line| line.split("mac=").nth(1)?.get(..17)).collect();
    assert!(macs.len() == 2 && macs[0] != macs[1], "{given}");
    let line = text(&expect(0, &mut linerate(&["vm", ports[1], "--qemu", &qemu, "--", "-append", "a b"])).stdout);
    assert!(line.trim_end().ends_with("-append 'a b'") && !line.contains("status="), "{line}");
    let line = text(&expect(0, &mut linerate(&["vm", ports[1], "--qemu", &qemu, "--no-link-state"])).stdout);
    assert!(line.contains(",status=off"), "{line}");
}

#[test]
fn what_is_no_port_of_a_machine_is_refused() {
    let folder = Folder::new("vmr");
    let qemu = qemu(&folder, "10.0.13");
    for (code, arguments, why) in [
        (2, &["vm", "sim:0", "--qemu", &qemu][..], "a machine has its card at vhost:PATH"),
        (2, &["vm", "vhost:/tmp/s?queues=65", "--qemu", &qemu], "queues"),
        (2, &["vm"], "required"),
        (2, &["vm", "vhost:/tmp/s", "vhost:/tmp/s?packed=on", "--qemu", &qemu], "given twice"),
        (2, &["vm", "sim:0", "--qemu", "/nowhere/qemu"], "a machine has its card at vhost:PATH"),
        (2, &["vm", "vhost:/tmp/s", "--memory", "4"], "from 16 to"),
        (1, &["vm", "vhost:/tmp/s", "--qemu", "/nowhere/qemu"], "sudo apt install qemu-system-x86"),
        (2, &["vm", "vhost:/tmp/s", "--qemu", "true"], "names no version of QEMU"),
    ] {
        let said = text(&expect(code, &mut linerate(arguments)).stderr);
        assert!(said.contains(why), "{arguments:?}: {said}");
    }
}
