# cargo-deny, built from its source: it checks the dependencies' licences, versions and origins.

CARGO_DENY=0.20.2

install_cargo-deny() {
    fresh cargo-deny "$CARGO_DENY" && return
    rm -f "$bin/cargo-deny"
    on_path cargo-deny "$CARGO_DENY" --version "$CARGO_DENY" && return
    echo "==> installing cargo-deny (one to two minutes)"
    # Built in the debug profile and without the workspace's flags: it runs for seconds.
    if ! env -u RUSTFLAGS -u CARGO_TARGET_DIR cargo install --quiet --locked --debug --force \
        --version "$CARGO_DENY" --root "$root/.cache" cargo-deny >"$log" 2>&1; then
        left_out cargo-deny "cargo could not install it: $(tail -n 1 "$log")"
        return
    fi
    echo "$CARGO_DENY" >"$bin/cargo-deny.key"
}
