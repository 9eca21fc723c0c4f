//! Measurements with iperf3 and ping in a guest.

use serde_json::Value;

use crate::guest::Guest;

impl Guest {
    /// Runs `iperf3` with these arguments, in the network that `prefix` selects, and returns its report.
    #[track_caller]
    pub fn iperf(&mut self, prefix: &str, arguments: &str) -> Value {
        let command = format!("{prefix} iperf3 --connect-timeout 5000 --json {arguments}");
        // Between two clients, a server briefly does not listen.
        for _ in 0..100 {
            let result = self.attempt(&command).output;
            let result: Value = serde_json::from_str(&result).unwrap_or_else(|error| panic!("{error}: {result}"));
            match result["error"].as_str() {
                None => return result,
                Some(error) => assert!(error.contains("unable to connect"), "{command}: {error}"),
            }
        }
        panic!("`{command}`: no server listens")
    }

    /// Returns how many UDP packets per second an iperf3 server at this address receives. The client sends this payload
    /// without a rate limit.
    #[track_caller]
    pub fn received_per_second(&mut self, address: &str, payload: usize, seconds: usize) -> f64 {
        let arguments = format!("--client {address} --udp --bitrate 0 --length {payload} --time {seconds}");
        let result = self.iperf("", &arguments);
        let sum = |key: &str| result["end"]["sum"][key].as_f64().unwrap_or_else(|| panic!("{result}"));
        (sum("packets") - sum("lost_packets")) / sum("seconds")
    }

    /// Returns the median of `pings` round trips to this address, in microseconds.
    #[track_caller]
    pub fn round_trip(&mut self, address: &str, pings: usize) -> f64 {
        let said = self.run(&format!("ping -c {pings} -i 0.002 {address}"));
        let time = |line: &str| line.split("time=").nth(1)?.split(' ').next()?.parse::<f64>().ok();
        let mut times: Vec<f64> = said.lines().filter_map(time).collect();
        assert!(times.len() > pings / 2, "{said}");
        times.sort_unstable_by(f64::total_cmp);
        times[times.len() / 2] * 1000.0
    }
}
