//! Decodes with one hook set: records the activations at the point in a normal run, then replaces them, cell by cell.

use std::cell::RefCell;
use std::collections::BTreeMap;

use anyhow::Result;

use super::HookCell;
use crate::interventions::{Bank, ChangeLog, Draw, Firings, Material, PreparedChange};
use crate::latent::{DecodeSettings, FinishedRow, Request, RowWatch, Trace, decode_watched};
use crate::model::{HookPoint, HookSpec, Hooks, Select};
use crate::progress::go_on;
use crate::schema::Observation;
use crate::store::Measurements;
use crate::study::Study;
use crate::study::answers::{gold_tokens, outcome};
use crate::study::record::{RecordTemplate, StudyRecord, blank};
use crate::study::sweep::{Sweep, SweepOutcome};

/// Observes the cells that `rows` lacks, on this process's problems.
pub fn observe(study: &Study, asked: &[HookCell], rows: &mut Measurements<Observation>) -> Result<()> {
    let sweep = &study.sweep()?;
    if asked.iter().any(|hooked| matches!(hooked.change.region, Select::Latent { .. })) {
        sweep.switches()?;
    }
    let blank = blank(study, sweep, rows.weights());
    let normal = Observation { mode: crate::schema::NORMAL.into(), ..blank.clone() };
    let of_cells = asked.iter().map(|hooked| template(hooked, &blank));
    let cells = std::iter::once(RecordTemplate { says: normal, draws: 1 }).chain(of_cells).collect();
    let record = StudyRecord::new(cells, sweep.forkable_problems().count(), &[], rows)?;
    record.add(sweep.forkable_problems().map(|p| ((0, 0, p), &sweep.normal[p], false, Firings::default())))?;
    let (settings, gold) = (study.settings(), gold_tokens(&study.corpus)?);
    let runs = Runs { study, settings: &settings, sweep, gold: &gold, record: &record };
    let numbers: Vec<usize> = (0..asked.len()).collect();
    for group in numbers.chunk_by(|&a, &b| asked[a].point == asked[b].point) {
        if group.iter().any(|&number| !record.holds_all(number + 1)) {
            runs.at_point(asked, group)?;
        }
    }
    Ok(())
}

fn template(hooked: &HookCell, blank: &Observation) -> RecordTemplate {
    let says = Observation {
        mode: hooked.mode.clone(),
        dose: hooked.dose,
        steps: hooked.change.region.steps(),
        hook: Some(hooked.point.to_string()),
        heads: Some(hooked.change.heads.to_string()),
        place: Some(hooked.change.region.place()),
        ..blank.clone()
    };
    RecordTemplate { says, draws: hooked.draws }
}

/// Shared state of the runs; threads share it too.
struct Runs<'a> {
    study: &'a Study,
    settings: &'a DecodeSettings,
    sweep: &'a Sweep<'a>,
    gold: &'a [Option<u32>],
    record: &'a StudyRecord<'a>,
}

/// By region.
type Banks = BTreeMap<String, Bank>;

impl Runs<'_> {
    /// The cells of one hook point. Each batch is decoded like the normal run's, so that equal values give equal bits.
    fn at_point(&self, asked: &[HookCell], group: &[usize]) -> Result<()> {
        let study = self.study;
        let point = asked[group[0]].point;
        let regions = group.iter().map(|&number| asked[number].change.region.recorded());
        let regions: BTreeMap<String, Select> = regions.map(|region| (region.place(), region)).collect();
        let regions = Vec::from_iter(regions.into_values());
        study.say(&format!("{point}: {} cells", group.len()));
        let chunks: Vec<&[Request]> = self.sweep.requests.chunks(study.batch_size()).collect();
        let seen = study.each("batches recorded", &chunks, |chunk| self.record_normal(point, &regions, chunk))?;
        let (mut banks, mut traces) = (Banks::new(), vec![]);
        for (of_chunk, more) in seen {
            of_chunk.into_iter().for_each(|(region, bank)| banks.entry(region).or_default().merge(bank));
            traces.extend(more);
        }
        for &number in group.iter().filter(|&&number| !self.record.holds_all(number + 1)) {
            let HookCell { change, draws, .. } = &asked[number];
            let bank = banks.get(&change.region.recorded().place()).cloned().unwrap_or_default();
            let all = point.kind.heads(study.model.config()).unwrap_or(1);
            let bank = bank.parts(|values| change.heads.select_values(values, all));
            let material = Material { bank: &bank, ..Material::NONE };
            let draw = |number: usize| change.prepare(&material, |_| Draw::keyed(study.seed, number, None));
            let prepared: Vec<PreparedChange> = (0..*draws).map(draw).collect();
            let missing = |draw: usize, chunk: &[Request]| {
                chunk.iter().any(|request| !self.record.holds((number + 1, draw, request.problem)))
            };
            let own: Vec<&[Request]> =
                chunks.iter().filter(|chunk| study.computes_problem(chunk[0].problem)).copied().collect();
            let all = (0..*draws).flat_map(|draw| own.iter().map(move |chunk| (draw, *chunk)));
            let units: Vec<(usize, &[Request])> = all.filter(|(draw, chunk)| missing(*draw, chunk)).collect();
            study.each("batches changed", &units, |&(draw, chunk)| {
                let done = self.changed(&prepared[draw], chunk, &traces)?;
                go_on()?;
                let rows = chunk.iter().zip(&done);
                self.record.add(rows.map(|(r, (o, f))| ((number + 1, draw, r.problem), o, true, *f)))
            })?;
        }
        Ok(())
    }

    fn decoded(&self, chunk: &[Request], hooks: &mut Hooks) -> Result<Vec<FinishedRow>> {
        let watch = |r: &Request| RowWatch { token: self.gold[r.problem], force_at: self.sweep.force_at[r.problem] };
        let (decoding, watched) = (self.study.decoding(self.settings), chunk.iter().map(watch).collect::<Vec<_>>());
        decode_watched(decoding, chunk, (0..chunk.len()).collect(), &watched, hooks)
    }

    /// The normal run of some requests with a recording hook: activations by region, and traces.
    fn record_normal(&self, point: HookPoint, regions: &[Select], chunk: &[Request]) -> Result<(Banks, Vec<Trace>)> {
        let (banks, log): (RefCell<Banks>, _) = (RefCell::default(), ChangeLog::from_requests(chunk));
        let mut hooks = Hooks::none();
        hooks.observe(&HookSpec::all(point), self.study.model.layers.len(), |site, value| {
            let mut banks = banks.borrow_mut();
            let mut record =
                |region: Select| banks.entry(region.place()).or_default().record(region, site, value, &log);
            regions.iter().try_for_each(|&region| record(region))
        })?;
        let traces = self.decoded(chunk, &mut hooks)?.into_iter().map(|decoded| decoded.trace).collect();
        drop(hooks);
        Ok((banks.into_inner(), traces))
    }

    /// The outcomes of a chunk's problems, and the replacements in each.
    fn changed(
        &self,
        change: &PreparedChange,
        chunk: &[Request],
        normal: &[Trace],
    ) -> Result<Vec<(SweepOutcome, Firings)>> {
        let log = ChangeLog::from_requests(chunk);
        let mut hooks = Hooks::none();
        hooks.change(change, &log);
        let done = self.decoded(chunk, &mut hooks)?;
        let of = |(decoded, firings): (&FinishedRow, Firings)| {
            Ok((outcome(&self.study.corpus, decoded, normal.get(decoded.trace.problem))?, firings))
        };
        done.iter().zip(log.firings()).map(of).collect()
    }
}
