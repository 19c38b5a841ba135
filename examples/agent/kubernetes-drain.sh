#!/bin/sh
# prepare: cordons and drains the Kubernetes node on this VM. undo: uncordons it.
# `forewarn agent` runs this script with FOREWARN_ACTION=prepare or undo. It is safe to run it again at any time.
#
#   NODE           name of the node; default: the host name in lower case, like kubelet
#   GRACE_SECONDS  grace period for each pod; default: the pod's own
#
# An annotation on the node records that this script cordoned it. A node that an operator cordoned before stays
# cordoned.
set -eu

: "${FOREWARN_ACTION:?this script is run by forewarn agent}"
node=${NODE:-$(hostname | tr '[:upper:]' '[:lower:]')}
mark=forewarn.agent/cordoned
# Leave five seconds before the agent's timeout.
seconds=$((${FOREWARN_TIMEOUT_SECONDS:-300} - 5))
[ "$seconds" -gt 0 ] || seconds=1
case ${GRACE_SECONDS:-} in *[!0-9]*) echo "GRACE_SECONDS must be a number, not $GRACE_SECONDS" && exit 2 ;; esac

# field JSONPATH: prints a field of the node. Fails if the node is unknown or the server does not respond.
field() {
  kubectl get node "$node" --output "jsonpath=$1" --request-timeout=10s
}

case $FOREWARN_ACTION in
prepare)
  cordoned=$(field '{.spec.unschedulable}')
  marked=$(field '{.metadata.annotations.forewarn\.agent/cordoned}')
  if [ "$cordoned" = true ] && [ -z "$marked" ]; then
    echo "$node was cordoned before and stays cordoned"
  else
    # Annotate first, so that undo works even if this script is ended in between.
    kubectl annotate node "$node" --overwrite "$mark=${FOREWARN_EVENT_ID:-event}"
    kubectl cordon "$node"
  fi
  set -- --ignore-daemonsets --delete-emptydir-data --timeout="${seconds}s"
  [ -z "${GRACE_SECONDS:-}" ] || set -- "$@" --grace-period="$GRACE_SECONDS"
  kubectl drain "$node" "$@"
  ;;
undo)
  if [ -z "$(field '{.metadata.annotations.forewarn\.agent/cordoned}')" ]; then
    echo "$node was not cordoned by this script"
    exit 0
  fi
  kubectl uncordon "$node"
  kubectl annotate node "$node" "$mark-"
  ;;
*)
  echo "FOREWARN_ACTION must be prepare or undo, not $FOREWARN_ACTION"
  exit 2
  ;;
esac
