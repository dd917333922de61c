//! What a WorkerCluster says of its pods' agents, held against what agents take.

use leasehold_injection::check_flag;

use crate::manifest::{AgentSpec, IMAGE_BYTES_MAX};

/// What is wrong: the place below `spec.agent`, and why.
pub(super) fn problems(agent: &AgentSpec) -> Vec<(String, String)> {
    let mut problems = Vec::new();
    if let Some(image) = &agent.image {
        let is_word = image.chars().all(|c| c.is_ascii_graphic());
        if image.is_empty() || image.len() > IMAGE_BYTES_MAX || !is_word {
            problems.push((
                "image".to_owned(),
                "is not an image name: use a name such as registry/agent:1.0".to_owned(),
            ));
        }
    }
    if let Some(adapter) = &agent.adapter
        && let Err(refusal) = check_flag("", "adapter", adapter)
    {
        problems.push(("adapter".to_owned(), refusal.to_string()));
    }
    for (flag, value) in &agent.flags {
        let place = format!("flags.{flag}");
        match check_flag("", flag, value) {
            Err(refusal) => problems.push((place, refusal.to_string())),
            Ok(()) if flag == "adapter" && agent.adapter.is_some() => {
                problems.push((place, "is given twice: keep spec.agent.adapter".to_owned()));
            }
            Ok(()) => {}
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_that_no_agent_takes_is_named() {
        let of = |text: &str| problems(&serde_json::from_str(text).unwrap());
        let good = r#"{"image": "a/b:1", "adapter": "file", "flags": {"file-path": "/x"}}"#;
        assert_eq!(of(good), []);
        for (text, place, word) in [
            (r#"{"image": "a b"}"#, "image", "image"),
            (r#"{"adapter": "fiel"}"#, "adapter", "file"),
            (r#"{"flags": {"file-paht": "/x"}}"#, "flags.file-paht", "file-path"),
            (r#"{"flags": {"coordinator": "x:1"}}"#, "flags.coordinator", "decides"),
            (r#"{"flags": {"drain-deadline": "5"}}"#, "flags.drain-deadline", "invalid duration"),
            (r#"{"adapter": "api", "flags": {"adapter": "file"}}"#, "flags.adapter", "twice"),
        ] {
            let found = of(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].0 == place && found[0].1.contains(word), "{text}: {found:?}");
        }
    }
}
