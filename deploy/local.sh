#!/bin/sh
# Start a program in several processes on this machine, as one run:
#   deploy/local.sh [PROGRAM [NUM_PROCESSES]]
# If one process is killed, the others end. If $CHECKPOINT is set to a folder, the same command resumes
# the run.
set -u
program=${1:-examples/hosts.py}
export NUM_PROCESSES="${2:-2}" COORDINATOR="127.0.0.1:${PORT:-7801}"

pids=
process=0
while [ "$process" -lt "$NUM_PROCESSES" ]; do
    PROCESS_ID=$process "${PYTHON:-python}" "$program" &
    pids="$pids $!"
    process=$((process + 1))
done
trap 'kill $pids 2>/dev/null' INT TERM

status=0
for pid in $pids; do
    wait "$pid" || status=$?
done
exit "$status"
