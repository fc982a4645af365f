//! Keeps on disk what is published: one writing at a time however long the disk takes, and again until it is done.
//!
//! ```text
//!   idle ──save──▶ writing ──done──▶ idle
//!                   │  ├─failed──▶ unsaved ──after a while──▶ writing the newest
//!                   │  └─done, of what is no more the newest──▶ writing the newest
//!                   └─ no answer for long: told once, still waited for
//! ```

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{self, JoinHandle};
use tokio::time::{Instant, sleep_until};

use crate::chain;
use crate::store::StoreError;

/// Keeping state takes milliseconds. A disk that hangs must not keep the daemon from serving.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between attempts. A disk that is full stays so for longer, and the attempt costs nothing that anybody notices.
const AGAIN: Duration = Duration::from_secs(30);

/// A writing under way.
type Saving = JoinHandle<Result<(), StoreError>>;

type Save<T> = Arc<dyn Fn(&T) -> Result<(), StoreError> + Send + Sync>;

/// What became of a writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The newest is on disk.
    Saved,
    /// It is not, for this reason, and is tried again.
    Unsaved(String),
}

/// See the module.
pub(crate) struct Keeper<T> {
    save: Save<T>,
    /// The writing under way, and of what.
    saving: Option<(Arc<T>, Saving)>,
    /// The newest, where it is not known to be on disk.
    unsaved: Option<Arc<T>>,
    /// When the wait for the writing under way has been long enough to tell.
    patience: Option<Instant>,
    /// When it is tried again.
    again: Option<Instant>,
}

impl<T: Send + Sync + 'static> Keeper<T> {
    pub(crate) fn new(save: impl Fn(&T) -> Result<(), StoreError> + Send + Sync + 'static) -> Self {
        Self { save: Arc::new(save), saving: None, unsaved: None, patience: None, again: None }
    }

    /// Begins to keep it, in place of what was to be kept before. Whether [`next`](Self::next) tells soon what becomes of that: not
    /// where the disk is still busy with something earlier.
    pub(crate) fn keep(&mut self, newest: Arc<T>) -> bool {
        self.unsaved = Some(newest);
        let idle = self.saving.is_none();
        if idle {
            self.begin();
        }
        idle
    }

    fn begin(&mut self) {
        self.again = None;
        let Some(newest) = self.unsaved.clone() else { return };
        let (save, what) = (Arc::clone(&self.save), Arc::clone(&newest));
        self.saving = Some((newest, task::spawn_blocking(move || save(&what))));
        self.patience = Some(Instant::now() + PATIENCE);
    }

    /// The next thing there is to tell. May be dropped and called again at any point.
    pub(crate) async fn next(&mut self) -> Kept {
        loop {
            let Some((what, saving)) = &mut self.saving else {
                until(self.again).await;
                self.begin();
                continue;
            };
            let done = tokio::select! {
                done = saving => done,
                () = until(self.patience) => {
                    self.patience = None;
                    return Kept::Unsaved(format!("the disk did not answer within {PATIENCE:?}"));
                }
            };
            let newest = self.unsaved.as_ref().is_none_or(|unsaved| Arc::ptr_eq(unsaved, what));
            self.saving = None;
            let failed = match done {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(chain(&error)),
                Err(error) => Some(error.to_string()),
            };
            match failed {
                Some(error) => {
                    self.again = Some(Instant::now() + AGAIN);
                    return Kept::Unsaved(error);
                }
                None if newest => {
                    self.unsaved = None;
                    return Kept::Saved;
                }
                None => self.begin(),
            }
        }
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use futures_util::FutureExt as _;

    use super::*;

    /// A disk that answers when it is told to, and says what was written.
    struct Disk {
        answers: Sender<bool>,
        written: Receiver<u32>,
    }

    fn keeper() -> (Keeper<u32>, Disk) {
        let (answers, told) = channel();
        let (writes, written) = channel();
        let shared = Mutex::new((told, writes));
        let keeper = Keeper::new(move |what: &u32| {
            let (told, writes) = &*shared.lock().unwrap();
            writes.send(*what).unwrap();
            if told.recv().unwrap_or(false) {
                return Ok(());
            }
            let source = io::Error::from(io::ErrorKind::StorageFull);
            Err(StoreError::Write { path: "state".into(), source })
        });
        (keeper, Disk { answers, written })
    }

    fn failed(kept: &Kept) -> bool {
        matches!(kept, Kept::Unsaved(error) if error.contains("cannot write state"))
    }

    #[tokio::test]
    async fn what_is_written_is_told() {
        let (mut keeper, disk) = keeper();
        assert!(keeper.next().now_or_never().is_none(), "there is nothing to keep");
        for what in [1, 2] {
            assert!(keeper.keep(Arc::new(what)));
            disk.answers.send(true).unwrap();
            assert_eq!(keeper.next().await, Kept::Saved);
            assert_eq!(disk.written.recv(), Ok(what));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_tried_again_until_it_is_done() {
        let (mut keeper, disk) = keeper();
        assert!(keeper.keep(Arc::new(1)));
        for answer in [false, false, true] {
            disk.answers.send(answer).unwrap();
        }
        assert!(failed(&keeper.next().await));
        let begin = Instant::now();
        assert!(failed(&keeper.next().await));
        assert!(begin.elapsed() >= AGAIN);
        assert_eq!(keeper.next().await, Kept::Saved);
        assert_eq!(disk.written.try_iter().collect::<Vec<_>>(), [1, 1, 1]);
        assert!(keeper.next().now_or_never().is_none());
    }

    /// One writing hangs; what is newer waits for it, is written once it ends, and nothing in between is.
    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_is_asked_once() {
        let (mut keeper, disk) = keeper();
        assert!(keeper.keep(Arc::new(1)));
        // The paused clock stands while a blocking thread works.
        assert_eq!(disk.written.recv(), Ok(1));
        tokio::time::advance(PATIENCE).await;
        let Kept::Unsaved(error) = keeper.next().await else { panic!("nothing is saved") };
        assert!(error.contains("did not answer"), "{error}");
        assert!(!keeper.keep(Arc::new(2)));
        assert!(!keeper.keep(Arc::new(3)));
        assert!(keeper.next().now_or_never().is_none(), "it is told once");
        disk.answers.send(true).unwrap();
        disk.answers.send(true).unwrap();
        assert_eq!(keeper.next().await, Kept::Saved);
        assert_eq!(disk.written.try_iter().collect::<Vec<_>>(), [3]);
    }
}
