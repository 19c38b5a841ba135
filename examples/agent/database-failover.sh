#!/bin/sh
# Makes another member of a Patroni cluster the primary, and waits until it is. On a VM that is not the primary, it
# does nothing. `forewarn agent` runs this script with FOREWARN_ACTION=prepare or undo. It is safe to run it again
# at any time.
#
#   CLUSTER          name of the cluster in Patroni (scope)
#   PATRONI_CONFIG   configuration for patronictl; default /etc/patroni/config.yml
#   PATRONI_URL      REST API of Patroni on this VM; default http://127.0.0.1:8008. A member with the tag noloadbalance
#                    never reports that it is a replica
#   MEMBER           name of this VM in the cluster; default: the host name
#   FAIL_BACK        yes: become the primary again afterwards
set -eu

: "${FOREWARN_ACTION:?this script is run by forewarn agent}"
: "${CLUSTER:?set the name of the cluster}"
config=${PATRONI_CONFIG:-/etc/patroni/config.yml}
url=${PATRONI_URL:-http://127.0.0.1:8008}
member=${MEMBER:-$(hostname)}
# Leave five seconds before the agent's timeout.
seconds=$((${FOREWARN_TIMEOUT_SECONDS:-60} - 5))

# Patroni responds with 200 if this member has the role.
is() {
  [ "$(curl --silent --output /dev/null --max-time 5 --write-out '%{http_code}' "$url/$1")" = 200 ]
}

# wait_for SECONDS ROLE
wait_for() {
  left=$1
  until is "$2"; do
    left=$((left - 1))
    if [ "$left" -le 0 ]; then
      echo "$member did not become $2 in time"
      exit 1
    fi
    sleep 1
  done
}

case $FOREWARN_ACTION in
prepare)
  if ! is primary; then
    echo "$member is not the primary: nothing to hand over"
    exit 0
  fi
  echo 'FOREWARN_MEMO {"was_primary": "yes"}'
  # patronictl also exits with 0 if the switchover was rejected: check the role afterwards.
  patronictl -c "$config" switchover "$CLUSTER" --leader "$member" --force
  wait_for "$seconds" replica
  ;;
undo)
  # Wait until this member replicates again.
  if is primary; then
    echo "$member is the primary"
    exit 0
  fi
  wait_for "$seconds" replica
  if [ "${FAIL_BACK:-no}" = yes ] && [ "${FOREWARN_MEMO_WAS_PRIMARY:-no}" = yes ]; then
    patronictl -c "$config" switchover "$CLUSTER" --candidate "$member" --force
    wait_for "$seconds" primary
  fi
  ;;
*)
  echo "FOREWARN_ACTION must be prepare or undo, not $FOREWARN_ACTION"
  exit 2
  ;;
esac
