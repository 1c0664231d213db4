//! The memory allocator of the programs, for those that name this package. It keeps the memory of one step for the next: pages given
//! back to the system are paid for again (benches/PROFILE.md). A package of its own, because every allocation passes through the
//! code that this attribute makes, and programs are compiled without optimisation.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
