# What `make release` needs beside Rust: the compiler's target and Debian's linker for arm64, an
# emulator that runs such programs, and Cargo's tools for Debian packages and bills of materials.

CARGO_DEB=3.8.0
CARGO_CYCLONEDX=0.5.9
ARM64=aarch64-unknown-linux-gnu

install_packaging() {
    local wanted=() package command
    local -A commands=([gcc-aarch64-linux-gnu]=aarch64-linux-gnu-gcc
        [qemu-user-static]=qemu-aarch64-static)
    # One on PATH may have been built otherwise, and would write other bytes. With a library of its own
    # that compresses, whatever version of xz the machine has.
    cargo_tool cargo-deb "$CARGO_DEB" --no-default-features --features static-lzma
    cargo_tool cargo-cyclonedx "$CARGO_CYCLONEDX"
    if [[ ! -d $(cd "$root" && rustc --print sysroot)/lib/rustlib/$ARM64 ]]; then
        echo "==> installing the compiler's target for arm64 (some seconds)"
        (cd "$root" && rustup target add "$ARM64") >"$log" 2>&1 ||
            left_out "programs for arm64" "rustup could not add the target: $(tail -n 1 "$log")"
    fi
    for package in "${!commands[@]}"; do
        command -v "${commands[$package]}" >/dev/null || wanted+=("$package")
    done
    [[ -e /usr/aarch64-linux-gnu/lib/libc.a ]] || wanted+=(libc6-dev-arm64-cross)
    ((${#wanted[@]} > 0)) || return 0
    packages "programs for arm64" "${wanted[@]}" || return 0
}
