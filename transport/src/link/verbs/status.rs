//! Statuses of completions in words.

use super::ffi;

/// `enum ibv_wc_status` with what each means here, in order.
pub(super) const WORDS: [(&str, &str); 22] = [
    ("IBV_WC_SUCCESS", "success"),
    ("IBV_WC_LOC_LEN_ERR", "local length error: a message does not fit what was posted for it"),
    ("IBV_WC_LOC_QP_OP_ERR", "local queue pair operation error: the NIC could not send"),
    ("IBV_WC_LOC_EEC_OP_ERR", "local EE context operation error"),
    ("IBV_WC_LOC_PROT_ERR", "local protection error: memory that is not registered"),
    (
        "IBV_WC_WR_FLUSH_ERR",
        "work flushed: the queue pair had failed before, or its other end was taken down",
    ),
    ("IBV_WC_MW_BIND_ERR", "memory window bind error"),
    ("IBV_WC_BAD_RESP_ERR", "bad response: the peer's NIC answered with an unexpected packet"),
    ("IBV_WC_LOC_ACCESS_ERR", "local access error: the peer wrote where it may not"),
    ("IBV_WC_REM_INV_REQ_ERR", "remote invalid request: the peer's NIC refused the message"),
    ("IBV_WC_REM_ACCESS_ERR", "remote access error: the peer's NIC refused the key or the address"),
    ("IBV_WC_REM_OP_ERR", "remote operation error: the peer's NIC could not complete the request"),
    (
        "IBV_WC_RETRY_EXC_ERR",
        "transport retry counter exceeded: the peer's NIC does not answer (peer gone, cable, route or GID)",
    ),
    (
        "IBV_WC_RNR_RETRY_EXC_ERR",
        "receiver-not-ready retry counter exceeded: the peer had no receive posted",
    ),
    ("IBV_WC_LOC_RDD_VIOL_ERR", "local RDD violation"),
    ("IBV_WC_REM_INV_RD_REQ_ERR", "remote invalid RD request"),
    ("IBV_WC_REM_ABORT_ERR", "remote aborted: the peer's NIC gave the request up"),
    ("IBV_WC_INV_EECN_ERR", "invalid EE context number"),
    ("IBV_WC_INV_EEC_STATE_ERR", "invalid EE context state"),
    ("IBV_WC_FATAL_ERR", "fatal error: the device is of no further use"),
    ("IBV_WC_RESP_TIMEOUT_ERR", "response timeout"),
    ("IBV_WC_GENERAL_ERR", "general error"),
];

/// A status in words, with its number.
pub(super) fn words(status: i32) -> String {
    let known = usize::try_from(status).ok().and_then(|status| WORDS.get(status));
    let words = known.map_or("a status this library does not know", |(_, words)| *words);
    format!("{words} (status {status})")
}

/// Whether a status says what went wrong. The others may follow from something that others know better: work that is flushed, and a
/// peer that does not answer.
pub(super) const fn is_cause(status: i32) -> bool {
    !matches!(status, ffi::WC_WR_FLUSH_ERR | ffi::WC_RETRY_EXC_ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_words() {
        assert!(words(12).starts_with("transport retry counter exceeded"), "{}", words(12));
        assert!(words(5).ends_with("(status 5)"));
        assert!(is_cause(10) && !is_cause(5) && !is_cause(12));
        for unknown in [-1, 22, i32::MAX] {
            assert!(words(unknown).contains("does not know"), "{}", words(unknown));
        }
    }
}
