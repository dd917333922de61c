# An OpenTelemetry collector, built from its Go modules: it receives the traces of the tests.

# shellcheck source=/dev/null
source "$here/go_binaries.sh"

otelcol_binaries=(
    "otelcol otelcol . 1 to 3 minutes"
)

# otelcol_flags: none for the linker.
otelcol_flags() { :; }

install_otelcol() {
    go_install otelcol "$(key "$here"/otelcol/{go.mod,go.sum,main.go})" "the tests'" otelcol_flags \
        "${otelcol_binaries[@]}" || true
}
