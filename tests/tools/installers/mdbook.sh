# mdbook, built from its source: it makes the book out of docs. With the search, and without what serves
# a book and watches its files.

MDBOOK=0.5.3

install_mdbook() {
    local flags=(--no-default-features --features search)
    fresh mdbook "$MDBOOK ${flags[*]}" && return
    on_path mdbook "v$MDBOOK" --version "$MDBOOK ${flags[*]}" && return
    cargo_tool mdbook "$MDBOOK" "${flags[@]}"
}
