//! Fuzzes the parser of capture files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::capture(data));
