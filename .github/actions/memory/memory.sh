#!/usr/bin/env bash
# Runs MEMORY_COMMAND under forgather-mem; the exit code is that of forgather-mem: 3 when memory has grown.
# What it says goes to the job's summary, too; also why it could not start.
set -uo pipefail
summary="${GITHUB_STEP_SUMMARY:-/dev/null}"
report="${RUNNER_TEMP:-/tmp}/this-run.json"
said="${RUNNER_TEMP:-/tmp}/memory-said.txt"
words="${RUNNER_TEMP:-/tmp}/memory-words"
rm -rf "$report" "$said" "$words" # an earlier step's
python="$(command -v python3 || command -v python)"

start() {
  if ! command -v forgather-mem >/dev/null; then
    echo "forgather-mem is not installed: pip install forgather_mem in a step before this one" >&2
    return 127
  fi
  # Words are quoted as for a shell, and line breaks are spaces; no shell sees them
  "$python" -c '
import os, shlex, sys
try:
    words = shlex.split(os.environ["MEMORY_COMMAND"].replace("\\\n", " "))
except ValueError as error:
    sys.exit(f"the command can not be split into words: {error}")
sys.stdout.buffer.write(b"".join(os.fsencode(word) + b"\0" for word in words))
' >"$words" || return 2
  command=(forgather-mem run --report "$report")
  [ -n "${MEMORY_BASELINE:-}" ] && command+=(--baseline "$MEMORY_BASELINE")
  while IFS= read -r -d '' word; do command+=("$word"); done <"$words"
  "${command[@]}" 3>&-
}

exec 3> >(tee "$said" >&2)
reader=$!
start 2>&3
code=$?
exec 3>&-
# It has read all when it ends; a process that the command has left behind may keep it for ever
for _ in {1..1000}; do kill -0 "$reader" 2>/dev/null || break; sleep 0.01; done
"$python" "$(dirname "$0")/summary.py" "$code" "$said" "$report" "${MEMORY_BASELINE:-}" "${MEMORY_COMPARE_WITH:-}" >>"$summary"
[ -f "$report" ] && echo "report=$report" >>"${GITHUB_OUTPUT:-/dev/null}"
exit "$code"
