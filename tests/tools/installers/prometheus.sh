# Prometheus and promtool, which the alerts and the metrics are tested with: Debian's package. What
# is on PATH is used as it is.

install_prometheus() {
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
