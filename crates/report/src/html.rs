//! Text in a page.

/// A text that stands for itself, between tags and in quoted attributes. Control characters, which HTML does not allow,
/// become replacement characters.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            '\n' | '\t' => escaped.push(character),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Three significant digits.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        magnitude if !magnitude.is_finite() => "-".to_owned(),
        magnitude if magnitude >= 1e7 => format!("{value:.2e}"),
        magnitude if magnitude >= 1e4 => grouped(value),
        magnitude if magnitude >= 100.0 => format!("{value:.0}"),
        magnitude if magnitude >= 10.0 => format!("{value:.1}"),
        magnitude if magnitude >= 1.0 || magnitude == 0.0 => format!("{value:.2}"),
        magnitude if magnitude >= 0.001 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// A whole number with a comma before each three digits.
fn grouped(value: f64) -> String {
    let whole = format!("{:.0}", value.abs());
    let mut text = String::from(if value < 0.0 { "-" } else { "" });
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
