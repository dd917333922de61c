# The coordinator and the agent of the last release, built from its sources, and its `deploy` folder:
# the tests run them beside today's. `last-release` names its commit, or its tag.

# release_build COMMIT FOLDER: fills the folder.
release_build() {
    local sources=$2/sources
    rm -rf "$sources" "$2/deploy" && mkdir "$sources" &&
        git -C "$root" archive "$1" | tar -x -C "$sources" || return
    # With the default features, as users build both: the coordinator runs in a pod, too.
    (cd "$sources" && CARGO_TARGET_DIR=$2/target CARGO_PROFILE_DEV_DEBUG=0 nice cargo build \
        --locked -p leasehold-coordinator -p leasehold-agent) || return
    mv "$2"/target/debug/leasehold-{coordinator,agent} "$sources/deploy" "$2"
}

install_release() {
    local commit folder caches=${XDG_CACHE_HOME:-$HOME/.cache}/leasehold other
    if ! commit=$(git -C "$root" rev-parse --verify --quiet "$(<"$here/last-release")^{commit}"); then
        forbidden "the last release beside today's programs" \
            "the history of this clone does not reach it"
        return
    fi
    # In a folder without the suffix the coordinator lacks the Kubernetes client.
    folder=$caches/release-$commit-kubernetes
    mkdir -p "$folder"
    ln -sfn "$folder" "$root/.cache/release"
    # Two clones that build at once would do the work twice.
    exec {lock}>"$caches/release.lock"
    flock "$lock"
    # It comes last: with it all is there.
    if [[ ! -d $folder/deploy ]]; then
        echo "==> building the last release (the first time five to eight minutes)"
        if release_build "$commit" "$folder" >"$log" 2>&1; then
            for other in "$caches"/release-*; do
                [[ $other == "$folder" ]] || rm -rf "$other"
            done
        else
            left_out "the last release" "it could not be built: $(tail -n 1 "$log")"
        fi
        rm -rf "$folder/sources" "$folder/target"
    fi
    flock -u "$lock"
}
