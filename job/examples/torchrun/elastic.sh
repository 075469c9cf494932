#!/bin/bash
# One node of an elastic training. Start it on each node with the same RUN and HEAD; nodes may die, leave and join while it
# runs, and each time all ranks go on from the newest checkpoint. HEAD is the node where the ranks find each other, the one
# that is least likely to be lost: if it dies all end, with 75, and have to be started again.
#
#   RUN=my-run HEAD=node-1:29400 NODES=1:2 ./elastic.sh --folder /shared/checkpoints/my-run

marks="${MARKS:-/tmp/reschedule}"
# Without it a node that joins later waits in vain for the address of a store that only the first round published.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

python -m gpuwarden_job clear "$marks"
# After a death it takes three missed heartbeats of 5 s and then 30 s of waiting for more nodes until the rest goes on;
# CONF=keep_alive_interval=1,last_call_timeout=5 makes it quicker.
torchrun --nnodes="${NODES:-1:2}" --nproc-per-node="${GPUS:-8}" --max-restarts=3 \
  --rdzv-backend=c10d --rdzv-id="$RUN" --rdzv-endpoint="$HEAD" --rdzv-conf="${CONF:-}" \
  "${TRAINING:-$(dirname "$0")/../train_torch.py}" --markers "$marks" "$@" &
agent=$!
trap 'signalled=1; kill -TERM "$agent"' TERM INT # the agent hands it on, and the ranks save
signalled=1
while [ "$signalled" = 1 ]; do # a signal ends the wait before the agent has ended
  signalled=0
  wait "$agent" && status=0 || status=$?
done
exit "$(python -m gpuwarden_job exit-code "$marks" "$status")"
