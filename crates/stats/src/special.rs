//! Distribution functions: normal, Student t, their quantiles, and the symmetric binomial.
//! Knows no data. Series and continued fractions as in Abramowitz & Stegun (26.2, 26.5, 26.7); absolute error below 1e-12.

use std::f64::consts::PI;

/// ln Γ(x) for x > 0 (Lanczos, g = 7, nine terms).
pub fn ln_gamma(x: f64) -> f64 {
    const C: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        return (PI / (PI * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let t = x + 7.5;
    let sum = C.iter().enumerate().skip(1).fold(C[0], |s, (i, c)| s + c / (x + i as f64));
    0.5 * (2.0 * PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// Regularised incomplete beta function I_x(a, b) by Lentz' continued fraction (A&S 26.5.8).
pub(crate) fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast only on this side of the mean; the other side is its mirror image.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp() / a;
    let tiny = 1e-300;
    let keep = |v: f64| if v.abs() < tiny { tiny } else { v };
    let (mut c, mut d) = (1.0, 1.0 / keep(1.0 - (a + b) * x / (a + 1.0)));
    let mut h = d;
    for m in 1..500 {
        let m = m as f64;
        for step in [
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ] {
            d = 1.0 / keep(1.0 + step * d);
            c = keep(1.0 + step / c);
            h *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-16 {
            break;
        }
    }
    front * h
}

/// P(Z <= x) of the standard normal, the limit of the t distribution, computed by the series of A&S 26.2.10 in the middle and
/// the continued fraction 26.2.14 in the tails.
pub fn normal_cdf(x: f64) -> f64 {
    if x.is_nan() {
        return f64::NAN;
    }
    let density = (-0.5 * x * x).exp() / (2.0 * PI).sqrt();
    if x.abs() < 3.0 {
        let (mut term, mut sum, mut k) = (x, x, 1.0);
        while term.abs() > 1e-17 * sum.abs() && k < 200.0 {
            term *= x * x / (2.0 * k + 1.0);
            sum += term;
            k += 1.0;
        }
        0.5 + density * sum
    } else {
        let a = x.abs();
        let tail = density / (1..=120).rev().fold(a, |f, k| a + k as f64 / f);
        if x > 0.0 { 1.0 - tail } else { tail }
    }
}

/// P(T <= x) of Student's t with `df` degrees of freedom.
pub fn t_cdf(x: f64, df: f64) -> f64 {
    let tail = 0.5 * incomplete_beta(0.5 * df, 0.5, df / (df + x * x));
    if x > 0.0 { 1.0 - tail } else { tail }
}

/// The x with `normal_cdf(x) = p`, for 0 < p < 1.
pub fn normal_quantile(p: f64) -> f64 {
    invert(p, normal_cdf)
}

/// The x with `t_cdf(x, df) = p`, for 0 < p < 1.
pub fn t_quantile(p: f64, df: f64) -> f64 {
    invert(p, |x| t_cdf(x, df))
}

/// Bisection on the lower half (both distributions are symmetric about 0): slow, exact, and called a few times per table.
fn invert(p: f64, cdf: impl Fn(f64) -> f64) -> f64 {
    if !(p > 0.0 && p < 1.0) {
        return f64::NAN;
    }
    if p > 0.5 {
        return -invert(1.0 - p, cdf);
    }
    let (mut low, mut high) = (-1.0, 0.0);
    while cdf(low) > p && low > -1e300 {
        low *= 2.0;
    }
    for _ in 0..200 {
        let mid = 0.5 * (low + high);
        if cdf(mid) < p { low = mid } else { high = mid }
    }
    0.5 * (low + high)
}

/// P(X <= k) for X ~ Binomial(n, 1/2), summed in logarithms so that n may be large.
pub fn binomial_half_cdf(k: usize, n: usize) -> f64 {
    let (ln_n, ln_2) = (ln_gamma(n as f64 + 1.0), std::f64::consts::LN_2);
    let term = |i: usize| ln_n - ln_gamma(i as f64 + 1.0) - ln_gamma((n - i) as f64 + 1.0) - n as f64 * ln_2;
    (0..=k.min(n)).map(|i| term(i).exp()).sum::<f64>().min(1.0)
}
