# buf, from its wheel: it lints the protos and compares them with the contract.

install_buf() {
    local want version
    want=$(key "$here/requirements.txt")
    fresh buf "$want" && return
    rm -f "$bin/buf"
    version=$(sed -n 's/^buf[a-z-]*==\([^ ]*\).*/\1/p' "$here/requirements.txt")
    on_path buf "$version" --version "$want" && return
    echo "==> installing buf (a few seconds)"
    if ! command -v python3 >/dev/null; then
        left_out buf "python3 was not found; Debian's packages python3 and python3-pip have it"
        return
    fi
    rm -rf "$root/.cache/buf"
    if ! python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
        --target "$root/.cache/buf" -r "$here/requirements.txt" >"$log" 2>&1; then
        left_out buf "pip could not install it: $(tail -n 1 "$log")"
        return
    fi
    ln -sf ../buf/bin/buf "$bin/buf"
    echo "$want" >"$bin/buf.key"
}
