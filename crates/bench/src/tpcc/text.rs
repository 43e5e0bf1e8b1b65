//! Random values as TPC-C defines them (4.3.2, 2.1.6).

use crate::random::Random;

/// Uniform in `from ..= to`.
pub(crate) fn uniform(random: &mut Random, from: u32, to: u32) -> u32 {
    from + random.below(u64::from(to - from) + 1) as u32
}

/// A string of letters and digits with a length in `from ..= to`.
pub(crate) fn a_string(random: &mut Random, from: u32, to: u32) -> Vec<u8> {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let length = uniform(random, from, to);
    pick(random, ALPHABET, length)
}

/// A string of so many digits.
pub(crate) fn n_string(random: &mut Random, length: u32) -> Vec<u8> {
    pick(random, b"0123456789", length)
}

fn pick(random: &mut Random, alphabet: &[u8], length: u32) -> Vec<u8> {
    (0..length).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]).collect()
}

/// Data of an item or of stock: 26 to 50 characters, one in ten with ORIGINAL somewhere in it.
pub(crate) fn data(random: &mut Random) -> Vec<u8> {
    const ORIGINAL: &[u8] = b"ORIGINAL";
    let mut data = a_string(random, 26, 50);
    if random.below(10) == 0 {
        let at = random.below((data.len() - ORIGINAL.len()) as u64 + 1) as usize;
        data[at..at + ORIGINAL.len()].copy_from_slice(ORIGINAL);
    }
    data
}

/// Postal code: four random digits, then 11111.
pub(crate) fn zip(random: &mut Random) -> Vec<u8> {
    [n_string(random, 4), b"11111".to_vec()].concat()
}

/// Most last names that there are.
pub(crate) const LAST_NAMES: u32 = 1_000;

/// The last name with a number below [`LAST_NAMES`]: a syllable for each of its three digits.
pub(crate) fn last_name(number: u32) -> Vec<u8> {
    const SYLLABLES: [&str; 10] =
        ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
    assert!(number < LAST_NAMES);
    [number / 100, number / 10 % 10, number % 10].map(|digit| SYLLABLES[digit as usize]).concat().into_bytes()
}

/// TPC-C's non-uniform random numbers, NURand, with the constants of one load and its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NonUniform {
    last_name_load: u32,
    last_name_run: u32,
    customer: u32,
    item: u32,
}

impl NonUniform {
    pub(crate) fn new(seed: u64) -> NonUniform {
        let random = &mut Random::new(seed, 0xC0257);
        let last_name_load = uniform(random, 0, 255);
        // How far the names of requests may lie from those of the load (2.1.6.1).
        let last_name_run = loop {
            let run = uniform(random, 0, 255);
            let distance = run.abs_diff(last_name_load);
            if (65..=119).contains(&distance) && distance != 96 && distance != 112 {
                break run;
            }
        };
        let (customer, item) = (uniform(random, 0, 1023), uniform(random, 0, 8191));
        NonUniform { last_name_load, last_name_run, customer, item }
    }

    /// Number of a last name for a loaded customer.
    pub(crate) fn last_name_load(self, random: &mut Random) -> u32 {
        nu_rand(random, 255, self.last_name_load, 0, LAST_NAMES - 1)
    }

    /// Number of a last name that a request asks for; all below `names` are in every district.
    pub(crate) fn last_name_run(self, random: &mut Random, names: u32) -> u32 {
        nu_rand(random, 255, self.last_name_run, 0, names - 1)
    }

    pub(crate) fn customer(self, random: &mut Random, customers: u32) -> u32 {
        nu_rand(random, 1023, self.customer, 1, customers)
    }

    pub(crate) fn item(self, random: &mut Random, items: u32) -> u32 {
        nu_rand(random, 8191, self.item, 1, items)
    }
}

fn nu_rand(random: &mut Random, a: u32, c: u32, from: u32, to: u32) -> u32 {
    ((uniform(random, 0, a) | uniform(random, from, to)) + c) % (to - from + 1) + from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_names_are_those_of_the_conditions() {
        assert_eq!(last_name(0), b"BARBARBAR");
        assert_eq!(last_name(371), b"PRICALLYOUGHT");
        assert_eq!(last_name(999), b"EINGEINGEING");
    }

    #[test]
    fn strings_have_their_lengths_and_marks() {
        let random = &mut Random::new(1, 1);
        let (mut original, mut lengths) = (0, [false; 51]);
        for _ in 0..10_000 {
            let data = data(random);
            lengths[data.len()] = true;
            original += u32::from(data.windows(8).any(|window| window == b"ORIGINAL"));
        }
        assert!((900..1100).contains(&original), "{original} of 10000");
        assert!(lengths.iter().enumerate().all(|(length, &seen)| seen == (26..=50).contains(&length)));
        let zip = zip(random);
        assert!(zip.len() == 9 && zip.ends_with(b"11111") && zip.iter().all(u8::is_ascii_digit));
    }

    #[test]
    fn non_uniform_numbers_stay_in_their_range_and_are_skewed() {
        for seed in 0..50 {
            let constants = NonUniform::new(seed);
            let distance = constants.last_name_run.abs_diff(constants.last_name_load);
            assert!((65..=119).contains(&distance) && distance != 96 && distance != 112);
        }
        let random = &mut Random::new(1, 1);
        let mut counts = vec![0u32; 3001];
        for _ in 0..300_000 {
            counts[NonUniform::new(7).customer(random, 3000) as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        // Or-ing favours numbers with many bits: the hottest tenth gets several times its share.
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u32 = counts[..300].iter().sum();
        assert!(hot > 90_000, "{hot} of 300000 for the hottest tenth");
    }
}
