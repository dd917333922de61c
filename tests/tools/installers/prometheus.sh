# Prometheus and promtool, which the alerts and the metrics are tested with: Debian's package. What
# is on PATH is used as it is. Debian's Prometheus cannot find targets on Kubernetes, so that another
# one, built from its Go module, does that in the tests of the monitors.

# shellcheck source=/dev/null
source "$here/go_binaries.sh"

prometheus_binaries=(
    "prometheus prometheus github.com/prometheus/prometheus/cmd/prometheus 3 to 6 minutes"
)

# prometheus_of_debian: installs the package, unless its programs are on PATH.
prometheus_of_debian() {
    if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
        return
    fi
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
        left_out "tests with Prometheus" "they need Debian's package prometheus"
        return
    fi
    echo "==> installing prometheus (Debian's package, up to a minute)"
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends prometheus; } >"$log" 2>&1; then
        left_out "tests with Prometheus" "apt-get could not install: $(tail -n 1 "$log")"
    fi
}

install_prometheus() {
    prometheus_of_debian
    # Without the clients of clouds that the other discoveries need.
    GOFLAGS=-tags=remove_all_sd,enable_kubernetes_sd \
        go_install prometheus "$(key "$here"/prometheus/go.{mod,sum})" "the tests'" go_no_flags \
        "${prometheus_binaries[@]}" || true
}
