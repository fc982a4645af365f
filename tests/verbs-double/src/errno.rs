//! Error numbers, as the calls answer them.

/// A number of `errno.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    pub(crate) const FAULT: Self = Self(libc::EFAULT);
    pub(crate) const IO: Self = Self(libc::EIO);
    pub(crate) const NO_DATA: Self = Self(libc::ENODATA);
    pub(crate) const NOT_SUPPORTED: Self = Self(libc::EOPNOTSUPP);
}
