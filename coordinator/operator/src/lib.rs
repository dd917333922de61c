//! The reconcilers that the leader runs on Kubernetes: workloads, drains and scaling (`fleets`),
//! and Services and bindings of pipelines (`pipelines`). They read the core and order drains; they
//! grant nothing.

mod applier;
mod conditions;
mod context;
mod digest;
mod events;
mod fleets;
mod nodes;
mod pipelines;
mod workqueue;

use leasehold_platform_kube::Observed;

use self::applier::Applier;
use self::context::Context;
use self::events::EventRecorder;
use self::nodes::Nodes;

/// Runs every reconciler until the driver ends. They do something only while this replica leads.
pub async fn run(observed: Observed) {
    let Observed { client, mut handle, facts, objects, pods, injector, settings, holder } =
        observed;
    let events = EventRecorder::start(client.clone(), &holder);
    // Without a driver the process is ending.
    let Ok(handle) = handle.wait_for(Option::is_some).await.map(|handle| handle.clone()) else {
        return;
    };
    let Some(handle) = handle else { return };
    let applier = Applier::new(client.clone());
    let nodes = Nodes::start(client.clone());
    let context = Context {
        client,
        applier,
        handle,
        facts,
        objects,
        nodes,
        pods,
        events,
        injector,
        settings,
    };
    tokio::join!(fleets::run(context.clone()), pipelines::run(context));
}
