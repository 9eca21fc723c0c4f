//! Entry points of the fuzz targets in `fuzz/` (`docs/testing.md`). Each gets bytes that an untrusted peer has chosen,
//! and panics if an invariant does not hold. Built only with `--cfg fuzzing`, which `cargo fuzz` sets.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

pub use linerate_core::offload::fuzzing::offload;

use crate::memory::{Pool, Region, RegionOptions};
use crate::port::Options;
pub use linerate_capture::fuzzing::capture;
pub use linerate_link::fuzzing::link;
pub use linerate_sim82599::fuzzing::{headers, vfio_user};
use linerate_vale::share::RingCounts;

/// Input: a filter's text, a zero byte, a frame. Also creates the kernel's program for the filter.
pub fn filter(data: &[u8]) {
    let filter = linerate_core::filter::fuzzing::filter(data);
    let _ = filter.map(|filter| linerate_kernel::fuzz_program(&filter));
}

/// Serves a hostile client: its requests and its memory. See `share/server/fuzzing.rs` of `linerate-vale`.
pub fn shared(data: &[u8]) {
    // All inputs share one pool. It is as small as rings and packets in flight allow, so that opening ports is cheap.
    static POOL: LazyLock<Arc<Pool>> = LazyLock::new(|| {
        Pool::new(Region::new(&RegionOptions { buffers: 4096, ..RegionOptions::default() }).expect("memory"))
    });
    let open = |name: &str, rings: &RingCounts| {
        let options = Options {
            rx_queues: rings.rx,
            tx_queues: rings.tx,
            ring: Some(64),
            max_frame: 60_000,
            interrupts: Some(Duration::ZERO),
            local: true,
            pool: Some(POOL.clone()),
            ..Options::default()
        };
        let [device] = options.open([name])?;
        Ok(device)
    };
    linerate_vale::share::fuzz(open, data);
    assert_eq!(POOL.available(), POOL.region().buffers(), "buffers");
}
