//! The calls of the C library that come here first.
//!
//! Each goes to the real one unless this process serves a mount. Arguments that follow optionally in C are always there:
//! in the conventions of this machine they are registers, which hold anything if they were not given.

use std::{
    cell::RefCell,
    ffi::{c_char, c_int, c_uint, c_void},
    slice,
};

use lacuna_fuse::Errno;
use libc::{mode_t, off_t, size_t, ssize_t};

use crate::{
    descriptors,
    host::{self, is_serving},
    real::real,
};

/// Longest read or write past the kernel: what is one request through it, and atomic.
const BYTES_MAX: usize = 1 << 20;

thread_local! {
    /// What is read and written passes through it (invariant 3).
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn set_errno(errno: i32) {
    // SAFETY: the place is this thread's.
    unsafe { *libc::__errno_location() = errno };
}

/// Calls `use_it` with a buffer of that length.
fn with_buffer<T>(len: usize, use_it: impl Fn(&mut [u8]) -> T) -> T {
    let kept = BUFFER.try_with(|buffer| {
        let mut buffer = buffer.try_borrow_mut().ok()?;
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        Some(use_it(&mut buffer[..len]))
    });
    // The thread is about to end.
    kept.ok().flatten().unwrap_or_else(|| use_it(&mut vec![0; len]))
}

/// As the C library returns it.
fn returned(outcome: Result<usize, Errno>) -> ssize_t {
    match outcome {
        Ok(bytes) => bytes as ssize_t,
        Err(Errno(errno)) => {
            set_errno(errno);
            -1
        }
    }
}

/// `None` where the kernel is to do it.
fn read(descriptor: c_int, to: *mut c_void, len: size_t, offset: off_t) -> Option<ssize_t> {
    if !is_serving() || len > BYTES_MAX {
        return None;
    }
    let claim = descriptors::claim(descriptor)?;
    let offset = u64::try_from(offset).ok()?;
    let outcome = with_buffer(len, |buffer| {
        let outcome = claim.read(offset, buffer)?;
        if let Ok(bytes) = outcome {
            // SAFETY: the caller says that there is place for `len` bytes, and no more were read.
            unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), bytes).copy_from_slice(&buffer[..bytes]) };
        }
        Some(outcome)
    })?;
    Some(returned(outcome))
}

/// The same.
fn write(descriptor: c_int, from: *const c_void, len: size_t, offset: off_t) -> Option<ssize_t> {
    if !is_serving() || len > BYTES_MAX {
        return None;
    }
    let claim = descriptors::claim(descriptor)?;
    let offset = u64::try_from(offset).ok()?;
    let outcome = with_buffer(len, |buffer| {
        // SAFETY: the caller says that there are `len` bytes. What changes meanwhile is copied in either state.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), buffer.as_mut_ptr(), len) };
        claim.write(offset, buffer)
    })?;
    Some(returned(outcome))
}

fn synced(descriptor: c_int, data_only: bool) -> Option<c_int> {
    let claim = is_serving().then(|| descriptors::claim(descriptor)).flatten()?;
    Some(returned(claim.fsync(data_only)?.map(|()| 0)) as c_int)
}

fn opened(descriptor: c_int, flags: c_int) -> c_int {
    if descriptor >= 0 && is_serving() {
        host::opened(descriptor, flags);
    }
    descriptor
}

/// Whether the program may end `descriptor`, which then stands for nothing any more; errno says why not.
fn may_end(descriptor: c_int, errno: i32) -> bool {
    if !host::is_host() {
        return true;
    }
    if descriptors::is_own(descriptor) {
        set_errno(errno);
        return false;
    }
    forget(descriptor);
    true
}

fn forget(descriptor: c_int) {
    if host::is_host()
        && let Ok(at) = usize::try_from(descriptor)
    {
        descriptors::remove(at..=at);
    }
}

/// Functions of the C library, each with a body that may call the real one as `$real()`.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $returns:ty = |$real:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $returns {
            #[allow(unused)]
            let $real = || {
                let real =
                    real!(concat!(stringify!($name), "\0") => unsafe extern "C" fn($($type),*) -> $returns);
                // SAFETY: the arguments are the caller's, who called this function.
                unsafe { real($($arg),*) }
            };
            $body
        }
    )*};
}

calls! {
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = |real| opened(real(), flags);
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = |real| opened(real(), flags);
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = |real| opened(real(), flags);
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = |real| opened(real(), flags);
    __open_2(path: *const c_char, flags: c_int) -> c_int = |real| opened(real(), flags);
    __open64_2(path: *const c_char, flags: c_int) -> c_int = |real| opened(real(), flags);
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int = |real| opened(real(), flags);
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int = |real| opened(real(), flags);

    pread(descriptor: c_int, to: *mut c_void, len: size_t, offset: off_t) -> ssize_t =
        |real| read(descriptor, to, len, offset).unwrap_or_else(real);
    pread64(descriptor: c_int, to: *mut c_void, len: size_t, offset: off_t) -> ssize_t =
        |real| read(descriptor, to, len, offset).unwrap_or_else(real);
    pwrite(descriptor: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t =
        |real| write(descriptor, from, len, offset).unwrap_or_else(real);
    pwrite64(descriptor: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t =
        |real| write(descriptor, from, len, offset).unwrap_or_else(real);
    fsync(descriptor: c_int) -> c_int = |real| synced(descriptor, false).unwrap_or_else(real);
    fdatasync(descriptor: c_int) -> c_int = |real| synced(descriptor, true).unwrap_or_else(real);

    close(descriptor: c_int) -> c_int = |real| if may_end(descriptor, libc::EBADF) { real() } else { -1 };
    dup2(old: c_int, new: c_int) -> c_int = |real| if old == new || may_end(new, libc::EBUSY) { real() } else { -1 };
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int =
        |real| if old == new || may_end(new, libc::EBUSY) { real() } else { -1 };
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int =
        |real| if host::is_host() { close_all_but_own(first, last, flags) } else { real() };
    closefrom(first: c_int) -> () = |real| if host::is_host() {
        let first = c_uint::try_from(first).unwrap_or(0);
        close_all_but_own(first, c_uint::MAX, 0);
    } else {
        real()
    };

    /// The stream closes the descriptor without a call that comes here.
    fdopen(descriptor: c_int, mode: *const c_char) -> *mut libc::FILE = |real| {
        forget(descriptor);
        real()
    };
    /// With `O_APPEND` a write would go elsewhere.
    fcntl(descriptor: c_int, command: c_int, argument: size_t) -> c_int = |real| {
        if command == libc::F_SETFL {
            forget(descriptor);
        }
        real()
    };
    fcntl64(descriptor: c_int, command: c_int, argument: size_t) -> c_int = |real| {
        if command == libc::F_SETFL {
            forget(descriptor);
        }
        real()
    };
    mmap(at: *mut c_void, len: size_t, access: c_int, flags: c_int, descriptor: c_int, offset: off_t) -> *mut c_void =
        |real| {
            mapped(descriptor);
            real()
        };
    mmap64(at: *mut c_void, len: size_t, access: c_int, flags: c_int, descriptor: c_int, offset: off_t) -> *mut c_void =
        |real| {
            mapped(descriptor);
            real()
        };

    execve(path: *const c_char, words: *const *const c_char, variables: *const *const c_char) -> c_int =
        |real| host::execute(real);
    execv(path: *const c_char, words: *const *const c_char) -> c_int = |real| host::execute(real);
    execvp(file: *const c_char, words: *const *const c_char) -> c_int = |real| host::execute(real);
    execvpe(file: *const c_char, words: *const *const c_char, variables: *const *const c_char) -> c_int =
        |real| host::execute(real);
    fexecve(descriptor: c_int, words: *const *const c_char, variables: *const *const c_char) -> c_int =
        |real| host::execute(real);
    _exit(code: c_int) -> () = |real| {
        host::end_soon();
        real()
    };
    _Exit(code: c_int) -> () = |real| {
        host::end_soon();
        real()
    };
}

fn mapped(descriptor: c_int) {
    if descriptor >= 0 && is_serving() {
        host::mapped(descriptor);
    }
}

/// By the kernel's own call, which all systems have that this library is for.
fn close_all_but_own(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let close = |first: c_uint, last: c_uint| {
        if first > last {
            return 0;
        }
        // With CLOEXEC they stay, but not for what is executed.
        if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
            descriptors::remove(first as usize..=last as usize);
        }
        // SAFETY: these are the program's, and not ours.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
    };
    let mut from = first;
    for own in descriptors::own().map(|own| own as c_uint).filter(|own| (first..=last).contains(own)) {
        if own > from && close(from, own - 1) != 0 {
            return -1;
        }
        from = own + 1;
    }
    close(from, last)
}
