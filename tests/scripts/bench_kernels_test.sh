#!/usr/bin/env bash
# The benchmarks of the kernels run, name themselves once, and compute what the oracle does.
# Usage: bench_kernels_test.sh HEADQ_BENCH_KERNELS
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/check.sh"

program=$1
report=$scratch/report.json
quick=(--benchmark_repetitions=1 --benchmark_min_time=0.0001)
wanted='(decode|keys|values|softmax)/.*d(64|16)/q3/(scalar|ggml)/t1|prompt/nib.*d64|encode/.*d64/.*scalar'

expect_exit 0 "$program" --depth 1024 --layers 1 "${quick[@]}" --benchmark_filter="$wanted" \
  --benchmark_out="$report"
expect_output 'ns/token/head'
expect_output 'decode/nib2.5:nib2/d64/q3/scalar/t1 '
expect_exit 0 python3 - "$report" <<'PYTHON'
import json, sys

runs = json.load(open(sys.argv[1]))["benchmarks"]
names = [run["name"] for run in runs]
assert len(names) == len(set(names)), "a name twice"
kinds = {name.split("/")[0] for name in names}
assert kinds == {"decode", "keys", "values", "softmax", "prompt", "encode"}, kinds
for run in runs:
    name = run["name"]
    if "/f16/" in name:
        assert 0 < run["error"] < 0.05, (name, run["error"])
        continue
    # A codec's error is some percent of the output; integers add at most 1 % to its variance.
    assert 0 < run["error"] < 1, (name, run["error"])
    if "rounding" in run:
        assert 0 < run["rounding"] < 0.1 * run["error"], (name, run["rounding"], run["error"])
    assert ("x f16" in run) == (name.split("/")[0] in ("decode", "prompt")), name
    # nib2.5/nib2 has 4.5 bits for a channel of keys and values: 36 bytes at 64 channels.
    if name.startswith("decode/nib2.5:nib2"):
        assert run["B/token"] == 36, (name, run["B/token"])
PYTHON

expect_exit 2 "$program" --depth 1
expect_output 'headq-bench-kernels: '
expect_exit 2 "$program" --unknown
expect_exit 1 "$program" --benchmark_filter=nothing-has-this-name
