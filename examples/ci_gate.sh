#!/usr/bin/env bash
# A gate for continuous integration: fails when a change of the model, of torch or of the options exposes communication.
#
#     examples/ci_gate.sh
#     LIMIT_US=5000 examples/ci_gate.sh train.py:build --world-size 64 --topology h200x8-ib400
#
# Needs no GPU and no other machine: the step is captured in a pretended world and simulated, so the same graph gives the
# same number on every run. `counterpoint explain --help` lists the values that a condition may use.
set -euo pipefail

limit="${LIMIT_US:-100}"
if (($# == 0)); then
    set -- "$(dirname "$0")/plain_loop.py:build" --parallel replicate --world-size 16
fi

mkdir -p out
counterpoint explain "$@" --html out/timeline.html --fail-if "exposed_us > $limit or left_alone > 0"
echo "exposed time is within $limit us, and no collective was left alone"
