//! Whether a program takes a library that is preloaded: otherwise it would run beside an empty directory.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::Read,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::fs::{Access, access};

/// Scripts whose interpreter is a script: the kernel allows about as many.
const SCRIPTS_MAX: u32 = 5;
/// Type of the entry of an ELF file that names the dynamic linker.
const PT_INTERP: u32 = 3;
const SET_ID_BITS: u32 = 0o6000;

/// The path of a program, as a shell finds it.
pub(super) fn find(name: &OsStr) -> Result<PathBuf> {
    let shown = name.display();
    let is_program = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let path = match name.as_bytes().contains(&b'/') {
        true => Some(PathBuf::from(name)).filter(|path| is_program(path)),
        false => env::split_paths(&env::var_os("PATH").unwrap_or_default())
            .map(|dir| dir.join(name))
            .find(|path| is_program(path)),
    };
    let Some(path) = path else { bail!("{shown}: no such program") };
    must_take_libraries(&path, SCRIPTS_MAX)?;
    Ok(path)
}

fn must_take_libraries(path: &Path, scripts: u32) -> Result<()> {
    let name = path.display();
    let file = File::open(path).with_context(|| name.to_string())?;
    if file.metadata()?.mode() & SET_ID_BITS != 0 {
        bail!("{name}: a program with set-user-id or set-group-id takes no library");
    }
    let mut head = Vec::new();
    (&file).take(256).read_to_end(&mut head).with_context(|| name.to_string())?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
        let interpreter = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
        if scripts == 0 || interpreter.is_empty() {
            bail!("{name}: a script without an interpreter that is a program");
        }
        return must_take_libraries(Path::new(&OsString::from_vec(interpreter.to_vec())), scripts - 1);
    }
    match has_dynamic_linker(&file, &head) {
        Some(true) => Ok(()),
        Some(false) => bail!("{name}: a statically linked program takes no library"),
        None => bail!("{name}: no 64-bit program of this machine"),
    }
}

/// `None` if it is no program that this one could load a library into: 64-bit ELF of this byte order.
fn has_dynamic_linker(file: &File, head: &[u8]) -> Option<bool> {
    let of_own_order = if cfg!(target_endian = "little") { 1 } else { 2 };
    if !head.starts_with(b"\x7fELF\x02") || head.get(5) != Some(&of_own_order) || head.len() < 64 {
        return None;
    }
    let word = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
    let start = u64::from_ne_bytes(head[32..40].try_into().expect("8 bytes"));
    let (size, count) = (word(54), word(56));
    let kind = |entry: u16| {
        let mut kind = [0; 4];
        let at = start.checked_add(u64::from(entry) * u64::from(size))?;
        file.read_exact_at(&mut kind, at).ok()?;
        Some(u32::from_ne_bytes(kind))
    };
    Some((0..count).any(|entry| kind(entry) == Some(PT_INTERP)))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn programs_that_take_no_library_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = env::current_exe().expect("this test");
        assert_eq!(find(own.as_os_str()).expect("it is dynamic"), own);
        assert!(find(OsStr::new("sh")).is_ok());
        let made = |name: &str, bytes: &[u8], mode: u32| {
            let path = dir.path().join(name);
            fs::write(&path, bytes).expect("writes");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("changes");
            path
        };
        // The interpreter is entry 0 of as many as are told.
        let elf = |kind: u32| {
            let mut bytes = vec![0; 64 + 56];
            bytes[..6].copy_from_slice(&[
                0x7f,
                b'E',
                b'L',
                b'F',
                2,
                if cfg!(target_endian = "little") { 1 } else { 2 },
            ]);
            bytes[32..40].copy_from_slice(&64_u64.to_ne_bytes());
            bytes[54..56].copy_from_slice(&56_u16.to_ne_bytes());
            bytes[56..58].copy_from_slice(&1_u16.to_ne_bytes());
            bytes[64..68].copy_from_slice(&kind.to_ne_bytes());
            bytes
        };
        let looped = dir.path().join("loop");
        let looped = format!("#!{}\n", looped.display());
        for (name, bytes, mode, complaint) in [
            ("dynamic", elf(PT_INTERP), 0o755, ""),
            ("static", elf(1), 0o755, "statically linked"),
            ("set-user-id", elf(PT_INTERP), 0o4755, "set-user-id"),
            ("not executable", elf(PT_INTERP), 0o644, "no such program"),
            ("cut", elf(PT_INTERP)[..70].to_vec(), 0o755, ""),
            ("text", b"hello".to_vec(), 0o755, "no 64-bit program"),
            ("empty", Vec::new(), 0o755, "no 64-bit program"),
            ("script", b"#! /bin/sh -e\n".to_vec(), 0o755, ""),
            ("bare", b"#!\n".to_vec(), 0o755, "without an interpreter"),
            ("loop", looped.into_bytes(), 0o755, "without an interpreter"),
        ] {
            let found = find(made(name, &bytes, mode).as_os_str());
            match found {
                Ok(_) => assert_eq!(complaint, "", "{name}"),
                Err(error) => {
                    assert!(!complaint.is_empty() && error.to_string().contains(complaint), "{name}: {error}")
                }
            }
        }
        assert!(find(OsStr::new("no-such-program-anywhere")).is_err());
    }
}
