//! What graders make of units, degrees, percentages and what stands beside an answer. Agreement with math-verify is held in
//! `grade`.

use std::time::{Duration, Instant};
use switchyard::grade::{Grading, Rule, extract, grade};

type Row = (&'static str, &'static str, bool);

fn wrong(rows: &[Row], grading: Grading) -> Vec<&Row> {
    rows.iter().filter(|(gold, said, right)| grading.grade(gold, said).equal != *right).collect()
}

fn strict() -> Grading {
    Grading { strict: true, ..Grading::default() }
}

/// Strictly, what stands beside the answer is a part of it.
const BESIDE: &[Row] = &[
    ("5 cm", "The answer is 5 km", false),
    ("5 cm", "The answer is 5 km.", false),
    ("5 cm", "5 km", false),
    ("5 cm", "#### 5 km", false),
    ("5 cm", "\\boxed{5} km", false),
    ("5 cm", "\\boxed{5}\\text{ km}", false),
    ("5 cm", "$\\boxed{5}\\text{ km}$", false),
    ("5 cm", "So it is $5$ km.", false),
    ("5 cm", "The answer is 5 square centimeters", false),
    ("60 km/h", "The answer is 60 km", false),
    ("60 km/h", "The answer is 60 miles per hour", false),
    ("12 dollars", "It costs 12 cents.", false),
    ("5", "The answer is 5 thousand", false),
    ("5", "The answer is 5 million dollars", false),
    ("5", "The answer is 5 dozen", false),
    ("5", "The answer is 5 tenths", false),
    ("5", "\\boxed{5} thousand", false),
    ("5", "So it is $5$ million.", false),
    ("5", "The answer is 5 hours 30 minutes", false),
    ("5", "The answer is 5 hours and 30 minutes", false),
    ("5", "The answer is 5 and a half", false),
    ("5", "The answer is $5\\text{ hours}$ 30 minutes", false),
    ("5", "The answer is 5 3/4", false),
    ("5", "The answer is 5 or 6", false),
    ("5", "\\boxed{5} or 6", false),
    ("5", "The answer is 5, 6", false),
    ("5", "The answer is 5 to 7", false),
    ("5", "The answer is 5-7", false),
    ("6", "It is 5 or 6", false),
    ("2.5", "The answer is 2,5 and 7", false),
    ("5", "The answer is 5\\pm 2", false),
    ("5", "The answer is 5\\sqrt{2}", false),
    ("5", "The answer is 5x", false),
    ("5", "The answer is 5 x", false),
    ("5", "The answer is 5π", false),
    ("5", "The answer is 5^{n}", false),
    ("5", "The answer is 5:30", false),
    ("5", "The answer is x + 5", false),
    ("5", "The answer is - 5", false),
    ("5", "The answer is x < 5", false),
    ("5", "$-\\boxed{5}$", false),
    ("4", "The answer is \\pm 4", false),
    ("4", "The answer is ± 4", false),
    ("4", "\\pm \\boxed{4}", false),
    ("5", "$5\\text{ cm} + x\\text{ cm}$", false),
    ("3m", "3", false),
];

/// What a reward must still pay: prose, marks, spellings of a unit, a unit that the gold answer leaves out.
const PAID: &[Row] = &[
    ("5", "The answer is 5 km.", true),
    ("5", "\\boxed{5} apples", true),
    ("5", "She has 5 apples left.", true),
    ("5", "The answer is **5** apples.", true),
    ("5", "The answer is 5 because 2 + 3 = 5", true),
    ("5", "The answer is 5, since $2 + 3 = 5$.", true),
    ("5", "The answer is 5! I am sure.", true),
    ("5", "The answer is 5 a day", true),
    ("5", "The answer is 5 in total", true),
    ("5", "The answer is 5 in 3 years", true),
    ("5", "The answer is 5 o'clock", true),
    ("5", "It is the 5th.", true),
    ("5", "Total => 5", true),
    ("5", "Total - 5", true),
    ("5", "Final answer:\n- 5", true),
    ("5", "x = 5", true),
    ("5", "The answer is \\(5\\), as we see.", true),
    ("41", "Since 41 and 43 differ by 2, $n = 41$.", true),
    ("18000", "The answer is $18,000/year", true),
    ("72", "The answer is 72Mb per hour.", true),
    ("100", "He eats 2 * 50g = 100g of cake.", true),
    ("2", "The answer is 2:00 pm", true),
    ("5 cm", "The answer is 5 centimeters.", true),
    ("5 cm", "\\boxed{5} cm", true),
    ("5 cm", "The answer is 5", true),
    ("12 dollars a day", "It is 12 dollars per day.", true),
    ("60 km/h", "The answer is 60 kilometers per hour.", true),
    ("10 cm^2", "The answer is 10 square centimeters.", true),
    ("5 thousand", "The answer is 5 thousand.", true),
    ("5 or 6", "The answer is 5 or 6", true),
];

#[test]
fn a_reward_looks_at_what_stands_beside_an_answer() {
    assert_eq!(wrong(BESIDE, strict()), Vec::<&Row>::new());
    assert_eq!(wrong(PAID, strict()), Vec::<&Row>::new());
    assert_eq!(strict().grade("5", "The answer is 5 thousand").rule, Rule::Strict);
    // Strictly right is right.
    for (gold, said, right) in PAID {
        assert!(!right || grade(gold, said).equal, "{gold} | {said}");
    }
    for (gold, said) in BESIDE.iter().flat_map(|(gold, ..)| BESIDE.iter().map(move |(_, said, _)| (gold, said))) {
        assert!(!strict().grade(gold, said).equal || grade(gold, said).equal, "{gold} | {said}");
    }
}

/// As math-verify grades them, strictly too.
const VALUES: &[Row] = &[
    ("90°", "90", true),
    ("90°", "90°", true),
    ("90°", "\\boxed{90}", true),
    ("90°", "90 degrees", true),
    ("90°", "\\boxed{90^\\circ}", true),
    ("90°", "\\boxed{91}", false),
    ("$90°$", "\\boxed{90}", true),
    ("$90^\\circ$", "$90°$", true),
    ("25 °C", "The answer is 25", true),
    // It cannot read this box.
    ("$90^\\circ$", "\\boxed{90°}", false),
    ("100%", "1", true),
    ("100%", "\\boxed{1}", true),
    ("100%", "100", true),
    ("1", "100 percent", true),
    ("200%", "2", true),
    ("$5$", "$500\\%$", true),
    ("$5\\%$", "$500\\%$", false),
    ("$5\\%$", "$5$", true),
    ("60 km/h", "60", true),
    ("60 km/h", "\\boxed{60}", true),
    ("60 km/h", "\\boxed{60 km/h}", true),
    ("60 km/h", "\\boxed{60\\text{ km/h}}", true),
    ("60 km/h", "61", false),
    ("5 m/s", "5", true),
    ("9.8 m/s^2", "9.8", true),
    ("10 cm^2", "10", true),
    ("10", "10 cm^2", true),
    ("7 L", "7", true),
    ("100 mL", "100", true),
    ("$60 km/h$", "60", false),
    ("3x", "x", false),
];

#[test]
fn degrees_percentages_and_plain_units_have_their_value() {
    assert_eq!(wrong(VALUES, Grading::default()), Vec::<&Row>::new());
    assert_eq!(wrong(VALUES, strict()), Vec::<&Row>::new());
}

#[test]
fn boxes_close_together_are_one_answer() {
    assert_eq!(extract("<think>\\boxed{6}</think>\n\\boxed{5}").as_deref(), Some("5"));
    assert_eq!(extract("<think>\\boxed{6}</think> So it is \\boxed{5}").as_deref(), Some("5"));
    // As math-verify reads it: fewer than ten characters stand between.
    assert_eq!(extract("\\boxed{6} \\boxed{5}").as_deref(), Some("6,5"));
    assert_eq!(extract("<think>\\boxed{6}</think> \\boxed{5}").as_deref(), Some("5"));
}

/// The time to grade a text, the best of several.
fn time(said: &str) -> Duration {
    let once = || {
        let start = Instant::now();
        grade("5", said);
        strict().grade(said, said);
        start.elapsed()
    };
    (0..4).map(|_| once()).min().unwrap_or_default()
}

#[test]
fn time_grows_with_the_length_of_a_text() {
    for piece in ["$ ", "**", "\\( \\)", "\\boxed{", "5 km or ", "km/", "5\n", "#", "answer is ", "} ", "~", "\\,"] {
        let (short, long) = (time(&piece.repeat(20_000)), time(&piece.repeat(160_000)));
        // Eight times the text, with room for a busy machine; the square is sixty-four.
        assert!(long < short * 28 + Duration::from_millis(20), "{piece:?}: {short:?}, then {long:?}");
    }
}
