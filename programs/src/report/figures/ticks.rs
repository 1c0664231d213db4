//! Positions and labels of ticks, and line breaks in names. Knows numbers and text.

use super::fonts::width;

/// Breaks a text after spaces and hyphens so that each line is at most `room` pixels wide; a longer word is not broken.
pub(super) fn words(text: &str, room: f64, height: f64, bold: bool) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in text.split_inclusive([' ', '-']) {
        match lines.last_mut() {
            Some(line) if width(format!("{line}{piece}").trim_end(), height, bold) <= room => line.push_str(piece),
            _ => lines.push(piece.to_string()),
        }
    }
    lines.iter().map(|line| line.trim_end().to_string()).collect()
}

/// Lines of words; a word that is longer than a line is broken at its end.
pub(super) fn wrap(text: &str, room: f64, height: f64, bold: bool) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for mut line in words(text, room, height, bold) {
        while width(&line, height, bold) > room {
            let ends = line.char_indices().map(|(at, _)| at).skip(1);
            let Some(end) = ends.take_while(|end| width(&line[..*end], height, bold) <= room).last() else { break };
            let rest = line.split_off(end);
            lines.push(std::mem::replace(&mut line, rest));
        }
        lines.push(line);
    }
    lines
}

/// Maximum number of ticks.
const MOST: usize = 12;

/// Places and texts of ticks: steps of 1, 2 or 5 times a power of ten; decades on a logarithmic axis.
pub(super) fn ticks(low: f64, high: f64, log: bool) -> Vec<(f64, String)> {
    if log && high.log10() - low.log10() > 1.5 {
        let (first, last) = ((low.log10() - 1e-9).ceil() as i32, (high.log10() + 1e-9).floor() as i32);
        let step = ((last - first) / 6 + 1) as usize;
        return (first..=last).rev().step_by(step).take(MOST).map(|e| (10f64.powi(e), power(e))).collect();
    }
    linear(low, high, 0.0)
}

/// Ticks of a linear axis at whole numbers.
pub(super) fn whole_ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    linear(low, high, 1.0)
}

/// The finest step, at least `least`, that leaves at most six intervals.
fn linear(low: f64, high: f64, least: f64) -> Vec<(f64, String)> {
    // A range below 1e-300 has no steps.
    let raw = ((high - low) / 6.001).max(1e-300);
    let magnitude = 10f64.powf(raw.log10().floor());
    let step =
        [1.0, 2.0, 5.0].map(|m| m * magnitude).into_iter().find(|s| *s >= raw).unwrap_or(10.0 * magnitude).max(least);
    let decimals = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
    let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    (first..=last)
        .take(MOST)
        .map(|i| {
            let value = i as f64 * step;
            (value, format!("{value:.decimals$}").replace('-', "−"))
        })
        .collect()
}

/// `10⁻³`.
fn power(exponent: i32) -> String {
    let raised = |c: char| match c {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        digit => char::from_u32(0x2070 + digit as u32 - '0' as u32).unwrap_or(digit),
    };
    match exponent {
        0 => "1".to_string(),
        e => format!("10{}", e.to_string().chars().map(raised).collect::<String>()),
    }
}
