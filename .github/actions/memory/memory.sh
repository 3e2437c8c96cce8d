#!/usr/bin/env bash
# Runs MEMORY_COMMAND under forgather-mem; the exit code is that of forgather-mem: 3 when memory has grown.
# What it says goes to the job's summary, too.
set -uo pipefail
summary="${GITHUB_STEP_SUMMARY:-/dev/null}"
report="${RUNNER_TEMP:-/tmp}/memory-report.json"
said="${RUNNER_TEMP:-/tmp}/memory-said.txt"
options=(--report "$report")
[ -n "${MEMORY_BASELINE:-}" ] && options+=(--baseline "$MEMORY_BASELINE")
read -r -a words <<<"$MEMORY_COMMAND"

forgather-mem run "${options[@]}" "${words[@]}" 2> >(tee "$said" >&2)
code=$?
wait
{
  echo "### Memory"
  if [ -n "${MEMORY_COMPARE_WITH:-}" ] && [ -f "$report" ]; then
    forgather-mem compare "$MEMORY_COMPARE_WITH" "$report" --markdown
  fi
  echo '```text'
  sed -n '/^== forgather-mem/,$p' "$said"
  echo '```'
} >>"$summary"
[ -f "$report" ] && echo "report=$report" >>"${GITHUB_OUTPUT:-/dev/null}"
exit "$code"
