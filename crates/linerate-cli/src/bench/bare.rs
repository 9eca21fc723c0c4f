//! The driver on one processor compared with a bare loop over the same descriptors, in turns: a ratio that other
//! machines can be compared by.

use std::time::{Duration, Instant};

use linerate::port::Vectors;
use linerate::spec::descriptor::{receive, transmit};
use linerate::traffic::touch;
use linerate::{Batch, Error};

use super::alone::{Alone, BATCH};
use super::has_time;
use crate::profile::cycles;

/// Descriptors of each ring.
const RING: usize = 512;
/// Packets of a round: half a ring, so that no ring is ever full.
const ROUND: usize = RING / 2;
/// The part by which the median round may be longer than the best on a quiet machine.
const SPREAD: f64 = 0.25;
/// The distance of packets in memory.
const BUFFER: usize = 2048;

/// Cycles per packet in rounds of the driver and of the bare loop.
pub struct Compared {
    pub ours: f64,
    pub bare: f64,
    /// How much longer than the best the median round of the driver was, as a part of it.
    pub spread: f64,
}

impl Compared {
    /// Returns the driver's cost as a multiple of the loop's.
    pub fn ratio(&self) -> f64 {
        self.ours / self.bare
    }

    /// Returns a warning if the rounds vary, so that the best one may be an accident.
    pub fn warning(&self) -> Option<String> {
        let percent = (self.spread * 100.0).round();
        (self.spread > SPREAD)
            .then(|| format!("rounds vary: half of them took at least {percent} % longer than the best"))
    }
}

/// Measures both in turns. One thread is also the card, outside of the measured time.
pub fn compare(time: Duration) -> Result<Compared, Error> {
    let (mut alone, mut batch) = (Alone::new(RING)?, Batch::with_capacity(BATCH));
    alone.step(1);
    alone.rx.recv(&mut batch);
    let frame = batch.packets().next().map_or(Vec::new(), |packet| packet.to_vec());
    batch.clear();
    let mut bare = Bare::new(&frame);
    let (mut ours, mut theirs) = (Vec::new(), f64::MAX);
    let begin = Instant::now();
    while has_time(begin, time) {
        alone.step(ROUND);
        let (start, mut packets) = (cycles(), 0);
        for _ in 0..ROUND / BATCH {
            alone.rx.recv(&mut batch);
            batch.packets().for_each(|mut packet| touch(&mut packet));
            packets += alone.tx.send(&mut batch);
            batch.clear();
        }
        if packets > 0 {
            ours.push((cycles() - start) as f64 / packets as f64);
        }
        bare.complete();
        let start = cycles();
        (0..ROUND / BATCH).for_each(|_| bare.forward());
        theirs = theirs.min((cycles() - start) as f64 / ROUND as f64);
    }
    ours.sort_by(f64::total_cmp);
    // After Ctrl-C there may be no round; this experiment is then not shown.
    let [best, median] = [0, ours.len() / 2].map(|at| ours.get(at).copied().unwrap_or(f64::NAN));
    Ok(Compared { ours: best, bare: theirs, spread: median / best - 1.0 })
}

/// The memory of a bare loop.
struct Bare {
    vectors: Vectors,
    receive: Vec<[u64; 2]>,
    transmit: Vec<[u64; 2]>,
    packets: Vec<u8>,
    /// The position in both rings.
    at: usize,
}

impl Bare {
    fn new(frame: &[u8]) -> Bare {
        let mut packets = vec![0; RING * BUFFER];
        packets.chunks_exact_mut(BUFFER).for_each(|packet| packet[..frame.len()].copy_from_slice(frame));
        let vectors = Vectors::Best.widest().unwrap_or(Vectors::Scalar);
        Bare { vectors, receive: vec![[0; 2]; RING], transmit: vec![[0; 2]; RING], packets, at: 0 }
    }

    /// Completes the descriptors of a round, as a card does.
    #[inline(never)]
    fn complete(&mut self) {
        self.receive[self.at..][..ROUND].fill([0, receive::DD | receive::EOP | 60 << receive::LENGTH_SHIFT]);
        self.transmit[self.at..][..ROUND].iter_mut().for_each(|descriptor| descriptor[1] = transmit::DD);
    }

    /// Forwards a batch with the least that a driver must do: reads the status of the received descriptors and of the
    /// last transmit descriptor, changes the packets, and writes both kinds of descriptors.
    #[inline(never)]
    #[allow(unsafe_code)]
    fn forward(&mut self) {
        let (from, to) = (&mut self.receive[self.at..][..BATCH], &mut self.transmit[self.at..][..BATCH]);
        if to[BATCH - 1][1] & transmit::DD == 0 {
            return;
        }
        let packets = self.packets[self.at * BUFFER..].chunks_exact_mut(BUFFER).take(BATCH);
        packets.for_each(|packet| touch(&mut packet[..60]));
        match self.vectors {
            // SAFETY: `widest` returns only instructions that the processor supports.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512 => unsafe { exchange_avx512(from, to) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx2 => unsafe { exchange_avx2(from, to) },
            _ => exchange(from, to),
        }
        self.at = (self.at + BATCH) % RING;
    }
}

/// As [`exchange`], compiled with 512-bit vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn exchange_avx512(from: &mut [[u64; 2]], to: &mut [[u64; 2]]) {
    exchange(from, to);
}

/// As [`exchange`], compiled with 256-bit vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn exchange_avx2(from: &mut [[u64; 2]], to: &mut [[u64; 2]]) {
    exchange(from, to);
}

/// Sends the received packets, and gives other buffers to the card, up to the first descriptor that is not done.
#[inline(always)]
fn exchange(from: &mut [[u64; 2]], to: &mut [[u64; 2]]) {
    let command = transmit::DTYP_DATA | transmit::DEXT | transmit::IFCS | transmit::EOP;
    let mut done = receive::DD;
    for (n, (from, to)) in from.iter_mut().zip(to).enumerate() {
        let (word, address) = (from[1], (n * BUFFER) as u64);
        let length = word >> receive::LENGTH_SHIFT & 0xFFFF;
        done &= word;
        *from = [address, 0];
        *to = [address, command | length | length << transmit::PAYLEN_SHIFT];
    }
    debug_assert_ne!(done, 0, "the card has completed all");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_forwards_what_the_card_has_completed() {
        for vectors in [Vectors::Scalar, Vectors::Avx2, Vectors::Avx512].into_iter().filter(|it| it.is_supported()) {
            let mut bare = Bare { vectors, ..Bare::new(&[7; 60]) };
            bare.forward();
            assert_eq!((bare.at, bare.transmit[0]), (0, [0; 2]), "no descriptor is completed");
            bare.complete();
            bare.forward();
            assert_eq!(bare.at, BATCH);
            for n in 0..BATCH {
                let address = (n * BUFFER) as u64;
                assert_eq!((bare.receive[n], bare.transmit[n][0]), ([address, 0], address), "{vectors:?}");
                assert_eq!(bare.transmit[n][1] >> transmit::PAYLEN_SHIFT, 60, "{vectors:?}");
            }
            assert_eq!(bare.transmit[BATCH..ROUND], [[0, transmit::DD]; ROUND - BATCH]);
        }
    }
}
