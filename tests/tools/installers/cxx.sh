# A compiler for C++, which builds the fuzzers' engine: Debian's package, unless there is one.

install_cxx() {
    command -v "${CXX:-c++}" >/dev/null && return
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
        left_out "fuzzers" "they need a compiler for C++: g++ (Debian's name)"
        return
    fi
    echo "==> installing g++ (Debian's package, up to a minute)"
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends g++; } >"$log" 2>&1; then
        left_out "fuzzers" "apt-get could not install g++: $(tail -n 1 "$log")"
    fi
}
