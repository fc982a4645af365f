//! From a reading to a verdict as it is sent.

use proto::v1;
use topology::health::{self, Examination, Unchecked};
use topology::{Generation, Topology};

/// What the rules say of all hosts. The caller gives it its number.
pub(crate) fn report(topology: &Topology, generation: Generation) -> v1::HealthReport {
    let several = topology.hosts().len() > 1;
    let mut all = Examination::default();
    for (host, snapshot) in topology.hosts().iter().enumerate() {
        let mut found = health::judge(snapshot);
        if several {
            let components = found.findings.iter_mut().map(|finding| &mut finding.component);
            for component in components.chain(found.unchecked.iter_mut().map(|u| &mut u.component))
            {
                *component = format!("{host}:{component}");
            }
        }
        all.join(found);
    }
    let faults = topology.hosts().iter().flat_map(|host| &host.faults);
    v1::HealthReport {
        sequence: 0,
        generation: generation.0,
        status: v1::HealthStatus::from(all.status()).into(),
        findings: all.findings.iter().map(Into::into).collect(),
        unchecked: all.unchecked.iter().map(unchecked).collect(),
        not_told: all.not_told.iter().map(|theme| (*theme).to_owned()).collect(),
        // When a read failed again is no news.
        faults: faults.map(|fault| v1::Fault { at_unix_ms: None, ..fault.into() }).collect(),
    }
}

fn unchecked(unchecked: &Unchecked) -> v1::UncheckedRule {
    v1::UncheckedRule {
        code: unchecked.code.clone(),
        component: unchecked.component.clone(),
        missing: unchecked.missing.clone(),
    }
}
