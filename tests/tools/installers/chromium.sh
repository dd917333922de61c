# The browser that the page is tested in, with its driver and a font to draw text with: Debian's
# packages. What is on PATH is used as it is.

install_chromium() {
    local wanted=()
    command -v chromium >/dev/null || wanted+=(chromium)
    command -v chromedriver >/dev/null || wanted+=(chromium-driver)
    # Without a font a page has no text, and every test of what it looks like passes.
    chromium_has_font || wanted+=(fonts-dejavu-core)
    ((${#wanted[@]} > 0)) || return 0
    packages "tests of the page" "${wanted[@]}" || return 0
}

# chromium_has_font: whether any font is installed.
chromium_has_font() {
    [[ -n $(find /usr/share/fonts /usr/local/share/fonts -name '*.[to]tf' -print -quit \
        2>/dev/null) ]]
}
