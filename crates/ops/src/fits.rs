//! Refuses what a device or this process has no memory for, before it is allocated: an allocation that fails ends the process.

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

/// Bytes that are allocated without a look at what is free: the look costs 0.1 ms, and a decoding step needs less.
const UNCHECKED: u64 = 64 << 20;

/// Checks that a device has memory for so many bytes. Beyond its largest buffer a GPU computes on without an error, and the
/// result is wrong (Mesa's software driver, 128 MiB). On the CPU it is the memory of this process.
///
/// # Errors
/// More bytes than the device has in one piece, or than are free.
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

/// Checks that this process can allocate so many bytes, and a third of them more for what goes on at the same time.
///
/// # Errors
/// More bytes than three quarters of what is free.
pub fn ensure_memory(what: impl FnOnce() -> String, bytes: u64) -> Result<(), TooLarge> {
    if bytes <= UNCHECKED {
        return Ok(());
    }
    match free_memory() {
        Some(free) if bytes > free / 4 * 3 => {
            Err(TooLarge { what: what(), bytes, bound: format!("{free} are free, of which three quarters are used") })
        }
        _ => Ok(()),
    }
}

/// Refuses attention that does not fit: its mask `[B, 1, L, T]`, and its scores `[B, H, L, T]` where a hook is to see them. Otherwise these are never
/// in memory as a whole.
///
/// # Errors
/// A mask, or scores, that the device has no memory for.
pub fn ensure_attention_fits(
    [b, h, l, t]: [usize; 4],
    seen: bool,
    dtype: DType,
    device: &Device,
) -> Result<(), TooLarge> {
    let what = || {
        let what = if seen { "what a hook sees of attention" } else { "the mask of attention" };
        format!("{what} of {l} positions to {t} in {b} rows (take shorter prompts, or fewer rows at a time)")
    };
    // On the CPU a mask is made of a list of truth values. Of scores two are in memory at a time: those before and after a softmax or a hook.
    let mask = if is_cpu(device) { dtype.size() + 1 } else { dtype.size() };
    let size = if seen { 2 * h * dtype.size() + mask } else { mask };
    let size = if is_cpu(device) || !seen { size } else { h * dtype.size() };
    ensure_fits(what, [b, l, t, size].iter().map(|&n| n as u64).product(), device)
}

/// Bytes that this process may still allocate: the least of what the system has free, what its control group leaves and what a limit on
/// address space leaves. `None` where the system does not say.
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
        let left = |folder: &str, limit: &str, used: &str| {
            let number = |name: &str| read(&format!("{folder}/{name}"))?.trim().parse::<u64>().ok();
            Some(number(limit)?.saturating_sub(number(used)?))
        };
        let each = groups.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            match (parts.next()?, parts.next()?) {
                ("", path) => left(&format!("/sys/fs/cgroup{path}"), "memory.max", "memory.current"),
                ("memory", path) => ["", path].into_iter().find_map(|path| {
                    left(&format!("/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes", "memory.usage_in_bytes")
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
