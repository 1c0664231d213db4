#!/usr/bin/env bash
# Compiles what run.sh launches on a Hopper GPU, here, into gpu-pack/kernels.tar.xz: compiling took most of the time of the first leases.
# After pack.sh nvrtc, with the programs that it built. Programs run over a stand-in of the driver (.ci/cuda-stand-in) that has NVRTC compile
# every kernel and runs none of the large ones; CubeCL keeps what NVRTC made. Products of f32 are left out: CubeCL chooses them by timing.
#   reports/gpu/kernels.sh [STEP...]     steps of run.sh by name; by default all that are known here
# Needs x86-64, g++, pip and the network, 12 GiB of memory, and an hour of one core.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=${CUDA_TARGET_DIR:-$HOME/.cache/switchyard-gpu-target} tools="$PWD/target/stand-in" scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
[ -e gpu-pack/bin/switchyard.xz ] || { echo "kernels.sh: gpu-pack is not there: reports/gpu/pack.sh nvrtc makes it" >&2; exit 2; }
[ $# != 0 ] || set -- 8b 0.6b reference kernels products halves stored training intervene answers launches

.ci/cuda-stand-in/build "$tools"
ln -sf "$target/debug/switchyard" "$scratch/probe"
mkdir -p gpu-pack/kernels
printf '[environment]\npath = { directory = "%s/gpu-pack/kernels" }\n' "$PWD" > "$scratch/cubecl.toml"
ln -s "$PWD/fixtures" "$scratch/fixtures"
export CUDA_PATH="$tools/wheels/nvidia/cu13" CUDA_STAND_IN_ARCH=90 CUDA_STAND_IN_PROCESSORS=132 CUDA_STAND_IN_TENSOR=1 CUDA_STAND_IN_MEMORY=14000
export CUDA_STAND_IN_CACHE="$tools/kernels" CUDA_STAND_IN_NVRTC="$CUDA_PATH/lib/libnvrtc.so.13"

# with ENVIRONMENT RUN ARGUMENT...: `probe`; what it says of values is of kernels that were not run.
with() {
  local environment=$1 run=$2; shift 2
  echo "== $environment: probe $*"
  (cd "$scratch" && CUBECL_ENVIRONMENT=$environment CUDA_STAND_IN_RUN=$run LD_LIBRARY_PATH=$tools nice -n 5 ./probe "$@" > "$scratch/log" 2>&1) || tail -n 1 "$scratch/log"
}

# shape WIDTH FFN HEADS TIED: two layers; the kernels are those of all.
shape() {
  cat > "$scratch/shape.json" <<JSON
{ "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": $1, "intermediate_size": $2,
  "num_hidden_layers": 2, "num_attention_heads": $3, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
  "rope_theta": 1000000, "tie_word_embeddings": $4, "max_position_embeddings": 40960, "hidden_act": "silu" }
JSON
  rm -rf "$scratch/model"; "$scratch/probe" random-weights "$scratch/shape.json" --out "$scratch/model" > /dev/null
  export CUDA_STAND_IN_SKIP="products product_ one_query forward_ matmul turn_ softmax append_"
  with default 1 bench model --device cuda --dtype bf16 --prompt 512 --new 33 --rows 1,8,64 --rounds 1
  with default 1 bench model --device cuda --dtype bf16 --prompt 8192 --new 2 --rows 1 --rounds 1
  with default 1 bench model --device cuda --dtype bf16 --training-only --new 512 --grpo 8 --lora 32 --rounds 1 --threads 1
  unset CUDA_STAND_IN_SKIP
  with default 0 bench model --device cuda --dtype bf16 --training-only --prompt 512 --train 4 --lora 32 --rounds 1 --threads 1
}

for step in "$@"; do
  case $step in
    8b) shape 4096 12288 32 false ;;
    0.6b) shape 1024 3072 16 true ;;
    training) with check-training 0 check --device cuda --part training,grpo --threads 2 ;;
    intervene) with check-intervene 1 check --device cuda --part intervene,probe,verdicts --threads 2 ;;
    answers) with answers-device 1 fixtures/micro --phase grpo --only outcomes --problems 4 --device cuda --threads 1 --out "$scratch/rows" ;;
    launches) with launches 1 bench fixtures/micro --device cuda --launches --rows 1,4 --new 33 --prompt 8 --train 2 --threads 1 ;;
    *) with "check-$step" 0 check --device cuda --part "$step" --threads 1 ;;
  esac
done
(cd gpu-pack && XZ_OPT=-6 tar -cJf kernels.tar.xz kernels)
du -h gpu-pack/kernels.tar.xz
