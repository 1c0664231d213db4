//! No input panics or takes over 50 ms: the bytes are split into a gold answer and a response.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::time::{Duration, Instant};
use switchyard::grade::{extract, grade};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let (gold, response) = text.split_once('\u{0}').unwrap_or((&*text, &*text));
    let start = Instant::now();
    let verdict = grade(gold, response);
    assert!(start.elapsed() < Duration::from_millis(50) || cfg!(debug_assertions), "slow: {verdict:?}");
    extract(response);
});
