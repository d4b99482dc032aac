#!/bin/sh
# Runs the storm three times, each with a planted mistake, and fails unless the checker finds it.
set -u
storm=$1
shift
for bug in ack-early hard-nack at-most-once; do
	code=0
	MILLPOND_BROKER=4.0 "$storm" -minutes 1.5 -seed 2 -strategy perqueue -queues 0 -timer 10s -bug $bug "$@" || code=$?
	if [ $code != 1 ]; then
		echo "$bug was not found" >&2
		exit 1
	fi
done
