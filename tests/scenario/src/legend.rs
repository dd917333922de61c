//! The rows of a legend. [`Language::LEGEND`](crate::Language::LEGEND) says what they look like.

/// The usage of each verb, and its example.
pub(crate) fn rows(legend: &str) -> Vec<(&str, &str)> {
    let mut rows = Vec::new();
    for line in legend.lines().filter(|line| !line.is_empty()) {
        if !line.starts_with(' ') {
            rows.push((line, ""));
        } else if let (Some((_, example)), Some(code)) = (rows.last_mut(), line.rsplit('`').nth(1))
        {
            *example = code;
        }
    }
    rows
}

/// The usage of a verb.
pub(crate) fn usage<'a>(legend: &'a str, verb: &str) -> Option<&'a str> {
    legend.lines().find(|line| !line.starts_with(' ') && self::verb(line) == verb)
}

/// The verb of a usage, or of a command.
pub(crate) fn verb(line: &str) -> &str {
    line.split_whitespace().next().unwrap_or_default()
}

/// The arguments in a usage that stand for themselves: keys with their `=`, and words.
pub(crate) fn literals(usage: &str) -> impl Iterator<Item = &str> {
    let arguments = usage.split(' ').skip(1).map(|word| word.trim_matches(['[', ']', '…']));
    let alternatives = arguments.flat_map(|argument| match argument.find('=') {
        Some(end) => vec![&argument[..=end]],
        None => argument.split('|').collect(),
    });
    alternatives.filter(|word| word.starts_with(|first: char| first.is_ascii_lowercase()))
}
