//! Fuzzes the parsing and changing of frame headers in a card's model.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::headers(data));
