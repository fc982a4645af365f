//! Networks that a file describes as switches with what is below them.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeMap;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::host_list::expand;
use super::{
    Block, COUNT_LIMIT, Fabric, FabricForm, FabricHost, FabricNic, Peer, Switch, SwitchPort,
    TIER_LIMIT,
};
use crate::formats::{ReadError, excerpt};

/// Switches, hosts and blocks by name, as lines tell them.
#[derive(Debug)]
pub(super) struct Tree {
    fabric: Fabric,
    switch_at: BTreeMap<String, usize>,
    host_at: BTreeMap<String, usize>,
    block_at: BTreeMap<String, usize>,
    /// Parent and child, and the line that says so.
    below: BTreeMap<(usize, usize), usize>,
    at_leaf: BTreeSet<(usize, usize)>,
    described: BTreeMap<usize, usize>,
    /// Hosts that are in a block.
    placed: BTreeMap<usize, usize>,
    /// Names that lists stood for so far.
    expanded: usize,
}

impl Tree {
    pub(super) fn new(form: FabricForm) -> Self {
        Self {
            fabric: Fabric::new(form),
            switch_at: BTreeMap::new(),
            host_at: BTreeMap::new(),
            block_at: BTreeMap::new(),
            below: BTreeMap::new(),
            at_leaf: BTreeSet::new(),
            described: BTreeMap::new(),
            placed: BTreeMap::new(),
            expanded: 0,
        }
    }

    /// The names a host list stands for. All lists together are limited: a short line can name a million hosts.
    pub(super) fn expand(&mut self, line: usize, list: &str) -> Result<Vec<String>, ReadError> {
        let names = expand(list).map_err(|reason| self.refuse(line, reason))?;
        self.expanded = self.expanded.saturating_add(names.len());
        if self.expanded > 4 * COUNT_LIMIT {
            return Err(self.refuse(line, format!("lists of more than {} names", 4 * COUNT_LIMIT)));
        }
        Ok(names)
    }

    pub(super) fn refuse(&self, line: usize, reason: String) -> ReadError {
        ReadError { format: self.fabric.form.name(), line, reason }
    }

    fn limited(&self, line: usize, count: usize, what: &str) -> Result<(), ReadError> {
        if count < COUNT_LIMIT {
            return Ok(());
        }
        Err(self.refuse(line, format!("more than {COUNT_LIMIT} {what}")))
    }

    /// A switch by name.
    pub(super) fn switch(&mut self, line: usize, name: &str) -> Result<usize, ReadError> {
        if name.is_empty() {
            return Err(self.refuse(line, "a switch without a name".into()));
        }
        if let Some(at) = self.switch_at.get(name) {
            return Ok(*at);
        }
        self.limited(line, self.fabric.switches.len(), "switches")?;
        let at = self.fabric.switches.len();
        self.fabric.switches.push(Switch {
            id: name.to_owned(),
            name: name.to_owned(),
            tier: None,
            ports: Vec::new(),
        });
        self.switch_at.insert(name.to_owned(), at);
        Ok(at)
    }

    /// A switch that the file describes here, and may not describe again.
    pub(super) fn describe(&mut self, line: usize, name: &str) -> Result<usize, ReadError> {
        let at = self.switch(line, name)?;
        match self.described.insert(at, line) {
            Some(first) if line > 0 => {
                Err(self
                    .refuse(line, format!("switch '{}' is also at line {first}", excerpt(name))))
            }
            Some(_) => Err(self.refuse(0, format!("switch '{}' is there twice", excerpt(name)))),
            None => Ok(at),
        }
    }

    pub(super) fn child(
        &mut self,
        line: usize,
        parent: usize,
        child: &str,
    ) -> Result<(), ReadError> {
        let child = self.switch(line, child)?;
        self.limited(line, self.below.len(), "links")?;
        self.below.entry((parent, child)).or_insert(line);
        Ok(())
    }

    pub(super) fn host(&mut self, line: usize, name: &str) -> Result<usize, ReadError> {
        if name.is_empty() {
            return Err(self.refuse(line, "a host without a name".into()));
        }
        if let Some(at) = self.host_at.get(name) {
            return Ok(*at);
        }
        self.limited(line, self.fabric.hosts.len(), "hosts")?;
        let at = self.fabric.hosts.len();
        self.fabric.hosts.push(FabricHost { name: name.to_owned(), nics: Vec::new() });
        self.host_at.insert(name.to_owned(), at);
        Ok(at)
    }

    pub(super) fn leaf_of(
        &mut self,
        line: usize,
        leaf: usize,
        host: usize,
    ) -> Result<(), ReadError> {
        self.limited(line, self.at_leaf.len(), "links")?;
        if self.at_leaf.insert((leaf, host)) {
            let nic = FabricNic { leaf: Some(leaf), ..FabricNic::default() };
            self.fabric.hosts[host].nics.push(nic);
        }
        Ok(())
    }

    /// Puts a host in a block; it can be in one only.
    pub(super) fn in_block(
        &mut self,
        line: usize,
        block: &str,
        host: usize,
    ) -> Result<(), ReadError> {
        let at = match self.block_at.get(block) {
            Some(at) => *at,
            None => {
                self.fabric.blocks.push(Block { name: block.to_owned(), hosts: Vec::new() });
                self.block_at.insert(block.to_owned(), self.fabric.blocks.len() - 1);
                self.fabric.blocks.len() - 1
            }
        };
        match self.placed.insert(host, at) {
            Some(other) if other != at => {
                let reason = format!(
                    "host '{}' is in block '{}' and in block '{}'",
                    excerpt(&self.fabric.hosts[host].name),
                    excerpt(&self.fabric.blocks[other].name),
                    excerpt(block)
                );
                Err(self.refuse(line, reason))
            }
            Some(_) => Ok(()),
            None => {
                self.fabric.blocks[at].hosts.push(host);
                Ok(())
            }
        }
    }

    pub(super) fn sizes(&mut self, sizes: Vec<u32>) {
        self.fabric.block_sizes = sizes;
    }

    pub(super) fn note(&mut self, note: String) {
        self.fabric.notes.push(note);
    }

    /// The fabric; `all_described` where a switch that others name must have a line of its own.
    pub(super) fn finish(mut self, all_described: bool) -> Result<Fabric, ReadError> {
        if self.fabric.hosts.is_empty() && self.fabric.switches.is_empty() {
            return Err(self.refuse(0, "no switch and no host in it".into()));
        }
        for (parent, child) in self.below.keys() {
            let to = |to| SwitchPort { number: 0, to: Peer::Switch(to), mbit: None };
            self.fabric.switches[*parent].ports.push(to(*child));
            self.fabric.switches[*child].ports.push(to(*parent));
        }
        for (leaf, host) in &self.at_leaf {
            let port = SwitchPort { number: 0, to: Peer::Host(*host), mbit: None };
            self.fabric.switches[*leaf].ports.push(port);
        }
        self.heights()?;
        if all_described {
            let undescribed: Vec<String> = (0..self.fabric.switches.len())
                .filter(|at| !self.described.contains_key(at))
                .map(|at| self.fabric.switches[at].name.clone())
                .collect();
            if !undescribed.is_empty() {
                self.note(format!(
                    "switches that others name and no line describes: {}",
                    crate::words::some_of(&undescribed)
                ));
            }
        }
        self.fabric.finish();
        Ok(self.fabric)
    }

    /// Tiers by height: 1 for a switch with none below it.
    fn heights(&mut self) -> Result<(), ReadError> {
        let count = self.fabric.switches.len();
        let mut above: Vec<Vec<usize>> = alloc::vec![Vec::new(); count];
        let mut open = alloc::vec![0_usize; count];
        for (parent, child) in self.below.keys() {
            above[*child].push(*parent);
            open[*parent] += 1;
        }
        let mut ready: Vec<usize> = (0..count).filter(|at| open[*at] == 0).collect();
        let mut tiers = alloc::vec![1_u32; count];
        let mut done = 0;
        while let Some(at) = ready.pop() {
            done += 1;
            self.fabric.switches[at].tier = Some(tiers[at]);
            for parent in &above[at] {
                tiers[*parent] = tiers[*parent].max(tiers[at] + 1);
                open[*parent] -= 1;
                if open[*parent] == 0 {
                    ready.push(*parent);
                }
            }
        }
        if let Some(((parent, child), line)) =
            self.below.iter().find(|((parent, child), _)| open[*parent] > 0 && open[*child] > 0)
        {
            let name = |at: usize| excerpt(&self.fabric.switches[at].name);
            return Err(self.refuse(
                *line,
                format!("switch '{}' is below itself, through '{}'", name(*parent), name(*child)),
            ));
        }
        debug_assert_eq!(done, count, "without a circle every switch has a height");
        match tiers.iter().max() {
            Some(most) if *most > TIER_LIMIT => {
                Err(self.refuse(0, format!("{most} tiers; at most {TIER_LIMIT} are read")))
            }
            _ => Ok(()),
        }
    }
}
