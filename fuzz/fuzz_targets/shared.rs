//! A hostile client program of a server of ports.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::shared(data));
