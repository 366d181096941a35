#!/bin/sh
# Started by Bazel in front of each test of --config=asan, ubsan or tsan, in the
# runfiles of this repository. Processes that the test starts inherit the options.

# The CUDA driver maps memory where ASan keeps its gap.
ASAN_OPTIONS="protect_shadow_gap=0:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
LSAN_OPTIONS="suppressions=$PWD/tools/lsan.supp:print_suppressions=0:${LSAN_OPTIONS:-}"
UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
# What the system's libraries do among themselves is theirs.
TSAN_OPTIONS="ignore_noninstrumented_modules=1:${TSAN_OPTIONS:-}"
export ASAN_OPTIONS LSAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS
exec "$@"
