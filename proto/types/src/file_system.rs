//! File systems whose locks prove nothing: a lock there can end while the process that took it
//! runs, or bind the processes of one machine only.

/// The file systems by their magic numbers (statfs(2)).
const UNTESTED_LOCKS: [(i64, &str); 7] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "SMB (CIFS)"),
    (0xFE53_4D42, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x00C3_6400, "Ceph"),
    (0x5346_414F, "AFS"),
];

/// The name of the file system with this magic number, the `f_type` of statfs(2), if a lock there
/// does not prove that the process that took it still runs.
#[must_use]
pub fn with_untested_locks(magic: i64) -> Option<&'static str> {
    // Some machines extend the sign of a number of 32 bits.
    let magic = magic & 0xFFFF_FFFF;
    UNTESTED_LOCKS.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// The refusal of `--state-dir` on the file system with this name.
#[must_use]
pub fn refusal(state_dir: &str, name: &str) -> String {
    format!(
        "--state-dir {state_dir} is on {name}: a lock there can end while the process that took it \
         runs, so that another process would count it as ended. Use a folder on a local file \
         system (for example ext4, XFS, Btrfs or tmpfs). Add --trust-state-dir-locks only if a \
         lock there certainly lasts until the process that took it has ended"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_and_fuse_are_recognized_and_local_ones_are_not() {
        for (magic, name) in UNTESTED_LOCKS {
            assert_eq!(with_untested_locks(magic), Some(name));
        }
        let extended = i64::from(0xFF53_4D42_u32.cast_signed());
        assert_eq!(with_untested_locks(extended), Some("SMB (CIFS)"));
        // ext4, XFS, Btrfs, tmpfs, overlayfs, ZFS.
        for local in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0x2FC1_2FC1] {
            assert_eq!(with_untested_locks(local), None, "{local:x}");
        }
    }
}
