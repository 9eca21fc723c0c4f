//! Compares vector paths with the scalar path.

use linerate::port::Vectors;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Runs every path of this processor through 800 schedules. `trace` returns all observable state after each step,
/// which must equal the scalar path's.
pub fn all_do_the_same<S: Strategy>(schedules: &S, trace: impl Fn(Vectors, &S::Value) -> Vec<u64>) {
    // `Vectors::Best` is one of these.
    let paths: Vec<_> = [Vectors::Avx2, Vectors::Avx512].into_iter().filter(|path| path.is_supported()).collect();
    let cases = Config { cases: 800, failure_persistence: None, ..Config::default() };
    TestRunner::new(cases)
        .run(schedules, |schedule| {
            let reference = trace(Vectors::Scalar, &schedule);
            for &path in &paths {
                let seen = trace(path, &schedule);
                let differs = reference.iter().zip(&seen).position(|(a, b)| a != b);
                prop_assert!(differs.is_none(), "{path:?} differs after step {differs:?}");
            }
            Ok(())
        })
        .unwrap();
}
