#!/usr/bin/env bash
# A sweep of `intervene` or `probe` with GNU parallel: shards on this machine, or on those of --sshloginfile that see the same
# folders, and the merge after them.
#
#   SHARDS=4 OUT=runs/reports/sweep experiments/cluster/parallel.sh intervene runs/micro --phase sft --threads 1
#
# BIN is the folder of the programs (target/debug). PARALLEL is read by GNU parallel ("--jobs 2 --sshloginfile nodes").
set -euo pipefail

shards=${SHARDS:?how many}
out=${OUT:?a folder for rows and tables}
bin=${BIN:-target/debug}
program=$1
shift

seq "$shards" | parallel --will-cite --quote --halt soon,fail=1 \
  sh -c 'mkdir -p "$0/shard-$1-of-$2" && shift 2 && exec "$@"' "$out" {} "$shards" \
  "$bin/$program" "$@" --out "$out" --shard "{}/$shards" --resume
"$bin/report" merge "$out"/shard-*-of-"$shards" --out "$out"
if [ "$program" = probe ]; then
  "$bin/probe" "$@" --out "$out" --decoded "$out"
fi
