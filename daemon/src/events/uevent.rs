//! The kernel's messages about devices: `ACTION@DEVPATH`, then `KEY=VALUE` fields, each ended by a zero byte
//! (Linux, `lib/kobject_uevent.c`).

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uevent<'a> {
    /// `add`, `remove`, `change`, `move`, `online`, `offline`, `bind` or `unbind`.
    pub(super) action: &'a str,
    /// Below `/sys`.
    pub(super) path: &'a str,
    subsystem: &'a str,
}

/// Stands for messages that were lost.
pub(super) const LOST: &[u8] = b"change@/devices/lost\0SUBSYSTEM=pci\0";

/// Kinds of devices that the machine's facts are made of.
const SUBSYSTEMS: [&str; 8] =
    ["pci", "net", "infiniband", "infiniband_verbs", "drm", "kfd", "cpu", "node"];

impl<'a> Uevent<'a> {
    /// `None` where the bytes are no such message.
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        let mut fields = message.split(|byte| *byte == 0).map(core::str::from_utf8);
        let (action, path) = fields.next()?.ok()?.split_once('@')?;
        if action.is_empty() || !path.starts_with('/') {
            return None;
        }
        let subsystem = fields.filter_map(Result::ok).find_map(|f| f.strip_prefix("SUBSYSTEM="));
        Some(Self { action, path, subsystem: subsystem.unwrap_or_default() })
    }

    /// Whether facts may have changed. Network devices without hardware come and go with every container.
    pub(super) fn concerns_the_machine(&self) -> bool {
        SUBSYSTEMS.contains(&self.subsystem) && !self.path.starts_with("/devices/virtual/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(message: &str, expect: Option<(&str, bool)>) {
        let message = message.replace('|', "\0");
        let event = Uevent::parse(message.as_bytes());
        assert_eq!(event.map(|e| (e.action, e.concerns_the_machine())), expect, "{message:?}");
    }

    #[test]
    fn messages() {
        let nic = "/devices/pci0000:00/0000:00:01.0/net/eth0";
        check(
            &format!("add@{nic}|ACTION=add|DEVPATH={nic}|SUBSYSTEM=net|SEQNUM=7|"),
            Some(("add", true)),
        );
        check("remove@/devices/pci0000:00/0000:00:01.0|SUBSYSTEM=pci|", Some(("remove", true)));
        check("add@/devices/virtual/net/veth1|SUBSYSTEM=net|", Some(("add", false)));
        check("change@/devices/platform/x|SUBSYSTEM=thermal|", Some(("change", false)));
        check("change@/module/nvidia|", Some(("change", false)));
        check("libudev|", None);
        check("@/devices/x|SUBSYSTEM=pci|", None);
        check("add@devices|SUBSYSTEM=pci|", None);
        check("", None);
        assert!(Uevent::parse(b"add@/x\0\xff\xfe\0SUBSYSTEM=pci").unwrap().concerns_the_machine());
        assert!(Uevent::parse(LOST).unwrap().concerns_the_machine());
    }
}
