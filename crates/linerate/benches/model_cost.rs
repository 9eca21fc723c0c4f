//! The model's cost per frame: from its generator into a driver's buffer, and from there to its checker, in the
//! driver's thread (frames of 64 bytes, 64 per step). Results are TSC cycles per frame for both directions, the best of
//! many rounds. If the model runs in its own thread, transfers of cache lines between processors add to this.
//!
//! `cargo bench --bench model_cost`

use linerate::Batch;
use linerate::memory::{Pool, Region, RegionOptions};
use linerate::nic::ixgbe::Config;
use linerate::port::Device;
use linerate::sim82599::{Card, Runner, Traffic};
use linerate::traffic::{Generator, touch};

const STEP: usize = 64;
const ROUNDS: usize = 20_000;

fn main() {
    let clock = quanta::Clock::new();
    let pool = Pool::new(Region::new(&RegionOptions::default()).expect("memory"));
    for flows in [1, 64] {
        let card = Card::new("model_cost", Box::new(Traffic::new(Generator::new(64, flows), None, None)));
        // Running the card turns strict mode off; the card is then stepped without the runner.
        Runner::start().expect("a thread").run(&card);
        let mut device =
            linerate::drive_model(&card, None, Config::new(card.name(), pool.clone())).expect("the driver starts");
        let (mut rx, mut tx) = (device.rx(0).expect("a queue"), device.tx(0).expect("a queue"));
        let mut batch = Batch::new();
        let mut best = f64::MAX;
        for _ in 0..ROUNDS {
            let begin = clock.raw();
            let moved = card.step(STEP);
            let cycles = clock.raw() - begin;
            while rx.recv(&mut batch) > 0 {
                (&mut batch).into_iter().for_each(|mut packet| touch(&mut packet));
                tx.send(&mut batch);
            }
            if moved == 2 * STEP {
                best = best.min(cycles as f64 / STEP as f64);
            }
        }
        assert_eq!(card.breaches(), []);
        println!("flows={flows} total={best:.1}");
    }
}
