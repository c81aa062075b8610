#!/bin/bash
# An elastic job in one allocation: it goes on when a node fails, and starts again from its last
# backup when its time is over. Start: sbatch elastic_allocation.sh train.py
# See docs/kubernetes_slurm.md.
#SBATCH --job-name=elastic
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120

again=5 # how often a job that has too few ranks starts again
export TFDIST_SECRET_FILE=${TFDIST_SECRET_FILE:-$HOME/.tfdist-secret}

host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --no-kill --kill-on-bad-exit=0 --wait=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  tfdist run -n 2 --rendezvous "$host:2222" --min 2 --max 8 --grace-period 100 "$@"
status=$?

# 143: `tfdist run` got SIGTERM, as the time is over. scancel has ended this shell too, by then.
if [ "$status" = 143 ] ||
  { [ "$status" = 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$again" ]; }; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
