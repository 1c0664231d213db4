//! The score of every edge in every pair (EAP with integrated gradients). Knows pairs and runs; nothing of circuits.

use anyhow::Result;
use ndarray::Array2;

use crate::progress::go_on;
use crate::study::Study;
use crate::study::circuits::edges::Weights;
use crate::study::circuits::gradient::TargetRow;
use crate::study::circuits::pairs::Pair;
use crate::study::circuits::pulls::pulls;
use crate::study::circuits::rewire::{RewiredRun, leads, outputs};

/// A pair with what its two runs put out.
pub struct RecordedPair<'p> {
    pub pair: &'p Pair,
    /// To which place each position belongs.
    pub places: Vec<usize>,
    /// What every sender puts out in the corrupt run and in the clean one, `[senders, D]` a position.
    pub corrupt: Vec<Array2<f32>>,
    pub clean: Vec<Array2<f32>>,
    /// The lead in the corrupt run and in the clean one.
    pub leads: [f64; 2],
}

impl RecordedPair<'_> {
    pub fn whole(&self) -> f64 {
        self.leads[1] - self.leads[0]
    }

    /// The clean run with the corrupt run's values on a share of each edge.
    pub fn rewired<'r>(&'r self, shares: &'r [Array2<f32>]) -> RewiredRun<'r> {
        let Pair { clean, says, .. } = self.pair;
        RewiredRun { row: clean, other: &self.corrupt, places: &self.places, shares, says: *says }
    }
}

pub struct Edges<'a> {
    pub study: &'a Study,
    pub weights: &'a Weights,
    /// Places that pairs have, all together.
    pub places: usize,
}

impl Edges<'_> {
    /// `[receivers, senders]` by place, all alike.
    pub fn shares(&self, value: f32) -> Vec<Array2<f32>> {
        let graph = self.weights.graph;
        vec![Array2::from_elem((graph.receivers().len(), graph.senders().len()), value); self.places]
    }

    /// Runs both rows of every pair. `places` says to which place each position of each pair belongs.
    pub fn recorded<'p>(&self, pairs: &'p [Pair], places: &[Vec<usize>]) -> Result<Vec<RecordedPair<'p>>> {
        let items: Vec<(&Pair, &Vec<usize>)> = pairs.iter().zip(places).collect();
        let (none, all) = (self.shares(1.0), self.shares(0.0));
        self.study.each("pairs run", &items, |&(pair, places)| {
            let mut both = outputs(self.study, self.weights, &[pair.corrupt.clone(), pair.clean.clone()])?.into_iter();
            let (corrupt, clean) = (both.next().unwrap_or_default(), both.next().unwrap_or_default());
            let mut out = RecordedPair { pair, places: places.clone(), corrupt, clean, leads: [0.0; 2] };
            let found = leads(self.study, self.weights, &[out.rewired(&none), out.rewired(&all)])?;
            out.leads.copy_from_slice(&found);
            Ok(out)
        })
    }

    /// Of every pair, by place `[receivers, senders]`: gradient × (clean − corrupt), summed over the positions of the place; the
    /// gradient is the mean over `steps` runs whose token embeddings lie between the two rows, at the middles of as many equal parts of
    /// the way. 0 steps: that of the corrupt run.
    pub fn scores(&self, recorded: &[&RecordedPair], steps: usize) -> Result<Vec<Vec<Array2<f64>>>> {
        let shares: Vec<f64> = match steps {
            0 => vec![0.0],
            _ => (0..steps).map(|step| (step as f64 + 0.5) / steps as f64).collect(),
        };
        // The same groups whatever the number of threads: a pair's sums are rounded with those of its group.
        let groups: Vec<&[&RecordedPair]> = recorded.chunks(8).collect();
        let done = self.study.each("groups of pairs passed", &groups, |some| {
            let mut sums: Vec<Vec<Array2<f64>>> =
                some.iter().map(|_| self.shares(0.0).iter().map(|x| x.mapv(f64::from)).collect()).collect();
            for &share in &shares {
                go_on()?;
                self.add(some, share, 1.0 / shares.len() as f64, &mut sums)?;
            }
            Ok(sums)
        })?;
        Ok(done.into_iter().flatten().collect())
    }

    fn add(&self, some: &[&RecordedPair], share: f64, factor: f64, sums: &mut [Vec<Array2<f64>>]) -> Result<()> {
        let aimed: Vec<TargetRow> = some.iter().map(|r| r.pair.on_the_way(share)).collect();
        let graph = self.weights.graph;
        let reads: Vec<usize> = graph.receivers().into_iter().map(|receiver| graph.reads(receiver)).collect();
        let Study { model, reasoning, .. } = self.study;
        let found = pulls(model, &reasoning.source, self.weights, &aimed)?;
        for ((r, pulls), sums) in some.iter().zip(found).zip(sums) {
            for (position, pull) in pulls.iter().enumerate() {
                let difference = &r.clean[position] - &r.corrupt[position];
                let product = pull.dot(&difference.t());
                let sum = &mut sums[r.places[position]];
                for (receiver, &reads) in reads.iter().enumerate() {
                    for sender in 0..reads {
                        sum[[receiver, sender]] += factor * f64::from(product[[receiver, sender]]);
                    }
                }
            }
        }
        Ok(())
    }
}
