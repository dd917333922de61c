# Ends and removes what a test has made, when the test ends in whatever way: the test holds the
# other end of this script's input, and the kernel closes it with the test's process.
#
# Argument: a process group, which is ended first. Input: a kind and a name in each line.
group=$1
shift
while read -r kind name; do
    set -- "$@" "$kind" "$name"
done
trap '' HUP INT TERM

# patiently COMMAND...: for up to ten seconds, until it succeeds.
patiently() {
    tries=0
    until "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || return
        sleep 0.1
    done
}

group_ended() {
    ! kill -s KILL -- "-$group"
}

no_cgroup() {
    find /sys/fs/cgroup -maxdepth 2 -type d -name "$1" | while read -r found; do
        find "$found" -depth -type d -exec rmdir {} \;
    done
    [ -z "$(find /sys/fs/cgroup -maxdepth 2 -type d -name "$1")" ]
}

patiently group_ended
while [ $# -gt 0 ]; do
    case $1 in
    folder) patiently rm -rf "$2" ;;
    bridge) ip link delete "$2" ;;
    cgroup) patiently no_cgroup "$2" ;;
    esac
    shift 2
done
