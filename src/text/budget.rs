//! The budget in a question: the number of visible tokens that its answer may have.

/// The number in the first `budget N ;` of a question or of a prompt around it; `None` without one, or if it is 0.
pub fn said_budget(text: &str) -> Option<usize> {
    let mut words = text.split_whitespace().skip_while(|word| *word != "budget").skip(1);
    let budget = words.next()?.parse().ok().filter(|budget| *budget > 0)?;
    (words.next()? == ";").then_some(budget)
}
