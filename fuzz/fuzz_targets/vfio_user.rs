//! A hostile client of a served card.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::vfio_user(data));
