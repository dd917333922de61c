# Binaries that are built from Go modules. A new build is needed only when the pins change: they name
# the folder, which all clones share. An older folder is removed when the new one is complete.
# For the installers beside it; binaries in KUBEBUILDER_ASSETS are used from there instead.

# go_has FOLDER NAME: whether the binary is there or among the user's own.
go_has() {
    [[ -x $1/$2 || (-n ${KUBEBUILDER_ASSETS:-} && -x $KUBEBUILDER_ASSETS/$2) ]]
}

# go_build FOLDER NAME MODULE PACKAGE LDFLAGS: builds one binary atomically.
go_build() {
    (cd "$here/$3" && CGO_ENABLED=0 nice go build -trimpath -buildvcs=false -ldflags "-s -w $5" \
        -o "$1/.$2.new" "$4") && mv "$1/.$2.new" "$1/$2"
}

# go_no_flags: none for the linker.
go_no_flags() { :; }

# go_install NAME KEY WHOSE LDFLAGS ENTRY...: builds what is missing into .cache/NAME. An entry is the
# name of a binary, its module's folder, its package, and how long the first build takes on two
# cores. LDFLAGS is a function that prints flags for the linker. Fails if a binary could not be built.
go_install() {
    local name=$1 key=$2 whose=$3 ldflags=$4 number=0 failed=0
    local caches=${XDG_CACHE_HOME:-$HOME/.cache}/leasehold binary module package duration entry other
    shift 4
    local folder=$caches/$name-$key
    mkdir -p "$folder"
    ln -sfn "$folder" "$root/.cache/$name"
    # Two clones that build at once would do the work twice.
    exec {lock}>"$caches/$name.lock"
    flock "$lock"
    for entry in "$@"; do
        read -r binary module package duration <<<"$entry"
        number=$((number + 1))
        go_has "$folder" "$binary" && continue
        if ! command -v go >/dev/null; then
            left_out "$whose $binary" "go was not found; it needs Go 1.26 or newer"
            failed=1
            continue
        fi
        printf '==> building %s (%d of %d; the first time %s)\n' "$binary" "$number" $# "$duration"
        if ! go_build "$folder" "$binary" "$module" "$package" "$("$ldflags")" >"$log" 2>&1; then
            left_out "$whose $binary" "go could not build it: $(tail -n 1 "$log")"
            failed=1
        fi
    done
    if ((failed == 0)); then
        for other in "$caches/$name"-*; do
            [[ $other == "$folder" ]] || rm -rf "$other"
        done
    fi
    flock -u "$lock"
    return "$failed"
}
