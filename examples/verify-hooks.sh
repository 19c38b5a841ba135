#!/bin/sh
# Hook commands of `forewarn verify` for Forewarn itself, with the fleet of verify.toml and a virtual clock.
# docs/how-to/verify.md shows how to use them. For another server, write a similar script.
#
#   --schedule-command 'sh examples/verify-hooks.sh schedule'
#   --cancel-command   'sh examples/verify-hooks.sh cancel'
#   --advance-command  'sh examples/verify-hooks.sh advance'
set -eu
fleet=$(dirname "$0")/verify.toml

# Print the host of the VM.
host() {
  forewarn vm show "$FOREWARN_VM" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["host"])'
}

# Print another running VM of the group that has no event. An evicted or deleted VM cannot poll.
another() {
  forewarn vm list --json | python3 -c '
import json, sys
vms = json.load(sys.stdin)["vms"]
group = next(vm["group"] for vm in vms if vm["name"] == sys.argv[1])
free = [vm["name"] for vm in vms if vm["group"] == group and vm["state"] == "running" and not vm["events"]]
free = [name for name in free if name != sys.argv[1]]
print(free[-1] if free else sys.exit(f"{group} has no other running VM without an event"))
' "$FOREWARN_VM"
}

# Make the set a Spot set. A Spot set has no terminate notice, as on Azure.
spot_set() {
  sed -e '/^terminate_notice/d' -e 's/^group = "pool"$/&\npriority = "spot"/' "$fleet" |
    forewarn fleet apply /dev/stdin >/dev/null
}

case "$1" in
schedule)
  case "$FOREWARN_EVENT_TYPE" in
  Reboot) forewarn vm restart "$FOREWARN_VM" ;;
  Redeploy) forewarn vm redeploy "$FOREWARN_VM" ;;
  Freeze) forewarn host update "$(host)" --impact freeze --duration 9s ;;
  Preempt) spot_set && forewarn vm evict "$(another)" ;;
  SpotRebalanceRecommendation) spot_set && forewarn vm rebalance "$(another)" ;;
  Terminate) forewarn fleet apply "$fleet" >/dev/null && forewarn vm delete --yes "$(another)" ;;
  *) echo "cannot schedule a $FOREWARN_EVENT_TYPE" && exit 1 ;;
  esac
  ;;
cancel) forewarn event cancel "$FOREWARN_EVENT_ID" ;;
advance) forewarn clock advance "${FOREWARN_SECONDS}s" ;;
*) echo "usage: verify-hooks.sh schedule|cancel|advance" && exit 2 ;;
esac
