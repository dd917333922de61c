# A compiler for C++, which builds the fuzzers' engine: Debian's package, unless there is one.

install_cxx() {
    command -v "${CXX:-c++}" >/dev/null && return
    packages "fuzzers" g++ || return 0
}
