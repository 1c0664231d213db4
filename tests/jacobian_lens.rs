//! `jacobian_lens` on organisms and on the committed micro model.

use switchyard::experiments::jacobian_lens::{Config, rows, table};
use switchyard::schema::{JacobianLensRow, Transport};

use crate::common::circuit_models::study;
use crate::common::known::{Purpose, micro_on};

fn of(rows: &[JacobianLensRow], lens: Transport, layer: usize) -> Vec<&JacobianLensRow> {
    rows.iter().filter(|r| r.lens == lens && r.layer == layer).collect()
}

#[test]
fn a_read_latent_predicts_the_answer_and_an_idle_one_does_not() {
    let config = Config { problems: 60, ..Config::default() };
    for (which, reads) in [(Purpose::Working, true), (Purpose::Inert, false)] {
        let study = study(which, 60, 0);
        let found = rows(&study, &config).expect("rows");
        println!("{which:?}\n{}", table(&found));
        let last = found.iter().map(|r| r.step).max().expect("steps");
        let layers: Vec<usize> = found.iter().map(|r| r.layer).collect();
        let best = layers.iter().flat_map(|&l| of(&found, Transport::Jacobian, l)).filter(|r| r.step == last);
        let best = best.map(|r| r.says_answer.value).fold(0.0, f64::max);
        assert_eq!(best > 0.9, reads, "{which:?}: {best}");
        let null = found.iter().filter(|r| r.lens == Transport::Others).map(|r| r.says_answer.value);
        assert!(null.fold(0.0, f64::max) < 0.5, "another problem's state does not predict this answer");
    }
}

#[test]
fn the_same_command_gives_the_same_rows_on_any_number_of_threads() {
    let config = Config { problems: 6, layers: vec![0, 4], together: 64 };
    let one = rows(&micro_on(1, "sft", 6), &config).expect("rows");
    assert_eq!(one, rows(&micro_on(3, "sft", 6), &config).expect("rows"));
    assert!(one.iter().all(|r| r.says_answer.n == one[0].identity.n && r.logprob.value <= 0.0));
    assert!(one.iter().all(|r| r.split_error.is_some() != (r.lens == Transport::Logit)));
    let wrong = rows(&micro_on(1, "sft", 6), &Config { layers: vec![5], ..config }).expect_err("refused").to_string();
    assert!(wrong.contains("layer 5 does not exist, the model has 0 to 4"), "{wrong}");
}
