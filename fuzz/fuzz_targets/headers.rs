//! Headers of frames, as the model of a card sees and changes them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::headers(data));
