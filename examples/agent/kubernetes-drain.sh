#!/bin/sh
# Cordons and drains the Kubernetes node that this machine is, and uncordons it afterwards. Run by `forewarn agent`,
# which says in FOREWARN_ACTION what to do. May be run again at any time.
#
#   NODE           its name; default: the host name in lower case, as kubelet does it
#   GRACE_SECONDS  for each pod; default: what the pod asks for
#
# That the node was cordoned by us is written on the node itself: one that an operator has cordoned before stays so.
set -eu

: "${FOREWARN_ACTION:?is run by forewarn agent}"
node=${NODE:-$(hostname | tr '[:upper:]' '[:lower:]')}
mark=forewarn.agent/cordoned
# Leave a little for the rest; the agent ends what takes longer.
seconds=$((${FOREWARN_TIMEOUT_SECONDS:-300} - 5))
[ "$seconds" -gt 0 ] || seconds=1
case ${GRACE_SECONDS:-} in *[!0-9]*) echo "GRACE_SECONDS is $GRACE_SECONDS, not a number" && exit 2 ;; esac

# Of the node, by a path of JSON. Fails when the node is not known or the server does not answer.
field() {
  kubectl get node "$node" --output "jsonpath=$1" --request-timeout=10s
}

case $FOREWARN_ACTION in
prepare)
  cordoned=$(field '{.spec.unschedulable}')
  marked=$(field '{.metadata.annotations.forewarn\.agent/cordoned}')
  if [ "$cordoned" = true ] && [ -z "$marked" ]; then
    echo "$node was cordoned before, and stays so afterwards"
  else
    # The mark first: if this is ended in between, undo still knows.
    kubectl annotate node "$node" --overwrite "$mark=${FOREWARN_EVENT_ID:-event}"
    kubectl cordon "$node"
  fi
  set -- --ignore-daemonsets --delete-emptydir-data --timeout="${seconds}s"
  [ -z "${GRACE_SECONDS:-}" ] || set -- "$@" --grace-period="$GRACE_SECONDS"
  kubectl drain "$node" "$@"
  ;;
undo)
  if [ -z "$(field '{.metadata.annotations.forewarn\.agent/cordoned}')" ]; then
    echo "$node was not cordoned by us"
    exit 0
  fi
  kubectl uncordon "$node"
  kubectl annotate node "$node" "$mark-"
  ;;
*)
  echo "FOREWARN_ACTION is $FOREWARN_ACTION, neither prepare nor undo"
  exit 2
  ;;
esac
