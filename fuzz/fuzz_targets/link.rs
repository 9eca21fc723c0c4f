//! Fuzzes the parsers of links: options, quantities, schedules, traces, tables and recordings.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linerate::fuzzing::link(data));
