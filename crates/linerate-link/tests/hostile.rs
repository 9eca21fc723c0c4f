//! Random texts as options, schedules, traces and tables: each is an error or a line that counts every packet.

use std::sync::Arc;

use linerate_core::Batch;
use linerate_core::memory::{PageSize, Pages, Pool, Region, RegionOptions};
use linerate_link::delay::Distribution;
use linerate_link::transmitter::Opportunities;
use linerate_link::{Event, LINK, Line, Parameters, Schedule};
use proptest::prelude::*;

fn pool() -> Arc<Pool> {
    let pages = Pages::Only(PageSize::Ordinary);
    Pool::new(Region::new(&RegionOptions { buffers: 1024, buffer_size: 512, pages, numa_node: None }).unwrap())
}

/// Values that people write, and values near them.
fn value() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        Just("0".to_string()),
        (0u64..2000).prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| n.to_string()),
        "[0-9]{0,3}\\.[0-9]{0,3}(e-?[0-9]{1,3})?",
    ];
    let unit = prop::sample::select(vec![
        "", "%", "ns", "us", "ms", "s", "h", "bit", "kbit", "Mbit", "Gbit", "B", "kB", "MB", "p", "/", "/1ms", ",1%",
    ]);
    let word =
        prop::sample::select(vec!["on", "off", "codel", "none", "normal", "pareto", "uniform", "ethernet", "..x"]);
    prop_oneof![6 => (number, unit).prop_map(|(number, unit)| number + unit), 2 => word.prop_map(String::from), 1 => "\\PC{0,8}"]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 4_000 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_options_are_errors_or_count_every_packet(
        options in prop::collection::vec((0..LINK.options.len(), value()), 0..6),
        gaps in prop::collection::vec(0u64..5_000_000, 1..40),
    ) {
        let options: Vec<(&str, &str)> = options
            .iter()
            .map(|(option, value)| (LINK.options[*option].name, &**value))
            .chain([("packets", "200")]) // the last of a name counts
            .collect();
        let Ok(parameters) = Parameters::of(options) else { return Ok(()) };
        let pool = pool();
        let mut line = Line::new(&parameters, &pool, 0);
        let (mut entering, mut leaving) = (Batch::with_capacity(256), Batch::with_capacity(256));
        let (mut now, mut arrived) = (0, 0);
        for gap in &gaps {
            now += gap;
            prop_assert!(entering.push(&pool, &[1; 700]));
            line.accept(now, &mut entering);
            line.release(now, &mut leaving);
            arrived += leaving.packets().count() as u64;
            leaving.clear();
        }
        let held = (line.held() / 2) as u64; // two buffers each
        let count = |event| line.counters().get(event);
        let entered = gaps.len() as u64 - entering.packets().count() as u64 + count(Event::Duplicated);
        // A truncated packet may need one buffer only.
        let slack = count(Event::Truncated);
        let found = arrived + held + line.counters().dropped();
        prop_assert!((entered.saturating_sub(slack)..=entered).contains(&found), "{entered} {found} {parameters:?}");
        drop((line, entering, leaving));
        prop_assert_eq!(pool.available(), 1024);
    }

    #[test]
    fn random_files_are_errors_or_usable(
        text in prop_oneof![
            "([0-9]{1,5}\n){0,20}",
            "time(,rate|,delay|,loss){0,3}\n([0-9]{1,3}(ms|s)(,([0-9]{1,3}(Mbit|ms|%))?){0,3}\n){0,8}",
            "(-?[0-9]{1,5}[ \n]){0,50}",
            "\\PC{0,60}",
        ],
    ) {
        if let Ok(schedule) = Schedule::parse(&text) {
            let times: Vec<u64> = (0..100).map_while(|n| schedule.step(n)).map(|step| step.time).collect();
            prop_assert!(times.is_sorted());
        }
        if let Ok(trace) = Opportunities::parse(&text) {
            prop_assert!(trace.mean_rate() > 0);
        }
        let _ = Distribution::parse(&text);
    }
}
