#!/bin/sh
# Makes another member of a Patroni cluster the primary, and waits until it is. Run by `forewarn agent`, which says in
# FOREWARN_ACTION what to do. May be run again at any time: on a machine that is not the primary nothing is done.
#
#   CLUSTER          its name in Patroni (scope)
#   PATRONI_CONFIG   for patronictl; default /etc/patroni/config.yml
#   PATRONI_URL      Patroni on this machine; default http://127.0.0.1:8008. It is asked for its role: a member with the
#                    tag noloadbalance never says that it is a replica
#   MEMBER           this machine's name in the cluster; default: its host name
#   FAIL_BACK        yes: become the primary again afterwards
set -eu

: "${FOREWARN_ACTION:?is run by forewarn agent}"
: "${CLUSTER:?which cluster}"
config=${PATRONI_CONFIG:-/etc/patroni/config.yml}
url=${PATRONI_URL:-http://127.0.0.1:8008}
member=${MEMBER:-$(hostname)}
# Leave a little for the rest; the agent ends what takes longer.
seconds=$((${FOREWARN_TIMEOUT_SECONDS:-60} - 5))

# Patroni answers 200 to the question that is true.
is() {
  [ "$(curl --silent --output /dev/null --max-time 5 --write-out '%{http_code}' "$url/$1")" = 200 ]
}

# until_true SECONDS QUESTION
until_true() {
  left=$1
  until is "$2"; do
    left=$((left - 1))
    if [ "$left" -le 0 ]; then
      echo "$member is still not '$2'"
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
  # It ends with 0 also when it was refused: what counts is what Patroni says afterwards.
  patronictl -c "$config" switchover "$CLUSTER" --leader "$member" --force
  until_true "$seconds" replica
  ;;
undo)
  # Not done before it is of use again: a replica that does not follow is no replica.
  if is primary; then
    echo "$member is the primary"
    exit 0
  fi
  until_true "$seconds" replica
  if [ "${FAIL_BACK:-no}" = yes ] && [ "${FOREWARN_MEMO_WAS_PRIMARY:-no}" = yes ]; then
    patronictl -c "$config" switchover "$CLUSTER" --candidate "$member" --force
    until_true "$seconds" primary
  fi
  ;;
*)
  echo "FOREWARN_ACTION is $FOREWARN_ACTION, neither prepare nor undo"
  exit 2
  ;;
esac
