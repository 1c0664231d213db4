//! Sums and maxima over rows of V values, in groups. On Mesa's software driver, those of Burn 0.22.1 are wrong for rows of more than about
//! 65,535 values (`sum_dim` of 151,672 by more than its value, `log_softmax` infinite: reports/device/README.md).

use burn::tensor::{Tensor, activation};

/// Values of a group.
pub const GROUP: usize = 256;

/// `[N, V]` padded to whole groups, `[N, P]`.
pub fn padded(x: Tensor<2>, filling: f32) -> Tensor<2> {
    let [n, width] = x.dims();
    match width.next_multiple_of(GROUP) - width {
        0 => x,
        more => Tensor::cat(vec![x.clone(), Tensor::full([n, more], filling, (&x.device(), x.dtype()))], 1),
    }
}

/// `[N, P]` → `[N, P / GROUP, GROUP]`.
pub fn grouped(x: Tensor<2>) -> Tensor<3> {
    let [n, width] = x.dims();
    x.reshape([n, width / GROUP, GROUP])
}

/// `[N, V]` → `[N, 1]`.
pub fn sum(x: Tensor<2>) -> Tensor<2> {
    grouped(padded(x, 0.0)).sum_dim(2).squeeze_dim::<2>(2).sum_dim(1)
}

/// `[N, V]` → `[N, 1]`.
pub fn largest(x: Tensor<2>) -> Tensor<2> {
    grouped(padded(x, f32::MIN)).max_dim(2).squeeze_dim::<2>(2).max_dim(1)
}

/// Log-softmax of each row of `[N, V]`, with its gradient.
pub fn log_softmax(logits: Tensor<2>) -> Tensor<2> {
    if logits.dims()[1] <= GROUP * GROUP / 2 {
        return activation::log_softmax(logits, 1);
    }
    let x = logits.clone() - largest(logits.detach());
    x.clone() - sum(x.exp()).log()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn group_by_group_is_burns_own_on_the_cpu_with_its_gradient() {
        for width in [1, 255, 256, 40_000, 70_001] {
            let data: Vec<f32> = (0..3 * width).map(|i| ((i * 7919) % 2003) as f32 / 200.0 - 4.0).collect();
            let cpu: Device = Default::default();
            let device = cpu.autodiff();
            let x = || Tensor::<2>::from_data(TensorData::new(data.clone(), [3, width]), &device).require_grad();
            let weights = || {
                Tensor::<2>::from_data(
                    TensorData::new(data.iter().map(|x| x.sin()).collect::<Vec<_>>(), [3, width]),
                    &device,
                )
            };
            let values = |x: Tensor<2>| x.without_autodiff().try_into_vec_as::<f32>().expect("values");
            let close = |ours: Vec<f32>, theirs: Vec<f32>, what: &str| {
                let size = theirs.iter().fold(1e-3_f32, |most, x| most.max(x.abs()));
                for (ours, theirs) in ours.iter().zip(&theirs) {
                    assert!((ours - theirs).abs() < 2e-5 * size, "{what} of {width}: {ours} is not {theirs}");
                }
            };
            close(values(largest(x())), values(x().max_dim(1)), "largest");
            close(values(sum(x().exp())), values(x().exp().sum_dim(1)), "sum");
            let (ours, theirs) = (x(), x());
            let (a, b) = (log_softmax(ours.clone()), activation::log_softmax(theirs.clone(), 1));
            close(values(a.clone()), values(b.clone()), "log_softmax");
            let gradient =
                |x: &Tensor<2>, y: Tensor<2>| values(x.grad(&(y * weights()).sum().backward()).expect("a gradient"));
            close(gradient(&ours, a), gradient(&theirs, b), "gradient");
        }
    }
}
