# grpcurl, built from its Go module: it calls gRPC services by reflection.

install_grpcurl() {
    local want version
    want=$(key "$here/go.mod" "$here/go.sum")
    fresh grpcurl "$want" && return
    rm -f "$bin/grpcurl"
    version=$(sed -n 's/^.*fullstorydev\/grpcurl \(v[^ ]*\).*/\1/p' "$here/go.mod")
    on_path grpcurl "$version" -version "$want" && return
    echo "==> building grpcurl (the first time about a minute and a half)"
    if ! command -v go >/dev/null; then
        left_out grpcurl "go was not found; it needs Go 1.26 or newer"
        return
    fi
    if ! (cd "$here" && go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$bin/grpcurl.new" \
        github.com/fullstorydev/grpcurl/cmd/grpcurl) >"$log" 2>&1; then
        left_out grpcurl "go could not build it: $(tail -n 1 "$log")"
        return
    fi
    mv "$bin/grpcurl.new" "$bin/grpcurl"
    echo "$want" >"$bin/grpcurl.key"
}
