//! UCC's tune strings: which algorithm its UCX layer is to take for which size.
//!
//! ```text
//!   UCC_TL_UCP_TUNE=allgather:0-65536:[8-8]:@ring#…      collective, sizes in bytes, team sizes, algorithm
//! ```
//!
//! By UCC's user guide (docs/user_guide.md, "CLs and TLs") and its list of algorithms (`ucc_info -A`, src/components/tl/ucp): rings
//! it has for all-gather and reduce-scatter, a double binary tree (`dbt`) for all-reduce. What it has no like of is left to it.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::{Algorithm, Collective, Plan};

/// The value of `UCC_TL_UCP_TUNE` for a plan; `None` where nothing of it has a name in UCC.
#[must_use]
pub fn tune(plan: &Plan) -> Option<String> {
    let ranks = plan.ranks.len();
    let mut tokens: Vec<String> = Vec::new();
    for (collective, reached) in &plan.collectives {
        let mut from = 0;
        for choice in &reached.by_size {
            let named = match (collective, choice.algorithm) {
                (Collective::AllGather, Algorithm::Ring) => Some("allgather:@ring"),
                (Collective::ReduceScatter, Algorithm::Ring) => Some("reduce_scatter:@ring"),
                (Collective::AllReduce, Algorithm::Tree) => Some("allreduce:@dbt"),
                _ => None,
            };
            let to = match choice.max_bytes {
                u64::MAX => String::from("inf"),
                bytes => bytes.to_string(),
            };
            if let Some((name, algorithm)) = named.and_then(|named| named.split_once(':')) {
                tokens.push(format!("{name}:{from}-{to}:[{ranks}-{ranks}]:{algorithm}"));
            }
            from = choice.max_bytes.saturating_add(1);
        }
    }
    (!tokens.is_empty()).then(|| tokens.join("#"))
}
