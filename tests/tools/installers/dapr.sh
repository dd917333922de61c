# Dapr's placement service, built from Dapr's module: the report of `make bench` compares one agent that
# joins with one host that joins it. Beside it lies a program that computes what Dapr's hosts own.

# shellcheck source=/dev/null
source "$here/go_binaries.sh"

dapr_binaries=(
    "placement dapr github.com/dapr/dapr/cmd/placement 1 to 3 minutes"
    "ring dapr ./ring a second"
)

install_dapr() {
    go_install dapr "$(key "$here"/dapr/go.{mod,sum} "$here"/dapr/ring/*.go)" "Dapr's" go_no_flags \
        "${dapr_binaries[@]}" || true
}
