# Kafka's clients, as Maven Central has them: the report of `make bench` compares the planner with
# their assignors. The JDK and Maven come from Debian, unless they are on PATH.

# kafka_has_jars FOLDER: whether the folder has the jars with the pinned sums.
kafka_has_jars() {
    (cd "$1" && sha256sum --check --status "$here/kafka/SHA256SUMS") 2>/dev/null
}

install_kafka() {
    local wanted=() folder=$root/.cache/kafka
    local copy=org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies
    # The source is run as it is, so a runtime without the compiler is not enough.
    command -v javac >/dev/null || wanted+=(default-jdk-headless)
    kafka_has_jars "$folder" || command -v mvn >/dev/null || wanted+=(maven)
    if ((${#wanted[@]} > 0)); then
        packages "Kafka's assignors" "${wanted[@]}" || return 0
    fi
    kafka_has_jars "$folder" && return
    echo "==> fetching Kafka's clients (the first time up to some minutes)"
    rm -rf "$folder.new"
    if ! mvn --batch-mode --quiet -Dstyle.color=never --file "$here/kafka/pom.xml" "$copy" \
        -DoutputDirectory="$folder.new" >"$log" 2>&1; then
        left_out "Kafka's assignors" "Maven could not fetch them: $(grep -m 1 ERROR "$log")"
        return
    fi
    if ! kafka_has_jars "$folder.new"; then
        left_out "Kafka's assignors" "the jars do not have the sums of tests/tools/kafka/SHA256SUMS"
        return
    fi
    # What was there stays until its replacement is complete.
    rm -rf "$folder"
    mv "$folder.new" "$folder"
}
