#!/usr/bin/env bash
# Runs the checks of a daemon and its workers that lie beside this script (tools/gpu_daemon_bundle).
#
#   run_gpu_daemon_checks.sh [GTEST_FILTER]     the tests
#   run_gpu_daemon_checks.sh --death [GTEST_FILTER]
#                                               of them: kill -9 in every phase, restarts with the
#                                               pool kept, lost and wedged devices. Root also sees
#                                               them on 2 MiB pages
#   run_gpu_daemon_checks.sh --benchmark        what a swap-in costs by plane, and the CPU's part
#   run_gpu_daemon_checks.sh --rpc [OPTION...]  calls beside a bare gRPC server; rpc.json in $OUT
#   run_gpu_daemon_checks.sh --restart [OPTION...]
#                                               restarts that keep the pool; restart.json in $OUT
#
# Logs are in $OUT (./gpu_logs unless set).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
logs="${OUT:-$PWD/gpu_logs}"
mkdir -p "$logs"
export LD_LIBRARY_PATH="$PWD/lib"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
if [[ "${1:-}" == --benchmark ]]; then
  timeout -k 5 120 ./plane_benchmark 2>"$logs/plane_benchmark.err" | tee "$logs/plane_benchmark.log"
  status=${PIPESTATUS[0]}
  for name in swap_in invalidate; do
    timeout -k 5 60 "./${name}_benchmark" --benchmark_min_time=0.2 >"$logs/${name}_benchmark.log" 2>&1
    cat "$logs/${name}_benchmark.log"
  done
  exit "$status"
fi
if [[ "${1:-}" == --rpc ]]; then
  timeout -k 5 240 ./rpc_benchmark --json="$logs/rpc.json" --commit="$(cat commit 2>/dev/null)" \
    "${@:2}" 2>"$logs/rpc_benchmark.err"
  exit
fi
if [[ "${1:-}" == --restart ]]; then
  timeout -k 5 300 ./restart_benchmark --backend=cuda --json="$logs/restart.json" \
    --commit="$(cat commit 2>/dev/null)" "${@:2}" 2>"$logs/restart_benchmark.err"
  exit
fi
programs=(daemon_test worker_death_test daemon_death_test lost_device_test)
if [[ "${1:-}" == --death ]]; then
  programs=("${programs[@]:1}")
  shift
fi
status=0
for program in "${programs[@]}"; do
  timeout -k 5 180 "./$program" --gtest_filter="${1:-*}" >"$logs/$program.log" 2>&1 || status=1
  echo "=== $program"
  grep -E '^\[ |Failure|steps |killed |all back|exec to|device lost|wedged' -A4 "$logs/$program.log" |
    grep -v -e '^20' -e '^--' | tail -60
done
exit "$status"
