//! Values of flags and of an HTTP API's parameters: whole numbers and durations with a range, texts
//! that are not empty, names, and values that begin with a minus sign.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;
use std::time::Duration;

use crate::duration::{self, InvalidDuration};
use crate::name::InvalidName;

/// A number up to here is not worth a limit in an error.
const UNLIMITED: u64 = u32::MAX as u64;

/// The reader of a flag whose value is a whole number: from where to where, what it is, for example
/// `a number of jobs`, and one of them. Its error says all of that.
pub fn number<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
    what: &'static str,
    example: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            let (first, last) = (range.start(), range.end());
            let range = match *last {
                UNLIMITED.. => format!("of {first} or more"),
                _ => format!("from {first} to {last}"),
            };
            format!("expected {what}: a whole number {range}, for example {example}")
        })
    }
}

/// The reader of a parameter that is true or false.
///
/// # Errors
/// What is expected.
pub fn boolean(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "expected true or false".to_owned())
}

/// The error of a body of a request that is empty, where an `example` of JSON is expected.
#[must_use]
pub fn empty_body(example: &str) -> String {
    format!("the body is empty: expected JSON, for example {example}")
}

/// The reader of a flag whose value is a text that is not empty. Its error says what is expected,
/// for example `an image, for example leasehold/agent:1.0`.
pub fn text(
    expected: &'static str,
) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |text| match text.trim() {
        "" => Err(format!("expected {expected}")),
        _ => Ok(text.to_owned()),
    }
}

/// The reader of a flag whose value is the name of a `T`; as [`text()`], and its error says what is
/// wrong with the name.
pub fn name<T: FromStr<Err = InvalidName>>(
    expected: &'static str,
) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    let text = text(expected);
    move |name| {
        let name = text(name)?;
        T::from_str(&name).map_err(|invalid| invalid.to_string())?;
        Ok(name)
    }
}

/// The durations that a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationRange {
    /// The shortest.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
}

impl DurationRange {
    /// The interval between two requests to a worker, or the time limit of one.
    pub const OF_REQUESTS: Self =
        Self { min: Duration::from_millis(100), max: Duration::from_secs(3600) };
    /// A deadline of a worker.
    pub const DEADLINE: Self =
        Self { min: Duration::from_millis(100), max: duration::MANIFEST.max() };
    /// A time that a worker or a coordinator is given, or none.
    pub const GRACE: Self = Self { min: Duration::ZERO, max: duration::MANIFEST.max() };

    /// Reads a duration in this range.
    ///
    /// # Errors
    /// Says how to write one, or the range.
    pub fn parse(self, text: &str) -> Result<Duration, String> {
        match duration::parse(text) {
            Ok(given) if given >= self.min && given <= self.max => Ok(given),
            Err(error @ InvalidDuration::Syntax(_)) => Err(error.to_string()),
            Ok(_) | Err(InvalidDuration::TooLong { .. }) => {
                let [min, max] = [self.min, self.max].map(duration::format);
                Err(format!("expected a duration from {min} to {max}, for example 30s"))
            }
        }
    }
}

/// The reader of a flag whose value is a duration in a range.
pub fn duration(
    range: DurationRange,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| range.parse(text)
}

/// The arguments of a program, where a value that begins with a minus sign and a digit is a part of
/// its flag: `--flag -5s` becomes `--flag=-5s`. No flag begins so; without this, nobody would say
/// what the flag takes.
pub fn join_negative_values(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    let mut args = args.into_iter();
    for arg in args.by_ref() {
        if arg == "--" {
            joined.push(arg);
            break;
        }
        match joined.last_mut() {
            Some(flag) if is_negative(&arg) && takes_value(flag) => {
                flag.push("=");
                flag.push(arg);
            }
            Some(_) | None => joined.push(arg),
        }
    }
    // What follows belongs to another program.
    joined.extend(args);
    joined
}

fn is_negative(arg: &OsString) -> bool {
    matches!(arg.as_bytes(), [b'-', digit, ..] if digit.is_ascii_digit())
}

fn takes_value(flag: &OsString) -> bool {
    let bytes = flag.as_bytes();
    bytes.starts_with(b"--") && !bytes.contains(&b'=')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorkerName;

    #[test]
    fn a_number_out_of_its_range_is_told_what_the_flag_takes() {
        let percent = number::<u32>(1..=100, "a percentage", 25);
        assert_eq!((percent("1"), percent("100")), (Ok(1), Ok(100)));
        for wrong in ["", "0", "101", "-1", "x", "1.5", "99999999999999999999999"] {
            let why = "expected a percentage: a whole number from 1 to 100, for example 25";
            assert_eq!(percent(wrong), Err(why.into()), "{wrong}");
        }
        let more = number::<u64>(1..=u64::MAX, "checks", 3)("0").expect_err("it is below 1");
        assert_eq!(more, "expected checks: a whole number of 1 or more, for example 3");
    }

    #[test]
    fn a_text_is_not_empty_and_a_name_is_valid() {
        let (text, name) = (text("an image"), name::<WorkerName>("a worker's name"));
        assert_eq!((text("a b"), name("w-1")), (Ok("a b".into()), Ok("w-1".into())));
        for empty in ["", " "] {
            assert_eq!(text(empty), Err("expected an image".into()));
            assert_eq!(name(empty), Err("expected a worker's name".into()));
        }
        let why = name("a b").expect_err("it has a space");
        assert!(why.starts_with("worker name \"a b\" is not a DNS subdomain"), "{why}");
    }

    #[test]
    fn a_duration_out_of_its_range_is_told_the_range() {
        let deadline = duration(DurationRange::DEADLINE);
        assert_eq!(deadline("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(deadline("366d"), Ok(DurationRange::DEADLINE.max));
        for wrong in ["0s", "99ms", "400d", "999999999999h"] {
            let why = "expected a duration from 100ms to 8784h, for example 30s";
            assert_eq!(deadline(wrong), Err(why.into()), "{wrong}");
        }
        assert!(deadline("5").expect_err("no unit").contains("a number with a unit"));
        assert_eq!(duration(DurationRange::GRACE)("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn a_negative_value_belongs_to_its_flag_and_a_command_is_left_alone() {
        let joined = |text: &str| {
            let args = join_negative_values(text.split(' ').map(OsString::from));
            args.join(" ".as_ref()).into_string().expect("a text")
        };
        for (given, result) in [
            ("run --n -1 --t -5s", "run --n=-1 --t=-5s"),
            ("run --n=2 -1 -v", "run --n=2 -1 -v"),
            ("run --n -- nice -n -5 x --n -1", "run --n -- nice -n -5 x --n -1"),
        ] {
            assert_eq!(joined(given), result);
        }
    }
}
