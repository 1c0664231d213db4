//! The vector instructions of the CPU's loops, chosen once per process, by the processor or on request. Products of Burn's crates (`gemm`)
//! choose for themselves: if another set is requested, ours replace them.

use std::sync::OnceLock;

use anyhow::{Result, bail};
use pulp::{Arch, WithSimd};

/// The environment variable that requests a set, by its [`Cpu::name`].
pub const VARIABLE: &str = "SWITCHYARD_CPU";

/// A set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpu {
    /// x86-64-v4: 32 registers of 16 floats.
    Avx512,
    /// x86-64-v3, with FMA and F16C: 16 registers of 8.
    Avx2,
    /// aarch64: 32 registers of 4.
    Neon,
    /// Not available by name.
    Scalar,
}

static CHOSEN: OnceLock<std::result::Result<Cpu, String>> = OnceLock::new();

impl Cpu {
    pub const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Scalar];

    /// As [`VARIABLE`] and `--cpu` have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Scalar => "scalar",
        }
    }

    /// The sets that this processor has.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|cpu| cpu.arch().is_some())
    }

    /// The fastest that this processor has.
    pub fn best() -> Self {
        Self::available().next().unwrap_or(Self::Scalar)
    }

    /// # Errors
    /// An unknown name; a set that this processor lacks.
    pub fn named(name: &str) -> Result<Self> {
        let available: Vec<&str> = Self::available().map(Self::name).collect();
        match Self::ALL.into_iter().find(|cpu| cpu.name() == name) {
            Some(cpu) if available.contains(&name) => Ok(cpu),
            Some(_) => bail!("this processor does not have {name}: it has {}", available.join(", ")),
            None => bail!("{name:?} names no vector instructions: this processor has {}", available.join(", ")),
        }
    }

    /// The set that this process uses.
    ///
    /// # Errors
    /// [`VARIABLE`] requests instructions that this processor lacks.
    pub fn chosen() -> Result<Self> {
        match chosen() {
            Ok(cpu) => Ok(*cpu),
            Err(why) => bail!("{VARIABLE}: {why}"),
        }
    }

    /// Selects this set for the process, before anything is computed.
    ///
    /// # Errors
    /// A process that already uses another set.
    pub fn choose(self) -> Result<()> {
        match CHOSEN.get_or_init(|| Ok(self)) {
            Ok(used) if *used == self => Ok(()),
            Ok(used) => bail!("this process computes with {} already", used.name()),
            Err(why) => bail!("{VARIABLE}: {why}"),
        }
    }

    fn arch(self) -> Option<Arch> {
        match self {
            // Neither of pulp's sets has F16C, which [`has_f16c`] promises.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 if std::arch::is_x86_feature_detected!("f16c") => pulp::x86::V4::try_new().map(Arch::V4),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 if std::arch::is_x86_feature_detected!("f16c") => pulp::x86::V3::try_new().map(Arch::V3),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => pulp::aarch64::Neon::try_new().map(Arch::Neon),
            Self::Scalar => Some(Arch::Scalar),
            _ => None,
        }
    }
}

fn chosen() -> &'static std::result::Result<Cpu, String> {
    CHOSEN.get_or_init(|| match std::env::var(VARIABLE) {
        Ok(name) => Cpu::named(&name).map_err(|why| why.to_string()),
        Err(std::env::VarError::NotPresent) => Ok(Cpu::best()),
        Err(why) => Err(why.to_string()),
    })
}

/// The set for loops; the processor has it.
#[inline]
pub(super) fn cpu() -> Cpu {
    #[cfg(test)]
    if let Some(cpu) = tests::HERE.get() {
        return cpu;
    }
    // Programs have refused a wrong variable by now ([`Cpu::chosen`]).
    chosen().as_ref().copied().unwrap_or_else(|_| Cpu::best())
}

/// Runs a loop that is compiled for all sets.
#[inline]
pub(super) fn dispatch<Op: WithSimd>(op: Op) -> Op::Output {
    cpu().arch().unwrap_or(Arch::Scalar).dispatch(op)
}

/// Runs a loop over a stored matrix, whose values or scales may be f16: with F16C, which `pulp` omits from x86-64-v3. Other loops do not use
/// it: products of many rows were a third slower, with their sums in memory instead of registers.
#[inline]
pub(super) fn dispatch_halves<Op: WithSimd>(op: Op) -> Op::Output {
    match cpu().arch() {
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code)]
        // SAFETY: the token proves that the processor has AVX2 and its kin, and `arch` checked F16C.
        Some(Arch::V3(simd)) => unsafe { with_f16c(op, simd) },
        arch => arch.unwrap_or(Arch::Scalar).dispatch(op),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,lzcnt,popcnt")]
fn with_f16c<Op: WithSimd>(op: Op, simd: pulp::x86::V3) -> Op::Output {
    op.with_simd(simd)
}

/// Whether loops for S, entered by [`dispatch_halves`], convert f16 to float by an instruction.
#[cfg(target_arch = "x86_64")]
pub(super) const fn has_f16c<S: pulp::Simd>() -> bool {
    S::F32_LANES >= 8
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Overrides the process's set in this thread.
        pub(super) static HERE: Cell<Option<Cpu>> = const { Cell::new(None) };
    }

    /// Runs `work` with each set that this processor has, the fastest first; on two threads.
    pub(crate) fn with_each<R: Send>(work: impl Fn() -> R + Sync) -> Vec<(Cpu, R)> {
        let with = |cpu: Cpu| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(2).start_handler(move |_| HERE.set(Some(cpu)));
            (cpu, pool.build().expect("threads").install(&work))
        };
        Cpu::available().map(with).collect()
    }

    #[test]
    fn names_are_of_what_the_processor_has() {
        assert_eq!(Cpu::named("scalar").unwrap(), Cpu::Scalar);
        assert_eq!(Cpu::named(Cpu::best().name()).unwrap(), Cpu::best());
        let wrong = Cpu::named("sse").unwrap_err().to_string();
        assert!(wrong.contains("\"sse\"") && wrong.contains("scalar"), "{wrong}");
        let foreign = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
        #[cfg(target_arch = "x86_64")]
        assert!(Cpu::best() == Cpu::Scalar || std::arch::is_x86_feature_detected!("f16c"));
        let missing = Cpu::named(foreign).unwrap_err().to_string();
        assert!(missing.contains("does not have") && missing.contains(foreign), "{missing}");
    }

    #[test]
    fn a_set_is_used_where_it_was_asked_for() {
        let used = with_each(cpu);
        assert!(used.len() > 1 && used.iter().all(|(asked, used)| asked == used), "{used:?}");
    }
}
