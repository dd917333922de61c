# An OpenTelemetry collector, built from its Go modules: it receives the traces of the tests.

# shellcheck source=/dev/null
source "$here/go_binaries.sh"

otelcol_binaries=(
    "otelcol otelcol . 1 to 3 minutes"
)

install_otelcol() {
    go_install otelcol "$(key "$here"/otelcol/{go.mod,go.sum,main.go})" "the tests'" go_no_flags \
        "${otelcol_binaries[@]}" || true
}
