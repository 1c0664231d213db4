//! Grading of units, degrees, percentages and text next to an answer. `grade.rs` tests the agreement with math-verify.

use switchyard::grade::{Grading, Rule, extract, grade};

use crate::common::assert_ends;
use crate::grade::{as_judged, field, own};

fn strict() -> Grading {
    Grading { strict: true, ..Grading::default() }
}

#[test]
fn a_reward_reads_text_next_to_an_answer() {
    let (beside, paid) = (own("beside"), own("paid"));
    assert!(beside.len() >= 46 && paid.len() >= 30);
    as_judged(&beside, strict());
    as_judged(&paid, strict());
    assert_eq!(strict().grade("5", "The answer is 5 thousand").rule, Rule::Strict);
    // Strictly right is right.
    for row in &paid {
        assert!(row["expected"] == false || grade(field(row, "gold"), field(row, "pred")).equal, "{row}");
    }
    for gold in beside.iter().map(|row| field(row, "gold")) {
        for text in beside.iter().map(|row| field(row, "pred")) {
            assert!(!strict().grade(gold, text).equal || grade(gold, text).equal, "{gold} | {text}");
        }
    }
}

/// As math-verify grades them, strictly too, except that it cannot read the box with `90°`.
#[test]
fn degrees_percentages_and_plain_units_have_their_value() {
    let values = own("values");
    assert!(values.len() >= 31);
    as_judged(&values, Grading::default());
    as_judged(&values, strict());
}

#[test]
fn adjacent_boxes_are_one_answer() {
    assert_eq!(extract("<think>\\boxed{6}</think>\n\\boxed{5}").as_deref(), Some("5"));
    assert_eq!(extract("<think>\\boxed{6}</think> So it is \\boxed{5}").as_deref(), Some("5"));
    // As in math-verify: fewer than ten characters between the boxes.
    assert_eq!(extract("\\boxed{6} \\boxed{5}").as_deref(), Some("6,5"));
    assert_eq!(extract("<think>\\boxed{6}</think> \\boxed{5}").as_deref(), Some("5"));
}

/// No time is asserted, only that the work ends: one pass takes a second or two, quadratic work many hours.
#[test]
fn a_text_of_megabytes_is_graded_in_one_pass() {
    for piece in ["$ ", "**", "\\( \\)", "\\boxed{", "5 km or ", "km/", "5\n", "#", "answer is ", "} ", "~", "\\,"] {
        let text = piece.repeat(1_000_000);
        assert_ends(&format!("{piece:?}"), || {
            grade("5", &text);
            strict().grade(&text, &text);
        });
    }
}
