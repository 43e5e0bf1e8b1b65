use crate::random::Random;

/// Ranks `0 .. n`, rank r with probability proportional to `1 / (r + 1)^shape`.
///
/// The method is that of Gray et al., "Quickly generating billion-record synthetic databases"
/// (SIGMOD 1994): exact for the two first ranks, a continuous approximation for the others.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    n: u64,
    alpha: f64,
    eta: f64,
    zeta: f64,
    two_below: f64,
}

impl Zipf {
    /// `n` is not zero, `shape` between 0 and 1 (exclusive).
    pub(crate) fn new(n: u64, shape: f64) -> Zipf {
        assert!(n > 0 && shape > 0.0 && shape < 1.0);
        let zeta = harmonic(n, shape);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - shape)) / (1.0 - harmonic(2, shape) / zeta);
        Zipf { n, alpha: 1.0 / (1.0 - shape), eta, zeta, two_below: 1.0 + 0.5f64.powf(shape) }
    }

    pub(crate) fn rank(&self, random: &mut Random) -> u64 {
        let p = random.unit();
        let mass = p * self.zeta;
        if mass < 1.0 {
            return 0;
        }
        if mass < self.two_below {
            return 1.min(self.n - 1);
        }
        let rank = self.n as f64 * (self.eta * p - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.n - 1)
    }
}

/// The sum of `k^-shape` for k from 1 to n: exact for the first terms, Euler and Maclaurin's
/// formula for the rest.
fn harmonic(n: u64, shape: f64) -> f64 {
    let exact = n.min(1000);
    let head: f64 = (1..=exact).map(|k| (k as f64).powf(-shape)).sum();
    if n == exact {
        return head;
    }
    let (a, b) = (exact as f64, n as f64);
    let integral = (b.powf(1.0 - shape) - a.powf(1.0 - shape)) / (1.0 - shape);
    let ends = (b.powf(-shape) - a.powf(-shape)) / 2.0;
    let slopes = shape * (a.powf(-shape - 1.0) - b.powf(-shape - 1.0)) / 12.0;
    head + integral + ends + slopes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmonic_is_the_sum() {
        for shape in [0.606, 0.741, 0.8] {
            let sum: f64 = (1..=50_000u64).map(|k| (k as f64).powf(-shape)).sum();
            assert!((harmonic(50_000, shape) / sum - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn ranks_follow_the_law() {
        let (n, shape, draws) = (10_000u64, 0.8, 400_000);
        let zipf = Zipf::new(n, shape);
        let mut random = Random::new(3, 3);
        let mut below = [0u32; 3];
        let limits = [1u64, 100, 1000];
        for _ in 0..draws {
            let rank = zipf.rank(&mut random);
            assert!(rank < n);
            for (count, limit) in below.iter_mut().zip(limits) {
                *count += u32::from(rank < limit);
            }
        }
        for (count, limit) in below.into_iter().zip(limits) {
            let expected = harmonic(limit, shape) / harmonic(n, shape);
            let found = f64::from(count) / f64::from(draws);
            assert!((found / expected - 1.0).abs() < 0.05, "rank below {limit}: {found} not {expected}");
        }
    }

    #[test]
    fn tiny_domains_work() {
        for n in 1..5 {
            let zipf = Zipf::new(n, 0.8);
            let mut random = Random::new(1, n);
            assert!((0..1000).all(|_| zipf.rank(&mut random) < n));
        }
    }
}
