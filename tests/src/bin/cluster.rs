//! A real Kubernetes on this machine for trying things by hand: `make cluster`. It runs until
//! Ctrl-C and leaves nothing.

use tests::kube::ControlPlane;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    println!("==> starting a control plane");
    let plane = ControlPlane::start();
    let plane = plane.ok_or_else(|| anyhow::anyhow!("`make tools` installs what is missing"))?;
    println!("    logs are in {}", plane.folder().display());
    println!("    Ctrl-C ends it. In another terminal:\n");
    println!("export KUBECONFIG={}", plane.access().kubeconfig().display());
    tokio::signal::ctrl_c().await?;
    println!("\n==> ending it");
    drop(plane);
    Ok(())
}
