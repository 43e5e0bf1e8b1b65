//! Rules that a crate's tests may break, to verify that each broken rule is caught (mutation tests).
//!
//! A crate lists its rules once with [`breakable_rules!`] and asks `is_broken(Rule::...)` where it keeps each of them.
//!
//! Invariant: in a build without the feature `mutants` of that crate, `is_broken` is the constant `false`, and the
//! compiler removes every question.

/// Declares the rules of a crate that its tests may break, to see that they would notice.
///
/// In a build of that crate with the feature `mutants`, the rule that the environment variable
/// `LACUNA_MUTANT` names is not followed. In any other build `is_broken` is the constant `false`, and
/// nothing is left of it.
#[macro_export]
macro_rules! breakable_rules {
    ($($(#[$doc:meta])* $rule:ident = $name:literal,)*) => {
        /// A rule, at the one place where it is kept.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Rule {
            $($(#[$doc])* $rule,)*
        }

        /// What the rules are called.
        #[cfg(feature = "mutants")]
        pub const NAMES: &[&str] = &[$($name),*];

        /// Whether `rule` is not to be followed.
        #[cfg(not(feature = "mutants"))]
        #[inline(always)]
        pub(crate) const fn is_broken(_: Rule) -> bool {
            false
        }

        /// Whether `rule` is not to be followed.
        #[cfg(feature = "mutants")]
        pub(crate) fn is_broken(rule: Rule) -> bool {
            static BROKEN: std::sync::OnceLock<Option<Rule>> = std::sync::OnceLock::new();
            let named = || match std::env::var("LACUNA_MUTANT").ok()?.as_str() {
                $($name => Some(Rule::$rule),)*
                // A rule of another crate.
                _ => None,
            };
            *BROKEN.get_or_init(named) == Some(rule)
        }
    };
}
