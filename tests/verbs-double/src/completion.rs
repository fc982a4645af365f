//! Completion queues and the channels that tell of them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::abi::{Wc, event, status};
use crate::fabric::{Address, Fabric};

/// What a queue was asked to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    Not,
    /// The next completion that was solicited or is an error.
    Solicited,
    Next,
}

/// A completion that nobody polled yet.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) wc: Wc,
    pub(crate) qp: Address,
    /// Places in the send queue that are free once this is polled.
    pub(crate) frees_send: u32,
    /// As of the receive queue.
    pub(crate) frees_receive: u32,
}

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) context: Address,
    pub(crate) device: usize,
    pub(crate) channel: Option<Address>,
    pub(crate) user: Address,
    pub(crate) capacity: usize,
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) armed: Armed,
    pub(crate) overrun: bool,
    pub(crate) unacked_completions: u64,
    pub(crate) unacked_events: u64,
}

#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) context: Address,
    /// A semaphore: as much as events are pending.
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) pending: VecDeque<Address>,
}

/// Makes a semaphore readable once more.
pub(crate) fn signal(fd: &OwnedFd) {
    // The counter holds 2^64 - 2.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Takes back a signal whose event is no more; the semaphore may block, so it is looked at first.
pub(crate) fn unsignal(fd: &OwnedFd) {
    let mut ready = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    if rustix::event::poll(&mut ready, Some(&now)) == Ok(1) {
        let _ = rustix::io::read(fd, &mut [0; 8]);
    }
}

impl Fabric {
    /// Adds a completion, and tells who asked to be told.
    pub(crate) fn complete(&mut self, queue: Address, entry: Entry, solicited: bool) {
        let Some(cq) = self.cqs.get_mut(&queue) else { return };
        if cq.overrun {
            return;
        }
        if cq.entries.len() == cq.capacity {
            cq.overrun = true;
            self.overrun(queue);
            return;
        }
        let tells = match cq.armed {
            Armed::Not => false,
            Armed::Solicited => solicited || entry.wc.status != status::SUCCESS,
            Armed::Next => true,
        };
        cq.entries.push_back(entry);
        if !tells {
            return;
        }
        cq.armed = Armed::Not;
        if let Some(channel) = cq.channel.and_then(|channel| self.channels.get_mut(&channel)) {
            channel.pending.push_back(queue);
            signal(&channel.fd);
        }
    }

    /// A queue that ran over is lost, and so is whoever completes into it.
    fn overrun(&mut self, queue: Address) {
        self.counts.misuse(format!("completion queue {queue:#x} ran over"));
        let Some(cq) = self.cqs.get(&queue) else { return };
        self.raise(cq.context, event::CQ_ERR, queue as u64, Some(queue));
        let users: Vec<Address> = self
            .qps
            .iter()
            .filter(|(_, qp)| qp.send_cq == queue || qp.recv_cq == queue)
            .map(|(address, _)| *address)
            .collect();
        for qp in users {
            self.fail_queue_pair(qp, Some(event::QP_FATAL));
        }
    }

    /// Takes completions out, and frees the places of their requests.
    pub(crate) fn poll(&mut self, queue: Address, room: usize) -> Option<Vec<Wc>> {
        let cq = self.cqs.get_mut(&queue)?;
        if cq.overrun && cq.entries.is_empty() {
            return None;
        }
        let count = room.min(cq.entries.len());
        let polled: Vec<Entry> = cq.entries.drain(..count).collect();
        for entry in &polled {
            if let Some(qp) = self.qps.get_mut(&entry.qp) {
                qp.send_used -= entry.frees_send;
                qp.receive_used -= entry.frees_receive;
            }
        }
        Some(polled.into_iter().map(|entry| entry.wc).collect())
    }
}
