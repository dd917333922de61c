//! The real node is one: containers, their addresses, Services and logs; and nothing is left of it.

use std::path::Path;

use leasehold_release::Image;
use tests::kube::{PAUSE_IMAGE, RealCluster};
use tests::process::until_ok;

/// What a real node leaves its traces in, as far as this machine shows it.
fn traces(of: &str) -> Vec<String> {
    let mut found = Vec::new();
    for file in ["/proc/mounts", "/proc/net/dev", "/proc/net/route"] {
        let text = std::fs::read_to_string(file).expect("a list of the kernel's");
        found.extend(text.lines().filter(|line| line.contains(of)).map(str::to_owned));
    }
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").expect("control groups").flatten() {
        let groups = std::fs::read_dir(hierarchy.path()).into_iter().flatten().flatten();
        let paths = groups.map(|group| group.path().display().to_string());
        found.extend(paths.filter(|path| path.contains(of)));
    }
    found
}

#[test]
fn pods_run_on_real_nodes_a_lost_node_is_detected_and_all_are_removed() {
    let Some(mut cluster) = RealCluster::start() else { return };
    let access = cluster.access();
    access.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: one}}
spec:
  initContainers:
  - {{name: side, image: "{PAUSE_IMAGE}", imagePullPolicy: Never, restartPolicy: Always}}
  containers:
  - {{name: main, image: "{PAUSE_IMAGE}", imagePullPolicy: Never}}
"#
    ));
    access.kubectl(&["wait", "--for=condition=Ready", "pod/one", "--timeout=120s"]);
    let folder = cluster.plane().folder().to_owned();
    let name = folder.file_name().and_then(|name| name.to_str()).expect("a name");
    let bridge = cluster.bridge();
    assert_ne!(traces(name), Vec::<String>::new());
    assert_ne!(traces(&bridge), Vec::<String>::new());
    access.kubectl(&["delete", "pod/one", "--timeout=60s"]);

    cluster.add_node();
    let (access, lost) = (cluster.access(), &cluster.nodes()[1]);
    access.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: two}}
spec:
  nodeName: {}
  containers: [{{name: main, image: "{PAUSE_IMAGE}", imagePullPolicy: Never}}]
"#,
        lost.name()
    ));
    access.kubectl(&["wait", "--for=condition=Ready", "pod/two", "--timeout=120s"]);
    let node = format!("node/{}", lost.name());
    lost.kill_kubelet();
    access.kubectl(&["wait", "--for=condition=Ready=Unknown", &node, "--timeout=120s"]);
    lost.start_kubelet(cluster.plane());
    access.kubectl(&["wait", "--for=condition=Ready", &node, "--timeout=120s"]);
    drop(cluster);
    assert!(!folder.exists());
    // The kernel takes its time with the network of a namespace that has ended.
    until_ok("the end of all traces", || {
        let left = [traces(name), traces(&bridge)].concat();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
    });
}

#[test]
fn a_pod_reaches_the_api_server_by_service_name_and_its_log_is_readable() {
    let Some(cluster) = RealCluster::shared() else { return };
    let access = cluster.access();
    let image = Image::new("localhost/bash:1", &["/bin/bash", "-c"]);
    cluster.load(&image.program(Path::new("/bin/bash"), "/bin/bash"));
    access.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: caller}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: localhost/bash:1
    imagePullPolicy: Never
    args: ["exec 3<>/dev/tcp/kubernetes.default/443 && echo reached"]
"#,
    );
    let wait = ["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/caller", "--timeout=60s"];
    access.kubectl(&wait);
    assert_eq!(access.kubectl(&["logs", "caller"]), "reached\n");
    access.kubectl(&["delete", "pod/caller", "--timeout=60s"]);
}
