//! The filter language: a text, a zero byte, and a frame.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::filter(data));
