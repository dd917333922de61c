# PostgreSQL, and Python's driver for it: Debian's packages. The tests of fencing start a server of
# their own. The driver is for Debian's Python, which need not be the one on PATH.

install_postgresql() {
    local wanted=() python has_driver=
    compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || wanted+=(postgresql)
    for python in python3 /usr/bin/python3; do
        if "$python" -c "import psycopg2" 2>/dev/null; then
            has_driver=yes
        fi
    done
    [[ -n $has_driver ]] || wanted+=(python3-psycopg2)
    ((${#wanted[@]} > 0)) || return 0
    packages "tests of fencing in PostgreSQL" "${wanted[@]}" || return 0
}
