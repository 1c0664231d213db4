//! Tests of the package in `python/`, if Python has its dependencies.

use std::path::Path;
use std::process::Command;

/// `SWITCHYARD_PYTHON`, else `python3`, if it has NumPy and polars.
fn python() -> Option<String> {
    let named = std::env::var("SWITCHYARD_PYTHON").unwrap_or_else(|_| "python3".into());
    let needed = "import sys, numpy, polars; sys.exit(sys.version_info < (3, 9))";
    let output = Command::new(&named).args(["-c", needed]).output();
    output.is_ok_and(|output| output.status.success()).then_some(named)
}

#[test]
fn the_python_package_passes_its_tests() {
    let Some(python) = python() else {
        println!("left out: no python3 (3.9 or later) with numpy and polars; name one in SWITCHYARD_PYTHON");
        return;
    };
    let folder = Path::new(".").canonicalize().expect("the repository").join("python");
    let output = Command::new(python)
        .args(["-m", "unittest", "discover", "-s", "tests"])
        .current_dir(&folder)
        .env("PYTHONPATH", folder.join("src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SWITCHYARD_PROBE", env!("CARGO_BIN_EXE_probe"))
        .output()
        .expect("Python runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let ran = text.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<usize>().ok());
    assert!(ran >= Some(55), "only {ran:?} tests ran: {text}");
}
