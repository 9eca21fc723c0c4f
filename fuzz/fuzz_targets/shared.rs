//! A hostile client of a port server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::shared(data));
