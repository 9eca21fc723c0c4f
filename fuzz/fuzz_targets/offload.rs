//! Fuzzes the completion of offloads that a sender left unfinished: checksums and segmentation.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::offload(data));
