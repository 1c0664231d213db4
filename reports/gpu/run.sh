#!/usr/bin/env bash
# Everything that is to be known of a GPU, in order (RUNBOOK.md). Goes on after a step that fails.
set -u
device=${1:?device, for example cuda:0}; name=${2:?a name for the folder}; bin=$(realpath "${3:?the folder of the programs}")
cd "$(dirname "$0")/../.."
out=reports/gpu/$name; scratch=$(mktemp -d "${TMPDIR:-/tmp}/switchyard-gpu.XXXXXX"); trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out"; : > "$out/steps.tsv"
peak=${PEAK_TFLOPS:+--peak-tflops $PEAK_TFLOPS}

# step NAME MINUTES COMMAND: its output in a log, its exit code and seconds in steps.tsv.
step() {
  local what=$1 minutes=$2 start=$SECONDS; shift 2
  echo "== $what: $*"
  timeout "${minutes}m" "$@" > "$out/$what.log" 2>&1; local code=$?
  printf '%s\t%s\t%s\t%s\n' "$what" "$code" "$((SECONDS - start))" "$*" >> "$out/steps.tsv"
  tail -n 3 "$out/$what.log"; return $code
}

# watched NAME MINUTES COMMAND: the same, and the GPU's memory in use (MiB), every two seconds.
watched() {
  nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -l 2 > "$out/$1.memory" 2>/dev/null & local watch=$!
  step "$@"; local code=$?
  kill "$watch" 2>/dev/null; wait "$watch" 2>/dev/null
  return $code
}

# config NAME D FFN LAYERS HEADS: Qwen3's settings in these sizes.
config() {
  cat > "$scratch/$1.json" <<JSON
{ "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": $2, "intermediate_size": $3,
  "num_hidden_layers": $4, "num_attention_heads": $5, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
  "rope_theta": 1000000, "tie_word_embeddings": $6, "max_position_embeddings": 40960, "hidden_act": "silu" }
JSON
}

{ date -u; uname -a; nvidia-smi 2>/dev/null; grep -m1 'model name' /proc/cpuinfo; "$bin/probe" --version; } > "$out/machine.txt" 2>&1
step devices 1 "$bin/train" --list-devices
step check 12 "$bin/probe" check --device "$device" --part reference,kernels,halves,stored ||
  step check-loosened 6 "$bin/probe" check --device "$device" --loosen 100
step launches 3 "$bin/probe" bench fixtures/micro --device "$device" --launches --rows 1,4 --new 33 --prompt 8 --train 2 --threads 1
step intervene 10 "$bin/intervene" fixtures/micro --device "$device" --problems 12 --out "$scratch/intervene"
for threads in 1 2; do
  step "train-$threads" 10 "$bin/train" --preset smoke --device "$device" --threads "$threads" --out "$scratch/train-$threads"
done
config 0.6b 1024 3072 28 16 true
config 8b 4096 12288 36 32 false
for size in 0.6b 8b; do
  step "make-$size" 10 "$bin/probe" random-weights "$scratch/$size.json" --out "$scratch/$size" || continue
  for dtype in f32 bf16; do
    [ "$size-$dtype" = 8b-f32 ] && continue # 33 GB of floats
    step "bench-$size-$dtype" 10 "$bin/probe" bench "$scratch/$size" --device "$device" --dtype "$dtype" --rows 1,8,64 $peak
  done
  # LoRA: the base in bf16, held once. 200 rounds of the small one: the memory that the GPU says is in use must not grow.
  rounds=200; [ "$size" = 8b ] && rounds=5
  watched "train-$size" 8 "$bin/probe" bench "$scratch/$size" --device "$device" --dtype bf16 --rows 1 --new 8 --prompt 512 \
    --train 4 --lora 32 --rounds "$rounds" --threads 1 $peak
  watched "grpo-$size" 8 "$bin/probe" bench "$scratch/$size" --device "$device" --dtype bf16 --rows 1 --new 1024 --prompt 64 \
    --grpo 8 --lora 32 --rounds 2 --threads 1 $peak
  rm -rf "${scratch:?}/$size"
done
# The base as a file has it, in Q8_0: half the memory of bf16.
if step make-8b-q8_0 10 "$bin/probe" random-weights "$scratch/8b.json" --out "$scratch/8b.gguf"; then
  watched bench-8b-stored 10 "$bin/probe" bench "$scratch/8b.gguf" --device "$device" --dtype stored --rows 1,8,64 $peak
  watched train-8b-stored 8 "$bin/probe" bench "$scratch/8b.gguf" --device "$device" --dtype stored --rows 1 --new 8 \
    --prompt 512 --train 4 --lora 32 --rounds 5 --threads 1 $peak
fi
column -t -s "$(printf '\t')" "$out/steps.tsv" | cut -c1-150
