#!/usr/bin/env bash
# Runs the checks of the Python package that lie beside this script (tools/gpu_python_bundle).
#
#   run_gpu_python_checks.sh               the package's tests, on the CPU backend and on a GPU, and
#                                          the benchmark
#   run_gpu_python_checks.sh --tests       without the benchmark
#   run_gpu_python_checks.sh --package     the tests of the package alone
#   run_gpu_python_checks.sh --adapters    those of the adapters alone
#   run_gpu_python_checks.sh --benchmark   only that
#
# Needs Python ($PYTHON, python3 unless set) with grpcio, protobuf, numpy, and PyTorch 2.4 or later; the
# wheel is installed into a folder of its own. Each check writes $OUT/NAME.log ($OUT is ./gpu_logs
# unless set). A table comes last. A check that fails, takes too long or, on the GPU, skips a test does
# not stop the others, but the status is then 1.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
here="$PWD"
logs="${OUT:-$here/gpu_logs}"
mkdir -p "$logs"
logs="$(cd "$logs" && pwd)"
python="${PYTHON:-python3}"
packages="$(mktemp -d)"
trap 'rm -rf "$packages"' EXIT
export KVTIERD="$here/kvtierd" KVTIER_WORKED_EXAMPLE="$here/worked_example.json"
export KVTIER_README="$here/README.md" PYTHONDONTWRITEBYTECODE=1
table=()
failures=0

# check NAME SECONDS SKIPS_ALLOWED COMMAND...
check() {
  local name="$1" limit="$2" may_skip="$3" begin=$SECONDS status=0 verdict=ok log="$logs/$1.log"
  shift 3
  timeout -k 5 "$limit" "$@" >"$log" 2>&1 || status=$?
  local ran skipped
  ran="$(sed -n 's/^Ran \([0-9]*\) tests\?.*/\1/p' "$log" | tail -1)"
  skipped="$(sed -n 's/^\(OK\|FAILED\) (.*skipped=\([0-9]*\).*/\2/p' "$log" | tail -1)"
  if ((status == 124 || status == 137)); then
    verdict="TIMEOUT ($limit s)"
  elif ((status == 77)); then
    verdict=SKIPPED
  elif ((status != 0)); then
    verdict="FAILED ($status)"
  elif ((${skipped:-0} > 0 && may_skip == 0)); then
    verdict=SKIPPED
  fi
  table+=("$(printf '%-24s %-16s %6s %8s %8d' "$name" "$verdict" "${ran:--}" "${skipped:-0}" \
    $((SECONDS - begin)))")
  [[ "$verdict" == ok ]] && return
  failures=$((failures + 1))
  echo "--- $name: $verdict"
  grep -E '^(FAIL|ERROR):|Error: |skipped' "$log" | sort | uniq -c | sort -rn | head -20
  tail -25 "$log"
}

# unittests NAME SECONDS SKIPS_ALLOWED MODULE...
unittests() {
  local name="$1" limit="$2" may_skip="$3"
  shift 3
  check "$name" "$limit" "$may_skip" env -C "$here/tests" PYTHONPATH="$packages" "$python" -m unittest \
    -v "$@"
}

package_tests() {
  # One GPU alone cannot have a tensor on another one; nothing else may be skipped.
  unittests cpu_session 60 0 session_test admin_test example_test
  unittests cpu_cache 60 0 cache_test arrays_test answers_test
  unittests cpu_aio 60 0 aio_test
  # Inductor wants a compiler that the machine may not have.
  unittests cpu_torch 180 1 torch_test
  unittests gpu_descriptors 240 1 gpu_test.GpuTest
  unittests gpu_ipc 240 1 gpu_test.IpcTest
}

adapter_tests() {
  local decoder="$here/checks/dsa_decoder/main.py"
  [[ -e "$decoder" ]] || return
  for options in "" --mutate "--workers 2" "--ranks 2"; do
    # shellcheck disable=SC2086
    check "decoder${options// /_}" 300 0 env PYTHONPATH="$packages" "$python" "$decoder" \
      --kvtierd "$KVTIERD" --device cuda $options
    tail -12 "$logs/decoder${options// /_}.log"
  done
}

benchmark() {
  check call_overhead 240 0 env PYTHONPATH="$packages" "$python" benchmarks/call_overhead.py \
    --kvtierd="$KVTIERD" --cxx="$here/plane_benchmark" --json="$logs/call_overhead.json"
  grep -E '^\||^Python|^C\+\+' "$logs/call_overhead.log"
  check adapters 120 0 env PYTHONPATH="$packages" "$python" benchmarks/adapters.py \
    --kvtierd="$KVTIERD" --device=cuda
  cat "$logs/adapters.log"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
check install 60 0 "$python" -m pip install --quiet --no-index --no-deps --target "$packages" ./*.whl
env PYTHONPATH="$packages" "$python" - <<'PYTHON_CODE'
import sys, grpc, google.protobuf, numpy, kvtier
versions = ["python " + sys.version.split()[0], "grpcio " + grpc.__version__,
            "protobuf " + google.protobuf.__version__, "numpy " + numpy.__version__]
try:
    import torch
    versions.append("torch " + torch.__version__)
except ImportError:
    versions.append("no torch")
print(", ".join(versions))
PYTHON_CODE
case "${1:-}" in
  '') package_tests; adapter_tests; benchmark ;;
  --tests) package_tests; adapter_tests ;;
  --package) package_tests ;;
  --adapters) adapter_tests ;;
  --benchmark) benchmark ;;
  *)
    sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
{
  printf '%-24s %-16s %6s %8s %8s\n' check verdict tests skipped seconds
  printf '%s\n' "${table[@]}"
} | tee "$logs/table.txt"
exit $((failures > 0))
