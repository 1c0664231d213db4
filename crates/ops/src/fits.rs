//! Refuses allocations that exceed the memory of the device or the process beforehand: a failed allocation would end the process.

use std::fs;

use burn::tensor::{DType, Device};

use super::{fused, is_cpu};

/// A tensor that a device has no memory for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {bytes} bytes are needed, and {bound}")]
pub struct TooLarge {
    what: String,
    bytes: u64,
    bound: String,
}

/// Allocations below this size are not checked: the check costs 0.1 ms, and a decoding step needs less memory.
const UNCHECKED: u64 = 64 << 20;

/// Checks that a device has memory for this many bytes. Beyond its largest buffer a GPU computes wrong results without an error (Mesa's
/// software driver, 128 MiB). On the CPU it checks this process's memory.
///
/// # Errors
/// More bytes than the device has contiguously, or than are free.
pub fn ensure_fits(what: impl FnOnce() -> String, bytes: u64, device: &Device) -> Result<(), TooLarge> {
    if is_cpu(device) {
        return ensure_memory(what, bytes);
    }
    match fused::largest_buffer(device) {
        Some(most) if bytes > most => {
            Err(TooLarge { what: what(), bytes, bound: format!("the device has at most {most} in one piece") })
        }
        _ => Ok(()),
    }
}

/// Checks that this process can allocate this many bytes, and a third more for concurrent work.
///
/// # Errors
/// More bytes than three quarters of the free memory.
pub fn ensure_memory(what: impl FnOnce() -> String, bytes: u64) -> Result<(), TooLarge> {
    if bytes <= UNCHECKED {
        return Ok(());
    }
    match free_memory() {
        Some(free) if bytes > free / 4 * 3 => Err(TooLarge {
            what: what(),
            bytes,
            bound: format!("{free} are free, of which three quarters may be used"),
        }),
        _ => Ok(()),
    }
}

/// Checks that attention fits: its mask `[B, 1, L, T]`, and its scores `[B, H, L, T]` if a hook observes them. Otherwise scores are never in
/// memory as a whole.
///
/// # Errors
/// A mask, or scores, that do not fit.
pub fn ensure_attention_fits(
    [b, h, l, t]: [usize; 4],
    seen: bool,
    dtype: DType,
    device: &Device,
) -> Result<(), TooLarge> {
    let what = || {
        let what = if seen { "attention scores for a hook" } else { "the mask of attention" };
        format!("{what} of {l} positions to {t} in {b} rows (use shorter prompts, or fewer rows at a time)")
    };
    // On the CPU a mask is made from booleans. Two score tensors are in memory at a time: before and after a softmax or a hook.
    let mask = if is_cpu(device) { dtype.size() + 1 } else { dtype.size() };
    let size = if seen { 2 * h * dtype.size() + mask } else { mask };
    let size = if is_cpu(device) || !seen { size } else { h * dtype.size() };
    ensure_fits(what, [b, l, t, size].iter().map(|&n| n as u64).product(), device)
}

/// Bytes that this process may still allocate: the minimum of the system's free memory, the control group's and the limit on address space.
/// `None` if the system does not report them.
pub fn free_memory() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let kilobytes = |text: &str, key: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim_start_matches(':').trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
    };
    let system = || kilobytes(&read("/proc/meminfo")?, "MemAvailable");
    let address_space = || {
        let limits = read("/proc/self/limits")?;
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
        let limit: u64 = limit.split_whitespace().next()?.parse().ok()?;
        Some(limit.saturating_sub(kilobytes(&read("/proc/self/status")?, "VmSize")?))
    };
    let group = || {
        let groups = read("/proc/self/cgroup")?;
        let left = |folder: &str, limit: &str, used: &str, cached: &str| {
            let number = |name: &str| read(&format!("{folder}/{name}"))?.trim().parse::<u64>().ok();
            let statistics = read(&format!("{folder}/memory.stat")).unwrap_or_default();
            // The kernel frees cached pages of files before it refuses an allocation.
            let cached = statistics.lines().find_map(|line| line.strip_prefix(cached)?.trim().parse::<u64>().ok());
            Some(number(limit)?.saturating_sub(number(used)?.saturating_sub(cached.unwrap_or(0))))
        };
        let each = groups.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            match (parts.next()?, parts.next()?) {
                ("", path) => left(&format!("/sys/fs/cgroup{path}"), "memory.max", "memory.current", "inactive_file "),
                ("memory", path) => ["", path].into_iter().find_map(|path| {
                    let folder = format!("/sys/fs/cgroup/memory{path}");
                    left(&folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
                }),
                _ => None,
            }
        });
        each.min()
    };
    [system(), address_space(), group()].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_is_free_is_refused_and_what_is_free_is_known() {
        let device = Device::flex();
        ensure_fits(|| "a step".into(), 1 << 20, &device).expect("little");
        if cfg!(target_os = "linux") {
            let free = free_memory().expect("known");
            assert!(free > 1 << 20);
            let error = ensure_fits(|| "too much".into(), free, &device).expect_err("all of it").to_string();
            assert!(error.contains("too much") && error.contains(&free.to_string()), "{error}");
            let error = ensure_attention_fits([1, 8, 1 << 24, 1 << 24], false, DType::F32, &device);
            assert!(error.expect_err("a mask of 2^48").to_string().contains("16777216 positions"));
        }
    }
}
