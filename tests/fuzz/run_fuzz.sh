#!/usr/bin/env bash
# Fuzzes on every core for a while: one process a core, of which half are the seeded driver and half
# libFuzzer, each with its own seed. Made by tools/fuzz_bundle; needs glibc alone.
#
#   run_fuzz.sh [SECONDS]      480
#
#   CORES=14                   processes; default: all cores but two
#   SHARES="api=6 simulation=3 ..."   processes of each target in turn; the default is below
#   SEED=1                     seeds are from here on
#   OUT=out                    where logs, the new corpus and inputs that fail come
#
# Ends with a table: what each target did, and what was found. 1 if anything was.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
seconds="${1:-480}"
cores="${CORES:-$(($(nproc) > 3 ? $(nproc) - 2 : $(nproc)))}"
shares="${SHARES:-api=6 simulation=4 fd_socket=1 wire=1 trace=1 config=1 kvtierctl=1 metrics=1 pool_folder=1}"
seed="${SEED:-1}"
out="${OUT:-$here/out}"
mkdir -p "$out"/{logs,findings,corpus}
out="$(cd "$out" && pwd)"

export ASAN_OPTIONS=detect_container_overflow=0:protect_shadow_gap=0
export LSAN_OPTIONS="suppressions=$here/lsan.supp:print_suppressions=0"
export UBSAN_OPTIONS=print_stacktrace=1
# This AddressSanitizer wants its place in the address space: not where it may be taken by chance.
plain=()
setarch "$(uname -m)" -R true 2>/dev/null && plain=(setarch "$(uname -m)" -R)

run_seeded() { # target number seconds
  timeout -k 5 $(($3 + 60)) "${plain[@]}" "$here/$1" --operations=1000000000000 --seconds="$3" \
    --seed=$((seed + $2)) "$here/corpus/$1"/* >>"$out/logs/$1-$2.log" 2>&1
}
run_libfuzzer() { # target number seconds
  timeout -k 5 $(($3 + 60)) "${plain[@]}" "$here/$1" "$out/work/$1-$2" -seed=$((seed + $2)) \
    -max_total_time="$3" -timeout=60 -max_len=4096 -rss_limit_mb=6000 -print_final_stats=1 \
    -artifact_prefix="$out/findings/$1-$2-" >>"$out/logs/$1-$2.log" 2>&1
}
# One that ends early has found something: on with the next seed.
run_one() { # target number
  local end=$((SECONDS + seconds)) left kind=run_libfuzzer again work
  (($2 % 2 == 0)) && kind=run_seeded
  for again in {0..39}; do
    left=$((end - SECONDS))
    ((left > 5)) || return 0
    work=$(($2 + 1000 * again))
    mkdir -p "$out/work/$1-$work"
    "${plain[@]}" "$here/$1" --write="$out/work/$1-$work" "$here/corpus/$1"/* >/dev/null
    "$kind" "$1" "$work" "$left" || echo "$1 seed $((seed + work))" >>"$out/findings.list"
  done
}

targets=()
while ((${#targets[@]} < cores)); do
  for share in $shares; do
    for ((i = 0; i < ${share#*=} && ${#targets[@]} < cores; ++i)); do targets+=("${share%=*}"); done
  done
done
rm -f "$out/findings.list"
echo "$(date -u +%FT%TZ): $seconds s, ${#targets[@]} processes: ${targets[*]}"
declare -A numbers=()
for target in "${targets[@]}"; do
  number=${numbers[$target]:-0}
  numbers[$target]=$((number + 1))
  run_one "$target" "$number" &
done
wait

# What covers more than the corpus did, from all processes: as few inputs as do.
if [[ ${MERGE:-1} == 1 ]]; then
  for target in "${!numbers[@]}"; do
    mkdir -p "$out/corpus/$target"
    timeout -k 5 50 "${plain[@]}" "$here/$target" -merge=1 -timeout=60 -max_len=4096 \
      "$out/corpus/$target" "$out/work/$target"-* >"$out/logs/merge-$target.log" 2>&1 &
  done
  wait
  tar -C "$out" -cJf "$out/corpus.tar.xz" corpus
fi
rm -rf "$out/work"
for log in "$out"/logs/*-*.log; do
  grep -qE "FAILED|ERROR: |runtime error|SUMMARY" "$log" && cp "$log" "$out/findings/"
done

{
  echo "| target | processes | operations | refused | inputs of libFuzzer | findings |"
  echo "| --- | --- | --- | --- | --- | --- |"
  for target in $(printf '%s\n' "${!numbers[@]}" | sort); do
    cat "$out/logs/$target"-*.log | awk -v target="$target" -v processes="${numbers[$target]}" '
      { for (i = 1; i <= NF; ++i) if (split($i, part, "=") == 2) {
          if (part[1] == "operations") operations += part[2]
          if (part[1] == "errors") errors += part[2] } }
      /stat::number_of_executed_units/ { inputs += $2 }
      /FAILED:|ERROR: (Addr|libF)|runtime error/ { ++findings }
      END { printf "| %s | %d | %d | %d | %d | %d |\n", target, processes, operations, errors, inputs, findings }'
  done
} | tee "$out/table.md"
awk -F'|' 'NR > 2 { operations += $4 } END { printf "all: %d operations\n", operations }' "$out/table.md"
[[ ! -s "$out/findings.list" ]] || { cat "$out/findings.list"; exit 1; }
