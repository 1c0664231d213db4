#!/usr/bin/env bash
# What is to be known of a GPU, in parts (RUNBOOK.md). Goes on after a step that fails: what fails is a result too.
#   reports/gpu/run.sh DEVICE NAME BIN [PART...]     for example: run.sh cuda:0 h100 gpu-pack/bin check
# PART: check, make, warm, 8b, 0.6b, profile, long, grpo, stored, compiled, smollm2, memory; without one all but compiled and smollm2. BIN: where the programs are, or switchyard.xz that is all of them.
# Logs, and a line a step with its exit code and seconds, go to reports/gpu/NAME/PART/. In the environment:
#   ROUNDS=5           of each figure
#   SECONDS_LEFT=540   all parts of this call end by then: the last steps are cut short or left out
#   PEAK_TFLOPS=989    for utilisation (H100 SXM, bf16, dense)
#   PACKED=DIR         where NAME-PART.tar.xz of each part goes, anew after every step; by default reports/gpu
#   PYTHON=python3     one with torch, transformers and peft
#   KERNELS=0          in a pack: compiled kernels stay in CubeCL's own folder. Otherwise they are in kernels/, and as NAME-kernels.tar.xz in
#                      PACKED for the next call: put it into the pack as kernels.tar.xz
#   MODELS=DIR         where the models with random weights are kept for the next call; by default they go with this one
#   SMOLLM2=FILE       SmolLM2-135M-Instruct as .gguf, for the part smollm2
#   SMALL=1            small models and few rounds: every step within minutes on a CPU
set -u
device=${1:?device, for example cuda:0}; name=${2:?a name for the folder}; bin=$(realpath "${3:?the folder of the programs}"); shift 3
[ $# != 0 ] || set -- check make warm 8b 0.6b profile long grpo stored memory
deadline=$((SECONDS + ${SECONDS_LEFT:-540})); python=${PYTHON:-python3}; results=$(realpath "${PACKED:-$(dirname "$0")}")
cd "$(dirname "$0")/../.." || exit 2
out=reports/gpu/$name; scratch=$(mktemp -d "${TMPDIR:-/tmp}/switchyard-gpu.XXXXXX"); trap 'rm -rf "$scratch"' EXIT
models=${MODELS:-$scratch}
peak=${PEAK_TFLOPS:+--peak-tflops $PEAK_TFLOPS}

# packed FOLDER NAME LEVEL and unpacked FILE: Python does it, because not every machine has xz.
packed() {
  "$python" -c 'import os, sys, tarfile
folder, file, level = sys.argv[1:]
with tarfile.open(file + ".part", "w:xz", preset=int(level)) as tar:
    tar.add(folder, os.path.basename(folder))
os.replace(file + ".part", file)' "$1" "$results/$2.tar.xz" "$3"
}
unpacked() { "$python" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$1"; }

if [ ! -e "$bin/probe" ]; then
  [ -e "$bin/switchyard.xz" ] || { echo "run.sh: $bin has neither probe nor switchyard.xz" >&2; exit 2; }
  unpacked "$bin/switchyard.xz" > "$bin/switchyard" || exit 2
  chmod +x "$bin/switchyard"
  for program in train probe intervene report; do ln -sf switchyard "$bin/$program"; done
fi

# CUDA's compiler library and headers: those of the system, else those that came with PyTorch. PyTorch keeps its own libraries.
libraries=${LD_LIBRARY_PATH:-}
if [[ $device == cuda* ]]; then
  nvcc=$(realpath "$(command -v nvcc)" 2>/dev/null)
  for toolkit in "${CUDA_PATH:-}" /usr/local/cuda "${nvcc%/bin/nvcc}" "$("$python" -c 'import nvidia.cu13 as n; print(list(n.__path__)[0])' 2>/dev/null)"; do
    [ -n "$toolkit" ] && [ -e "$toolkit/include/cuda_runtime.h" ] || continue
    export CUDA_PATH=$toolkit LD_LIBRARY_PATH="$toolkit/lib64:$toolkit/lib:$libraries"
    break
  done
fi

# Compiled kernels, and what autotune found, in a folder that goes back. In a pack only: CubeCL looks for the file in the current folder.
if [[ $device == cuda* && -e gpu-pack.txt ]]; then
  rm -f cubecl.toml
  [ -d kernels ] || [ ! -e kernels.tar.xz ] || unpacked kernels.tar.xz | tar -xf -
  [ "${KERNELS:-1}" = 0 ] || printf '[environment]\npath = { directory = "%s/kernels" }\n' "$PWD" > cubecl.toml
fi

# step NAME SECONDS COMMAND: its output in a log, its exit code and seconds in steps.tsv. Code 124: ended for time; 125: left out.
step() {
  timed "$@"; local code=$?
  [ "$code" = 125 ] || pack
  return $code
}

timed() {
  local what=$1 most=$2 start=$SECONDS left=$((deadline - SECONDS)) code=125; shift 2
  [ "$most" -lt "$left" ] || most=$left
  echo "== $what: $*"
  if [ "$most" -ge 5 ]; then
    timeout -k 5 "$most" "$@" > "$folder/$what.log" 2>&1; code=$?
    tail -n 3 "$folder/$what.log"
  fi
  printf '%s\t%s\t%s\t%s\n' "$what" "$code" "$((SECONDS - start))" "$*" >> "$folder/steps.tsv"
  return $code
}

# beside NAME SECONDS COMMAND: the same while others run, with kernels of its own: what was tuned beside other work is not used again.
# `together` waits for all of them.
beside() { (export CUBECL_ENVIRONMENT=$1; timed "$@" > "$folder/$1.out" 2>&1; cat "$folder/$1.out"; rm -f "$folder/$1.out") & }
together() { wait; pack; }

# profiled NAME SECONDS COMMAND: every launch timed by itself, and what they come to by kernel and number of cubes, largest first, in
# NAME.kernels.tsv: launches times the median, so that loading does not count. Some ten microseconds of each launch are the timing.
profiled() {
  local what=$1 most=$2 place; shift 2
  place=$scratch/$what; mkdir -p "$place"
  printf '%s\n[profiling]\nlogger = { level = "full", file = "%s/log", append = false }\n' "$(cat cubecl.toml 2>/dev/null)" "$place" > "$place/cubecl.toml"
  step "$what" "$most" env -C "$place" "$@"
  "$python" - "$place/log" > "$folder/$what.kernels.tsv" <<'PYTHON'
import collections, re, statistics, sys
unit = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "s": 1e6}
text = open(sys.argv[1], errors="replace").read()
found = list(re.finditer(r"^\S*\s*\|\s*([0-9.]+)(ns|µs|ms|s)\s*\|\s*", text, re.M))
times = collections.defaultdict(list)
for i, match in enumerate(found):
    body = text[match.end():found[i + 1].start() if i + 1 < len(found) else len(text)]
    name = re.sub(r"<.*", "", body.split("\n")[0].split(": ")[0]).split("::")[-1]
    cubes = re.search(r"CubeCount \w+\(([^)]*)\)", body)
    times[name, cubes[1] if cubes else ""].append(float(match[1]) * unit[match[2]])
rows = sorted(((statistics.median(t) * len(t), statistics.median(t), len(t), *key) for key, t in times.items()), reverse=True)
print("microseconds\tmedian\tlaunches\tkernel\tcubes")
for total, median, launches, name, cubes in rows[:60]:
    print(f"{total:.0f}\t{median:.1f}\t{launches}\t{name}\t{cubes}")
print(f"{sum(row[0] for row in rows):.0f}\t\t{sum(row[2] for row in rows)}\tall")
PYTHON
  pack
}

# watched NAME SECONDS COMMAND: the same, and the GPU's memory in use (MiB), every two seconds.
watched() {
  nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -l 2 > "$folder/$1.memory" 2>/dev/null & local watch=$!
  step "$@"; local code=$?
  kill "$watch" 2>/dev/null; wait "$watch" 2>/dev/null
  return $code
}

# The part's folder as one file, complete at any time.
pack() { packed "$folder" "$name-$(basename "$folder")" 6; }

# config NAME WIDTH FFN LAYERS HEADS TIED: Qwen3's settings in these sizes.
config() {
  local width=$2 ffn=$3 layers=$4 heads=$5 kv=8 head=128 vocabulary=151936
  [ -z "${SMALL:-}" ] || { width=64 ffn=128 layers=2 heads=4 kv=2 head=16 vocabulary=512; }
  cat > "$scratch/$1.json" <<JSON
{ "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": $vocabulary, "hidden_size": $width,
  "intermediate_size": $ffn, "num_hidden_layers": $layers, "num_attention_heads": $heads, "num_key_value_heads": $kv,
  "head_dim": $head, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": $6, "max_position_embeddings": 40960,
  "hidden_act": "silu" }
JSON
}
config 0.6b 1024 3072 28 16 true
config 8b 4096 12288 36 32 false
config 8b-one 4096 12288 1 32 false

prompt=512 new=64 rows=1,8,64 rounds=${ROUNDS:-5} many=200 batch=4 rollouts=8 rank=32 problems=500 written=512
[ -z "${SMALL:-}" ] || { prompt=16 new=4 rows=1,2 rounds=2 many=3 batch=2 rollouts=2 rank=2 problems=3 written=4; }

# bench NAME SECONDS MODEL DTYPE: prefill and decoding of ours.
bench() { step "$1" "$2" "$bin/probe" bench "$3" --device "$device" --dtype "$4" --prompt "$prompt" --new "$new" --rows "$rows" --rounds "$rounds" $peak; }

# learn NAME SECONDS MODEL DTYPE ROUNDS: a LoRA step of ours.
learn() {
  watched "$1" "$2" "$bin/probe" bench "$3" --device "$device" --dtype "$4" --training-only --prompt "$prompt" --train "$batch" \
    --lora "$rank" --rounds "$5" --threads 1 $peak
}

# policy NAME SECONDS MODEL DTYPE: a Switch-GRPO step of ours.
policy() {
  watched "$1" "$2" "$bin/probe" bench "$3" --device "$device" --dtype "$4" --training-only --new "$written" --grpo "$rollouts" \
    --lora "$rank" --rounds 1 --threads 1 $peak
}

# peer NAME SECONDS CONFIG ARGUMENT...: the same in PyTorch.
peer() {
  local what=$1 most=$2 config=$3; shift 3
  step "$what" "$most" env LD_LIBRARY_PATH="$libraries" "$python" benches/gpu_peer.py "$scratch/$config.json" --device "$device" --prompt "$prompt" --new "$new" \
    --rounds "$rounds" --lora "$rank" --grpo-new "$written" --grpo-rounds 1 --json "$folder/$what.json" $peak "$@"
}

# Random weights of a size, once.
made() { [ -d "$models/$1" ] || step "make-$1" 150 "$bin/probe" random-weights "$scratch/$1.json" --out "$models/$1"; }

# Ours and PyTorch's, both in bf16, of one size, in one call on one machine.
size() {
  made "$1" || return
  bench "bench-$1-bf16" 90 "$models/$1" bf16
  learn "train-$1" 100 "$models/$1" bf16 "$rounds"
  peer "peer-$1" 80 "$1" --rows "$rows" --train "$batch"
  beside=$folder/peer-$1.log
}

# answers NAME DEVICE: what `micro` says to 500 problems.
answers() {
  beside "$1" 180 "$bin/probe" fixtures/micro --phase grpo --only outcomes --problems "$problems" --device "$2" --threads 4 --out "$scratch/$1"
}

part() {
  case $1 in
    check) # Right or wrong: all at once.
      step devices 30 "$bin/train" --list-devices
      for parts in reference kernels products halves stored training,grpo intervene,probe,verdicts; do
        beside "check-${parts%%,*}" 180 "$bin/probe" check --device "$device" --part "$parts" --threads 2 --out "$folder/check-${parts%%,*}.md"
      done
      answers answers-device "$device"
      answers answers-cpu cpu
      beside launches 180 "$bin/probe" bench fixtures/micro --device "$device" --launches --rows 1,4 --new 33 --prompt 8 --train 2 --threads 1
      for threads in 1 2; do
        beside "train-smoke-$threads" 180 "$bin/train" --preset smoke --device "$device" --threads "$threads" --out "$scratch/train-$threads"
      done
      together
      step answers 20 "$python" - "$scratch"/answers-{cpu,device}/outcomes-grpo.parquet <<'PYTHON'
import sys
import pyarrow.parquet
cpu, device = (pyarrow.parquet.read_table(path).to_pylist() for path in sys.argv[1:])
assert len(cpu) == len(device), (len(cpu), len(device))
for key in ("answer", "correct", "switched", "visible_tokens", "latent_calls"):
    print(f"{key}: {sum(a[key] != b[key] for a, b in zip(cpu, device))} of {len(cpu)} differ")
PYTHON
      ;;
    smollm2) # The four programs on a pretrained model, SMOLLM2 its file, under the adapter of `smollm2-chains`.
      local model=("${SMOLLM2:?the file of SmolLM2-135M-Instruct}" --adapter fixtures/smollm2-chains --like smollm2-chains --device "$device" --threads 4)
      beside smollm2-probe 180 "$bin/probe" "${model[@]}" --only accuracy,outcomes --problems 200 --out "$scratch/smollm2-probe"
      beside smollm2-intervene 180 "$bin/intervene" "${model[@]}" --only latent_intervention --modes zero,skip --problems 50 --out "$scratch/smollm2-intervene"
      beside smollm2-train 180 "$bin/train" --preset smollm2-chains --model "$SMOLLM2" --device "$device" --threads 1 --set base.steps=8 \
        --set boundary.steps=8 --set "latent.stages=[{k=1,steps=4},{k=5,steps=4}]" --set evaluation.problems=16 --set 'methods=["switch"]' \
        --out "$scratch/smollm2-train"
      together
      step smollm2-report 60 "$bin/report" "$scratch/smollm2-probe" --out "$scratch/smollm2-report"
      cp "$scratch"/smollm2-probe/*.parquet "$folder/"
      ;;
    warm) # A layer of 8B: what the figures of 8B need is compiled and, where Burn chooses, tuned.
      made 8b-one || return
      bench warm-bench 120 "$models/8b-one" bf16
      learn warm-train 180 "$models/8b-one" bf16 1
      ;;
    make) for of in 0.6b 8b; do made "$of"; done ;;
    0.6b)
      size 0.6b
      bench bench-0.6b-f32 90 "$models/0.6b" f32
      # The memory that the GPU says is in use must not grow.
      learn train-0.6b-long 90 "$models/0.6b" bf16 "$many"
      ;;
    8b) size 8b ;;
    profile) # Where the time goes, of models that other parts made.
      for of in 8b 0.6b; do
        [ -d "$models/$of" ] || continue
        for together in 1 8; do
          profiled "decode-$of-$together" 40 "$bin/probe" bench "$models/$of" --device "$device" --dtype bf16 --prompt "$prompt" --new 5 --rows "$together" --rounds 1
        done
        profiled "train-$of" 60 "$bin/probe" bench "$models/$of" --device "$device" --dtype bf16 --training-only --prompt "$prompt" --train "$batch" --lora "$rank" --rounds 1 --threads 1
      done
      ;;
    long) # A prompt of thousands of tokens.
      made 8b || return
      prompt=8192 new=2 rows=1 rounds=3
      bench bench-8b-long 90 "$models/8b" bf16
      peer peer-8b-long 90 8b --rows 1
      ;;
    grpo)
      for of in 0.6b 8b; do
        made "$of" || continue
        policy "grpo-$of" 120 "$models/$of" bf16
        peer "peer-$of-grpo" 120 "$of" --rows '' --grpo "$rollouts"
      done
      ;;
    stored) # The base as a file has it, in Q8_0: half the memory of bf16. PyTorch's bf16 stands beside it.
      step make-8b-q8_0 150 "$bin/probe" random-weights "$scratch/8b.json" --out "$models/8b.gguf" || return
      bench bench-8b-stored 150 "$models/8b.gguf" stored
      learn train-8b-stored 120 "$models/8b.gguf" stored "$rounds"
      # Of this call, if there is one.
      if [[ ${beside:-} == *-8b.log ]]; then cp "$beside" "$folder/"; else peer peer-8b 90 8b --rows "$rows" --train "$batch"; fi
      ;;
    memory) # Last: it asks for all that the GPU has.
      step check-memory 60 "$bin/probe" check --device "$device" --part memory
      ;;
    compiled) # PyTorch's other way: compiling takes most of the time.
      for size in 0.6b 8b; do peer "peer-$size-compiled" 180 "$size" --compiled --rows "$rows" --train "$batch"; done
      ;;
    *) echo "run.sh: no part $1; there are check, make, warm, 8b, 0.6b, profile, long, grpo, stored, compiled, smollm2, memory"; return 2 ;;
  esac
}

# What was measured: each line of ours, with what share of PyTorch's it is where that is of the same size and figure, and PyTorch's.
figures() {
  awk -F '  +' '
    /tokens\/s/ {
      file = FILENAME; sub(/.*\//, "", file); sub(/\.log$/, "", file); split(file, of, "-")
      figure = $1; sub(/, stored$/, ", bf16", figure); sub(/, checkpointed$/, "", figure)
      line[++n] = file ": " $0; key[n] = of[3] == "f32" ? "" : of[2] " " figure; rate[n] = $2 + 0; ours[n] = of[1] != "peer"
      if (!ours[n]) theirs[of[2] " " figure] = $2 + 0
    }
    END {
      for (i = 1; i <= n; i++) if (ours[i]) {
        if (theirs[key[i]] > 0) line[i] = line[i] sprintf("  %.2f of PyTorch", rate[i] / theirs[key[i]])
        print line[i]
      }
      for (i = 1; i <= n; i++) if (!ours[i]) print line[i]
    }' "$@"
}

{ date -u; uname -a; nvidia-smi 2>/dev/null; grep -m1 'model name' /proc/cpuinfo; "$bin/probe" --version; cat gpu-pack.txt 2>/dev/null; echo "CUDA_PATH=${CUDA_PATH:-}"
  timeout 60 "$python" -c 'import torch, transformers, peft; print("torch", torch.__version__, "transformers", transformers.__version__, "peft", peft.__version__)'
} > "$scratch/machine.txt" 2>&1
for part in "$@"; do
  folder=$out/$part; rm -rf "$folder"; mkdir -p "$folder"; : > "$folder/steps.tsv"
  cp "$scratch/machine.txt" "$folder/"
  part "$part"; pack
done
# What was tuned beside other work stays behind.
[ ! -d kernels ] || { mkdir "$scratch/kernels"; cp kernels/default* "$scratch/kernels/" 2>/dev/null; packed "$scratch/kernels" "$name-kernels" 1; }
for part in "$@"; do
  echo; echo "=== $part"
  awk -F '\t' '{ printf "%-24s exit %-4s %5s s\n", $1, $2, $3 }' "$out/$part/steps.tsv"
  logs=("$out/$part"/*.log); [ ! -e "${logs[0]}" ] || figures "${logs[@]}"
done
