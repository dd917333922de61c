# cargo-deny, built from its source: it checks the dependencies' licences, versions and origins.

CARGO_DENY=0.20.2

install_cargo-deny() {
    fresh cargo-deny "$CARGO_DENY" && return
    on_path cargo-deny "$CARGO_DENY" --version "$CARGO_DENY" && return
    cargo_tool cargo-deny "$CARGO_DENY"
}
