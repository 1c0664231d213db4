//! The budget in a question: how many visible tokens its answer may have.

/// The number in `budget N ;`, the first such words of a question or of a prompt around it; none if there is none, or where it is 0.
pub fn said_budget(text: &str) -> Option<usize> {
    let mut words = text.split_whitespace().skip_while(|word| *word != "budget").skip(1);
    let budget = words.next()?.parse().ok().filter(|budget| *budget > 0)?;
    (words.next()? == ";").then_some(budget)
}
