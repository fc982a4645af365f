//! Probing small trees that the tests write: whole machines reduced to the files that matter.

mod field_cases;
mod sysfs_tree;
mod whole;
