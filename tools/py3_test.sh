#!/bin/sh
# Started by Bazel for a py3_test, in the runfiles of this repository.
path="$PWD"
for repository in ../*/; do
  path="$path:$PWD/${repository%/}"
done
PYTHONPATH="$path" PYTHONDONTWRITEBYTECODE=1 \
  exec "${PYTHON3:-/usr/bin/python3}" tools/py3_test.py "$@"
