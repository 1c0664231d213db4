//! The UTC date in formats of Python's `strftime`, for chat templates.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

const MONTHS: &str = "January February March April May June July August September October November December";
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// The current time in a Python format.
///
/// # Errors
/// An unsupported format code.
pub fn now(format: &str) -> Result<String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    written(format, since.as_secs())
}

/// Formats seconds since 1970.
fn written(format: &str, seconds: u64) -> Result<String> {
    let (days, clock) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    let (year, month, day, of_year) = civil(days);
    let name = MONTHS.split(' ').nth(month as usize - 1).unwrap_or_default();
    let weekday = DAYS[(days as usize + 3) % 7];
    let noon = if hour < 12 { "AM" } else { "PM" };
    let twelve = (hour + 11) % 12 + 1;
    let mut text = String::new();
    let mut signs = format.chars();
    while let Some(sign) = signs.next() {
        if sign != '%' {
            text.push(sign);
            continue;
        }
        let mut sign = signs.next();
        let bare = sign == Some('-');
        if bare {
            sign = signs.next();
        }
        let padded = |n: u64, width: usize| if bare { n.to_string() } else { format!("{n:0width$}") };
        text.push_str(&match sign {
            Some('Y') => year.to_string(),
            Some('y') => padded(year % 100, 2),
            Some('m') => padded(month, 2),
            Some('d') => padded(day, 2),
            Some('e') => format!("{day:2}"),
            Some('j') => padded(of_year, 3),
            Some('H') => padded(hour, 2),
            Some('I') => padded(twelve, 2),
            Some('M') => padded(minute, 2),
            Some('S') => padded(second, 2),
            Some('B') => name.to_owned(),
            Some('b' | 'h') => name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('p') => noon.to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => bail!("%{other} is not supported"),
            None => bail!("a % at the end"),
        });
    }
    Ok(text)
}

/// Year, month, day and day of the year, from days since 1970 (Gregorian calendar).
fn civil(mut days: u64) -> (u64, u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let of_year = days + 1;
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1, of_year)
}

#[cfg(test)]
mod tests {
    /// Python's `datetime.fromtimestamp(s, timezone.utc).strftime(…)`.
    #[test]
    fn days_are_those_of_python() {
        let of = |format: &str, seconds: u64| super::written(format, seconds).expect("known signs");
        assert_eq!(of("%d %b %Y", 1_709_164_800), "29 Feb 2024");
        assert_eq!(of("%A, %-d %B %Y %H:%M:%S %j", 1_785_024_000), "Sunday, 26 July 2026 00:00:00 207");
        assert_eq!(of("%Y-%m-%d %I %p %%", 1_609_459_199), "2020-12-31 11 PM %");
        assert_eq!(of("%a %y", 0), "Thu 70");
        assert!(super::written("%Q", 0).is_err());
    }
}
