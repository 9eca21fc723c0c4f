//! What a sender leaves to be done: checksums and segments.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::offload(data));
