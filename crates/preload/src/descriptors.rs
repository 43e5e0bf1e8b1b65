//! Which descriptors of the program stand for files that it claims, and which are ours.

use std::{
    mem,
    ops::RangeInclusive,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use lacuna_fuse::Claim;

/// By number. A claim that is taken out is dropped after the lock: that waits for calls that are under way, and they read
/// and write the store through our own functions, which look here.
static CLAIMS: RwLock<Vec<Option<Arc<Claim>>>> = RwLock::new(Vec::new());

/// A bit for each descriptor that the mount lives on. Those with greater numbers are not protected.
static OWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
const BITS: usize = u64::BITS as usize;

fn read() -> RwLockReadGuard<'static, Vec<Option<Arc<Claim>>>> {
    CLAIMS.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Vec<Option<Arc<Claim>>>> {
    CLAIMS.write().unwrap_or_else(PoisonError::into_inner)
}

/// The claim of a descriptor.
pub(crate) fn claim(descriptor: i32) -> Option<Arc<Claim>> {
    read().get(usize::try_from(descriptor).ok()?)?.clone()
}

pub(crate) fn add(descriptor: i32, claim: Claim) {
    let Ok(at) = usize::try_from(descriptor) else { return };
    let mut claims = write();
    if claims.len() <= at {
        claims.resize(at + 1, None);
    }
    let before = claims[at].replace(Arc::new(claim));
    drop(claims);
    drop(before);
}

/// The descriptors with these numbers are about to stand for something else.
pub(crate) fn remove(descriptors: RangeInclusive<usize>) {
    let (first, last) = (*descriptors.start(), *descriptors.end());
    let is_there = |claims: &[Option<Arc<Claim>>]| {
        let last = last.min(claims.len().wrapping_sub(1));
        first < claims.len() && claims[first..=last].iter().any(Option::is_some)
    };
    if !is_there(&read()) {
        return;
    }
    let mut claims = write();
    if !is_there(&claims) {
        return;
    }
    let last = last.min(claims.len() - 1);
    let removed: Vec<_> = claims[first..=last].iter_mut().map(Option::take).collect();
    drop(claims);
    drop(removed);
}

/// Nothing is claimed any more, and nothing ours.
pub(crate) fn clear() {
    drop(mem::take(&mut *write()));
    OWN.iter().for_each(|bits| bits.store(0, Relaxed));
}

/// The mount lives on this descriptor.
pub(crate) fn protect(descriptor: i32) {
    if let Some(bits) = usize::try_from(descriptor).ok().and_then(|at| OWN.get(at / BITS)) {
        bits.fetch_or(1 << (descriptor as usize % BITS), Relaxed);
    }
}

pub(crate) fn is_own(descriptor: i32) -> bool {
    let bits = usize::try_from(descriptor).ok().and_then(|at| OWN.get(at / BITS));
    bits.is_some_and(|bits| bits.load(Relaxed) >> (descriptor as usize % BITS) & 1 != 0)
}

/// All that the mount lives on, in their order.
pub(crate) fn own() -> impl Iterator<Item = i32> {
    (0..(OWN.len() * BITS) as i32).filter(|descriptor| is_own(*descriptor))
}
