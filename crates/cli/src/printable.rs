//! Text for a terminal. Names of files, tables and stores come from others, and a terminal obeys control characters.

use std::borrow::Cow;

/// A name or a message that has to stay on one line: every control character becomes `\u` and four hexadecimal digits,
/// as in JSON.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// Text of several lines, with tabulators.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character| matches!(character, '\n' | '\t'))
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let obeyed = |character: char| character.is_control() && !is_kept(character);
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let escape = |character| match obeyed(character) {
        true => format!("\\u{:04x}", u32::from(character)),
        false => character.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_nothing_to_obey() {
        assert_eq!(one_line("plain ü 漢 \u{a0}"), "plain ü 漢 \u{a0}");
        assert_eq!(
            one_line("a\x1b[2J\nb\tc\u{7f}\u{9b}1m\0"),
            "a\\u001b[2J\\u000ab\\u0009c\\u007f\\u009b1m\\u0000"
        );
        assert_eq!(lines("a\tb\nc\rd\x07"), "a\tb\nc\\u000dd\\u0007");
        // What JSON leaves as it is stays JSON, and the same text.
        let json = serde_json::to_string("\u{9b}\x1b\u{7f}").expect("JSON");
        let again: String = serde_json::from_str(&lines(&json)).expect("JSON");
        assert_eq!(again, "\u{9b}\x1b\u{7f}");
        let all: String = (0..=0x10_ffff).filter_map(char::from_u32).collect();
        assert!(!one_line(&all).contains(char::is_control));
    }
}
