//! Errors as numbers of errno(3), for programs that know only those.

use crate::error::Error;

/// Returns the errno(3) of an error.
pub fn errno(error: &Error) -> i32 {
    match error {
        Error::PortInUse { .. } | Error::QueueTaken { .. } => libc::EBUSY,
        Error::NoInterface { .. } | Error::InterfaceGone { .. } | Error::NoServer { .. } => libc::ENXIO,
        Error::NotOpen { .. } | Error::NoXdp { .. } | Error::NotServed { .. } => libc::ENXIO,
        Error::SwitchFull { .. } | Error::PortMemoryFull { .. } => libc::ENOMEM,
        Error::PoolTooSmall { .. } | Error::PoolExhausted { .. } => libc::ENOMEM,
        Error::Unsupported { .. } => libc::EOPNOTSUPP,
        Error::Serve { .. } => libc::EACCES,
        Error::Refused { errno, .. } => *errno,
        Error::BadRing => libc::EINVAL,
        Error::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EINVAL,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn errors_have_numbers_of_errno() {
        let name = String::new;
        let system = |number: i32| std::io::Error::from_raw_os_error(number);
        let source = || std::io::Error::other("none of the kernel's");
        for (error, number) in [
            (Error::PortInUse { name: name() }, libc::EBUSY),
            (Error::NotOpen { port: name() }, libc::ENXIO),
            (Error::NotServed { name: name(), why: "" }, libc::ENXIO),
            (Error::NoServer { name: name(), folder: PathBuf::new() }, libc::ENXIO),
            (Error::PortMemoryFull { what: "" }, libc::ENOMEM),
            (Error::Unsupported { port: name(), what: "", why: "" }, libc::EOPNOTSUPP),
            (Error::Refused { why: name(), errno: libc::EXDEV }, libc::EXDEV),
            (Error::Serve { path: PathBuf::new(), why: name(), mend: "".into() }, libc::EACCES),
            (Error::BadRing, libc::EINVAL),
            (Error::BadPeer { why: "" }, libc::EINVAL),
            (Error::System { call: "", source: system(libc::ENFILE) }, libc::ENFILE),
            (Error::System { call: "", source: source() }, libc::EIO),
        ] {
            assert_eq!(errno(&error), number, "{error:?}");
        }
    }
}
