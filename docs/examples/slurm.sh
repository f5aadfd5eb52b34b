#!/usr/bin/env bash
#SBATCH --job-name=turnwise
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=12:00:00
# Train on the GPUs of two nodes: Ray's head on the first node, a worker on each other one.
set -euo pipefail
source "${TURNWISE_VENV:-.venv}/bin/activate"

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head_address="${nodes[0]}:6379"
srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" ray start --head --port=6379 --block &
sleep 20
if ((${#nodes[@]} > 1)); then
    srun --nodes=$((${#nodes[@]} - 1)) --ntasks=$((${#nodes[@]} - 1)) --exclude="${nodes[0]}" \
        ray start --address="$head_address" --block &
    sleep 20
fi

# Resubmitting the job continues the run.
run=runs/math_code-slurm
if [[ -f $run/config.toml ]]; then
    turnwise train --resume "$run"
else
    turnwise train math_code --model.name Qwen/Qwen2.5-7B-Instruct --record.name math_code-slurm \
        --cluster.address "$head_address" --cluster.learners 8 --cluster.engines 8 \
        --cluster.placement disaggregated --rollout.max_staleness 1
fi
