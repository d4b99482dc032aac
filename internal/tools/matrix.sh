#!/bin/sh
# Runs a command on each supported RabbitMQ, one after the other, and ends with a table:
#
#     sh internal/tools/matrix.sh make test
#
# The exit code is 0 only if the command passed on every version.
table='RabbitMQ   result   seconds'
failed=0
for broker in '' 4.0 4.3; do
	name=${broker:-installed}
	echo "matrix: RabbitMQ $name"
	began=$(date +%s)
	result=ok
	BROKER=$broker MILLPOND_BROKER=$broker AMQP_URL= "$@" || { result=FAILED; failed=1; }
	table="$table
$(printf '%-9s  %-7s  %s' "$name" "$result" $(($(date +%s) - began)))"
done
echo "$table"
exit $failed
