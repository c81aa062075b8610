#!/bin/bash
# An elastic job over 4 machines, each a Slurm job of its own, so that Slurm can take back one of
# them and leave the others. Start: sbatch elastic_array.sh train.py. See docs/kubernetes_slurm.md.
#SBATCH --job-name=elastic
#SBATCH --array=0-3
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120

again=5 # how often a task whose job fails starts again
export TFDIST_SECRET_FILE=${TFDIST_SECRET_FILE:-$HOME/.tfdist-secret}

# Task 0 serves the rendezvous, and says where in a file that all machines can read. When it leaves,
# it takes that back: another task that comes to its machine would serve a second job.
place=$SLURM_SUBMIT_DIR/rendezvous-$SLURM_ARRAY_JOB_ID
say() { echo "$1" > "$place.$SLURM_ARRAY_TASK_ID" && mv "$place.$SLURM_ARRAY_TASK_ID" "$place"; }
is_over() { [ "$(cat "$place" 2> /dev/null)" = over ]; }
take_back() { [ "$SLURM_ARRAY_TASK_ID" != 0 ] || is_over || rm -f "$place"; }
[ "$SLURM_ARRAY_TASK_ID" != 0 ] || is_over || say "$(hostname)"
trap 'scontrol requeue "$SLURM_JOB_ID"; exit 75' USR1 # Slurm wants a machine back that waits
until [ -s "$place" ]; do sleep 1; done
host=$(< "$place")
[ "$host" != over ] || exit 0 # training was complete before this task had a machine

# In the background: a shell takes a signal only between commands, or while it waits.
tfdist run -n 2 --rendezvous "$host:2222" --min 2 --max 8 --grace-period 100 "$@" &
run=$!
asked=no
trap 'asked=back; take_back; kill -TERM "$run"' USR1 # Slurm wants the machine back
trap 'asked=end; take_back; kill -TERM "$run"' TERM   # scancel
until wait "$run"; status=$?; ! kill -0 "$run" 2> /dev/null; do :; done

if [ "$status" = 0 ]; then
  # Training is complete. Tasks that wait for a machine would come too late.
  say over
  [ "$SLURM_ARRAY_TASK_ID" != 0 ] || scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"
  exit 0
fi
take_back
if [ "$asked" = back ] || { [ "$asked" = no ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$again" ]; }; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
