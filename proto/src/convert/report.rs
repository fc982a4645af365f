//! Reports of operations.

use std::time::Duration;

use super::enums::required;
use super::{WireError, each};
use crate::report::OperationReport;
use crate::v1;

/// Reports taken at once.
const MOST_REPORTS: usize = 1024;

impl From<&OperationReport> for v1::OperationReport {
    fn from(report: &OperationReport) -> Self {
        Self {
            collective: v1::Collective::from(report.collective).into(),
            outcome: v1::OperationOutcome::from(report.outcome).into(),
            bytes: report.bytes,
            duration_ns: nanoseconds(report.duration),
            predicted_ns: report.predicted.map(nanoseconds),
        }
    }
}

impl TryFrom<v1::OperationReport> for OperationReport {
    type Error = WireError;

    fn try_from(wire: v1::OperationReport) -> Result<Self, WireError> {
        Ok(Self {
            collective: required("OperationReport.collective", wire.collective)?,
            outcome: required("OperationReport.outcome", wire.outcome)?,
            bytes: wire.bytes,
            duration: Duration::from_nanos(wire.duration_ns),
            predicted: wire.predicted_ns.map(Duration::from_nanos),
        })
    }
}

impl TryFrom<v1::ReportOperationsRequest> for Vec<OperationReport> {
    type Error = WireError;

    fn try_from(wire: v1::ReportOperationsRequest) -> Result<Self, WireError> {
        if wire.operations.len() > MOST_REPORTS {
            let field = "ReportOperationsRequest.operations";
            return Err(WireError::TooLong { field, most: MOST_REPORTS });
        }
        each(wire.operations)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use topology::Collective;

    use super::*;
    use crate::report::OperationOutcome;

    fn report(outcome: OperationOutcome, predicted: Option<Duration>) -> OperationReport {
        OperationReport {
            collective: Collective::AllReduce,
            outcome,
            bytes: 1 << 30,
            duration: Duration::from_micros(15_000),
            predicted,
        }
    }

    #[test]
    fn reports_come_back() {
        for outcome in OperationOutcome::ALL {
            for predicted in [None, Some(Duration::from_micros(12_000))] {
                let report = report(outcome, predicted);
                assert_eq!(v1::OperationReport::from(&report).try_into(), Ok(report));
            }
        }
    }

    #[test]
    fn what_says_nothing_is_refused() {
        let error = OperationReport::try_from(v1::OperationReport::default()).unwrap_err();
        assert_eq!(error.to_string(), "OperationReport.collective is missing");
        let operations = vec![v1::OperationReport::default(); MOST_REPORTS + 1];
        let request = v1::ReportOperationsRequest { operations };
        let error = Vec::<OperationReport>::try_from(request).unwrap_err();
        assert_eq!(error.to_string(), "ReportOperationsRequest.operations: longer than 1024");
    }
}
