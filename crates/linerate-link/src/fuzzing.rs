//! The fuzz target `link` (`docs/testing.md`). Built only with `--cfg fuzzing`.
#![allow(missing_docs)]

use std::cell::OnceCell;
use std::sync::Arc;

use linerate_core::Batch;
use linerate_core::fuzzing::Input;
use linerate_core::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate_core::port::PortClass;

use crate::counts::Event;
use crate::delay::Distribution;
use crate::line::Line;
use crate::parameters::Parameters;
use crate::play::Recording;
use crate::port::{Direction, of_direction, of_direction_or_play};
use crate::quantity::{amount, duration, probability, rate};
use crate::schedule::Schedule;
use crate::transmitter::Opportunities;

const BUFFERS: usize = 512;

thread_local! {
    /// A pool for all executions of the thread, since its memory is mapped only once.
    static POOL: OnceCell<Arc<Pool>> = const { OnceCell::new() };
}

/// Input: the number of a parser, then its text. Checks what was parsed: values are in their ranges, times are in order,
/// and a line with the parameters accounts for every packet and returns every buffer.
pub fn link(data: &[u8]) {
    let mut input = Input::new(data);
    let parser = input.bytes(1).first().map_or(0, |byte| byte % 6);
    let Ok(text) = std::str::from_utf8(input.rest()) else { return };
    match parser {
        0 => quantities(text),
        1 => options(text),
        2 => {
            if let Ok(schedule) = Schedule::parse(text) {
                let times: Vec<u64> = (0..1000).map_while(|n| schedule.step(n)).map(|step| step.time).collect();
                assert!(times.is_sorted(), "{times:?}");
            }
        }
        3 => {
            if let Ok(trace) = Opportunities::parse(text) {
                assert!(trace.mean_rate() > 0);
            }
        }
        4 => drop(Distribution::parse(text)),
        _ => {
            let Ok(both) = Recording::parse(text.as_bytes()) else { return };
            for play in both {
                let packets = [("packets", "200")];
                let played = of_direction_or_play(&packets, Direction::FromPort, PortClass::Stack, Some(play));
                run(&played.unwrap_or_default());
            }
        }
    }
}

fn quantities(text: &str) {
    assert!(duration(text).is_ok_and(|time| time <= crate::quantity::LONGEST) || duration(text).is_err());
    assert!(rate(text).is_ok_and(|bits| bits > 0) || rate(text).is_err());
    assert!(probability(text).is_ok_and(|chance| (0.0..=1.0).contains(&chance)) || probability(text).is_err());
    let _ = amount(text);
}

/// Parses options as in a name, `delay=1ms&loss=1%/0`, without options that name files.
fn options(text: &str) {
    let pairs = text.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let is_file = |option: &str, value: &str| {
        option.starts_with("trace") || option.starts_with("schedule") || option == "distribution" && value.contains('/')
    };
    let mut options: Vec<(&str, &str)> = pairs.filter(|(option, value)| !is_file(option, value)).collect();
    // The last of a name counts.
    options.push(("packets", "200"));
    for direction in [Direction::FromPort, Direction::ToPort] {
        if let Ok(parameters) = of_direction(&options, direction, PortClass::Stack) {
            run(&parameters);
        }
    }
}

/// Sends packets through a line.
fn run(parameters: &Parameters) {
    let options = || RegionOptions {
        buffers: BUFFERS,
        buffer_size: 512,
        pages: Pages::Only(PageSize::Ordinary),
        ..RegionOptions::default()
    };
    let pool = POOL.with(|pool| {
        pool.get_or_init(|| Pool::new(Region::new(&options()).expect("512 buffers of ordinary memory"))).clone()
    });
    let mut line = Line::new(parameters, &pool, 0);
    let (mut entering, mut leaving) = (Batch::with_capacity(64), Batch::with_capacity(64));
    let (mut now, mut entered, mut arrived) = (0u64, 0, 0);
    for gap in [0, 1, 0, 999, 7_000_000, 0, 0, 50_000, 11_000_000, 0, 1_000_000_000, 0] {
        now += gap;
        entered += u64::from(entering.push(&pool, &[1; 60]));
        line.accept(now, &mut entering);
        line.release(now, &mut leaving);
        arrived += leaving.packets().count() as u64;
        leaving.clear();
    }
    let entered = entered - entering.packets().count() as u64 + line.counters().get(Event::Duplicated);
    assert_eq!(entered, arrived + line.held() as u64 + line.counters().dropped(), "{parameters:?}");
    drop((line, entering, leaving));
    assert_eq!(pool.available(), BUFFERS, "{parameters:?}");
}
