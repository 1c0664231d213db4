//! Decodes with one hook set: records what stands at the point in a normal run, then replaces it, cell by cell.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Result, ensure};

use super::super::latent_intervention::record::{Record, Template, blank};
use super::cells::Hooked;
use super::region::Region;
use crate::interventions::{Bank, Draw, Firings, Intervention, Material};
use crate::latent::{DecodeSettings, Decoded, Request, Trace, Watched, decode_watched};
use crate::machine::Compute;
use crate::model::hooks::{Place, Site};
use crate::model::{Activation, HookPoint, HookSpec, Hooks, Select, Step};
use crate::parallel;
use crate::schema::Observation;
use crate::store::Journal;
use crate::study::answers::Reader;
use crate::study::modes::Action;
use crate::study::sweep::{Outcome, Sweep, not_stopped};
use crate::study::{Causal, Subject};

/// Observes what the journal does not hold yet.
///
/// # Errors
/// Observations of another run; as the decoder's.
pub fn observe(
    causal: &Causal,
    asked: &[Hooked],
    journal: Journal<Observation>,
    weights: &str,
) -> Result<Journal<Observation>> {
    let (study, sweep) = (causal.study, causal.sweep()?);
    if asked.iter().any(|hooked| matches!(hooked.region, Region::Latents(_))) {
        sweep.switches()?;
    }
    let identity = study.identity(sweep.normal.len());
    let blank = blank(&identity, weights, Compute::of(&study.subject.model), sweep.blocks);
    let normal = Observation { mode: crate::schema::NORMAL.into(), ..blank.clone() };
    let of_cells = asked.iter().map(|hooked| template(hooked, &blank));
    let cells = std::iter::once(Template { says: normal, draws: 1 }).chain(of_cells).collect();
    let record = Record::new(cells, sweep.normal.len(), &[], journal)?;
    record.add(sweep.normal.iter().enumerate().map(|(p, o)| ((0, 0, p), o, false, Firings::default())))?;
    let reader = Reader::new(&study.subject.corpus)?;
    let (subject, settings) = (&study.subject, causal.settings);
    let runs = Runs { subject, settings, sweep, reader: &reader, record: &record };
    let numbers: Vec<usize> = (0..asked.len()).collect();
    for group in numbers.chunk_by(|&a, &b| asked[a].point == asked[b].point) {
        if group.iter().any(|&number| !record.holds_all(number + 1)) {
            runs.at_point(causal, asked, group)?;
        }
    }
    Ok(record.into_journal())
}

fn template(hooked: &Hooked, blank: &Observation) -> Template {
    let Hooked { point, heads, region, cell } = hooked;
    let says = Observation {
        mode: cell.mode.clone(),
        dose: cell.dose,
        steps: region.steps(),
        hook: Some(point.to_string()),
        heads: Some(heads.to_string()),
        place: Some(region.place()),
        ..blank.clone()
    };
    Template { says, draws: cell.draws }
}

/// What the runs of an experiment share; threads too.
struct Runs<'a> {
    subject: &'a Subject,
    settings: &'a DecodeSettings,
    sweep: &'a Sweep<'a>,
    reader: &'a Reader<'a>,
    record: &'a Record<'a>,
}

/// The normal run of some requests with a hook that only looks: what stood there, and the traces.
type Seen = (BTreeMap<String, Bank>, Vec<Trace>);

impl Runs<'_> {
    /// The cells of one hook point. Each batch is decoded as the normal run was, so that equal values give equal bits.
    fn at_point(&self, causal: &Causal, asked: &[Hooked], group: &[usize]) -> Result<()> {
        let (study, threads) = (causal.study, causal.study.threads);
        let point = asked[group[0]].point;
        let mut regions: Vec<Region> = vec![];
        for region in group.iter().map(|&number| asked[number].region.recorded()) {
            if !regions.contains(&region) {
                regions.push(region);
            }
        }
        causal.say(&format!("{point}: {} cells", group.len()));
        let chunks: Vec<&[Request]> = self.sweep.requests.chunks(study.together()).collect();
        let seen = parallel::run(&parallel::cut(&chunks, threads), |part| {
            part.iter().map(|chunk| self.seen(point, &regions, chunk)).collect::<Result<Vec<_>>>()
        })?;
        let (mut banks, mut traces): (BTreeMap<String, Bank>, Vec<Trace>) = (BTreeMap::new(), vec![]);
        for (of_chunk, more) in seen.into_iter().flatten() {
            of_chunk.into_iter().for_each(|(region, bank)| banks.entry(region).or_default().merge(bank));
            traces.extend(more);
        }
        for &number in group.iter().filter(|&&number| !self.record.holds_all(number + 1)) {
            let Hooked { region, cell, .. } = &asked[number];
            let bank = banks.get(&region.recorded().place()).cloned().unwrap_or_default();
            let bank = bank.parts(|all| asked[number].part(all, self.subject.model.config()));
            let material = Material { bank: &bank, siblings: &[], swaps: &[], model: &self.subject.model, exit: &[] };
            let Action::Replace(about) = cell.action else { continue };
            let made = |draw: usize| {
                let seed = study.seed.wrapping_add((draw as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                (about.make)(&material, Draw { number: draw, seed, dose: cell.dose.unwrap_or(0.0) })
            };
            let made: Vec<Box<dyn Intervention + '_>> = (0..cell.draws).map(made).collect();
            let missing = |draw: usize, chunk: &[Request]| {
                chunk.iter().any(|request| !self.record.holds((number + 1, draw, request.problem)))
            };
            let units: Vec<(usize, &[Request])> = (0..cell.draws)
                .flat_map(|draw| chunks.iter().map(move |chunk| (draw, *chunk)))
                .filter(|(draw, chunk)| missing(*draw, chunk))
                .collect();
            parallel::run(&parallel::cut(&units, threads), |part| {
                part.iter().try_for_each(|&(draw, chunk)| {
                    let done = self.replaced(&asked[number], made[draw].as_ref(), chunk, &traces)?;
                    not_stopped()?;
                    let rows = chunk.iter().zip(&done);
                    self.record.add(rows.map(|(r, (o, f))| ((number + 1, draw, r.problem), o, true, *f)))
                })
            })?;
        }
        Ok(())
    }

    fn decoded(&self, chunk: &[Request], hooks: &mut Hooks) -> Result<Vec<Decoded>> {
        let watched: Vec<Watched> = chunk
            .iter()
            .map(|r| Watched { token: self.reader.gold_token(r.problem), force_at: self.sweep.force_at[r.problem] })
            .collect();
        let how = self.subject.decode(self.settings);
        decode_watched(how, chunk, (0..chunk.len()).collect(), &watched, hooks)
    }

    fn seen(&self, point: HookPoint, regions: &[Region], chunk: &[Request]) -> Result<Seen> {
        let banks: RefCell<BTreeMap<String, Bank>> = RefCell::default();
        let mut hooks = Hooks::none();
        hooks.observe(&all_of(point), self.layers(), |site, value| {
            let (dims, data) = (value.dims(), value.to_vec()?);
            for place in site.places {
                for region in regions {
                    let Some((block, step)) = region.key(place) else { continue };
                    let values = gather(&data, &point.kind.ranges(&dims, place));
                    let problem = chunk[place.row].problem;
                    banks.borrow_mut().entry(region.place()).or_default().insert((problem, block, step), values);
                }
            }
            Ok(())
        })?;
        let traces = self.decoded(chunk, &mut hooks)?.into_iter().map(|decoded| decoded.trace).collect();
        drop(hooks);
        Ok((banks.into_inner(), traces))
    }

    /// What became of the problems of a chunk, and what was replaced in each.
    fn replaced(
        &self,
        hooked: &Hooked,
        with: &dyn Intervention,
        chunk: &[Request],
        normal: &[Trace],
    ) -> Result<Vec<(Outcome, Firings)>> {
        let firings = RefCell::new(vec![Firings::default(); chunk.len()]);
        let mut hooks = Hooks::none();
        hooks.replace(&all_of(hooked.point), self.layers(), |site, value| {
            replace(site, value, hooked, with, chunk, &mut firings.borrow_mut())
        })?;
        let done = self.decoded(chunk, &mut hooks)?;
        drop(hooks);
        let of = |(decoded, firings): (&Decoded, Firings)| {
            Ok((self.reader.outcome(decoded, normal.get(decoded.trace.problem))?, firings))
        };
        done.iter().zip(firings.into_inner()).map(of).collect()
    }

    fn layers(&self) -> usize {
        self.subject.model.layers.len()
    }
}

fn all_of(point: HookPoint) -> HookSpec {
    HookSpec { pattern: point.to_string(), select: Select::All }
}

fn replace(
    site: &Site,
    value: Activation,
    hooked: &Hooked,
    with: &dyn Intervention,
    chunk: &[Request],
    firings: &mut [Firings],
) -> Result<Activation> {
    let here = |place: &&Place| hooked.region.key(place).is_some();
    if !site.places.iter().any(|place| here(&place)) {
        return Ok(value);
    }
    let (dims, mut data) = (value.dims(), value.to_vec()?);
    for place in site.places {
        let Some((block, step)) = hooked.region.key(place) else { continue };
        let own = hooked.heads.of(site.point.kind.ranges(&dims, place));
        let old = gather(&data, &own);
        // Randomness and donors belong to the problem, not to the row of this batch.
        let at = Place { row: chunk[place.row].problem, step: Step::Latent { block, step }, ..*place };
        let Some(new) = with.input(&at, &old) else { continue };
        ensure!(new.len() == old.len(), "a value of width {} at `{}`, expected {}", new.len(), site.point, old.len());
        let mut rest = &new[..];
        for range in own {
            let (now, later) = rest.split_at(range.len());
            data[range].copy_from_slice(now);
            rest = later;
        }
        firings[place.row].count += 1;
        firings[place.row].moved += old.iter().zip(&new).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
    }
    Ok(value.with_values(data))
}

fn gather(data: &[f32], ranges: &[Range<usize>]) -> Vec<f32> {
    ranges.iter().flat_map(|range| data[range.clone()].iter().copied()).collect()
}
