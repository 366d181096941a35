#!/usr/bin/env bash
# Runs the checks of a daemon and its workers that lie beside this script (tools/gpu_daemon_bundle).
#
#   run_gpu_daemon_checks.sh [GTEST_FILTER]
#
# The log is $OUT/daemon.log ($OUT is ./gpu_logs unless set).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
logs="${OUT:-$PWD/gpu_logs}"
mkdir -p "$logs"
export LD_LIBRARY_PATH="$PWD/lib"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
timeout -k 5 180 ./daemon_test --gtest_filter="${1:-*}" >"$logs/daemon.log" 2>&1
status=$?
grep -E '^\[ |Failure|steps ' -A4 "$logs/daemon.log" | grep -v '^20' | tail -60
exit "$status"
