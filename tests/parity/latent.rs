//! The recurrence against its definition in PyTorch (`fixtures/make_latent.py`): Coconut's loss is set `a`.

use switchyard::parity::known_rows;

use super::reference::{assert_all, fixtures};

#[test]
fn known_rows_have_the_logits_loss_and_gradients_of_pytorch() {
    assert_all(known_rows(&fixtures()));
}
