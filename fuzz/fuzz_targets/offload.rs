//! Offloads that a sender left undone: checksums and segmentation.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::offload(data));
