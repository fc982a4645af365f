//! What integration tests and examples share; the tests themselves live in `integration/`.

pub mod bars;
pub mod nccl;
