//! Events: marks in streams that others wait for, in this process or, through a shared page, in others.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::code::Code;
use crate::memory::{Shared, ffi};
use crate::stream::{Stream, Work, pause};

pub(crate) const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;

/// Words of the shared page: how often it was recorded, and which record was reached.
const RECORDED: u64 = 0;
const REACHED: u64 = 8;

/// How often a thread that waits looks whether the context failed.
const LOOK: Duration = Duration::from_millis(2);

/// One record of an event.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    reached: Mutex<Option<Instant>>,
    signal: Condvar,
}

impl Mark {
    fn reach(&self) {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.signal.notify_all();
    }

    fn time(&self) -> Option<Instant> {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, go_on: impl Fn() -> Result<(), Code>) -> Result<(), Code> {
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        while reached.is_none() {
            go_on()?;
            let waited = self.signal.wait_timeout(reached, LOOK);
            reached = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

/// The page that processes share.
#[derive(Debug)]
pub(crate) struct Page {
    address: u64,
    file: File,
}

impl Page {
    fn map(file: File) -> Result<Self, Code> {
        let address = ffi::map_anywhere(ffi::page(), &file, 0).map_err(|_| Code::MAP_FAILED)?;
        Ok(Self { address, file })
    }

    fn recorded(&self) -> u64 {
        ffi::word64(self.address + RECORDED).load(Ordering::Acquire)
    }

    fn reached(&self) -> u64 {
        ffi::word64(self.address + REACHED).load(Ordering::Acquire)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        ffi::give_back(self.address, ffi::page());
    }
}

/// What to wait for: the last record at the time of asking.
#[derive(Clone, Debug)]
enum Record {
    Own(Arc<Mark>),
    Shared(Arc<Page>, u64),
}

impl Record {
    fn is_reached(&self) -> bool {
        match self {
            Self::Own(mark) => mark.time().is_some(),
            Self::Shared(page, number) => page.reached() >= *number,
        }
    }

    fn wait(&self, go_on: impl Fn() -> Result<(), Code>) -> Result<(), Code> {
        match self {
            Self::Own(mark) => mark.wait(go_on),
            Self::Shared(page, number) => {
                let mut times = 0;
                while page.reached() < *number {
                    go_on()?;
                    pause(&mut times);
                }
                Ok(())
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) handle: usize,
    /// Handle of its context.
    pub(crate) context: usize,
    pub(crate) flags: u32,
    last: Mutex<Option<Arc<Mark>>>,
    page: Option<Arc<Page>>,
    /// Opened by a handle of another process.
    pub(crate) imported: bool,
}

impl Event {
    pub(crate) fn new(handle: usize, context: usize, flags: u32) -> Result<Self, Code> {
        let page = if flags & INTERPROCESS != 0 {
            let file = ffi::unnamed(ffi::page()).map_err(|_| Code::OPERATING_SYSTEM)?;
            Some(Arc::new(Page::map(file)?))
        } else {
            None
        };
        Ok(Self { handle, context, flags, last: Mutex::default(), page, imported: false })
    }

    pub(crate) fn import(
        handle: usize,
        context: usize,
        process: u32,
        shared: Shared,
    ) -> Result<Self, Code> {
        let file = ffi::open_of(process, shared.descriptor, shared.inode);
        let page = Some(Arc::new(Page::map(file.map_err(|_| Code::MAP_FAILED)?)?));
        let flags = INTERPROCESS | DISABLE_TIMING;
        Ok(Self { handle, context, flags, last: Mutex::default(), page, imported: true })
    }

    pub(crate) fn shared(&self) -> Option<Shared> {
        let file = &self.page.as_ref()?.file;
        let inode = file.metadata().ok()?.ino();
        Some(Shared { descriptor: file.as_raw_fd(), inode, size: 0 })
    }

    /// Puts a mark behind what is queued.
    pub(crate) fn record(&self, stream: &Arc<Stream>) {
        if let Some(page) = self.page.clone() {
            let number = ffi::word64(page.address + RECORDED).fetch_add(1, Ordering::AcqRel) + 1;
            stream.submit(Work::Always(Box::new(move || {
                ffi::word64(page.address + REACHED).fetch_max(number, Ordering::AcqRel);
            })));
            return;
        }
        let mark = Arc::new(Mark::default());
        // The mark is known before it can be reached, and a second record replaces it in the order of the streams.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(Arc::clone(&mark));
        stream.submit(Work::Always(Box::new(move || mark.reach())));
    }

    /// `None` where it was never recorded, which counts as reached.
    fn last(&self) -> Option<Record> {
        if let Some(page) = &self.page {
            let number = page.recorded();
            return (number > 0).then(|| Record::Shared(Arc::clone(page), number));
        }
        self.mark().map(Record::Own)
    }

    fn mark(&self) -> Option<Arc<Mark>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.last().is_none_or(|record| record.is_reached())
    }

    /// Lets the caller wait.
    pub(crate) fn synchronize(&self, go_on: impl Fn() -> Result<(), Code>) -> Result<(), Code> {
        self.last().map_or(Ok(()), |record| record.wait(go_on))
    }

    /// Lets a stream wait for what is recorded now.
    pub(crate) fn hold_up(&self, stream: &Arc<Stream>) {
        if let Some(record) = self.last() {
            stream.run(move |stream| record.wait(|| stream.context.check()));
        }
    }

    /// Milliseconds from another event's mark to this one's.
    pub(crate) fn since(&self, start: &Self) -> Result<f32, Code> {
        let timed = |event: &Self| match event.mark() {
            Some(mark) if event.flags & DISABLE_TIMING == 0 => Ok(mark),
            _ => Err(Code::INVALID_HANDLE),
        };
        let (start, end) = (timed(start)?, timed(self)?);
        let (start, end) =
            (start.time().ok_or(Code::NOT_READY)?, end.time().ok_or(Code::NOT_READY)?);
        let milliseconds = |time: Duration| time.as_secs_f32() * 1000.0;
        Ok(match end.checked_duration_since(start) {
            Some(time) => milliseconds(time),
            None => -milliseconds(start - end),
        })
    }
}
