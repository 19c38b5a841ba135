#!/bin/sh
# Handles Azure Scheduled Events, on Azure and with Forewarn. Needs a POSIX shell, curl and jq 1.5 or newer.
#
# The program polls. For each event that names this VM, it prepares, approves, and reports the start and the end.
#
# Options, each with a value:
#   --endpoint URL      default: FOREWARN_ENDPOINT, or Azure's address
#   --name NAME         name of this VM in events (default: ask the endpoint)
#   --run COMMAND       command that prepares this VM
#   --interval SECONDS  between polls (default: 1)
#   --timeout SECONDS   for a response (default: 10)
#   --repeat SECONDS    until the same approval again, a whole number (default: 60)
set -u
for program in curl jq; do
  command -v "$program" >/dev/null || { echo "needs $program" >&2 && exit 2; }
done

events_path='/metadata/scheduledevents?api-version=2020-07-01'
name_path='/metadata/instance/compute/name?api-version=2021-02-01&format=text'
first_timeout=130 # on Azure, the response to the first GET can take two minutes
older_seconds=10  # a lower incarnation that stays this long is a new count; before, the document may be an old one

endpoint=${FOREWARN_ENDPOINT:-http://169.254.169.254} name='' run='' interval=1 timeout=10 repeat=60
while [ $# -gt 0 ]; do
  : "${2?"$1 needs a value"}"
  case $1 in
  --endpoint) endpoint=$2 ;;
  --name) name=$2 ;;
  --run) run=$2 ;;
  --interval) interval=$2 ;;
  --timeout) timeout=$2 ;;
  --repeat) repeat=$2 ;;
  *) echo "unknown option: $1" >&2 && exit 2 ;;
  esac
  shift 2
done

incarnation=-1 # of the last document; -1: none yet
older_since=''
tracked='{}' # events of this VM by EventId, as JSON
problem=''   # the last one, so that it is reported once

# A shell runs a trap only after the program in the foreground has ended. So everything that takes time runs in the
# background, and the shell waits for it.
curl_id=''
response=$(mktemp)
trap 'rm -f "$response"' EXIT
trap '[ -z "$curl_id" ] || kill "$curl_id" 2>/dev/null; exit 0' INT TERM

# request METHOD PATH [CURL-OPTION...]: set `body` if the status is 200. After any failure the next poll retries.
request() {
  method=$1 url=${endpoint%/}$2 body='' found=''
  shift 2
  if [ "$incarnation" -ge 0 ]; then limit=$timeout; else limit=$first_timeout; fi
  # --disable ignores ~/.curlrc. The last three characters of the file are the status.
  curl --disable --silent --noproxy '*' --max-time "$limit" --request "$method" --header 'Metadata: true' \
    --header 'Content-Type: application/json' --write-out '%{http_code}' "$@" "$url" >"$response" &
  curl_id=$!
  wait "$curl_id" || found="curl exit code $?"
  curl_id=''
  body=$(cat "$response")
  status=${body#"${body%???}"} body=${body%???}
  [ -n "$found" ] || [ "$status" = 200 ] || found="status $status"
  report "$method" "$found"
  [ -z "$found" ]
}

# report METHOD PROBLEM: print a problem when it begins, not at each poll. An empty one means success.
report() {
  if [ -n "$2" ]; then
    [ "$problem" = "$1: $2" ] || echo "retrying $1: $2" >&2
    problem="$1: $2"
  else
    case $problem in "$1: "*) problem='' ;; esac
  fi
}

# poll: set `document` and `number`, its incarnation.
poll() {
  request GET "$events_path" || return
  document=$(printf '%s\n' "$body" | jq -ce 'select(
    (.DocumentIncarnation | type == "number") and (.Events | type == "array") and all(.Events[];
      ([.EventId, .EventType, .EventStatus, .NotBefore // ""] | all(type == "string"))
      and (.Resources | type == "array")))' 2>/dev/null) || document=''
  [ -n "$document" ] || { report GET 'malformed document' && return 1; }
  number=$(printf '%s\n' "$document" | jq '.DocumentIncarnation | floor')
}

# is_new: whether to read the document: it has another incarnation than the last one, and is not an old one.
is_new() {
  if [ "$number" -lt "$incarnation" ]; then
    older_since=${older_since:-$(date +%s)}
    [ $(($(date +%s) - older_since)) -ge "$older_seconds" ] || return
  fi
  older_since='' before=$incarnation incarnation=$number
  [ "$number" -ne "$before" ]
}

# The events that name this VM, and the tracked events that are no longer among them: one JSON object per line.
mine() { printf '%s\n' "$document" | jq -c --arg me "$name" '.Events[] | select(any(.Resources[]; . == $me))'; }
gone() { { mine && printf '%s\n' "$tracked"; } | jq -cs '.[:-1] as $mine | .[-1] | del(.[$mine[].EventId])[]'; }

# get EVENT FIELD: print the value. say STEP EVENT [DETAIL]: print a line of output.
get() { printf '%s\n' "$1" | jq -r --arg field "$2" '.[$field] // ""'; }
say() { printf '%s\n' "$1 $(get "$2" EventType) $(get "$2" EventId)${3:+: $3}"; }

# track EVENT: remember the event and its status. mark EVENT-ID FIELD NUMBER: set a field of a tracked event.
track() { tracked=$(printf '%s\n' "$tracked" "$1" | jq -cs '.[1] as $event | .[0] | .[$event.EventId] += $event'); }
mark() { tracked=$(printf '%s\n' "$tracked" | jq -c --arg id "$1" --arg field "$2" ".[\$id][\$field] = $3"); }

handle() {
  while IFS= read -r event && [ -n "$event" ]; do
    say ended "$event"
    tracked=$(printf '%s\n' "$tracked" | jq -c --arg id "$(get "$event" EventId)" 'del(.[$id])')
  done <<EOF
$(gone)
EOF
  while IFS= read -r event && [ -n "$event" ]; do
    id=$(get "$event" EventId) type=$(get "$event" EventType) status=$(get "$event" EventStatus)
    known=$(printf '%s\n' "$tracked" | jq -c --arg id "$id" '.[$id] // {}')
    [ "$(get "$known" EventStatus)" != "$status" ] || continue
    track "$event"
    case $type in Freeze | Reboot | Redeploy | Preempt | Terminate) ;; *) status=unknown ;; esac
    case $status in
    unknown) say ignored "$event" 'unknown event type' ;;
    Started) say started "$event" ;;
    Scheduled)
      say scheduled "$event" "not before $(get "$event" NotBefore)"
      if prepare "$event"; then mark "$id" ready 1; fi
      ;;
    esac
  done <<EOF
$(mine)
EOF
}

# prepare EVENT: prepare this VM, once for each event. Succeeds if the event is to be approved.
prepare() {
  if [ -n "$run" ]; then
    EVENT_ID=$id EVENT_TYPE=$type EVENT_NOT_BEFORE=$(get "$1" NotBefore) sh -c "$run" &
    wait $! || { say 'not approved' "$1" "the command ended with $?" && return 1; }
  fi
  say prepared "$1"
  printf '%s\n' "$1" | jq -e '.Resources | length == 1' >/dev/null && return
  say 'not approved' "$1" 'it names other VMs too' # an approval would start the event for all of them
  return 1
}

# approve: approve prepared events; again if an event is still Scheduled after a while.
approve() {
  while IFS= read -r event && [ -n "$event" ]; do
    id=$(get "$event" EventId)
    if request POST "$events_path" --data-binary "$(jq -nc --arg id "$id" '{StartRequests: [{EventId: $id}]}')"; then
      mark "$id" sent "$(date +%s)"
      say approved "$event"
    fi
  done <<EOF
$(printf '%s\n' "$tracked" | jq -c --argjson before "$(($(date +%s) - repeat))" \
    '.[] | select(.ready and .EventStatus == "Scheduled" and (.sent // 0) < $before)')
EOF
}

pause() {
  sleep "$interval" &
  wait $! || exit
}

until [ -n "$name" ]; do
  if request GET "$name_path"; then name=$body; fi
  [ -n "$name" ] || pause
done
echo "polling $endpoint as $name"
while :; do
  if poll; then
    if is_new; then handle; fi
    approve
  fi
  pause
done
