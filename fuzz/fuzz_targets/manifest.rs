#![no_main]
#[path = "../parse.rs"]
mod parse;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| parse::parse("manifest.json", bytes));
