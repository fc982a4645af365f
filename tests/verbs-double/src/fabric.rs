//! Everything there is, behind one lock: devices, the objects made on them, and what is due later.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::abi::{event, state};
use crate::completion::{Channel, CompletionQueue, signal};
use crate::config::Config;
use crate::device::{Device, Health};
use crate::fault::{self, Fault, Happening, Kind};
use crate::memory::Region;
use crate::queue_pair::QueuePair;
use crate::report::{self, Counts};
use crate::sysfs;

/// Where the structure lies that a caller knows an object by.
pub(crate) type Address = usize;

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: i32,
    /// A pointer, or a port's number.
    pub(crate) element: u64,
    /// The object that it is of.
    pub(crate) of: Option<Address>,
}

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) events: VecDeque<Event>,
    /// A semaphore: as much as events wait.
    pub(crate) fd: Arc<OwnedFd>,
    /// Events of ports and the device that were got and not acknowledged.
    pub(crate) unacked: u64,
}

#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) context: Address,
    pub(crate) device: usize,
}

#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) config: Config,
    pub(crate) faults: Vec<Fault>,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: BTreeMap<Address, Context>,
    pub(crate) pds: BTreeMap<Address, Pd>,
    pub(crate) regions: BTreeMap<Address, Region>,
    /// Regions by their keys, local and remote ones.
    pub(crate) keys: BTreeMap<u32, Address>,
    pub(crate) channels: BTreeMap<Address, Channel>,
    pub(crate) cqs: BTreeMap<Address, CompletionQueue>,
    pub(crate) qps: BTreeMap<Address, QueuePair>,
    /// Queue pairs by device and number.
    pub(crate) numbers: BTreeMap<(usize, u32), Address>,
    /// When ports of devices are back.
    pub(crate) agenda: Vec<(Instant, usize, u8)>,
    pub(crate) counts: Counts,
    /// Something is due at another time than it was.
    pub(crate) rescheduled: bool,
    pub(crate) random: u64,
    pub(crate) last_key: u32,
    pub(crate) last_number: u32,
    pub(crate) last_handle: u32,
}

impl Fabric {
    /// # Errors
    /// Where the faults are none.
    pub(crate) fn new(config: Config) -> Result<Self, String> {
        let devices = (0..config.devices).map(|number| Device::new(&config, number)).collect();
        Ok(Self {
            faults: fault::parse(&config.faults)?,
            devices,
            contexts: BTreeMap::new(),
            pds: BTreeMap::new(),
            regions: BTreeMap::new(),
            keys: BTreeMap::new(),
            channels: BTreeMap::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
            numbers: BTreeMap::new(),
            agenda: Vec::new(),
            counts: Counts::default(),
            rescheduled: false,
            random: config.seed.unwrap_or(1),
            last_key: 0,
            // 0 and 1 are of the subnet's management.
            last_number: 0x10,
            last_handle: 0,
            config,
        })
    }

    /// Shows the devices as the kernel would, where a folder is named for that.
    pub(crate) fn show(&self) {
        let Some(folder) = &self.config.sysfs else { return };
        if let Err(error) = sysfs::write(folder, &self.devices) {
            report::complain(&format!("{}: {error}", folder.display()));
        }
    }

    pub(crate) fn handle(&mut self) -> u32 {
        self.last_handle += 1;
        self.last_handle
    }

    /// The next of a sequence (xorshift, Marsaglia 2003).
    pub(crate) fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    pub(crate) fn device_of(&self, context: Address) -> Option<usize> {
        self.contexts.get(&context).map(|context| context.device)
    }

    pub(crate) fn health(&self, device: usize) -> Health {
        self.devices.get(device).map_or(Health::Gone, |device| device.health)
    }

    /// Adds an event to a context's.
    pub(crate) fn raise(&mut self, context: Address, kind: i32, element: u64, of: Option<Address>) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.events.push_back(Event { kind, element, of });
            signal(&context.fd);
        }
    }

    /// Adds an event to those of every context of a device.
    fn raise_all(&mut self, device: usize, kind: i32, element: u64) {
        let of = |(address, context): (&Address, &Context)| {
            (context.device == device).then_some(*address)
        };
        let contexts: Vec<Address> = self.contexts.iter().filter_map(of).collect();
        for context in contexts {
            self.raise(context, kind, element, None);
        }
    }

    /// A queue pair fails: what waits is flushed, and an event may say so.
    pub(crate) fn fail_queue_pair(&mut self, address: Address, event: Option<i32>) {
        let Some(qp) = self.qps.get_mut(&address) else { return };
        if qp.state == state::ERR {
            return;
        }
        qp.state = state::ERR;
        let context = qp.context;
        if let Some(event) = event {
            self.raise(context, event, address as u64, Some(address));
        }
        self.flush(address);
    }

    /// What happens to a device, on one of its ports; `sender` is the queue pair whose message it is.
    pub(crate) fn happen(
        &mut self,
        number: usize,
        port_number: u8,
        what: Happening,
        sender: Option<Address>,
    ) {
        let now = Instant::now();
        let Some(device) = self.devices.get_mut(number) else { return };
        let element = u64::from(port_number);
        match what {
            Happening::PortDown { .. } | Happening::PortUp => {
                let up = what == Happening::PortUp;
                let Some(port) = device.port_mut(port_number) else { return };
                if port.active == up {
                    return;
                }
                port.active = up;
                if let Happening::PortDown { down: Some(down) } = what {
                    self.agenda.push((now + down, number, port_number));
                    self.rescheduled = true;
                }
                let kind = if up { event::PORT_ACTIVE } else { event::PORT_ERR };
                self.raise_all(number, kind, element);
            }
            Happening::LidChange => {
                let Some(port) = device.port_mut(port_number) else { return };
                // A LID that no port of this fabric has.
                port.lid = port.lid.wrapping_add(0x4000);
                self.raise_all(number, event::LID_CHANGE, element);
            }
            Happening::GidChange => {
                let Some(port) = device.port_mut(port_number) else { return };
                for gid in port.gids.iter_mut().flatten() {
                    gid.bytes[15] ^= 0x80;
                }
                self.show();
                self.raise_all(number, event::GID_CHANGE, element);
            }
            Happening::DeviceFatal => {
                device.health = Health::Fatal;
                self.raise_all(number, event::DEVICE_FATAL, 0);
            }
            Happening::Gone { told } => {
                device.health = Health::Gone;
                if told {
                    self.raise_all(number, event::DEVICE_FATAL, 0);
                }
                for context in self.contexts.values().filter(|context| context.device == number) {
                    // Readable from now on, for reading answers without waiting.
                    let _ = rustix::io::write(&context.fd, &(1_u64 << 40).to_ne_bytes());
                }
            }
            Happening::QpFatal => {
                if let Some(sender) = sender {
                    self.fail_queue_pair(sender, Some(event::QP_FATAL));
                }
            }
            Happening::Event(kind) => self.raise_all(number, kind, element),
        }
    }

    /// What is to happen when a device has sent so many messages, or at once (`None`).
    pub(crate) fn happenings(&mut self, number: usize, sender: Option<Address>) {
        let sent = self.devices.get(number).map_or(0, |device| device.messages);
        let due = |fault: &Fault| {
            fault.device.is_none_or(|wanted| wanted == number)
                && match (sender, fault.after) {
                    (Some(_), Some(after)) => sent > after,
                    (Some(_), None) => fault.kind == Kind::Happening(Happening::QpFatal),
                    (None, after) => after.is_none(),
                }
        };
        let mut due_now = Vec::new();
        for fault in self.faults.iter_mut().filter(|fault| !fault.over) {
            if let Kind::Happening(what) = fault.kind
                && due(fault)
                && (sender.is_some() || what != Happening::QpFatal)
            {
                fault.over = true;
                due_now.push((fault.port, what));
            }
        }
        for (port, what) in due_now {
            self.happen(number, port, what, sender);
        }
    }

    /// Puts other faults in force; what is to happen at once happens to the devices that are open.
    pub(crate) fn replace_faults(&mut self, faults: Vec<Fault>) {
        self.faults = faults;
        let mut open: Vec<usize> = self.contexts.values().map(|context| context.device).collect();
        open.sort_unstable();
        open.dedup();
        for device in open {
            self.happenings(device, None);
        }
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let held = self.qps.values().filter_map(|qp| qp.held);
        held.chain(self.agenda.iter().map(|(when, ..)| *when)).min()
    }

    /// Does what is due.
    pub(crate) fn run_due(&mut self, now: Instant) {
        let (due, later) = self.agenda.drain(..).partition(|(when, ..)| *when <= now);
        self.agenda = later;
        for (_, device, port) in Vec::from_iter::<Vec<(Instant, usize, u8)>>(due) {
            self.happen(device, port, Happening::PortUp, None);
        }
        let held: Vec<Address> = self
            .qps
            .iter()
            .filter(|(_, qp)| qp.held.is_some_and(|held| held <= now))
            .map(|(address, _)| *address)
            .collect();
        for address in held {
            if let Some(qp) = self.qps.get_mut(&address) {
                qp.held = None;
            }
            self.transmit(address);
        }
    }
}
