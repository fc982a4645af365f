//! The Unix socket in the file system: made so that nobody ever finds it half made, never taken from a daemon that
//! lives, never left behind.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tracing::{info, warn};

/// Owner and group may connect; who is in the group is for the administrator to say.
const MODE: u32 = 0o660;

/// `sun_path` has 108 bytes with the final zero (unix(7)); the name under which the socket is made is longer than its
/// last by a dot and a process number of at most seven digits.
pub(crate) const LONGEST_PATH: usize = 107 - 8;

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A daemon answers there already.
    #[error("another daemon listens on {}", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// A daemon is being started there at this moment.
    #[error("another daemon is being started on {}", path.display())]
    Starting {
        /// The socket.
        path: PathBuf,
    },
    /// The folder cannot be locked for the moment it takes.
    #[error("cannot lock the folder of {}", path.display())]
    Lock {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be found out whether a daemon answers.
    #[error("cannot tell whether a daemon answers on {}", path.display())]
    Ask {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The socket cannot be made.
    #[error("cannot make the socket {}", path.display())]
    Make {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A socket file of ours; it goes with this.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

/// Listens on `path`. A file that a dead daemon left there is replaced.
///
/// The socket is bound under another name, given its mode and only then renamed: nobody can connect before the mode
/// is right. The lock on the folder keeps two daemons that start at once from both finding the place free.
pub(crate) fn bind(path: &Path) -> Result<(UnixListener, SocketFile), BindError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let lock = fs::File::open(folder.unwrap_or_else(|| Path::new(".")))
        .map_err(|source| BindError::Lock { path: path.into(), source })?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
        if error == rustix::io::Errno::WOULDBLOCK {
            BindError::Starting { path: path.into() }
        } else {
            BindError::Lock { path: path.into(), source: error.into() }
        }
    })?;
    if answers(path)? {
        return Err(BindError::InUse { path: path.into() });
    }
    make(path).map_err(|source| BindError::Make { path: path.into(), source })
}

fn answers(path: &Path) -> Result<bool, BindError> {
    match UnixStream::connect(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            info!(socket = %path.display(), "replacing the socket of a daemon that is gone");
            Ok(false)
        }
        Err(source) => Err(BindError::Ask { path: path.into(), source }),
    }
}

fn make(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let mut unfinished = OsString::from(path);
    unfinished.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&unfinished)?;
    let finish = || {
        listener.set_nonblocking(true)?;
        fs::set_permissions(&unfinished, fs::Permissions::from_mode(MODE))?;
        fs::rename(&unfinished, path)?;
        identity(path)
    };
    match finish() {
        Ok(identity) => Ok((listener, SocketFile { path: path.into(), identity })),
        Err(error) => {
            // The error that counts is the first one.
            drop(fs::remove_file(&unfinished));
            Err(error)
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl Drop for SocketFile {
    /// Removes the file, unless another is in its place by now.
    fn drop(&mut self) {
        let ours = identity(&self.path).is_ok_and(|found| found == self.identity);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            warn!(socket = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_daemon_keeps_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("topod.sock");
        let (listener, file) = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert!(matches!(bind(&path), Err(BindError::InUse { .. })));
        UnixStream::connect(&path).unwrap();

        drop(listener);
        let (_second, second_file) = bind(&path).expect("the first is gone and left its file");
        drop(file);
        assert!(path.exists(), "the first daemon's end must not take the second's socket");
        drop(second_file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn two_that_start_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let lock = fs::File::open(folder.path()).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        let path = folder.path().join("topod.sock");
        assert!(matches!(bind(&path), Err(BindError::Starting { .. })));
        drop(lock);
        drop(bind(&path).unwrap());
    }

    #[test]
    fn nowhere_to_listen() {
        let error = bind(Path::new("/nowhere/topod.sock")).unwrap_err();
        assert!(matches!(error, BindError::Lock { .. }), "{error}");
    }
}
