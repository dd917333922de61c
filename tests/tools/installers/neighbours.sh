# The neighbours of Leasehold on a cluster that the tests run it beside, built from Go modules:
# KEDA, cert-manager, the descheduler, and Prometheus' adapter for autoscalers. The definitions of
# their kinds lie beside the binaries.

# shellcheck source=/dev/null
source "$here/go_binaries.sh"

neighbours_binaries=(
    "cert-manager neighbours ./cert-manager 2 to 4 minutes"
    "descheduler neighbours sigs.k8s.io/descheduler/cmd/descheduler a minute"
    "prometheus-adapter prometheus-adapter sigs.k8s.io/prometheus-adapter/cmd/adapter 2 to 4 minutes"
    "keda-adapter neighbours github.com/kedacore/keda/v2/cmd/adapter 6 to 10 minutes"
    "keda-operator neighbours github.com/kedacore/keda/v2/cmd/operator up to a minute"
)

# neighbours_definitions NAME MODULE FOLDER: copies a module's definitions to .cache/neighbours/NAME.
neighbours_definitions() {
    local target=$root/.cache/neighbours/$1 module
    [[ ! -e $target ]] || return 0
    module=$(cd "$here/neighbours" && go list -m -f '{{.Dir}}' "$2") || return
    rm -rf "$target.new"
    mkdir "$target.new"
    cp "$module/$3"/*.yaml "$target.new"
    # What a module cache holds may not be written.
    chmod -R u+w "$target.new"
    mv "$target.new" "$target"
}

install_neighbours() {
    local pins
    pins=$(key "$here"/{neighbours,prometheus-adapter}/go.{mod,sum} "$here"/neighbours/*/*.go)
    if go_install neighbours "$pins" "the tests' neighbour" go_no_flags "${neighbours_binaries[@]}"; then
        neighbours_definitions keda-crds github.com/kedacore/keda/v2 config/crd/bases
        neighbours_definitions cert-manager-crds github.com/cert-manager/cert-manager deploy/crds
    fi
}
