//! The README's commands for Kubernetes, copied out of it and typed as they stand. No node runs
//! anything here, so the coordinator is installed and does not answer.

use tests::kube::Access;
use tests::process::eventually;
use tests::readme::{self, Step};
use tests::toolbox;

use super::installed::{ExclusiveControlPlane, Installed, folder, until_kinds_are_known};

/// What the README's commands make in the namespace `default`.
struct Samples<'a>(&'a Access);

impl Drop for Samples<'_> {
    fn drop(&mut self) {
        let kinds = "deployment/builds,wc/builds,wcl,pl,plb";
        for kind in kinds.split(',') {
            let all: &[&str] = if kind.contains('/') { &[] } else { &["--all"] };
            let delete = ["delete", kind, "--namespace=default", "--ignore-not-found"];
            if let Err(why) = self.0.try_kubectl(&[&delete[..], all].concat()) {
                eprintln!("{kind}: {why}");
            }
        }
    }
}

#[test]
fn every_command_of_the_section_works_unchanged() {
    let Some(turn) = ExclusiveControlPlane::take() else { return };
    let access = turn.access();
    // It is here to be removed at the end; the README's own command installs it again.
    let _installed = Installed::new(access, &folder("overlays/ha"));
    let _samples = Samples(access);
    until_kinds_are_known(access);
    // No coordinator runs, so the webhooks would refuse every pod and class.
    let asks = [
        "validatingwebhookconfiguration/leasehold-validator",
        "mutatingwebhookconfiguration/leasehold-injector",
    ];
    // "A Deployment that is there already".
    let image = "--image=example.com/builds:1";
    access.kubectl(&["create", "deployment", "builds", "--namespace=default", image]);

    let text = std::fs::read_to_string(toolbox::root().join("README.md")).expect("the README");
    for step in readme::steps(readme::section(&text, "On Kubernetes")) {
        let Step::Type(command) = step else { panic!("this test saves no files: {step:?}") };
        let shown = type_in(access, &command);
        if command.starts_with("kubectl apply -k deploy/overlays") {
            access.kubectl(&[&["delete"], &asks[..]].concat());
        }
        if command.starts_with("kubectl get wc ") {
            assert!(shown.contains("builds"), "{command}: {shown}");
        }
    }
    eventually("the label on the Deployment's pods", || {
        let label = "--output=jsonpath={.spec.template.metadata.labels.leasehold\\.dev/inject}";
        let get = ["get", "deployment/builds", "--namespace=default", label];
        (access.kubectl(&get) == "true").then_some(())
    });
}

/// Types a command in the checkout's folder, and returns what it shows.
fn type_in(access: &Access, command: &str) -> String {
    let programs = toolbox::binary("leasehold");
    let programs = programs.parent().expect("a folder").display();
    // Building takes minutes: what would be made is there.
    let stands_in = format!(
        "make() {{ command make --dry-run \"$@\"; }}
        cargo() {{ [ \"$1 $2\" = 'install --path' ] && grep -q 'name = \"leasehold\"' \
             \"$3/Cargo.toml\"; }}
        leasehold() {{ {programs}/leasehold \"$@\" || [ $? -eq 1 ]; }}
        set -e
        unset MAKEFLAGS
        "
    );
    let typed = access.try_shell(&(stands_in + command), toolbox::root());
    typed.unwrap_or_else(|why| panic!("{command}: {why}"))
}
