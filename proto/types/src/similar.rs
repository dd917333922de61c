//! Names that are similar to a mistyped one.

/// Letters of a name that are compared.
const LETTERS_MAX: usize = 64;

/// The most similar name, if it is similar enough to be meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name: String = name.chars().take(LETTERS_MAX).collect();
    let known = known.into_iter();
    let (far, near) = known.map(|known| (distance(&name, known), known)).min()?;
    (far <= 1 + near.len() / 4).then_some(near)
}

/// The end of a message about an unknown name: `; did you mean builds?` with the most similar known
/// one; nothing if none is similar enough.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

/// The edit distance: letters to insert, remove or change.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().take(LETTERS_MAX).collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant_and_nothing_else() {
        let known = ["maxJobs", "maxJobsPerWorker", "drain"];
        assert_eq!(nearest("maxJob", known), Some("maxJobs"));
        assert_eq!(nearest("drian", known), Some("drain"));
        assert_eq!(nearest("streams", known), None);
        assert_eq!(nearest("maxJobs", []), None);
        assert_eq!(did_you_mean("drian", known), "; did you mean drain?");
        assert_eq!(did_you_mean("streams", known), "");
    }
}
