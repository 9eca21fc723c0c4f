//! Published figures of others, with their sources. None was measured here.

/// Raw data of the ixy paper's authors: mean of all seconds except the first thirty, sum of both directions, in Mpps.
/// ixy forwards between two 82599 under full load, on one core of a Xeon E5-2620 v3
/// (github.com/emmericp/ixy-perf-measurements, branch full-paper, `raw-results/ixy_batches` and `ixy_desc_rings`).
pub const IXY_RAW: &str = "ixy on two 82599, Xeon E5-2620 v3 (the authors' raw data)";

/// Mpps by batch size: at 1.2 GHz, and at 2.4 GHz.
pub const IXY_BATCHES: [(u32, f64, f64); 9] = [
    (1, 2.72, 4.72),
    (2, 4.39, 7.90),
    (4, 6.88, 12.21),
    (8, 9.05, 16.67),
    (16, 10.67, 19.98),
    (32, 11.25, 21.73),
    (64, 11.62, 22.13),
    (128, 11.67, 22.10),
    (256, 11.78, 22.60),
];

/// Mpps by the size of both rings, at 1.2 GHz.
pub const IXY_RINGS: [(u32, f64); 6] =
    [(64, 11.28), (128, 11.63), (256, 11.53), (512, 11.50), (1024, 11.42), (2048, 11.22)];

/// Cycles per packet by part, from `perf` at 1.2 GHz (the same repository, `profiling/`): receive, forward, send,
/// memory.
pub const IXY_PARTS: [f64; 4] = [44.8, 12.3, 14.7, 30.4];
/// The same for DPDK, whose memory management is included in the other parts.
pub const DPDK_PARTS: [f64; 3] = [35.4, 6.0, 20.4];

/// Microseconds through ixy in C, by load in Mpps: median, 99, 99.9 and 99.99 %. Every packet was captured before
/// and after the forwarder; Xeon E5-2620 v3 (github.com/ixy-languages/ixy-languages, `img/data`).
pub const IXY_LATENCY: [(f64, [f64; 4]); 3] =
    [(1.0, [3.76, 3.95, 4.24, 5.65]), (10.0, [5.05, 5.73, 6.60, 8.72]), (20.0, [9.53, 10.9, 19.3, 24.9])];

/// Million packets per second of netmap's pipes, and of a port of its switch, on one core (man page netmap(4)).
pub const NETMAP_PIPE: f64 = 100.0;
pub const NETMAP_VALE: f64 = 20.0;
