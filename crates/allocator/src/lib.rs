//! mimalloc as the allocator of programs that import this package. It reuses the memory of a step for the next one; pages returned to
//! the system would be faulted in again (benches/PROFILE.md). A separate package, compiled with optimisation: every allocation passes
//! through the code of this attribute, and the programs are compiled without.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
