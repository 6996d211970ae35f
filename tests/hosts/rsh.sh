#!/bin/sh
# Open MPI's remote shell between namespaces: called as rsh.sh [options] HOST COMMAND...; the host is a
# namespace of the same name. enter.sh gives it a host name and a /tmp of its own.
while :; do
    case $1 in
    -l | -p | -o) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
host=$1
shift
exec "$(dirname "$0")/enter.sh" "$host" /bin/sh -c "$*"
