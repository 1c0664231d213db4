//! Counts kernel launches on CubeCL's devices (CUDA, wgpu) from CubeCL's optional log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use burn_cubecl::cubecl::config::profiling::ProfilingLogLevel;
use burn_cubecl::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Receives CubeCL's log through the crate `log`: one line per launch.
struct Counter;

impl log::Log for Counter {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        metadata.target() == "cubecl::profiling"
    }

    fn log(&self, record: &log::Record) {
        if self.enabled(record.metadata()) {
            LAUNCHES.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

/// Starts counting the kernels launched on a GPU; other settings of a `cubecl.toml` stay in force.
///
/// # Errors
/// A device that is already in use.
pub fn count_launches() -> Result<()> {
    let mut config = super::settings();
    let logger = &mut config.profiling.logger;
    (logger.level, logger.log) = (ProfilingLogLevel::Minimal, Some(Default::default()));
    ensure!(
        CubeClRuntimeConfig::try_set(config),
        "launches are counted from the start of a program, before a device is used"
    );
    log::set_logger(&Counter).map_err(|e| anyhow!("another logger is installed: {e}"))?;
    log::set_max_level(log::LevelFilter::Info);
    Ok(())
}

/// Number of kernels launched so far. The log is written by another thread: waits until it is idle.
pub fn launched() -> u64 {
    loop {
        let before = LAUNCHES.load(Ordering::Relaxed);
        sleep(Duration::from_millis(50));
        if LAUNCHES.load(Ordering::Relaxed) == before {
            return before;
        }
    }
}
