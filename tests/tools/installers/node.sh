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
    packages "tests on a real node" "${wanted[@]}" || return 0
}
