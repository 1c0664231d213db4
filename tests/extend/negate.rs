//! A stranger's intervention: every latent input with its sign turned.

use super::Intervention;
use crate::model::hooks::Place;

#[derive(Clone, Copy, Debug)]
pub struct Negate;

impl Intervention for Negate {
    fn input(&self, _at: &Place, h: &[f32]) -> Option<Vec<f32>> {
        Some(h.iter().map(|x| -x).collect())
    }
}
