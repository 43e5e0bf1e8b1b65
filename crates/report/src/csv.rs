//! All numbers as comma-separated values.

use serde_json::Value;

use crate::evaluation::Evaluation;

/// A line for each number in a result: step, round, its place as a JSON pointer, itself. Where elements of an array
/// name themselves by `variant`, `file_system` or `contestant`, the fourth column has that name.
pub fn csv(evaluation: &Evaluation) -> String {
    let mut text = String::from("step,round,place,of,value\n");
    for step in &evaluation.steps {
        let mut line = |place: &str, of: &str, value: &str| {
            text += &format!("{},{},{},{},{value}\n", step.name, step.round, quoted(place), quoted(of));
        };
        visit(&step.json["result"], "", "", &mut line);
    }
    text
}

fn visit(value: &Value, place: &str, of: &str, line: &mut impl FnMut(&str, &str, &str)) {
    match value {
        Value::Number(number) => line(place, of, &number.to_string()),
        Value::Array(elements) => {
            for (number, element) in elements.iter().enumerate() {
                visit(element, &format!("{place}/{number}"), of, line);
            }
        }
        Value::Object(members) => {
            let names =
                ["variant", "file_system", "contestant"].iter().filter_map(|name| value[*name].as_str());
            let of = names.into_iter().next().unwrap_or(of);
            for (name, member) in members {
                visit(member, &format!("{place}/{}", name.replace('~', "~0").replace('/', "~1")), of, line);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// A field. One that a spreadsheet would take for a formula begins with an apostrophe.
fn quoted(text: &str) -> String {
    let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    if guard.is_empty() && !text.contains([',', '"', '\n', '\r']) {
        return text.to_owned();
    }
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}
