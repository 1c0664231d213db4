//! [`FusedOps`], [`Stores`] and [`CpuFusedOps`] under autodiff: one node each, with a fused backward.

use std::cell::Cell;

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::{FloatTensorOps, ModuleOps};
use burn::backend::{Autodiff, Backend, TensorMetadata, tensor::FloatTensor as Float};
use burn::tensor::Shape;

use super::{BackwardOps, CpuBackwardOps, CpuFusedOps, FusedOps, Stores, Targets, head, many, parts};
use crate::frozen::FrozenMatrix;

/// Finishes an operation: its output, tracked with its state if a parent needs a gradient.
macro_rules! finish {
    ($node:expr, $parents:expr, $output:expr, $state:expr) => {
        match $node.prepare::<C>($parents).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish($state, $output),
            OpsKind::UnTracked(prep) => prep.finish($output),
        }
    };
}

thread_local! {
    /// Whether this thread's batches are copies of one row.
    static COPIES: Cell<bool> = const { Cell::new(false) };
}

/// Runs a model on copies of one batch row, each of which gets its own gradient: products with frozen weights are computed for the first copy
/// and repeated. Burn frees the graph in the backward pass, so a Jacobian needs many forward passes.
pub fn of_copies<T>(run: impl FnOnce() -> T) -> T {
    struct CopiesGuard;
    impl Drop for CopiesGuard {
        fn drop(&mut self) {
            COPIES.set(false);
        }
    }
    COPIES.set(true);
    let _end = CopiesGuard;
    run()
}

/// The product for every batch row; under [`of_copies`], the first row's, repeated.
fn of_each<B: Backend>(x: Float<B>, product: impl FnOnce(Float<B>) -> Float<B>) -> Float<B> {
    match x.shape()[0] {
        copies if COPIES.get() && copies > 1 => {
            B::float_repeat_dim(product(B::float_slice(x, &[(0..1).into()])), 0, copies)
        }
        _ => product(x),
    }
}

/// Declares a node: bounds of the backend, number of parents, saved state, and the parents' gradients as a function of the output's and of
/// which parents need one.
macro_rules! node {
    (
        $(#[$doc:meta])*
        $name:ident: $bound:ident $(+ $more:ident)*, $parents:literal, $state:pat => $saved:ty, |$grad:ident, $wanted:pat_param| $gradients:expr
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $name;

        impl<B: $bound $(+ $more)*> Backward<B, $parents> for $name {
            type State = $saved;

            fn backward(self, ops: Ops<Self::State, $parents>, grads: &mut Gradients, _: &mut Checkpointer) {
                let $grad = grads.consume::<B>(&ops.node);
                let $wanted = ops.parents.each_ref().map(Option::is_some);
                let $state = ops.state;
                let gradients: [Option<Float<B>>; $parents] = $gradients;
                for (node, gradient) in ops.parents.into_iter().zip(gradients) {
                    if let (Some(node), Some(gradient)) = (node, gradient) {
                        grads.register::<B>(node.id, gradient);
                    }
                }
            }
        }
    };
}

node!(RmsNorm: BackwardOps, 2, (x, weight, eps) => (Float<B>, Float<B>, f64), |grad, _| {
    let (dx, dw) = B::rms_norm_backward(x, weight, grad, eps);
    [Some(dx), Some(dw)]
});

node!(SwiGlu: BackwardOps, 2, (gate, up) => (Float<B>, Float<B>), |grad, _| {
    let (dg, du) = B::swiglu_backward(gate, up, grad);
    [Some(dg), Some(du)]
});

node!(
    /// Saves a factor only if the other needs a gradient.
    Matmul: FusedOps, 2, (a, b, [left, right]) => (Option<Float<B>>, Option<Float<B>>, [Shape; 2]), |grad, _| {
        let first = b.map(|b| summed::<B>(B::matmul(grad.clone(), B::float_transpose(b)), &left));
        let second = a.map(|a| summed::<B>(B::matmul(B::float_transpose(a), grad), &right));
        [first, second]
    }
);

/// Saved state for the gradients of a product with LoRA factors.
#[derive(Clone, Debug)]
struct Adaptation<B: Backend> {
    x: Float<B>,
    weight: Float<B>,
    a: Float<B>,
    b: Float<B>,
    /// `x A`.
    between: Float<B>,
    scale: f64,
}

node!(
    /// With `t = s · g Bᵀ`: `dx = g Wᵀ + t Aᵀ`, `dA = xᵀ t`, `dB = s · (x A)ᵀ g`.
    Adapted: FusedOps, 3, Adaptation { x, weight, a, b, between, scale } => Adaptation<B>, |grad, [of_x, ..]| {
        let t = B::scaled_matmul(grad.clone(), B::float_transpose(b), scale);
        let dx = of_x.then(|| {
            let dx = B::matmul(grad.clone(), B::float_transpose(weight));
            B::matmul_onto(dx, t.clone(), B::float_transpose(a), 1.0)
        });
        let da = B::matmul(B::float_transpose(x), t);
        let db = B::scaled_matmul(B::float_transpose(between), grad, scale);
        [dx, Some(da), Some(db)]
    }
);

/// Sums a gradient over the axes that an operation broadcast.
fn summed<B: Backend>(grad: Float<B>, shape: &Shape) -> Float<B> {
    let repeated = |grad: &Float<B>, axis: usize| shape[axis] == 1 && grad.shape()[axis] > 1;
    (0..shape.rank()).fold(grad, |grad, axis| if repeated(&grad, axis) { B::float_sum_dim(grad, axis) } else { grad })
}

node!(LinearStored: Stores, 1, weight => FrozenMatrix, |grad, _| [Some(B::linear_stored_backward(grad, weight))]);

node!(
    /// With a weight without gradient.
    LinearOfCopies: CpuFusedOps, 1, weight => Float<B>, |grad, _| [Some(B::linear_transposed(grad, weight))]
);

node!(
    /// Linear itself: the gradient of `y W` is a product with Wᵀ.
    LinearStoredBack: Stores, 1, weight => FrozenMatrix, |grad, _| [Some(B::linear_stored(grad, weight))]
);

node!(Rotate: FusedOps, 1, (cos, sin, back) => (Float<B>, Float<B>, bool), |grad, _| [Some(B::rotate(grad, cos, sin, !back))]);

node!(
    /// Saves its inputs and outputs, but no pattern.
    Attend: CpuBackwardOps, 3, [q, k, v, mask, out, scales] => [Float<B>; 6], |grad, _| {
        let (dq, dk, dv) = B::attend_backward(q, k, v, mask, out, scales, grad);
        [Some(dq), Some(dk), Some(dv)]
    }
);

node!(AttendInParts: BackwardOps, 3, inputs => parts::Inputs<B>, |grad, wanted| parts::backward(&inputs, &grad, wanted));

node!(
    /// Saves its output.
    SoftmaxGradient: BackwardOps, 1, pattern => Float<B>, |grad, _| [Some(B::softmax_backward(pattern, grad))]
);

node!(HeadLoss: BackwardOps, 2, (hidden, head, targets) => (Float<B>, Float<B>, Targets), |grad, wanted| {
    head::backward(&hidden, &head::Floats::<B>(&head), &targets, &grad, wanted)
});

node!(
    HeadLossStored: Stores + BackwardOps, 2, (hidden, learnt, stored, targets) => (Float<B>, Float<B>, FrozenMatrix, Targets), |grad, wanted| {
        let head = head::MixedRows::<B> { stored: &stored, learnt: &learnt };
        head::backward(&hidden, &head, &targets, &grad, wanted)
    }
);

impl<B: BackwardOps, C: CheckpointStrategy> FusedOps for Autodiff<B, C> {
    fn rms_norm(x: Float<Self>, weight: Float<Self>, eps: f64) -> Float<Self> {
        let parents = [x.node(), weight.node()];
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let output = B::rms_norm(x.clone(), weight.clone(), eps);
        finish!(RmsNorm, parents, output, (x, weight, eps))
    }

    fn swiglu(gate: Float<Self>, up: Float<Self>) -> Float<Self> {
        let parents = [gate.node(), up.node()];
        let (gate, up) = (gate.into_primitive(), up.into_primitive());
        let output = B::swiglu(gate.clone(), up.clone());
        finish!(SwiGlu, parents, output, (gate, up))
    }

    fn rotate(x: Float<Self>, cos: Float<Self>, sin: Float<Self>, back: bool) -> Float<Self> {
        let parents = [x.node()];
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        let output = B::rotate(x.into_primitive(), cos.clone(), sin.clone(), back);
        finish!(Rotate, parents, output, (cos, sin, back))
    }

    fn attend_in_parts(q: Float<Self>, k: Float<Self>, v: Float<Self>, mask: Float<Self>, held: usize) -> Float<Self> {
        let parents = [q.node(), k.node(), v.node()];
        let (q, k, v, mask) = (q.into_primitive(), k.into_primitive(), v.into_primitive(), mask.into_primitive());
        let inputs = parts::Inputs::<B> { q, k, v, mask, held };
        let output = parts::forward(&inputs);
        finish!(AttendInParts, parents, output, inputs)
    }

    fn masked_softmax(scores: Float<Self>, mask: Float<Self>) -> Float<Self> {
        let parents = [scores.node()];
        let output = B::masked_softmax(scores.into_primitive(), mask.into_primitive());
        finish!(SoftmaxGradient, parents, output, output.clone())
    }

    fn row_softmax(scores: Float<Self>) -> Float<Self> {
        let parents = [scores.node()];
        let output = B::row_softmax(scores.into_primitive());
        finish!(SoftmaxGradient, parents, output, output.clone())
    }

    fn head_loss(hidden: Float<Self>, head: Float<Self>, targets: Targets) -> (Float<Self>, Float<Self>) {
        let parents = [hidden.node(), head.node()];
        let (hidden, head) = (hidden.into_primitive(), head.into_primitive());
        let (output, hits) = B::head_loss(hidden.clone(), head.clone(), targets.clone());
        (finish!(HeadLoss, parents, output, (hidden, head, targets)), constant::<B, C>(hits))
    }

    fn matmul(a: Float<Self>, b: Float<Self>) -> Float<Self> {
        let parents = [a.node(), b.node()];
        // Each factor is stored for the other's gradient.
        let wanted = [a.is_tracked(), b.is_tracked()];
        let (a, b) = (a.into_primitive(), b.into_primitive());
        let output = B::matmul(a.clone(), b.clone());
        let shapes = [a.shape(), b.shape()];
        finish!(Matmul, parents, output, (wanted[1].then_some(a), wanted[0].then_some(b), shapes))
    }

    fn adapted(x: Float<Self>, weight: Float<Self>, a: Float<Self>, b: Float<Self>, scale: f64) -> Float<Self> {
        let parents = [x.node(), a.node(), b.node()];
        let [x, weight, a, b] = [x, weight, a, b].map(|x| x.into_primitive());
        let between = B::matmul(x.clone(), a.clone());
        let y = B::matmul(x.clone(), weight.clone());
        let output = B::matmul_onto(y, between.clone(), b.clone(), scale);
        finish!(Adapted, parents, output, Adaptation { x, weight, a, b, between, scale })
    }
}

impl<B: Stores + BackwardOps, C: CheckpointStrategy> Stores for Autodiff<B, C> {
    fn linear_stored(x: Float<Self>, weight: FrozenMatrix) -> Float<Self> {
        let parents = [x.node()];
        let output = of_each::<B>(x.into_primitive(), |x| B::linear_stored(x, weight.clone()));
        finish!(LinearStored, parents, output, weight)
    }

    fn linear_stored_backward(grad: Float<Self>, weight: FrozenMatrix) -> Float<Self> {
        let parents = [grad.node()];
        let output = B::linear_stored_backward(grad.into_primitive(), weight.clone());
        finish!(LinearStoredBack, parents, output, weight)
    }

    fn head_loss_stored(
        hidden: Float<Self>,
        learnt: Float<Self>,
        stored: FrozenMatrix,
        targets: Targets,
    ) -> (Float<Self>, Float<Self>) {
        let parents = [hidden.node(), learnt.node()];
        let (hidden, learnt) = (hidden.into_primitive(), learnt.into_primitive());
        let (output, hits) = B::head_loss_stored(hidden.clone(), learnt.clone(), stored.clone(), targets.clone());
        (finish!(HeadLossStored, parents, output, (hidden, learnt, stored, targets)), constant::<B, C>(hits))
    }
}

impl<B: CpuBackwardOps, C: CheckpointStrategy> CpuFusedOps for Autodiff<B, C> {
    fn linear(x: Float<Self>, weight: Float<Self>) -> Float<Self> {
        if COPIES.get() && !weight.is_tracked() {
            let (parents, weight) = ([x.node()], weight.into_primitive());
            let product = |x| <B as CpuFusedOps>::linear(x, weight.clone());
            let output = of_each::<B>(x.into_primitive(), product);
            return finish!(LinearOfCopies, parents, output, weight);
        }
        if !many::is_used() {
            return <Self as ModuleOps<Self>>::linear(x, weight, None);
        }
        let mut shape = x.shape();
        let (last, depth) = (shape.num_dims() - 1, weight.shape()[0]);
        let flat = Shape::new([shape.num_elements() / depth, depth]);
        shape[last] = weight.shape()[1];
        Self::float_reshape(<Self as FusedOps>::matmul(Self::float_reshape(x, flat), weight), shape)
    }

    fn linear_transposed(x: Float<Self>, table: Float<Self>) -> Float<Self> {
        <Self as CpuFusedOps>::linear(x, Self::float_transpose(table))
    }

    fn attend(q: Float<Self>, k: Float<Self>, v: Float<Self>, mask: Float<Self>) -> Float<Self> {
        let parents = [q.node(), k.node(), v.node()];
        let (q, k, v, mask) = (q.into_primitive(), k.into_primitive(), v.into_primitive(), mask.into_primitive());
        let (output, scales) = B::attend_for_backward(q.clone(), k.clone(), v.clone(), mask.clone());
        finish!(Attend, parents, output, [q, k, v, mask, output.clone(), scales])
    }
}

/// A result without gradient.
fn constant<B: Backend, C: CheckpointStrategy>(x: Float<B>) -> Float<Autodiff<B, C>> {
    <Autodiff<B, C> as burn::backend::AutodiffBackend>::from_inner(x)
}
