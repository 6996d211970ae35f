#!/usr/bin/env bash
# Four network namespaces joined by a bridge act as four hosts; mpirun starts one rank on each.
#   hosts.sh CASE MOESAIC FIXTURES WORKDIR
# same_tokens: the ids across hosts equal those of one process, whole and sliced, with a second copy of
#              the container that holds only what a rank needs on host 4.
# lost_rank:   an expert rank is killed in mid-answer: every rank is gone within 10 s, the exit code is not
#              0, nothing claims to be a complete answer, and the others name the peer they waited for.
# The namespaces carry this process's id, so that runs do not meet, and go when the script ends.
set -u
case_name=$1 moesaic=$2 fixtures=$3 work=$4
here=$(cd "$(dirname "$0")" && pwd)
tag=ms$$
hosts=(${tag}a ${tag}b ${tag}c ${tag}d)

skip() {
    echo "SKIPPED: $1"
    exit 77
}
fail() {
    echo "FAILED: $1"
    exit 1
}

[ "$(id -u)" -eq 0 ] || skip "network namespaces need root"
command -v ip >/dev/null || skip "ip (iproute2) is not installed"
ip netns add "${tag}br" 2>/dev/null || skip "network namespaces are denied here"

cleanup() {
    for ns in "${hosts[@]}" "${tag}br"; do
        for pid in $(ip netns pids "$ns" 2>/dev/null); do kill -9 "$pid" 2>/dev/null; done
        ip netns del "$ns" 2>/dev/null
        rm -rf "/etc/netns/$ns" "/tmp/$ns"
    done
}
trap cleanup EXIT

unshare --uts true 2>/dev/null || skip "host name namespaces are denied here"
ip netns exec "${tag}br" ip link add br0 type bridge || skip "no bridge device here"
ip netns exec "${tag}br" ip link set br0 up
for i in 1 2 3 4; do
    ns=${hosts[i - 1]}
    ip netns add "$ns" || skip "network namespaces are denied here"
    ip netns exec "$ns" ip link set lo up
    ip netns exec "$ns" ip link add eth0 type veth peer name "p$i" netns "${tag}br" || skip "no veth here"
    ip netns exec "${tag}br" ip link set "p$i" master br0 up
    ip netns exec "$ns" ip addr add "10.77.0.$i/24" dev eth0
    ip netns exec "$ns" ip link set eth0 up
    mkdir -p "/etc/netns/$ns"
    {
        echo "127.0.0.1 localhost"
        for j in 1 2 3 4; do echo "10.77.0.$j ${hosts[j - 1]}"; done
    } >"/etc/netns/$ns/hosts"
done

rm -rf "$work"
mkdir -p "$work"
"$moesaic" convert "$fixtures/wide-bf16" "$work/model" 2>"$work/convert.log" || {
    cat "$work/convert.log"
    fail "convert"
}

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
hostlist=$(
    IFS=,
    echo "${hosts[*]}"
)
# One rank a host, over TCP only: the namespaces share memory and would be taken for one host.
across() {
    "$here/enter.sh" "${hosts[0]}" timeout -k 10 100 mpirun --host "$hostlist" -n 4 --map-by node \
        --bind-to none --mca plm rsh --mca plm_rsh_agent "$here/rsh.sh" --mca plm_rsh_no_tree_spawn 1 \
        --mca orte_keep_fqdn_hostnames 1 --mca oob_tcp_if_include eth0 --mca btl tcp,self \
        --mca btl_tcp_if_include eth0 "$@"
}
ids=$(python3 -c "import json,sys; print(','.join(map(str, json.load(open(sys.argv[1]))['prompts'][6]['ids'])))" \
    "$fixtures/wide-bf16/reference.json")
base=("$moesaic" run)
args=(--ids "$ids" --temp 0 --ignore-eos --threads 1)

same_tokens() {
    one=$("${base[@]}" "$work/model" "${args[@]}" -n 24 --ctx-size 512 --print-ids 2>"$work/one.log") ||
        fail "one process: $(cat "$work/one.log")"
    [ "$(echo "$one" | wc -w)" -eq 24 ] || fail "one process gave: $one"
    for placement in "" --slices; do
        four=$(across "${base[@]}" "$work/model" "${args[@]}" -n 24 --ctx-size 512 --print-ids $placement \
            2>"$work/four.log") || fail "four hosts $placement: $(cat "$work/four.log")"
        [ "$one" = "$four" ] || fail "four hosts $placement: expected '$one', found '$four'"
        echo "four hosts ${placement:-whole}: 24 ids equal"
    done

    # Expert hosts need neither dense.bin nor the layers' packs beyond their share: a copy without the
    # dense pack, mounted over the path on the last host, must do.
    cp -r "$work/model" "$work/partial"
    rm "$work/partial/dense.bin"
    cat >"$work/partial.sh" <<SH
#!/bin/sh
if [ "\$OMPI_COMM_WORLD_RANK" = 3 ]; then
    exec unshare -m sh -c 'mount --bind "$work/partial" "$work/model" && exec "\$@"' sh "\$@"
fi
exec "\$@"
SH
    chmod +x "$work/partial.sh"
    if unshare -m true 2>/dev/null; then
        four=$(across "$work/partial.sh" "${base[@]}" "$work/model" "${args[@]}" -n 24 --ctx-size 512 \
            --print-ids 2>"$work/partial.log") || fail "partial copy: $(cat "$work/partial.log")"
        [ "$one" = "$four" ] || fail "partial copy: expected '$one', found '$four'"
        echo "a partial copy on the last host: 24 ids equal"
    else
        echo "mount namespaces are denied here: the partial copy was not tried"
    fi
}

# Processes of this test's moesaic, by the model's path on their command line.
ours() {
    pgrep -f "moesaic run $work/model" | while read -r pid; do
        [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$(readlink -f "$moesaic")" ] && echo "$pid"
    done
}

lost_rank() {
    # Each rank's stderr goes to a file of its own: what Open MPI forwards may be lost as it ends.
    across sh -c 'exec "$@" 2>"$0.$OMPI_COMM_WORLD_RANK"' "$work/err" "${base[@]}" "$work/model" \
        "${args[@]}" -n 100000 --ctx-size 20000 --json >"$work/out" 2>"$work/mpirun.err" &
    job=$!
    # Wait until the answer has begun: the settings line comes before the first step.
    for _ in $(seq 1 300); do
        grep -q 'prompt 1' "$work/err.0" 2>/dev/null && break
        kill -0 $job 2>/dev/null || fail "the run ended early: $(cat "$work"/err.* "$work/mpirun.err")"
        sleep 0.1
    done
    sleep 1
    victim=
    for pid in $(ours); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx 'OMPI_COMM_WORLD_RANK=2' && victim=$pid
    done
    [ -n "$victim" ] || fail "rank 2 was not found"
    kill -9 "$victim"
    begin=$SECONDS
    while [ -n "$(ours)" ] && [ $((SECONDS - begin)) -le 12 ]; do sleep 0.2; done
    took=$((SECONDS - begin))
    [ -z "$(ours)" ] || fail "ranks left after $took s: $(ours | tr '\n' ' ')"
    [ $took -le 10 ] || fail "the ranks took $took s to leave"
    wait $job
    code=$?
    [ $code -ne 0 ] || fail "mpirun returned 0"
    [ -s "$work/out" ] && fail "an incomplete answer was printed: $(head -c 200 "$work/out")"
    grep -q INCOMPLETE "$work/err.0" || fail "the answer is not called incomplete: $(cat "$work/err.0")"
    grep -q 'waiting for rank [123] ' "$work/err.0" || fail "rank 0 names no peer: $(cat "$work/err.0")"
    for rank in 1 3; do
        # Rank 0 itself, or what rank 0 said when it ended the job.
        grep -q 'waiting for rank [0-3] ' "$work/err.$rank" ||
            fail "rank $rank names no peer: $(cat "$work/err.$rank")"
    done
    echo "rank 2 killed: all ranks gone after $took s, exit code $code"
    grep -h 'waiting for rank' "$work"/err.*
}

$case_name
