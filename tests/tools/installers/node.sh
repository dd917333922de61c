# What a real node needs beside the binaries of Kubernetes: Debian's container runtime, network
# plugins and network tools. It does not change what is installed already.

install_node() {
    local wanted=() package command
    local -A commands=([containerd]=containerd [runc]=runc [iproute2]=ip [nftables]=nft
        [iptables]=iptables [util-linux]=nsenter)
    if ((EUID != 0)); then
        forbidden "tests on a real node" "they need root"
        return
    fi
    for package in "${!commands[@]}"; do
        command=${commands[$package]}
        PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null || wanted+=("$package")
    done
    [[ -x /usr/lib/cni/ptp || -x /opt/cni/bin/ptp ]] || wanted+=(containernetworking-plugins)
    ((${#wanted[@]} > 0)) || return 0
    if ! command -v apt-get >/dev/null; then
        left_out "tests on a real node" "they need ${wanted[*]} (Debian's names)"
        return
    fi
    echo "==> installing ${wanted[*]} (Debian's packages, some seconds)"
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${wanted[@]}"; } >"$log" 2>&1; then
        left_out "tests on a real node" "apt-get could not install: $(tail -n 1 "$log")"
    fi
}
