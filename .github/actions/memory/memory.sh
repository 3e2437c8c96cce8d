#!/usr/bin/env bash
# Runs MEMORY_COMMAND under forgather-mem; the exit code is that of forgather-mem: 3 when memory has grown.
# What it says goes to the job's summary, too.
set -uo pipefail
summary="${GITHUB_STEP_SUMMARY:-/dev/null}"
report="${RUNNER_TEMP:-/tmp}/this-run.json"
said="${RUNNER_TEMP:-/tmp}/memory-said.txt"
words="${RUNNER_TEMP:-/tmp}/memory-words"
rm -rf "$report" "$said" "$words" # an earlier step's
python="$(command -v python3 || command -v python)"

# Words are quoted as for a shell, and line breaks are spaces; no shell sees them
"$python" -c '
import os, shlex, sys
try:
    words = shlex.split(os.environ["MEMORY_COMMAND"].replace("\\\n", " "))
except ValueError as error:
    sys.exit(f"the command can not be split into words: {error}")
sys.stdout.buffer.write(b"".join(os.fsencode(word) + b"\0" for word in words))
' >"$words" || exit 2
command=(forgather-mem run --report "$report")
[ -n "${MEMORY_BASELINE:-}" ] && command+=(--baseline "$MEMORY_BASELINE")
while IFS= read -r -d '' word; do command+=("$word"); done <"$words"

exec 3> >(tee "$said" >&2)
reader=$!
"${command[@]}" 2>&3 3>&-
code=$?
exec 3>&-
# It has read all when it ends; a process that the command has left behind may keep it for ever
for _ in {1..1000}; do kill -0 "$reader" 2>/dev/null || break; sleep 0.01; done
case "$code" in
  0) decision="${MEMORY_BASELINE:+ not grown}" ;;
  3) decision=" grown" ;;
  4) decision=" can't be judged" ;;
  *) decision=" the command failed with $code" ;;
esac
# From the first line that begins so: in a fence that is longer than any in the text
fenced='
import re, sys
text = sys.stdin.buffer.read()
fence = b"`" * max(3, *(len(found) + 1 for found in re.findall(b"`+", text)), 0)
sys.stdout.buffer.write(fence + b"text\n" + text + fence + b"\n" if text else b"")
'
{
  echo "### Memory${decision:+:$decision}"
  sed '1,/^=====*$/d; s/^forgather-mem: //' "$said" | "$python" -c "$fenced"
  for before in "${MEMORY_BASELINE:-}" "${MEMORY_COMPARE_WITH:-}"; do
    if [ -e "$before" ] && [ -f "$report" ]; then
      forgather-mem compare "$before" "$report" --markdown
    fi
  done
  printf '\n<details><summary>The report</summary>\n\n'
  # The folders that its last lines name are gone with the job
  sed -n '/^== forgather-mem/,/^=====*$/p' "$said" | sed '/^forgather-mem report /d; /^tensorboard /d' | "$python" -c "$fenced"
  printf '\n</details>\n'
} >>"$summary"
[ -f "$report" ] && echo "report=$report" >>"${GITHUB_OUTPUT:-/dev/null}"
exit "$code"
