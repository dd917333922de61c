# The real Kubernetes of the tests, built from Go modules: the first build takes about ten
# minutes. A new build is needed only when the pins change: they name the folder, which all clones
# share. An older folder is removed when the new one is complete.
#
# Binaries in KUBEBUILDER_ASSETS are used from there instead.

# The name of each binary, the module that pins it, and the package it is built from.
kubernetes_binaries=(
    "etcd kubernetes go.etcd.io/etcd/server/v3"
    "kube-apiserver kubernetes k8s.io/kubernetes/cmd/kube-apiserver"
    "kube-controller-manager kubernetes k8s.io/kubernetes/cmd/kube-controller-manager"
    "kube-scheduler kubernetes k8s.io/kubernetes/cmd/kube-scheduler"
    "kubectl kubernetes k8s.io/kubernetes/cmd/kubectl"
    "kubelet kubernetes k8s.io/kubernetes/cmd/kubelet"
    "kube-proxy kubernetes k8s.io/kubernetes/cmd/kube-proxy"
    "pause kubernetes ./pause"
    "coredns dns ."
)

# kubernetes_has FOLDER NAME: whether the binary is there or among the user's own.
kubernetes_has() {
    [[ -x $1/$2 || (-n ${KUBEBUILDER_ASSETS:-} && -x $KUBEBUILDER_ASSETS/$2) ]]
}

# kubernetes_build FOLDER NAME MODULE PACKAGE: builds one binary atomically.
kubernetes_build() {
    local version minor stamp=k8s.io/component-base/version
    version=$(cd "$here/kubernetes" && go list -m -f '{{.Version}}' k8s.io/kubernetes) || return
    minor=${version#v1.}
    (cd "$here/$3" && CGO_ENABLED=0 nice go build -trimpath -buildvcs=false \
        -ldflags "-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=1 \
            -X $stamp.gitMinor=${minor%%.*}" \
        -o "$1/.$2.new" "$4") && mv "$1/.$2.new" "$1/$2"
}

# kubernetes_duration NAME: how long a first build takes on two cores.
kubernetes_duration() {
    case $1 in
    kube-apiserver) echo "4 to 6 minutes" ;;
    kube-controller-manager) echo "a minute and a half" ;;
    pause) echo "a second" ;;
    *) echo "up to a minute" ;;
    esac
}

install_kubernetes() {
    local caches=${XDG_CACHE_HOME:-$HOME/.cache}/leasehold folder entry name module package number=0
    folder=$caches/kubernetes-$(key "$here"/{kubernetes,dns}/go.{mod,sum} \
        "$here"/{kubernetes/pause,dns}/*.go)
    mkdir -p "$folder"
    ln -sfn "$folder" "$root/.cache/kubernetes"
    # Two clones that build at once would do the work twice.
    exec {lock}>"$caches/lock"
    flock "$lock"
    for entry in "${kubernetes_binaries[@]}"; do
        read -r name module package <<<"$entry"
        number=$((number + 1))
        kubernetes_has "$folder" "$name" && continue
        if ! command -v go >/dev/null; then
            left_out "Kubernetes' $name" "go was not found; it needs Go 1.26 or newer"
            continue
        fi
        printf '==> building %s (%d of %d; the first time %s)\n' "$name" "$number" \
            "${#kubernetes_binaries[@]}" "$(kubernetes_duration "$name")"
        if ! kubernetes_build "$folder" "$name" "$module" "$package" >"$log" 2>&1; then
            left_out "Kubernetes' $name" "go could not build it: $(tail -n 1 "$log")"
        fi
    done
    kubernetes_forget_others "$caches" "$folder"
    flock -u "$lock"
}

# kubernetes_forget_others CACHES FOLDER: removes older folders once this one is complete.
kubernetes_forget_others() {
    local entry other
    for entry in "${kubernetes_binaries[@]}"; do
        kubernetes_has "$2" "${entry%% *}" || return 0
    done
    for other in "$1"/kubernetes-*; do
        [[ $other == "$2" ]] || rm -rf "$other"
    done
}
