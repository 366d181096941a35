#!/bin/sh
echo "bazel coverage needs tools that are not vendored: build with --copt=--coverage" >&2
exit 1
