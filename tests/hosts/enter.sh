#!/bin/sh
# Runs a command as if on another host: enter.sh HOST COMMAND... in the network namespace HOST, under its
# host name, with temporary files of its own. With a shared name and /tmp Open MPI's daemons meet in one
# session folder, and now and then one of them leaves without a word while mpirun waits for it.
host=$1
shift
TMPDIR=/tmp/$host
export TMPDIR
mkdir -p "$TMPDIR"
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$host" "$@"
