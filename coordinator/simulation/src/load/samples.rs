//! Durations from a CSV file: one a line, in seconds, in the first column or in a named one. Cells
//! may be in quotation marks, and have commas there.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use leasehold_manifest::Problem;
use leasehold_types::did_you_mean;

/// The most durations of a file.
const SAMPLES_MAX: usize = 1_000_000;
/// The longest duration, in seconds.
const SECONDS_MAX: f64 = 366.0 * 24.0 * 3600.0;

/// The durations in a file of this name. With a column, the first line has the names of the
/// columns; without one, a first line that is no number is passed over.
///
/// # Errors
/// What is wrong with the file.
pub(super) fn read(
    file: &str,
    text: &str,
    column: Option<&str>,
) -> Result<Arc<[Duration]>, Problem> {
    let mut lines = text.trim_start_matches('\u{feff}').lines().zip(1..).peekable();
    let mut place = 0;
    if let Some(column) = column {
        let header = lines.next().map_or("", |(header, _)| header);
        let names: Vec<Cow<'_, str>> = cells(file, 1, header)?.map(content).collect();
        let found = names.iter().position(|name| *name == column);
        place = found.ok_or_else(|| {
            let near = did_you_mean(column, names.iter().map(|name| &**name));
            let names = names.join(", ");
            problem(file, 1, format!("has no column {column:?}, but {names}: correct one{near}"))
        })?;
    } else if let Some((first, number)) = lines.peek().copied()
        && cells(file, number, first)?
            .next()
            .is_some_and(|cell| content(cell).parse::<f64>().is_err())
    {
        lines.next();
    }
    let mut samples = Vec::new();
    for (line, number) in lines.filter(|(line, _)| !line.trim().is_empty()) {
        let seconds = cells(file, number, line)?.nth(place).map(content).unwrap_or_default();
        let wrong = || {
            let message = format!("is {seconds:?}, but must be a number of seconds, 0 or more");
            problem(file, number, message)
        };
        let parsed: f64 = seconds.parse().map_err(|_| wrong())?;
        if !(0.0..=SECONDS_MAX).contains(&parsed) {
            return Err(wrong());
        }
        samples.push(Duration::from_secs_f64(parsed));
        if samples.len() > SAMPLES_MAX {
            let message = format!("has more than {SAMPLES_MAX} durations: keep a part of them");
            return Err(problem(file, number, message));
        }
    }
    if samples.is_empty() {
        let message = "has no duration: write one a line, in seconds".to_owned();
        return Err(problem(file, 0, message));
    }
    Ok(samples.into())
}

/// The cells of a line as they are written. A comma between quotation marks is a part of its cell.
///
/// # Errors
/// A quotation mark without its end.
fn cells<'a>(
    file: &str,
    line: u32,
    text: &'a str,
) -> Result<impl Iterator<Item = &'a str>, Problem> {
    if text.matches('"').count() % 2 == 1 {
        let message = "has a quotation mark without its end: give each row a line of its own, and \
                       write a mark within quotation marks twice";
        return Err(problem(file, line, message.to_owned()));
    }
    let mut is_quoted = false;
    Ok(text.split(move |character: char| {
        is_quoted ^= character == '"';
        character == ',' && !is_quoted
    }))
}

/// What a cell says: what is between its quotation marks, where two stand for one.
fn content(cell: &str) -> Cow<'_, str> {
    let cell = cell.trim();
    let quoted = cell.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    match quoted {
        Some(quoted) if quoted.contains('"') => Cow::Owned(quoted.replace("\"\"", "\"")),
        Some(quoted) => Cow::Borrowed(quoted.trim()),
        None => Cow::Borrowed(cell),
    }
}

fn problem(file: &str, line: u32, message: String) -> Problem {
    let column = line.min(1);
    Problem { file: file.to_owned(), line, column, field: String::new(), message, due: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str, column: Option<&str>) -> Result<Vec<f64>, String> {
        let read = read("jobs.csv", text, column).map_err(|problem| problem.to_string())?;
        Ok(read.iter().map(Duration::as_secs_f64).collect())
    }

    #[test]
    fn durations_are_in_the_first_column_or_in_a_named_one() {
        assert_eq!(seconds("1\n2.5\n\n", None), Ok(vec![1.0, 2.5]));
        assert_eq!(seconds("seconds\r\n1\r\n", None), Ok(vec![1.0]));
        assert_eq!(
            seconds("job,\"seconds\"\na,\"7\"\nb, 9\n", Some("seconds")),
            Ok(vec![7.0, 9.0])
        );
    }

    #[test]
    fn a_comma_between_quotation_marks_is_a_part_of_its_cell() {
        let text = "job,\"time, in s\",\"a \"\"b\"\"\"\n\"make, then test\",7,8\nother,\" 9\",10\n";
        assert_eq!(seconds(text, Some("time, in s")), Ok(vec![7.0, 9.0]));
        assert_eq!(seconds(text, Some("a \"b\"")), Ok(vec![8.0, 10.0]));
        assert_eq!(seconds("\"job, any\",x\n\"7\",\"a,b\"\n", None), Ok(vec![7.0]));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_what_to_do() {
        for (text, column, why) in [
            ("1\nx\n", None, "jobs.csv:2:1: is \"x\", but must be a number of seconds, 0 or more"),
            ("1\n-2\n", None, "jobs.csv:2:1: is \"-2\", but must be a number of seconds"),
            ("1\nNaN\n", None, "jobs.csv:2:1: is \"NaN\", but must be a number of seconds"),
            ("job,seconds\na\n", Some("seconds"), "jobs.csv:2:1: is \"\", but must be a number"),
            ("job,seconds\na,1\n", Some("second"), "jobs.csv:1:1: has no column \"second\""),
            ("job,seconds\na,1\n", Some("second"), "did you mean seconds?"),
            ("job,s\n\"a,1\n", Some("s"), "jobs.csv:2:1: has a quotation mark without its end"),
            ("\"job,s\n", Some("s"), "jobs.csv:1:1: has a quotation mark without its end: give"),
            ("seconds\n", None, "jobs.csv: has no duration: write one a line, in seconds"),
            ("", None, "jobs.csv: has no duration"),
        ] {
            let found = seconds(text, column).unwrap_err();
            assert!(found.contains(why), "{text:?}: {found}");
        }
    }
}
