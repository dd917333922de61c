//! Where pods run: the users that a namespace admits, and the registries that images come from.

use leasehold_injection::{AgentUser, Sidecar};
use serde_json::{Value, json};

use super::shared::{check, pods, refusal, settings, sidecar};

fn pod(annotations: &Value) -> Value {
    let containers = json!([{ "name": "w" }]);
    json!({ "metadata": { "annotations": annotations }, "spec": { "containers": containers } })
}

#[test]
fn an_agent_has_the_user_of_the_installation_or_of_the_pod() {
    let user = |installation: AgentUser, annotations: Value| {
        let with = Sidecar { user: installation, ..settings() };
        let (out, _) = check(&pod(&annotations), &with);
        let context = sidecar(&out)["securityContext"].clone();
        assert_eq!(context["runAsNonRoot"], true);
        (context["runAsUser"].clone(), context["runAsGroup"].clone())
    };
    let none = (Value::Null, Value::Null);
    let own = |text: &str| json!({ "config.leasehold.dev/user": text });
    assert_eq!(user(AgentUser::STANDARD, json!({})), (json!(65532), json!(65532)));
    assert_eq!(user(AgentUser::STANDARD, own("1000:2000")), (json!(1000), json!(2000)));
    assert_eq!(user(AgentUser::STANDARD, own("1000")), (json!(1000), json!(1000)));
    assert_eq!(user(AgentUser::STANDARD, own("none")), none);
    assert_eq!(user(AgentUser::Unset, json!({})), none);
    for (text, word) in [("0", "root"), ("0:5", "root"), ("-1", "UID:GID"), ("2147483648", "UID")] {
        let said = refusal(&pod(&own(text)), &settings());
        assert!(said.contains(word) && said.contains("config.leasehold.dev/user"), "{said}");
    }
}

#[test]
fn pull_secrets_are_added_to_those_of_the_pod_and_taken_out_again() {
    let with = Sidecar { pull_secrets: vec!["a".into(), "b".into()], ..settings() };
    for (_, mut pod) in pods() {
        for own in [None, Some(json!([])), Some(json!([{ "name": "b" }])), Some(Value::Null)] {
            if let Some(own) = own {
                pod["spec"]["imagePullSecrets"] = own;
            }
            let (out, _) = check(&pod, &with);
            let all = out["spec"]["imagePullSecrets"].as_array().expect("secrets");
            let mut names: Vec<_> =
                all.iter().filter_map(|secret| secret["name"].as_str()).collect();
            names.sort_unstable();
            assert_eq!(names, ["a", "b"], "{out:#}");
        }
    }
    let own = pod(&json!({ "config.leasehold.dev/pull-secrets": "mine" }));
    let (out, _) = check(&own, &with);
    assert_eq!(out["spec"]["imagePullSecrets"], json!([{ "name": "mine" }]));
    let wrong = pod(&json!({ "config.leasehold.dev/pull-secrets": "a,,b" }));
    assert!(refusal(&wrong, &with).contains("name of a Secret"));
}

#[test]
fn an_image_may_be_named_by_its_digest() {
    let image = format!("mirror.example/leasehold/agent@sha256:{}", "0123456789abcdef".repeat(4));
    let (out, _) = check(&pod(&json!({})), &Sidecar { image: image.clone(), ..settings() });
    assert_eq!(sidecar(&out)["image"], image);
}
