# Helm, built from its Go module: the tests render the chart of deploy/helm with it.

# shellcheck source=/dev/null
source "$here/go_binaries.sh"

helm_binaries=(
    "helm helm helm.sh/helm/v4/cmd/helm 3 to 5 minutes"
)

install_helm() {
    go_install helm "$(key "$here"/helm/go.{mod,sum})" "the tests'" go_no_flags \
        "${helm_binaries[@]}" || true
}
