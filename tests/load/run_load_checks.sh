#!/usr/bin/env bash
# Runs the load that lies beside this script (tools/load_bundle).
#
#   run_load_checks.sh [--seconds=N] [--warmup_seconds=N] [--hostile=0|1] [OPTION...]
#
# The defaults are those of the program: ten minutes after one of warm-up, and every hostile peer.
# Its status is the program's: 0 if nothing is wrong. $OUT (./load_logs unless set) gets load.json
# and load_machine.json (load_hostile.json with hostile peers), the tables as .log, what the daemon
# logged as .err.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
logs="${OUT:-$PWD/load_logs}"
mkdir -p "$logs"
name=load_hostile options=(--hostile=all)
for option in "$@"; do
  case "$option" in
    --hostile=0) name=load options=(--hostile=none "${options[@]:1}") ;;
    --hostile=1) ;;
    *) options+=("$option") ;;
  esac
done
export LD_LIBRARY_PATH="$PWD/lib"
./load "${options[@]}" --json="$logs/$name.json" --commit="$(cat commit 2>/dev/null)" \
  2>"$logs/$name.err" | tee "$logs/$name.log"
status=${PIPESTATUS[0]}
# Lines of refusals, by the thousand, are for nobody.
tail -c 1000000 "$logs/$name.err" >"$logs/$name.err.tail" && mv "$logs/$name.err.tail" "$logs/$name.err"
exit "$status"
