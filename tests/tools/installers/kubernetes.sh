# The real Kubernetes of the tests, built from Go modules: the first build takes about ten minutes.

# shellcheck source=/dev/null
source "$here/go_binaries.sh"

kubernetes_binaries=(
    "etcd kubernetes go.etcd.io/etcd/server/v3 up to a minute"
    "kube-apiserver kubernetes k8s.io/kubernetes/cmd/kube-apiserver 4 to 6 minutes"
    "kube-controller-manager kubernetes k8s.io/kubernetes/cmd/kube-controller-manager a minute and a half"
    "kube-scheduler kubernetes k8s.io/kubernetes/cmd/kube-scheduler up to a minute"
    "kubectl kubernetes k8s.io/kubernetes/cmd/kubectl up to a minute"
    "kubelet kubernetes k8s.io/kubernetes/cmd/kubelet up to a minute"
    "kube-proxy kubernetes k8s.io/kubernetes/cmd/kube-proxy up to a minute"
    "pause kubernetes ./pause a second"
    "coredns dns . up to a minute"
)

# kubernetes_version: the linker's flags for the version that the binaries say.
kubernetes_version() {
    local version minor stamp=k8s.io/component-base/version
    version=$(cd "$here/kubernetes" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
    minor=${version#v1.}
    echo "-X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=${minor%%.*}"
}

install_kubernetes() {
    go_install kubernetes \
        "$(key "$here"/{kubernetes,dns}/go.{mod,sum} "$here"/{kubernetes/pause,dns}/*.go)" \
        "Kubernetes'" kubernetes_version "${kubernetes_binaries[@]}" || true
}
