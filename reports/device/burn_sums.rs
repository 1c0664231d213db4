//! Burn's own sums on a device against f64 on the host (README.md). Not part of the build: copy it to examples/ and run it with
//! `cargo run --features wgpu --example burn_sums`.
use burn::tensor::{
    Tensor, TensorData,
    activation::{log_softmax, softmax},
};
fn noise(n: usize) -> Vec<f32> {
    let mut s = 1u64;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((s >> 40) as f32 / 16777216.0 - 0.5) * 24.0
        })
        .collect()
}
fn off(a: &[f32], b: &[f64]) -> f64 {
    let m = b.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max) / m
}
fn main() {
    let device = switchyard::machine::by_name("wgpu").expect("device");
    for (rows, width) in
        [(2, 1000), (2, 30_000), (2, 65_535), (2, 65_536), (2, 70_000), (2, 151_672), (8, 151_672), (300, 151_672)]
    {
        let x = noise(rows * width);
        let t = Tensor::<2>::from_data(TensorData::new(x.clone(), [rows, width]), &device);
        let (mut p, mut lp, mut sums, mut mx) = (vec![], vec![], vec![], vec![]);
        for row in x.chunks(width) {
            let most = row.iter().fold(f64::MIN, |m, v| m.max(f64::from(*v)));
            let sum: f64 = row.iter().map(|v| (f64::from(*v) - most).exp()).sum();
            p.extend(row.iter().map(|v| (f64::from(*v) - most).exp() / sum));
            lp.extend(row.iter().map(|v| f64::from(*v) - most - sum.ln()));
            sums.push(row.iter().map(|v| f64::from(*v)).sum::<f64>());
            mx.push(most);
        }
        for again in 0..2 {
            let v = |t: Tensor<2>| t.into_data().try_to_vec::<f32>().expect("floats");
            println!(
                "{rows} x {width} ({again}): softmax {:.1e} log_softmax {:.1e} sum_dim1 {:.1e} max_dim1 {:.1e}",
                off(&v(softmax(t.clone(), 1)), &p),
                off(&v(log_softmax(t.clone(), 1)), &lp),
                off(&v(t.clone().sum_dim(1)), &sums),
                off(&v(t.clone().max_dim(1)), &mx)
            );
        }
    }
    for (rows, width) in [(1000, 3), (65_535, 3), (65_536, 3), (70_000, 3), (70_000, 64), (200_000, 3)] {
        let x = noise(rows * width);
        let t = Tensor::<2>::from_data(TensorData::new(x.clone(), [rows, width]), &device);
        let mut sums = vec![0.0f64; width];
        let mut all = 0.0;
        for row in x.chunks(width) {
            for (s, v) in sums.iter_mut().zip(row) {
                *s += f64::from(*v);
                all += f64::from(*v);
            }
        }
        let v = t.clone().sum_dim(0).into_data().try_to_vec::<f32>().expect("floats");
        let w = t.clone().sum().into_scalar::<f32>();
        let m = t.mul_scalar(1.0).sum_dim(1).into_data().try_to_vec::<f32>().expect("floats");
        let each: Vec<f64> = x.chunks(width).map(|r| r.iter().map(|v| f64::from(*v)).sum()).collect();
        println!(
            "{rows} x {width}: sum_dim0 {:.1e} sum {:.1e} sum_dim1 {:.1e}",
            off(&v, &sums),
            (f64::from(w) - all).abs() / all.abs(),
            off(&m, &each)
        );
    }
}
