#!/bin/sh
# What `forewarn verify` needs to have things happen, where the server under test is Forewarn itself, with the fleet
# of verify.toml and a virtual clock. docs/verify.md shows how it is used; for another server, write one like it.
#
#   --schedule-command 'sh examples/verify-hooks.sh schedule'
#   --cancel-command   'sh examples/verify-hooks.sh cancel'
#   --advance-command  'sh examples/verify-hooks.sh advance'
set -eu

# The host that the VM is on.
host() {
  forewarn vm show "$FOREWARN_VM" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["host"])'
}

# Another VM of its group, one of which nothing is told yet: whoever is evicted or deleted cannot ask any more.
another() {
  forewarn vm list --json | python3 -c '
import json, sys
vms = json.load(sys.stdin)["vms"]
group = next(vm["group"] for vm in vms if vm["name"] == sys.argv[1])
free = [vm["name"] for vm in vms if vm["group"] == group and vm["state"] == "running" and not vm["events"]]
free = [name for name in free if name != sys.argv[1]]
print(free[-1] if free else sys.exit(f"{group} has no other VM that is free"))
' "$FOREWARN_VM"
}

case "$1" in
schedule)
  case "$FOREWARN_EVENT_TYPE" in
  Reboot) forewarn vm restart "$FOREWARN_VM" ;;
  Redeploy) forewarn vm redeploy "$FOREWARN_VM" ;;
  Freeze) forewarn host update "$(host)" --impact freeze --duration 9s ;;
  Preempt) forewarn vm evict "$(another)" ;;
  Terminate) forewarn vm delete --yes "$(another)" ;;
  *) echo "no way to make a $FOREWARN_EVENT_TYPE is known" && exit 1 ;;
  esac
  ;;
cancel) forewarn event cancel "$FOREWARN_EVENT_ID" ;;
advance) forewarn clock advance "${FOREWARN_SECONDS}s" ;;
*) echo "usage: verify-hooks.sh schedule|cancel|advance" && exit 2 ;;
esac
