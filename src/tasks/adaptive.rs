//! `adaptive`: `chains` with a budget of visible tokens in each question, so that a latent block helps on some problems only.
//!
//! Question `budget 14 ; a = 5 ; j = a + 4 ; c = j - a ; ? c :`; the solution is that of `chains` for every budget. A response
//! may have that many visible tokens ([`said_budget`](crate::text::said_budget)). The solution of L steps has 8 L + 3 tokens as text,
//! including its end, and up to 3 L fewer with blocks of five latents. The budget is drawn after the names, by the problem's own
//! generator: it depends neither on the level nor on the program, and the split does not depend on it.

use anyhow::{Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{Chains, Levels, PlanText, Split, TaskFamily};

settings! {
    /// Settings of the family.
    pub struct Adaptive {
        /// Visible tokens that a response may have; each is as likely as another.
        pub budgets: Vec<usize> = vec![14, 22, 30, 46],
        /// The problems after the budgets.
        pub chains: Chains = Chains::default(),
    }
}

impl TaskFamily for Adaptive {
    const NAME: &'static str = "adaptive";
    const SAYS_BUDGET: bool = true;
    type Plan = <Chains as TaskFamily>::Plan;

    fn check(&self) -> Result<()> {
        let budgets = &self.budgets;
        ensure!(
            !budgets.is_empty() && budgets.iter().all(|budget| (1..=100_000).contains(budget)),
            "adaptive.budgets: expected visible tokens, each from 1 to 100000, found {budgets:?}"
        );
        self.chains.check()
    }

    fn levels(&self) -> Levels {
        self.chains.levels()
    }

    fn words(&self) -> Vec<String> {
        let mut words = self.chains.words();
        for word in std::iter::once("budget".to_owned()).chain(self.budgets.iter().map(usize::to_string)) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words
    }

    fn subject(&self, rng: &mut ChaCha8Rng, split: Split) -> &'static str {
        self.chains.subject(rng, split)
    }

    fn plan(&self, rng: &mut ChaCha8Rng, subject: &'static str, level: u8) -> Self::Plan {
        self.chains.plan(rng, subject, level)
    }

    fn write(&self, rng: &mut ChaCha8Rng, plan: &Self::Plan, subject: &str) -> PlanText {
        let written = self.chains.write(rng, plan, subject);
        let budget = self.budgets[rng.random_range(0..self.budgets.len() as u32) as usize];
        PlanText { question: format!("budget {budget} ; {}", written.question), ..written }
    }

    fn starts(&self) -> u32 {
        self.chains.starts()
    }
}
