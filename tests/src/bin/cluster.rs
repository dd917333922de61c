//! A real Kubernetes on this machine for trying things by hand: `make cluster`, or with a real node
//! `make cluster NODE=1`. It runs until Ctrl-C and leaves nothing.

use anyhow::Context;
use clap::Parser;
use tests::kube::{ControlPlane, RealCluster};

/// A real Kubernetes on this machine, until Ctrl-C.
#[derive(Debug, Parser)]
struct Arguments {
    /// With a real node, which needs root.
    #[arg(long)]
    node: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    const MISSING: &str = "something is missing, see above";
    if Arguments::parse().node {
        println!("==> starting a control plane and a real node");
        let cluster = RealCluster::start().context(MISSING)?;
        println!("    images must be there already: imagePullPolicy: Never");
        wait(cluster.plane()).await
    } else {
        println!("==> starting a control plane");
        let plane = ControlPlane::start().context(MISSING)?;
        wait(&plane).await
    }
}

/// Says how to use it, and waits for Ctrl-C.
async fn wait(plane: &ControlPlane) -> anyhow::Result<()> {
    println!("    logs are in {}", plane.folder().display());
    println!("    Ctrl-C ends it. In another terminal:\n");
    println!("export KUBECONFIG={}", plane.access().kubeconfig().display());
    tokio::signal::ctrl_c().await?;
    println!("\n==> ending it");
    Ok(())
}
