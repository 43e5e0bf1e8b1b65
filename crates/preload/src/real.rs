//! The C library's own functions behind those that `calls.rs` defines.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicPtr, Ordering::Relaxed},
};

/// The next function of that name, which ends with a NUL, after ours; as a pointer to a function of that type.
macro_rules! real {
    ($name:expr => $type:ty) => {{
        static FOUND: $crate::real::Real = $crate::real::Real::new($name);
        // SAFETY: the C library declares this function with this type.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, $type>(FOUND.get()) }
    }};
}
pub(crate) use real;

/// A function that is looked up once.
pub(crate) struct Real {
    name: &'static str,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static str) -> Real {
        Real { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name ends with a NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
        // Only a program that looks for a function before it uses it gets here without one.
        if found.is_null() {
            std::process::abort();
        }
        self.found.store(found, Relaxed);
        found
    }
}
