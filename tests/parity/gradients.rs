//! Loss and every parameter's gradient against PyTorch's.

use switchyard::parity::gradients;

use super::reference::{TINY, assert_all, fixtures};

#[test]
fn loss_and_gradients_agree_with_pytorch() {
    for name in TINY {
        assert_all(gradients(&fixtures(), name));
    }
}
