//! The JSON form of a plan.
