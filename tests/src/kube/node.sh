# The first process of a real node: its processes, mounts and network are in namespaces of their
# own, which end with this script, and nothing of the machine is changed for them.
#
# Argument: the node's folder. The file `init` appears there when the node is ready to be entered,
# with the number that this process has on the machine.
set -eu
folder=$1
# As long as the machine's own /proc is mounted, that is where this number comes from.
read -r number _ </proc/self/stat
mount -t proc proc /proc
# What container runtimes and kubelets write at fixed places.
for place in /run /var/lib /var/log; do
    mount -t tmpfs tmpfs "$place"
done
# What a kubelet sets for the whole machine: it finds it set, and sets a file.
mkdir "$folder/sysctl"
while read -r name value; do
    if [ -e "/proc/sys/$name" ]; then
        file=$folder/sysctl/$(echo "$name" | tr / .)
        echo "$value" >"$file"
        mount --bind "$file" "/proc/sys/$name"
    fi
done <<END
kernel/keys/root_maxbytes 25000000
kernel/keys/root_maxkeys 1000000
kernel/panic 10
kernel/panic_on_oops 1
vm/overcommit_memory 1
vm/panic_on_oom 0
END
echo 1 >/proc/sys/net/ipv4/ip_forward
ip link set lo up
echo "$number" >"$folder/init.new"
mv "$folder/init.new" "$folder/init"
# Waits for whatever ends in here without a parent.
while :; do
    sleep 1000 &
    wait $!
done
