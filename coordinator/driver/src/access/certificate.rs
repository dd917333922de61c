//! The names in a client's certificate. Who signs certificates decides by the URI names in them
//! what their owners may do, as with SPIFFE ids: a certificate may have several.

use std::fmt;

use super::{Caller, Denied, Permission};

/// A client that may do everything.
pub const ADMIN: &str = "leasehold://admin";
/// A client that may read everything.
pub const VIEWER: &str = "leasehold://viewer";
/// An autoscaler of every class; with `/NAMESPACE` of the classes in that namespace.
pub const AUTOSCALER: &str = "leasehold://autoscaler";
/// Another replica.
pub const COORDINATOR: &str = "leasehold://coordinator";
/// The agent of one worker: `leasehold://worker/CLUSTER/WORKER`.
const WORKER: &str = "leasehold://worker";

/// The names in a certificate that a trusted authority has signed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The subject, for people.
    pub subject: String,
    /// The URIs of its subjectAltName.
    pub uris: Vec<String>,
    /// The DNS names of its subjectAltName.
    pub hosts: Vec<String>,
}

impl fmt::Display for CertificateNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uris = self.uris.iter().map(|uri| format!("URI:{uri}"));
        let names: Vec<_> =
            uris.chain(self.hosts.iter().map(|host| format!("DNS:{host}"))).collect();
        let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
        match self.subject.as_str() {
            "" => f.write_str(&names),
            subject => write!(f, "{names} ({subject})"),
        }
    }
}

impl CertificateNames {
    /// Checks that the certificate has a name for what its owner wants.
    ///
    /// # Errors
    /// [`Denied::Forbidden`] with the names that it has and those that would do.
    pub fn authorize(&self, permission: &Permission) -> Result<Caller, Denied> {
        let (what, wanted) = match permission {
            Permission::ActAsAgent(key) => (
                format!("be the agent of worker {} of cluster {}", key.worker, key.cluster),
                vec![format!("{WORKER}/{}/{}", key.cluster, key.worker)],
            ),
            Permission::Read(_) => ("read".to_owned(), vec![ADMIN.to_owned(), VIEWER.to_owned()]),
            Permission::Change(_) => ("give orders".to_owned(), vec![ADMIN.to_owned()]),
            Permission::Demand(_) => (
                "ask for the load of a class".to_owned(),
                [AUTOSCALER, VIEWER, ADMIN].map(str::to_owned).into(),
            ),
            Permission::Follow => ("follow a replica".to_owned(), vec![COORDINATOR.to_owned()]),
        };
        match wanted.iter().find(|wanted| self.uris.contains(wanted)) {
            Some(name) => Ok(self.caller(name)),
            None => Err(Denied::Forbidden(format!(
                "the certificate is for {self}, and may not {what}: that needs one for URI:{}",
                wanted.join(" or URI:")
            ))),
        }
    }

    /// Its owner, under the name that counted.
    #[must_use]
    pub fn caller(&self, name: &str) -> Caller {
        match self.subject.as_str() {
            "" => Caller::User(name.to_owned()),
            subject => Caller::User(format!("{name} ({subject})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::{ClusterName, WorkerKey, WorkerName};

    use super::super::Subject;
    use super::*;

    fn certificate(uris: &[&str]) -> CertificateNames {
        let uris = uris.iter().map(|uri| (*uri).to_owned()).collect();
        CertificateNames { subject: "CN=w-0".into(), uris, hosts: vec!["w-0".into()] }
    }

    fn act_as(cluster: &str, worker: &str) -> Permission {
        let cluster = ClusterName::new(cluster).expect("a name");
        Permission::ActAsAgent(WorkerKey {
            cluster,
            worker: WorkerName::new(worker).expect("a name"),
        })
    }

    #[test]
    fn each_name_allows_what_it_says_and_nothing_else() {
        let class = || Permission::Demand(ClusterName::new("green").expect("a name"));
        let (read, change) = (Permission::Read(Subject::All), Permission::Change(Subject::All));
        let permissions = [
            act_as("builds", "w-0"),
            act_as("builds", "w-1"),
            read,
            change,
            class(),
            Permission::Follow,
        ];
        for (name, allowed) in [
            ("leasehold://worker/builds/w-0", [true, false, false, false, false, false]),
            ("leasehold://worker/builds/w", [false; 6]),
            ("leasehold://worker/builds/w-0/", [false; 6]),
            ("spiffe://worker/builds/w-0", [false; 6]),
            (ADMIN, [false, false, true, true, true, false]),
            (VIEWER, [false, false, true, false, true, false]),
            (AUTOSCALER, [false, false, false, false, true, false]),
            (COORDINATOR, [false, false, false, false, false, true]),
        ] {
            let certificate = certificate(&[name]);
            let got =
                permissions.each_ref().map(|permission| certificate.authorize(permission).is_ok());
            assert_eq!(got, allowed, "{name}");
        }
    }

    #[test]
    fn a_refusal_says_which_names_there_are_and_which_one_is_needed() {
        let refused = certificate(&["leasehold://worker/builds/w-1"]);
        let refused = refused.authorize(&act_as("builds", "w-0")).expect_err("another worker");
        assert_eq!(
            refused.to_string(),
            "the certificate is for URI:leasehold://worker/builds/w-1, DNS:w-0 (CN=w-0), and may \
             not be the agent of worker w-0 of cluster builds: that needs one for \
             URI:leasehold://worker/builds/w-0"
        );
        let nameless = CertificateNames::default().authorize(&Permission::Read(Subject::All));
        assert_eq!(
            nameless.expect_err("no name").to_string(),
            "the certificate is for no name, and may not read: that needs one for \
             URI:leasehold://admin or URI:leasehold://viewer"
        );
        let caller = certificate(&[ADMIN]).authorize(&Permission::Change(Subject::All));
        assert_eq!(caller, Ok(Caller::User("leasehold://admin (CN=w-0)".into())));
    }
}
