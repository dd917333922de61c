# The coordinator and the agent of the last release, built from its sources, and its `deploy` folder:
# the tests run them beside today's. `last-release` names its commit, or its tag.

install_release() {
    local commit folder sources caches=${XDG_CACHE_HOME:-$HOME/.cache}/leasehold other
    if ! commit=$(git -C "$root" rev-parse --verify --quiet "$(<"$here/last-release")^{commit}"); then
        forbidden "the last release beside today's programs" \
            "the history of this clone does not reach it"
        return
    fi
    folder=$caches/release-$commit
    mkdir -p "$folder"
    ln -sfn "$folder" "$root/.cache/release"
    # Two clones that build at once would do the work twice.
    exec {lock}>"$caches/release.lock"
    flock "$lock"
    [[ -d $folder/deploy ]] || git -C "$root" archive "$commit" deploy | tar -x -C "$folder"
    if [[ ! -x $folder/leasehold-coordinator || ! -x $folder/leasehold-agent ]]; then
        echo "==> building the last release (the first time three to five minutes)"
        sources=$folder/sources
        rm -rf "$sources" && mkdir "$sources"
        git -C "$root" archive "$commit" | tar -x -C "$sources"
        # Without the Kubernetes client, which these tests do not need, nor anybody who debugs.
        if (cd "$sources" && CARGO_TARGET_DIR=$folder/target CARGO_PROFILE_DEV_DEBUG=0 nice cargo \
            build --locked --no-default-features -p leasehold-coordinator -p leasehold-agent) \
            >"$log" 2>&1; then
            mv "$folder"/target/debug/leasehold-{coordinator,agent} "$folder"
            for other in "$caches"/release-*; do
                [[ $other == "$folder" ]] || rm -rf "$other"
            done
        else
            left_out "the last release" "cargo could not build it: $(tail -n 1 "$log")"
        fi
        rm -rf "$sources" "$folder/target"
    fi
    flock -u "$lock"
}
