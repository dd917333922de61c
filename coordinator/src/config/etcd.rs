//! The flags of a replica on etcd.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use leasehold_platform_etcd::{EtcdConnection, EtcdTls, EtcdUser, MemberUrl, PREFIX_BYTES_MAX};
use leasehold_types::CellId;

use super::{UsageError, refuse};

/// The flags that say where etcd is, and how this replica proves itself there.
#[derive(Args, Clone, Debug)]
pub struct EtcdArgs {
    /// The members of etcd, separated by commas: replicas on several hosts elect a leader there,
    /// and read the manifests there unless --manifests is given.
    #[arg(long, value_name = "URL", env = "LEASEHOLD_ETCD", value_delimiter = ',')]
    pub etcd: Vec<MemberUrl>,
    /// What the keys of the replicas begin with in etcd.
    #[arg(long, value_name = "PREFIX", env = "LEASEHOLD_ETCD_PREFIX")]
    #[arg(default_value = "/leasehold/", requires = "etcd")]
    pub etcd_prefix: String,
    /// Authorities (PEM) that must have signed the certificates of etcd's members.
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_ETCD_CA", requires = "etcd")]
    pub etcd_ca: Option<PathBuf>,
    /// Certificate chain (PEM) that this replica shows to etcd. With etcd's --client-cert-auth its
    /// common name is the user, unless --etcd-user is given.
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_ETCD_CERT", requires = "etcd_key")]
    #[arg(requires = "etcd")]
    pub etcd_cert: Option<PathBuf>,
    /// Private key (PEM) of --etcd-cert.
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_ETCD_KEY", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// The user of etcd, with a password.
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_ETCD_USER")]
    #[arg(requires = "etcd_password_file", requires = "etcd")]
    pub etcd_user: Option<String>,
    /// File with the password of --etcd-user; it is read for every new token.
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_ETCD_PASSWORD_FILE")]
    #[arg(requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
}

/// The settings that only a replica on etcd has.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// The members, and how this replica proves itself there.
    pub connection: EtcdConnection,
    /// What all keys begin with.
    pub prefix: String,
    /// A folder of manifests on this host; `None` for those in etcd.
    pub manifests: Option<PathBuf>,
    /// How long manifests that take much away wait.
    pub confirm_removals: Duration,
    /// Folder for the last valid manifests.
    pub state_dir: PathBuf,
    /// The cell that the prefix is, or becomes, the store of.
    pub cell: Option<CellId>,
}

impl EtcdArgs {
    /// Where etcd is, and what keys begin with; `None` without --etcd.
    pub(super) fn connection(self) -> Result<Option<(EtcdConnection, String)>, UsageError> {
        let Self { etcd: members, etcd_prefix: prefix, .. } = self;
        let Some(first) = members.first() else { return Ok(None) };
        let is_tls = first.is_tls();
        if let Some(other) = members.iter().find(|member| member.is_tls() != is_tls) {
            return refuse(format!(
                "--etcd {first} and {other}: give all members with https, or all with http"
            ));
        }
        let identity = self.etcd_cert.zip(self.etcd_key);
        let tls = match self.etcd_ca {
            Some(authorities) if is_tls => Some(EtcdTls { authorities, identity }),
            None if is_tls => {
                return refuse(format!(
                    "--etcd {first} needs --etcd-ca: the authority that has signed the \
                     certificates of etcd's members"
                ));
            }
            Some(_) => return refuse(format!("--etcd-ca needs https in --etcd, not {first}")),
            None if identity.is_some() => {
                return refuse(format!("--etcd-cert needs https in --etcd, not {first}"));
            }
            None => None,
        };
        let is_word = |c: char| !c.is_control() && !c.is_whitespace();
        if prefix.trim_matches('/').is_empty()
            || prefix.len() > PREFIX_BYTES_MAX
            || !prefix.chars().all(is_word)
        {
            return refuse(format!(
                "invalid --etcd-prefix {prefix:?}: expected a word of at most {PREFIX_BYTES_MAX} \
                 bytes, for example /leasehold/"
            ));
        }
        let user = self.etcd_user.zip(self.etcd_password_file);
        let user = user.map(|(name, password_file)| EtcdUser { name, password_file });
        Ok(Some((EtcdConnection { members, tls, user }, prefix)))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::{Cli, Command, PlatformSettings};
    use super::*;

    fn settings(flags: &[&str]) -> Result<EtcdSettings, String> {
        let words = ["leasehold-coordinator", "run", "--state-dir", "s"].iter().chain(flags);
        let cli = Cli::read(words.map(OsString::from));
        let Command::Run(arguments) = cli.map_err(|error| error.to_string())?.command else {
            panic!("another command");
        };
        match arguments.settings().map_err(|usage| usage.to_string())?.platform {
            PlatformSettings::Etcd(etcd) => Ok(*etcd),
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn members_are_given_by_commas_with_what_proves_the_replica() {
        let plain = settings(&["--etcd", "http://a:2379,http://b:2379"]).expect("valid");
        assert_eq!(plain.connection.members.len(), 2);
        assert_eq!((plain.prefix.as_str(), plain.manifests), ("/leasehold/", None));
        assert!(plain.connection.tls.is_none() && plain.connection.user.is_none());
        let proven = settings(&[
            "--etcd=https://a:2379",
            "--etcd-ca=ca.pem",
            "--etcd-cert=c.pem",
            "--etcd-key=k.pem",
            "--etcd-user=leasehold",
            "--etcd-password-file=p",
            "--manifests=m",
        ]);
        let proven = proven.expect("valid");
        assert!(proven.connection.tls.is_some_and(|tls| tls.identity.is_some()));
        assert_eq!(proven.connection.user.expect("a user").name, "leasehold");
        assert_eq!(proven.manifests, Some(PathBuf::from("m")));
    }

    #[test]
    fn invalid_flags_are_refused_with_an_error_that_names_them() {
        let tls = "--etcd=https://a:2379";
        let plain = "--etcd=http://a:2379";
        for (flags, named) in [
            (&["--confirm-removals=5s"][..], "--manifests"),
            (&["--etcd=a:2379"], "for example https://10.0.0.1:2379"),
            (&["--etcd=http://a:2379,https://b:2379"], "all with http"),
            (&[tls], "needs --etcd-ca"),
            (&[plain, "--etcd-ca=c"], "--etcd-ca needs https"),
            (&[plain, "--etcd-cert=c", "--etcd-key=k"], "--etcd-cert needs https"),
            (&[tls, "--etcd-ca=c", "--etcd-cert=c"], "--etcd-key"),
            (&[plain, "--etcd-user=u"], "--etcd-password-file"),
            (&[plain, "--etcd-password-file=p"], "--etcd-user"),
            (&[plain, "--etcd-prefix=/"], "--etcd-prefix"),
            (&[plain, "--etcd-prefix=a b"], "--etcd-prefix"),
            (&[plain, "--trust-state-dir-locks"], "--trust-state-dir-locks"),
            (&["--manifests=m", "--etcd-ca=c"], "--etcd <URL>"),
        ] {
            let error = settings(flags).expect_err(&format!("{flags:?} was taken"));
            assert!(error.contains(named), "{flags:?}: {error}");
        }
    }
}
