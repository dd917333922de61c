# The compiler of TypeScript and the types of Node.js, which the lock file of the SDK pins. Node.js
# itself and npm are Debian's packages; what is on PATH is used as it is.

NODE_MAJOR_MIN=20

install_typescript() {
    local sdk=$root/agent/sdk/typescript want wanted=() major file
    local files=(package.json package-lock.json .npmrc)
    want=$(cd "$sdk" && key "${files[@]}")
    command -v node >/dev/null && fresh tsc "$want" && return
    rm -f "$bin/tsc"
    command -v node >/dev/null || wanted+=(nodejs)
    command -v npm >/dev/null || wanted+=(npm)
    if ((${#wanted[@]} > 0)); then
        packages "the SDK for TypeScript" "${wanted[@]}" || return 0
    fi
    major=$(node --print 'process.versions.node.split(".")[0]')
    if ((major < NODE_MAJOR_MIN)); then
        left_out "the SDK for TypeScript" \
            "Node.js is version $major: install $NODE_MAJOR_MIN or newer, which Debian 13 has"
        return
    fi
    echo "==> installing the compiler of TypeScript (a few seconds)"
    rm -rf "$root/.cache/typescript"
    mkdir -p "$root/.cache/typescript"
    for file in "${files[@]}"; do
        cp "$sdk/$file" "$root/.cache/typescript/"
    done
    if ! (cd "$root/.cache/typescript" && npm ci --ignore-scripts --no-audit --no-fund) \
        >"$log" 2>&1; then
        left_out "the SDK for TypeScript" "npm could not install its compiler: $(tail -n 1 "$log")"
        return
    fi
    ln -sf ../typescript/node_modules/typescript/bin/tsc "$bin/tsc"
    echo "$want" >"$bin/tsc.key"
}
