//! Fuzzes the filter language: the input is a filter's text, a zero byte, and a frame.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::filter(data));
