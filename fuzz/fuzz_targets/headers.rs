//! Headers of frames, as a card's model parses and changes them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::headers(data));
