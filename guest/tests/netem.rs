//! Links beside netem, the kernel's emulator: the same delays and losses, seen by ping in one guest.
//!
//! The guest's clock counts instructions, so that times do not depend on the host's load.

use linerate_guest::{Guest, Machine, Program};

/// netem's tables, as iproute2 installs them.
const TABLES: &str = "/usr/lib/x86_64-linux-gnu/tc";

/// The pings of a run. They begin 5 ms after each other.
const PINGS: usize = 2000;

/// Returns the sorted round trips in milliseconds, of the replies that arrived.
fn round_trips(guest: &mut Guest, prefix: &str, address: &str) -> Vec<f64> {
    // The first ping waits for ARP, which can be lost, too.
    let one = format!("{prefix} /usr/bin/ping -n -q -c 1 -W 1 {address}");
    guest.run(&format!("(for n in $(seq 50); do {one} && exit 0; done; exit 1)"));
    let output = guest.attempt(&format!("{prefix} /usr/bin/ping -n -c {PINGS} -i 0.005 -W 1 {address}")).output;
    let time = |line: &str| line.split_once("time=")?.1.split(' ').next()?.parse::<f64>().ok();
    let mut times: Vec<f64> = output.lines().filter(|line| !line.contains("DUP")).filter_map(time).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Returns the greatest distance between the distribution functions of two sorted samples, and its limit for p = 0.00001
/// (Kolmogorov and Smirnov).
fn distance(one: &[f64], other: &[f64]) -> (f64, f64) {
    let below =
        |samples: &[f64], value: f64| samples.partition_point(|sample| *sample <= value) as f64 / samples.len() as f64;
    let greatest = one.iter().chain(other).map(|value| (below(one, *value) - below(other, *value)).abs());
    let (n, m) = (one.len() as f64, other.len() as f64);
    (greatest.fold(0.0, f64::max), 2.47 * ((n + m) / (n * m)).sqrt())
}

/// Starts a link, and connects two networks of the guest with it. Returns the prefix for commands in the first.
fn start_link(guest: &mut Guest, number: usize, options: &str) -> (String, Program) {
    let [near, far] = ["n", "f"].map(|end| format!("{end}{number}"));
    let link = guest.start(&format!("linerate link tap:{near} tap:{far} {options} --seconds 600 --json"));
    guest.wait_for(&link, &format!("tap:{far} to tap:{near}: "));
    guest.move_to_own_network(&far, &format!("10.{number}.0.2/24"));
    let prefix = guest.move_to_own_network(&near, &format!("10.{number}.0.1/24"));
    (prefix, link)
}

#[test]
fn delays_and_losses_are_those_of_netem() {
    let mut machine = Machine::new().exact_time();
    for program in ["/usr/bin/ping", "/usr/sbin/tc", &format!("{TABLES}/normal.dist"), &format!("{TABLES}/pareto.dist")]
    {
        machine.program(program);
    }
    let mut guest = machine.boot();
    guest.run("modprobe -a sch_netem tun");
    // netem delays what Linux sends into a link that does nothing.
    let (bare, _bare_link) = start_link(&mut guest, 100, "");
    guest.run(&format!("{bare} /usr/sbin/tc qdisc add dev n100 root netem limit 100000"));
    let pareto = format!("{TABLES}/pareto.dist");
    for (number, (netem, link)) in [
        ("delay 20ms 5ms".to_string(), "--delay 20ms/0 --jitter 5ms/ --order off".to_string()),
        (
            "delay 50ms 10ms distribution normal".to_string(),
            "--delay 50ms/0 --jitter 10ms/ --distribution normal --order off".to_string(),
        ),
        (
            "delay 50ms 10ms distribution pareto".to_string(),
            format!("--delay 50ms/0 --jitter 10ms/ --distribution {pareto} --order off"),
        ),
        ("delay 5ms loss random 10%".to_string(), "--delay 5ms/0 --loss 10%/0".to_string()),
        ("delay 5ms loss gemodel 2% 20%".to_string(), "--delay 5ms/0 --gilbert 2%,20%/".to_string()),
    ]
    .into_iter()
    .enumerate()
    {
        guest.run(&format!("{bare} /usr/sbin/tc qdisc change dev n100 root netem limit 100000 {netem}"));
        let of_netem = round_trips(&mut guest, &bare, "10.100.0.2");
        let (prefix, program) = start_link(&mut guest, number + 1, &link);
        let ours = round_trips(&mut guest, &prefix, &format!("10.{}.0.2", number + 1));
        let summary = guest.interrupt(program).summary_of_any();
        let ours_len = ours.len();
        let (distance, limit) = distance(&ours, &of_netem);
        let of_quantile = |samples: &[f64], q: usize| samples[(samples.len() - 1) * q / 100];
        let quantiles = [1, 10, 50, 90, 99].map(|q| (q, of_quantile(&ours, q), of_quantile(&of_netem, q)));
        println!("{netem}: {} and {} replies, distance {distance:.4} ({limit:.4})", ours.len(), of_netem.len());
        println!("  quantiles, link and netem: {quantiles:?}");
        if netem.contains("loss") {
            // Bursts widen the deviation: losses in a row are correlated by 1 - p - r.
            let (loss, factor) =
                if netem.contains("gemodel") { (2.0 / 22.0, (1.78f64 / 0.22).sqrt()) } else { (0.1, 1.0) };
            let sigma = (PINGS as f64 * loss * (1.0 - loss)).sqrt() * factor;
            for (name, replies) in [("link", ours.len()), ("netem", of_netem.len())] {
                let lost = (PINGS - replies) as f64;
                assert!((lost - PINGS as f64 * loss).abs() < 4.0 * sigma, "{name}: {lost} lost, {netem}");
            }
            // The processing takes microseconds, and differs.
            let [(_, ours, of_netem), ..] = [quantiles[2]];
            assert!((ours - of_netem).abs() < 0.5, "{ours} {of_netem}");
            let lost = summary["link"][0]["lost"].as_u64().unwrap();
            assert!(lost >= (PINGS - ours_len) as u64, "{lost} of the link, {} pings: {summary}", PINGS - ours_len);
        } else {
            assert_eq!((ours.len(), of_netem.len()), (PINGS, PINGS), "{netem}");
            assert!(distance < limit, "{netem}: distance {distance}, limit {limit}: {quantiles:?}");
        }
    }
}
