# ffmpeg and ffprobe: Debian's package. The test of the sample that transcodes videos runs them. What is
# on PATH is used as it is.

install_ffmpeg() {
    if command -v ffmpeg >/dev/null && command -v ffprobe >/dev/null; then
        return
    fi
    packages "the test of the sample transcoder" ffmpeg || return 0
}
