//! Which vector instructions the kernels use: found on the processor at run time, or forced by `FULLBAND_ISA`. The
//! build needs no `target-cpu` flag; every kernel that wants more than the baseline sits behind `#[target_feature]`.

use std::fmt;
use std::sync::OnceLock;

use crate::{Error, Result};

/// The environment variable that forces a family: `amx`, `avx512`, `avx2` or `portable`.
pub const ISA_VARIABLE: &str = "FULLBAND_ISA";

/// A family of instructions, from the strongest to the one that every processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AMX bf16 tiles, AVX-512 for the rest.
    Amx,
    /// AVX-512 with bf16 dot products.
    Avx512Bf16,
    /// AVX-512 (F, BW, DQ, VL) without bf16 instructions.
    Avx512,
    /// AVX2 and FMA.
    Avx2,
    /// Plain Rust, vectorised by the compiler for the build's target.
    Portable,
}

impl Isa {
    pub const ALL: [Self; 5] = [Self::Amx, Self::Avx512Bf16, Self::Avx512, Self::Avx2, Self::Portable];

    /// The name as `FULLBAND_ISA` knows it; both AVX-512 kinds are `avx512`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Avx512Bf16 | Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }

    /// Whether this processor, and the operating system where it must agree, run it.
    pub fn is_supported(self) -> bool {
        supported(self)
    }

    /// The fastest family that this machine runs.
    pub fn detect() -> Self {
        Self::ALL.into_iter().find(|isa| isa.is_supported() && isa.is_worthwhile()).unwrap_or(Self::Portable)
    }

    /// Whether a supported family beats those after it. On Intel bf16 dot products do not: measured on Emerald Rapids,
    /// 93 GFLOP/s a core, against 160 by widening the weights to f32. On AMD (Zen 4 and later) they should, at twice the
    /// work of a fused multiply-add in its time; that was not measured. Asked of the vendor and not of a clock, because
    /// the two round their sums differently and a run must be repeatable.
    fn is_worthwhile(self) -> bool {
        self != Self::Avx512Bf16 || is_amd()
    }

    /// The family that the process uses: `FULLBAND_ISA` where it is set, else [`Isa::detect`]. Read once. An unknown
    /// name, or one that this machine does not run, is an error.
    pub fn select() -> Result<Self> {
        static SELECTED: OnceLock<Result<Isa, String>> = OnceLock::new();
        SELECTED
            .get_or_init(|| match std::env::var_os(ISA_VARIABLE) {
                None => Ok(Self::detect()),
                Some(value) => Self::forced(&value.to_string_lossy()),
            })
            .clone()
            .map_err(Error::Usage)
    }

    /// The family called `name`, if this machine runs it. An empty name means [`Isa::detect`].
    pub fn forced(name: &str) -> Result<Self, String> {
        if name.is_empty() {
            return Ok(Self::detect());
        }
        if !Self::ALL.iter().any(|isa| isa.name() == name) {
            return Err(format!("{ISA_VARIABLE}={name}: expected amx, avx512, avx2 or portable"));
        }
        Self::ALL.into_iter().find(|isa| isa.name() == name && isa.is_supported() && isa.is_worthwhile()).ok_or_else(
            || {
                let best = Self::detect();
                format!("{ISA_VARIABLE}={name}: this machine does not run it; the best it runs is {}", best.name())
            },
        )
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Avx512Bf16 => "avx512 with bf16",
            other => other.name(),
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn supported(isa: Isa) -> bool {
    let avx512 = || {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    };
    match isa {
        Isa::Amx => avx512() && amx::usable(),
        Isa::Avx512Bf16 => avx512() && is_x86_feature_detected!("avx512bf16"),
        Isa::Avx512 => avx512(),
        Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        Isa::Portable => true,
    }
}

#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_amd() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn supported(isa: Isa) -> bool {
    isa == Isa::Portable
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::sync::OnceLock;

    /// Linux: `arch_prctl`, asking that this process may use one more part of the extended processor state.
    const SYS_ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;

    /// Whether the processor has bf16 tiles and the kernel lets this process use them. Asked once; the permission
    /// holds for every thread of the process.
    pub fn usable() -> bool {
        static USABLE: OnceLock<bool> = OnceLock::new();
        *USABLE.get_or_init(|| has_bf16_tiles() && tile_state_enabled() && permitted())
    }

    fn has_bf16_tiles() -> bool {
        if __cpuid(0).eax < 7 {
            return false;
        }
        const AMX_BF16: u32 = 1 << 22;
        const AMX_TILE: u32 = 1 << 24;
        __cpuid_count(7, 0).edx & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
    }

    /// The operating system saves both tile states (configuration and data) on a task switch.
    fn tile_state_enabled() -> bool {
        const OSXSAVE: u32 = 1 << 27;
        if __cpuid(1).ecx & OSXSAVE == 0 {
            return false;
        }
        let low: u32;
        // SAFETY: xgetbv with ecx = 0 reads XCR0 and touches nothing else; OSXSAVE says that it may be executed.
        unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack, preserves_flags)) };
        const TILES: u32 = 0b11 << 17;
        low & TILES == TILES
    }

    fn permitted() -> bool {
        let answer: isize;
        // SAFETY: a system call with two integers and no pointer; it clobbers rcx and r11 alone. A kernel that does
        // not know the request answers with an error.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") SYS_ARCH_PRCTL => answer,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XFEATURE_XTILEDATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        answer == 0
    }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
mod amx {
    /// How to ask for tile state elsewhere is not known here.
    pub fn usable() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forced_names() {
        assert_eq!(Isa::forced("portable"), Ok(Isa::Portable));
        assert_eq!(Isa::forced(""), Ok(Isa::detect()));
        let error = Isa::forced("avx1024").unwrap_err();
        assert!(error.contains("FULLBAND_ISA=avx1024") && error.contains("amx, avx512, avx2 or portable"), "{error}");
        for isa in Isa::ALL {
            match Isa::forced(isa.name()) {
                Ok(chosen) => assert!(chosen.is_supported() && chosen.name() == isa.name()),
                Err(error) => {
                    assert!(!isa.is_supported());
                    assert!(error.contains(Isa::detect().name()), "{error}");
                }
            }
        }
    }

    #[test]
    fn detection_is_the_first_supported() {
        let best = Isa::ALL.iter().position(|&isa| isa == Isa::detect()).unwrap();
        assert!(Isa::ALL[..best].iter().all(|isa| !isa.is_supported() || *isa == Isa::Avx512Bf16));
        assert!(Isa::detect().is_supported());
    }
}
