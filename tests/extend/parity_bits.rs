//! A third-party task: the parity of some bits, one step per bit.

use anyhow::{Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{Fact, Levels, PlanText, Split, StepValue, TaskFamily, TaskPlan};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParityBits {
    pub extra_bits: u32,
}

impl TaskFamily for ParityBits {
    const NAME: &'static str = "parity-bits";
    type Plan = Vec<bool>;

    fn check(&self) -> Result<()> {
        ensure!(self.extra_bits <= 8, "extra_bits must be at most 8, found {}", self.extra_bits);
        Ok(())
    }

    fn levels(&self) -> Levels {
        Levels::ALL
    }

    fn words(&self) -> Vec<String> {
        ["0", "1", "?", ":", ";", "#"].map(str::to_owned).to_vec()
    }

    fn subject(&self, _rng: &mut ChaCha8Rng, _split: Split) -> &'static str {
        "bits"
    }

    fn plan(&self, rng: &mut ChaCha8Rng, _subject: &'static str, level: u8) -> Vec<bool> {
        (0..4 + u32::from(level) + self.extra_bits).map(|_| rng.random()).collect()
    }

    fn write(&self, _rng: &mut ChaCha8Rng, plan: &Vec<bool>, _subject: &str) -> PlanText {
        let word = |bit: bool| if bit { "1" } else { "0" };
        let bits: Vec<&str> = plan.iter().map(|&bit| word(bit)).collect();
        let (mut parity, mut solution, mut steps) = (false, String::new(), vec![]);
        for (i, &bit) in plan.iter().enumerate() {
            parity ^= bit;
            let value = Fact::Number(i64::from(parity));
            steps.push(StepValue {
                value,
                clause: word(parity).into(),
                words: 2 * i..2 * i + 1,
                value_words: 2 * i..2 * i + 1,
                expression: None,
            });
            solution += &format!("{} ; ", word(parity));
        }
        let marker = 2 * plan.len();
        let question = format!("{} ? :", bits.join(" "));
        let answer = word(parity).to_owned();
        PlanText { question, solution: solution + "# " + &answer, answer, answer_words: marker..marker + 2, steps }
    }
}

impl TaskPlan for Vec<bool> {
    fn structure(&self) -> u64 {
        // Not the number itself: its low bits would determine the split.
        self.iter()
            .fold(1_u64, |hash, &bit| (hash * 31 + u64::from(bit)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29))
    }

    fn answer_if(&self, step: usize, value: i64) -> Option<String> {
        let rest = self.get(step + 1..)?.iter().filter(|bit| **bit).count() as i64;
        Some(((value + rest) % 2).to_string())
    }
}
