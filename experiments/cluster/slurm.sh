#!/usr/bin/env bash
# A sweep of `intervene` or `probe` on Slurm: an array of shards, and a merge that starts when all of them have ended well.
#
#   SHARDS=4 OUT=runs/reports/sweep experiments/cluster/slurm.sh intervene runs/micro --phase sft
#
# BIN is the folder of the programs (target/debug). SBATCH is what else sbatch is told ("--partition gpu --gres gpu:1").
# A task that Slurm starts again goes on where it was. If one fails, the merge is cancelled: type the same line again, what is
# finished is left as it is.
set -euo pipefail

shards=${SHARDS:?how many}
out=${OUT:?a folder for rows and tables}
bin=${BIN:-target/debug}
program=$1
shift
# Words as a shell has them, quotes too; nothing of them is run.
mapfile -d '' -t more < <(printf %s "${SBATCH:-}" | xargs -r printf '%s\0')
mkdir -p "$out"

# Every argument reaches the task as it was typed here.
line=$(printf '%q ' "$bin/$program" "$@" --out "$out")
folder=$(printf %q "$out")
# --resume wants a folder in which something was begun.
task="mkdir -p $folder/shard-\$SLURM_ARRAY_TASK_ID-of-$shards && exec $line --shard \$SLURM_ARRAY_TASK_ID/$shards --resume"
merge="$(printf %q "$bin/report") merge $folder/shard-*-of-$shards --out $folder"
if [ "$program" = probe ]; then
  merge="$merge && $line --decoded $folder"
fi

array=$(sbatch --parsable "${more[@]}" --job-name "$program" --array "1-$shards" --requeue --open-mode append \
  --output "$out/shard-%a.log" --wrap "$task")
last=$(sbatch --parsable "${more[@]}" --job-name merge --dependency "afterok:$array" --kill-on-invalid-dep yes \
  --output "$out/merge.log" --wrap "$merge")
echo "array $array, merge $last: logs and tables in $out"
