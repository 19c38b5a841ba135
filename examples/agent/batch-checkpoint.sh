#!/bin/sh
# Has a batch worker write a checkpoint, and keeps it where it outlives the machine; starts the worker from it
# afterwards. Run by `forewarn agent`, which says in FOREWARN_ACTION what to do. May be run again at any time.
#
#   JOB      the worker's folder. It writes its number to worker.pid there, and on SIGUSR1 its state to the file state
#   STORE    where checkpoints are kept: a folder that other machines have too
#   WORKER   the program; started as WORKER JOB, and with a checkpoint as WORKER JOB CHECKPOINT
set -eu

: "${FOREWARN_ACTION:?is run by forewarn agent}"
: "${JOB:?where the worker works}" "${STORE:?where checkpoints are kept}" "${WORKER:?what is started}"
[ -d "$STORE" ] || { echo "there is no folder $STORE" && exit 1; }

worker() {
  [ -s "$JOB/worker.pid" ] && kill -0 "$(cat "$JOB/worker.pid")" 2>/dev/null
}

case $FOREWARN_ACTION in
prepare)
  worker || { echo "no worker runs: there is nothing to keep" && exit 0; }
  rm -f "$JOB/state"
  kill -USR1 "$(cat "$JOB/worker.pid")"
  # It writes elsewhere and renames, so what is there is whole. The agent ends this if it takes too long.
  until [ -e "$JOB/state" ]; do
    worker || { echo "the worker has ended without a checkpoint" && exit 1; }
    sleep 0.1
  done
  name="$STORE/${FOREWARN_VM_NAME:-vm}-${FOREWARN_EVENT_ID:-event}"
  # First whole, and then there: whoever looks into the store never sees half of one.
  cp "$JOB/state" "$name.part"
  sync "$name.part"
  mv "$name.part" "$name"
  echo "kept $name"
  printf 'FOREWARN_MEMO {"checkpoint": "%s"}\n' "$name"
  ;;
undo)
  worker && { echo "the worker runs already" && exit 0; }
  [ -n "${FOREWARN_MEMO_CHECKPOINT:-}" ] || { echo "nothing was kept: nothing to go on from" && exit 0; }
  [ -e "$FOREWARN_MEMO_CHECKPOINT" ] || { echo "$FOREWARN_MEMO_CHECKPOINT is gone: another machine goes on from it" && exit 0; }
  # In a session of its own: it outlives this script. It stays in the agent's control group, though. Where the agent is
  # a unit of systemd, write `systemd-run --collect` in the place of setsid, or the worker ends with the agent.
  setsid "$WORKER" "$JOB" "$FOREWARN_MEMO_CHECKPOINT" >>"$JOB/log" 2>&1 </dev/null &
  echo "goes on from $FOREWARN_MEMO_CHECKPOINT"
  ;;
*)
  echo "FOREWARN_ACTION is $FOREWARN_ACTION, neither prepare nor undo"
  exit 2
  ;;
esac
