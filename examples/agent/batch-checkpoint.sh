#!/bin/sh
# prepare: makes a batch worker write a checkpoint, and copies it to shared storage.
# undo: starts the worker from the checkpoint.
# `forewarn agent` runs this script with FOREWARN_ACTION=prepare or undo. It is safe to run it again at any time.
#
#   JOB      the worker's folder. The worker writes its process id to worker.pid, and on SIGUSR1 its state to the file
#            state in this folder
#   STORE    folder for checkpoints that other VMs can read too
#   WORKER   the worker's program; started as WORKER JOB, and with a checkpoint as WORKER JOB CHECKPOINT
set -eu

: "${FOREWARN_ACTION:?this script is run by forewarn agent}"
: "${JOB:?set the folder of the worker}" "${STORE:?set the folder for checkpoints}"
: "${WORKER:?set the program of the worker}"
[ -d "$STORE" ] || { echo "there is no folder $STORE" && exit 1; }

worker() {
  [ -s "$JOB/worker.pid" ] && kill -0 "$(cat "$JOB/worker.pid")" 2>/dev/null
}

case $FOREWARN_ACTION in
prepare)
  worker || { echo "no worker is running: nothing to save" && exit 0; }
  rm -f "$JOB/state"
  kill -USR1 "$(cat "$JOB/worker.pid")"
  # The worker writes another file and renames it, so this file is complete. The agent ends this script at its timeout.
  until [ -e "$JOB/state" ]; do
    worker || { echo "the worker ended without a checkpoint" && exit 1; }
    sleep 0.1
  done
  name="$STORE/${FOREWARN_VM_NAME:-vm}-${FOREWARN_EVENT_ID:-event}"
  # Copy and rename: other VMs never see a partial checkpoint.
  cp "$JOB/state" "$name.part"
  sync "$name.part"
  mv "$name.part" "$name"
  echo "saved $name"
  printf 'FOREWARN_MEMO {"checkpoint": "%s"}\n' "$name"
  ;;
undo)
  worker && { echo "the worker is already running" && exit 0; }
  [ -n "${FOREWARN_MEMO_CHECKPOINT:-}" ] || { echo "no checkpoint was saved: nothing to resume" && exit 0; }
  [ -e "$FOREWARN_MEMO_CHECKPOINT" ] || { echo "$FOREWARN_MEMO_CHECKPOINT is gone: another VM has resumed from it" && exit 0; }
  # A new session: the worker survives this script. It stays in the agent's control group. If the agent is a systemd
  # unit, use `systemd-run --collect` instead of setsid, so that the unit's limits do not apply to the worker.
  setsid "$WORKER" "$JOB" "$FOREWARN_MEMO_CHECKPOINT" >>"$JOB/log" 2>&1 </dev/null &
  echo "resumed from $FOREWARN_MEMO_CHECKPOINT"
  ;;
*)
  echo "FOREWARN_ACTION must be prepare or undo, not $FOREWARN_ACTION"
  exit 2
  ;;
esac
