#!/usr/bin/env bash
# Runs the GPU checks that lie beside this script (tools/gpu_bundle), cheap ones first.
#
#   run_gpu_checks.sh                the cases, the parity tests and what only a GPU can show
#   run_gpu_checks.sh --quick        the same without large shapes, ten steps a shape
#   run_gpu_checks.sh --backend      the device backend, alone and with a second process
#   run_gpu_checks.sh --sanitizer    compute-sanitizer's four tools over a part of it
#   run_gpu_checks.sh --benchmark [NAME [OPTION...]]    how long swap_in, backup, group and shared_prefix
#                                    take, or NAME alone, with options of its own; scale only if
#                                    named
#   run_gpu_checks.sh --pool         what a large host pool costs: 56 GiB of host memory
#   run_gpu_checks.sh --all          all but --quick and --pool
#
# Each check writes $OUT/NAME.log ($OUT is ./gpu_logs unless set); the logs of those that passed
# end up in $OUT/passed.log. A table comes last. A check that fails, takes too long, or skips a
# test, as all do without a GPU, does not stop the others, but the status is then 1.
# KVTIER_PARITY_STEPS sets the random steps of each shape, KVTIER_PARITY_SEED their seed.
# Benchmarks leave $OUT/NAME.json and $OUT/NAME_machine.json.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
logs="${OUT:-gpu_logs}"
table=()
failures=0

# tests LOG WORD: the number behind "[  WORD  ]" in GoogleTest's summary.
tests() {
  sed -n "s/^\[ *$2 *\] \([0-9]*\) tests\?[.,].*/\1/p" "$1" | tail -1
}

# check NAME SECONDS COMMAND...
check() {
  local name="$1" limit="$2" begin=$SECONDS status=0 verdict=ok skipped
  local log="$logs/$name.log"
  shift 2
  timeout -k 5 "$limit" "$@" >"$log" 2>&1 || status=$?
  skipped="$(tests "$log" SKIPPED)"
  if ((status == 124 || status == 137)); then
    verdict="TIMEOUT ($limit s)"
  elif ((status == 77)); then
    verdict=SKIPPED
  elif ((status != 0)); then
    verdict="FAILED ($status)"
  elif ((${skipped:-0} > 0)); then
    verdict=SKIPPED
  fi
  table+=("$(printf '%-28s %-16s %6s %6s %7s %7d' "$name" "$verdict" "$(tests "$log" PASSED)" \
    "$(tests "$log" FAILED)" "$skipped" $((SECONDS - begin)))")
  if [[ "$verdict" == ok ]]; then
    { echo "=== $name"; cat "$log"; } >>"$logs/passed.log"
    rm "$log"
    return
  fi
  failures=$((failures + 1))
  echo "--- $name: $verdict"
  if [[ "$verdict" == SKIPPED ]]; then
    grep -m1 -i 'skipped:' "$log"
    return
  fi
  grep -E -A6 'Failure|^\[  FAILED|ERROR SUMMARY|=========|wrote|left a|rror' "$log" |
    head -40
  tail -5 "$log"
}

# Prints the path of compute-sanitizer.
find_sanitizer() {
  command -v compute-sanitizer && return
  local path
  for path in /usr/local/cuda*/bin/compute-sanitizer; do
    [[ -x "$path" ]] && echo "$path" && return
  done
  return 1
}

# check_under TOOL NAME SECONDS BINARY FILTER
check_under() {
  check "$1_$2" "$3" "$sanitizer" --tool "$1" --error-exitcode 86 --print-limit 20 \
    "$here/$4" "--gtest_filter=$5"
}

cases() {
  local name
  for name in launch golden cases_eviction cases_kept cases_lookup cases_state backup shared_rows; do
    check "$name" 60 "$here/cuda_${name}_test"
  done
  check device 120 "$here/device_test"
}

quick() {
  cases
  KVTIER_PARITY_STEPS="${KVTIER_PARITY_STEPS:-10}" \
    check parity_small 120 "$here/parity_test" '--gtest_filter=Small/*:LargeCalls.*'
}

checks() {
  cases
  check parity_small 180 "$here/parity_test" '--gtest_filter=Small/*:LargeCalls.*'
  check cases_bytes 120 "$here/cuda_cases_bytes_test"
  check parity_large 300 "$here/parity_test" '--gtest_filter=Large/*'
}

backend() {
  check backend 180 "$here/cuda_backend_test"
  check processes 180 "$here/cuda_process_test"
  check conformance 300 "$here/cuda_conformance_test"
}

sanitize() {
  local sanitizer tool
  if ! sanitizer="$(find_sanitizer)"; then
    echo "no compute-sanitizer, neither in PATH nor in /usr/local/cuda*/bin"
    failures=$((failures + 1))
    return
  fi
  for tool in memcheck synccheck initcheck; do
    check_under "$tool" golden 60 cuda_golden_test '*Eager*'
    check_under "$tool" parity 150 parity_test '*'
  done
  # Some twenty times as slow as the others.
  check_under racecheck golden 60 cuda_golden_test '*Eager*'
  KVTIER_PARITY_STEPS="${KVTIER_PARITY_STEPS:-6}" check_under racecheck parity 200 parity_test '*'
  check_under memcheck backup 60 cuda_backup_test '*Eager*'
  check_under memcheck lookup 60 cuda_cases_lookup_test '*Eager*'
  check_under memcheck shared_rows 60 cuda_shared_rows_test '*Eager*'
  check_under racecheck shared_rows 60 cuda_shared_rows_test '*Eager*'
  check_under memcheck state 60 cuda_cases_state_test '*Eager*'
}

# benchmark NAME [OPTION...]
benchmark() {
  local name="$1"
  check "$name" 240 "$here/${name}_benchmark" --json="$logs/$name.json" \
    --commit="$(cat "$here/commit" 2>/dev/null)" "${@:2}"
  [[ -f "$logs/$name.log" ]] || sed -n "/^=== $name\$/,/^===/p" "$logs/passed.log" | sed '/^===/d'
}

benchmarks() {
  if ((${#options[@]} > 0)); then
    benchmark "${options[@]}"
    return
  fi
  local name
  for name in swap_in backup group shared_prefix; do benchmark "$name"; done
}

pool() {
  check pool 400 "$here/pool_benchmark"
  [[ -f "$logs/pool.log" ]] || sed -n '/^=== pool/,$p' "$logs/passed.log"
}

options=("${@:2}")
case "${1:-}" in
  '') parts=(checks backend) ;;
  --quick) parts=(quick) ;;
  --backend) parts=(backend) ;;
  --sanitizer) parts=(sanitize) ;;
  --benchmark) parts=(benchmarks) ;;
  --pool) parts=(pool) ;;
  --all) parts=(checks backend sanitize benchmarks) ;;
  *)
    sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac

mkdir -p "$logs"
rm -f "$logs/passed.log"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null ||
  echo 'no nvidia-smi'
for part in "${parts[@]}"; do "$part"; done
{
  printf '%-28s %-16s %6s %6s %7s %7s\n' check verdict passed failed skipped seconds
  printf '%s\n' "${table[@]}"
} | tee "$logs/table.txt"
exit $((failures > 0))
