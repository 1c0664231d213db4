#!/usr/bin/env bash
# Makes gpu-pack/: all that a GPU machine without network needs, in one folder that is laid out as the checkout is. There:
# gpu-pack/reports/gpu/run.sh cuda:0 NAME gpu-pack/bin (RUNBOOK.md).
#   reports/gpu/pack.sh          CUDA through CubeCL's LLVM, which is fetched from GitHub
#   reports/gpu/pack.sh nvrtc    CUDA through NVRTC: the GPU machine has libnvrtc and CUDA's headers
#   reports/gpu/pack.sh cpu      without a GPU, to try the rest
# The first build takes half an hour on two cores; CUDA_TARGET_DIR keeps it (default ~/.cache/switchyard-gpu-target). QUICK=1 builds
# with less optimisation (.ci/device.toml), to try the pack: on a fast GPU decoding waits for the processor.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kind=${1:-llvm}
build=(build --locked --bin switchyard)
case $kind in
  llvm) build+=(--features cuda) ;;
  nvrtc)
    patch="patch.crates-io.cubecl-llvm.path=\"$PWD/.ci/cuda-stand-in/cubecl-llvm\""
    build=(--config "$patch" "${build[@]}" --features "cuda,cuda-cpp")
    ;;
  cpu) ;;
  *) echo "pack.sh: expected llvm, nvrtc or cpu, found $kind" >&2; exit 2 ;;
esac
[ -z "${QUICK:-}" ] || build=(--config .ci/device.toml "${build[@]}")
target=${CUDA_TARGET_DIR:-$HOME/.cache/switchyard-gpu-target}
# The interface of CUDA 13.0, also where no nvcc says which: a newer one asks drivers for what they may not have.
export CUDARC_CUDA_VERSION=${CUDARC_CUDA_VERSION:-13000}

# With the stand-in the lock file loses what only cubecl-llvm needs; it is put back whatever happens.
lock=$(mktemp)
cp Cargo.lock "$lock"
trap 'cp "$lock" Cargo.lock; rm -f "$lock"' EXIT
[ -z "${patch:-}" ] || cargo --config "$patch" update --workspace
CARGO_TARGET_DIR=$target nice -n 10 cargo "${build[@]}"
cp "$lock" Cargo.lock

pack=gpu-pack
rm -rf "$pack"
mkdir -p "$pack"/{bin,benches,fixtures,reports/gpu}
strip -o "$pack/bin/switchyard" "$target/debug/switchyard"
xz -T 0 -6 "$pack/bin/switchyard"
cp benches/gpu_peer.py "$pack/benches/"
cp reports/gpu/run.sh "$pack/reports/gpu/"
# What `probe check`, `probe bench --launches` and `intervene` of run.sh read.
cp -r fixtures/{tiny,latent,steps,methods,micro} "$pack/fixtures/"
{ echo "$kind${QUICK:+, little optimised}, $(git rev-parse HEAD)"; git status --short; rustc --version; } > "$pack/gpu-pack.txt"

du -ah --apparent-size -d 1 "$pack"
size=$(du -sb "$pack" | cut -f 1)
[ "$size" -le $((56 << 20)) ] || { echo "pack.sh: $size bytes are more than 56 MiB" >&2; exit 1; }
