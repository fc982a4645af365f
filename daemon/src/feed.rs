//! A watch: whatever is published, from whole to whole or by the changes between.
//!
//! ```text
//!   nothing yet ──first──▶ whole ──next, changes at hand──▶ changes ──▶ ...
//!        ▲                   ▲  └─next, without changes───▶ whole
//!        │ resumed           └──── resync ◀──changes wanted and not at hand
//!   heartbeat, whenever nothing else was said for long enough
//! ```
//!
//! A watcher's stream holds the number of what the watcher has and nothing else: each message is made when the connection asks for
//! the next one, and bytes of it once for all watchers. A watcher that does not read makes its connection ask no more, and nothing piles up for
//! it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prost::bytes::Bytes;
use tokio::sync::watch;
use tonic::Status;
use tonic::codegen::tokio_stream::{Stream, StreamExt as _};

use crate::state::Closing;
use crate::status::CallError;

/// Changes kept with what is published, for watchers that lag and clients that resume.
pub(crate) const MOST_STEPS: usize = 16;

/// Something published again and again, each time with a greater number.
pub(crate) trait Numbered {
    /// What leads from one number to the next, as sent.
    type Changes: Clone;

    /// Its place among what is published.
    fn number(&self) -> u64;

    /// What leads to it, the latest last.
    fn steps(&self) -> &[Arc<Step<Self::Changes>>];
}

/// What leads from one number to the next.
#[derive(Debug)]
pub(crate) struct Step<C> {
    pub(crate) base: u64,
    /// What the base is known by besides its number.
    pub(crate) base_identity: String,
    pub(crate) number: u64,
    pub(crate) changes: C,
    /// The same as it is sent, once somebody was told.
    pub(crate) sent: OnceLock<Bytes>,
}

/// The steps that end in the next thing published, `changes` leading there from the present one.
pub(crate) fn next_steps<C>(steps: &[Arc<Step<C>>], changes: Option<Step<C>>) -> Vec<Arc<Step<C>>> {
    // Without changes nothing leads here from before.
    let Some(changes) = changes else { return Vec::new() };
    let kept = steps.len().min(MOST_STEPS - 1);
    let recent = steps[steps.len() - kept..].iter().map(Arc::clone);
    recent.chain([Arc::new(changes)]).collect()
}

/// One thing to say to a watcher.
#[derive(Debug)]
pub(crate) enum Event<T: Numbered> {
    Whole(Arc<T>),
    Changes(Arc<Step<T::Changes>>),
    Resync(u64),
    /// With what is published, if anything is.
    Heartbeat(Option<Arc<T>>),
}

/// What a watcher asks for.
#[derive(Debug)]
pub(crate) struct Wish {
    /// Whether it takes changes.
    pub(crate) changes: bool,
    /// Number of what it has, and what that is known by besides.
    pub(crate) resume: Option<(u64, Option<String>)>,
}

/// Where what is published comes from.
#[derive(Debug)]
pub(crate) struct Feed<T> {
    pub(crate) published: watch::Receiver<Option<Arc<T>>>,
    pub(crate) closing: Closing,
    pub(crate) heartbeat: Duration,
    pub(crate) _watcher: Watcher,
}

/// Counts a watch for as long as it is open.
#[derive(Debug)]
pub(crate) struct Watcher(Arc<AtomicU32>);

impl Watcher {
    pub(crate) fn new(count: &Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the watcher has.
#[derive(Debug)]
enum Has {
    /// Nothing, or nothing that counts.
    Nothing,
    /// What it said when it came; looked at once something is published.
    Resumed(u64, Option<String>),
    /// This number.
    Number(u64),
}

/// The messages of a watch, until the daemon drains.
pub(crate) fn follow<T, M>(
    feed: Feed<T>,
    wish: Wish,
    identity: fn(&T) -> &str,
    message: fn(Event<T>) -> M,
) -> impl Stream<Item = Result<M, Status>> + Send
where
    T: Numbered + Send + Sync + 'static,
    T::Changes: Send + Sync,
    M: Send + 'static,
{
    let has = wish.resume.map_or(Has::Nothing, |(number, known_by)| Has::Resumed(number, known_by));
    let follower = Follower { feed, changes: wish.changes, has, identity, over: false };
    futures_util::stream::unfold(follower, |mut follower| async move {
        let next = follower.next().await?;
        Some((next, follower))
    })
    .map(move |next| next.map(message).map_err(Status::from))
}

struct Follower<T: Numbered> {
    feed: Feed<T>,
    changes: bool,
    has: Has,
    identity: fn(&T) -> &str,
    over: bool,
}

impl<T: Numbered> Follower<T> {
    async fn next(&mut self) -> Option<Result<Event<T>, CallError>> {
        if self.over {
            return None;
        }
        loop {
            let current = self.feed.published.borrow_and_update().clone();
            if let Some(current) = &current
                && let Some(event) = self.step(current)
            {
                return Some(Ok(event));
            }
            tokio::select! {
                changed = self.feed.published.changed() => if changed.is_err() {
                    return None;
                },
                () = self.feed.closing.wait() => {
                    self.over = true;
                    return Some(Err(CallError::ShuttingDown));
                }
                () = tokio::time::sleep(self.feed.heartbeat) => {
                    return Some(Ok(Event::Heartbeat(current)));
                }
            }
        }
    }

    /// What there is to say to the watcher now; `None` where it has everything.
    fn step(&mut self, current: &Arc<T>) -> Option<Event<T>> {
        let number = current.number();
        match &self.has {
            Has::Nothing => {
                self.has = Has::Number(number);
                Some(Event::Whole(Arc::clone(current)))
            }
            Has::Resumed(resumed, known_by) => {
                let is = |identity: &str| known_by.as_deref().is_none_or(|by| by == identity);
                if *resumed == number && is((self.identity)(current)) {
                    self.has = Has::Number(number);
                    return Some(Event::Heartbeat(Some(Arc::clone(current))));
                }
                let step = current.steps().iter().find(|step| step.base == *resumed);
                if self.changes && step.is_some_and(|step| is(&step.base_identity)) {
                    self.has = Has::Number(*resumed);
                    return self.step(current);
                }
                self.lost(current)
            }
            Has::Number(has) if *has == number => None,
            Has::Number(has) => {
                let step = current.steps().iter().find(|step| step.base == *has);
                match step.filter(|_| self.changes) {
                    Some(step) => {
                        self.has = Has::Number(step.number);
                        Some(Event::Changes(Arc::clone(step)))
                    }
                    None => self.lost(current),
                }
            }
        }
    }

    /// What the watcher has is of no use.
    fn lost(&mut self, current: &Arc<T>) -> Option<Event<T>> {
        self.has = Has::Nothing;
        if self.changes { Some(Event::Resync(current.number())) } else { self.step(current) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Thing {
        number: u64,
        identity: String,
        steps: Vec<Arc<Step<u64>>>,
    }

    impl Numbered for Thing {
        type Changes = u64;

        fn number(&self) -> u64 {
            self.number
        }

        fn steps(&self) -> &[Arc<Step<u64>>] {
            &self.steps
        }
    }

    /// Thing `number`, which changes lead to from the one before unless there is a `gap`.
    fn after(present: Option<&Thing>, gap: bool) -> Thing {
        let number = present.map_or(1, |thing| thing.number + 1);
        let changes = present.filter(|_| !gap).map(|thing| Step {
            base: thing.number,
            base_identity: thing.identity.clone(),
            number,
            changes: number,
            sent: OnceLock::new(),
        });
        let steps = present.map_or(&[][..], |thing| &thing.steps);
        Thing { number, identity: format!("i{number}"), steps: next_steps(steps, changes) }
    }

    struct Bench {
        sender: watch::Sender<Option<Arc<Thing>>>,
        closing: watch::Sender<bool>,
        count: Arc<AtomicU32>,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                sender: watch::Sender::new(None),
                closing: watch::Sender::new(false),
                count: Arc::default(),
            }
        }

        fn publish(&self, times: u32, gap: bool) {
            for _ in 0..times {
                let thing = after(self.sender.borrow().as_deref(), gap);
                self.sender.send_replace(Some(Arc::new(thing)));
            }
        }

        fn watch(
            &self,
            changes: bool,
            resume: Option<(u64, Option<&str>)>,
        ) -> impl Stream<Item = Result<String, Status>> + use<> {
            let feed = Feed {
                published: self.sender.subscribe(),
                closing: Closing::of(&self.closing),
                heartbeat: Duration::from_secs(1000),
                _watcher: Watcher::new(&self.count),
            };
            let resume = resume.map(|(number, identity)| (number, identity.map(str::to_owned)));
            follow(
                feed,
                Wish { changes, resume },
                |thing| &thing.identity,
                |event| match event {
                    Event::Whole(thing) => format!("whole {}", thing.number),
                    Event::Changes(step) => format!("to {}", step.changes),
                    Event::Resync(number) => format!("resync {number}"),
                    Event::Heartbeat(thing) => format!("beat {}", thing.map_or(0, |t| t.number)),
                },
            )
        }
    }

    #[track_caller]
    fn now<S: Stream<Item = Result<String, Status>> + Unpin>(stream: &mut S) -> String {
        let next = futures_util::FutureExt::now_or_never(stream.next());
        next.expect("there is something to say").expect("the stream goes on").unwrap()
    }

    fn silent<S: Stream<Item = Result<String, Status>> + Unpin>(stream: &mut S) -> bool {
        futures_util::FutureExt::now_or_never(stream.next()).is_none()
    }

    #[tokio::test(start_paused = true)]
    async fn from_whole_to_changes() {
        let bench = Bench::new();
        let mut early = std::pin::pin!(bench.watch(true, None));
        assert!(silent(&mut early));
        assert_eq!(early.next().await.unwrap().unwrap(), "beat 0");
        bench.publish(1, false);
        let (mut plain, mut late) =
            (std::pin::pin!(bench.watch(false, None)), std::pin::pin!(bench.watch(true, None)));
        assert_eq!(now(&mut early), "whole 1");
        assert_eq!(now(&mut plain), "whole 1");
        assert!(silent(&mut early));
        bench.publish(2, false);
        assert_eq!(now(&mut early), "to 2");
        assert_eq!(now(&mut early), "to 3");
        assert!(silent(&mut early));
        assert_eq!(now(&mut plain), "whole 3", "one in between is missed, never the latest");
        assert_eq!(now(&mut late), "whole 3");

        // More than is kept, and what changes cannot say.
        bench.publish(u32::try_from(MOST_STEPS).unwrap() + 1, false);
        assert_eq!(now(&mut early), "resync 20");
        assert_eq!(now(&mut early), "whole 20");
        bench.publish(1, true);
        assert_eq!(now(&mut early), "resync 21");
        assert_eq!(now(&mut early), "whole 21");
        assert!(silent(&mut early));
        assert_eq!(early.next().await.unwrap().unwrap(), "beat 21");
    }

    #[tokio::test]
    async fn what_is_resumed() {
        let bench = Bench::new();
        bench.publish(4, false);
        let first = |changes, resume| now(&mut std::pin::pin!(bench.watch(changes, resume)));
        assert_eq!(first(true, Some((4, None))), "beat 4");
        assert_eq!(first(true, Some((4, Some("i4")))), "beat 4");
        assert_eq!(first(true, Some((2, Some("i2")))), "to 3");
        assert_eq!(first(true, Some((2, None))), "to 3");
        // Of another run of the daemon.
        assert_eq!(first(true, Some((2, Some("j2")))), "resync 4");
        assert_eq!(first(true, Some((4, Some("j4")))), "resync 4");
        assert_eq!(first(true, Some((9, None))), "resync 4");
        assert_eq!(first(false, Some((2, None))), "whole 4");
        assert_eq!(first(false, Some((4, None))), "beat 4");
    }

    #[tokio::test]
    async fn the_end_is_told_once() {
        let bench = Bench::new();
        bench.publish(1, false);
        let mut stream = Box::pin(bench.watch(true, None));
        assert_eq!(bench.count.load(Ordering::Relaxed), 1);
        assert_eq!(now(&mut stream), "whole 1");
        bench.closing.send_replace(true);
        let end = stream.next().await.unwrap().unwrap_err();
        assert_eq!(proto::Reason::of(&end), Some(proto::Reason::ShuttingDown));
        assert!(stream.next().await.is_none());
        drop(stream);
        assert_eq!(bench.count.load(Ordering::Relaxed), 0);
    }
}
