//! scratch
use linerate_guest::*;
#[test]
fn scratch() {
    let mut machine = Machine::new();
    let (_a, b) = (machine.card("igb"), machine.card("igb"));
    let mut guest = machine.boot();
    guest.run("echo 64 > /proc/sys/vm/nr_hugepages");
    for n in 0..3 {
        let sink = guest.start("linerate sink 0000:02:00.0 --seconds 5 --json");
        if n > 0 {
            guest.wait_for(&sink, "seconds");
        }
        offer(&b, 10000, 256);
        println!("{}", guest.wait(sink).output.lines().last().unwrap());
    }
}
