//! Markdown tables of what an experiment found. Knows text only.

/// The two lines that a table begins with; its columns as they stand in a row, `group | accuracy`.
pub(crate) fn heads(columns: &str) -> String {
    let rule = "| --- ".repeat(columns.split(" | ").count());
    format!("| {columns} |\n{rule}|\n")
}

/// A table's title and the lines that it begins with.
pub(crate) fn titled(title: &str, columns: &str) -> String {
    format!("{title}\n\n{}", heads(columns))
}

#[cfg(test)]
mod tests {
    use super::{heads, titled};

    #[test]
    fn every_column_has_a_rule() {
        assert_eq!(heads("mode | p(</swi>) | n"), "| mode | p(</swi>) | n |\n| --- | --- | --- |\n");
        assert_eq!(titled("What was found.", "n"), "What was found.\n\n| n |\n| --- |\n");
    }
}
