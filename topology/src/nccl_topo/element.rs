//! An element of a file in NCCL's dialect.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::TopoError;
use crate::nccl_dialect::LONGEST_VALUE;

/// One element with what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) name: &'static str,
    pub(super) attributes: Vec<(&'static str, String)>,
    pub(super) children: Vec<Self>,
}

impl Element {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, attributes: Vec::new(), children: Vec::new() }
    }

    pub(super) fn with(mut self, attribute: &'static str, value: impl Into<String>) -> Self {
        self.attributes.push((attribute, value.into()));
        self
    }

    pub(super) fn with_some<T: ToString>(self, attribute: &'static str, value: Option<T>) -> Self {
        match value {
            Some(value) => self.with(attribute, value.to_string()),
            None => self,
        }
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(own, _)| *own == name).map(|(_, value)| value.as_str())
    }

    /// It and all below.
    pub(super) fn count(&self) -> usize {
        1 + self.children.iter().map(Self::count).sum::<usize>()
    }

    /// Drops elements below, with all in them.
    pub(super) fn retain(&mut self, keep: &dyn Fn(&Self) -> bool) {
        self.children.retain(keep);
        self.children.iter_mut().for_each(|child| child.retain(keep));
    }

    /// Values that the dialect has no way to write: it knows no entities.
    pub(super) fn check(&self) -> Result<(), TopoError> {
        for (attribute, value) in &self.attributes {
            let odd = |c: char| matches!(c, '"' | '<' | '&') || c.is_control();
            if value.contains(odd) || value.len() > LONGEST_VALUE {
                return Err(TopoError::Unwritable { attribute, value: value.clone() });
            }
        }
        self.children.iter().try_for_each(Self::check)
    }

    pub(super) fn write(&self, depth: usize, text: &mut String) {
        let indent = |text: &mut String| text.extend(core::iter::repeat_n("  ", depth));
        indent(text);
        text.push('<');
        text.push_str(self.name);
        for (attribute, value) in &self.attributes {
            for piece in [" ", attribute, "=\"", value, "\""] {
                text.push_str(piece);
            }
        }
        if self.children.is_empty() {
            text.push_str("/>\n");
            return;
        }
        text.push_str(">\n");
        self.children.iter().for_each(|child| child.write(depth + 1, text));
        indent(text);
        for piece in ["</", self.name, ">\n"] {
            text.push_str(piece);
        }
    }
}
