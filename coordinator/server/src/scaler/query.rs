//! KEDA's queries and their answers. Each number is returned as a fraction and rounded up, because
//! older versions of KEDA read only integers.

use leasehold_driver::demand::Demand;
use leasehold_driver::view::{PublishedView, ViewUnavailable};
use leasehold_proto::externalscaler as proto;
use leasehold_types::{ClusterName, Moment};
use tonic::Status;

/// The entry of a trigger's metadata that names the class.
const CLASS: &str = "class";

/// A metric of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    /// The load that the class must process.
    Request,
    /// The workers that its pipelines need.
    Needed,
}

impl Metric {
    const ALL: [Self; 2] = [Self::Request, Self::Needed];

    fn name(self) -> &'static str {
        match self {
            Self::Request => "workerclass_request",
            Self::Needed => "workerclass_workers_needed",
        }
    }

    /// The metric of this name.
    pub(super) fn parse(name: &str) -> Result<Self, Status> {
        let [request, needed] = Self::ALL.map(Self::name);
        let found = Self::ALL.into_iter().find(|metric| metric.name() == name);
        found.ok_or_else(|| {
            let why = format!("metricName: invalid metric {name:?}: use {request} or {needed}");
            Status::invalid_argument(why)
        })
    }
}

/// A number, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Milli(u64);

impl Milli {
    fn whole(number: u32) -> Self {
        Self(u64::from(number) * 1_000)
    }

    fn rounded_up(self) -> i64 {
        i64::try_from(self.0.div_ceil(1_000)).unwrap_or(i64::MAX)
    }

    #[expect(clippy::cast_precision_loss, reason = "exact for all loads of one coordinator")]
    fn exact(self) -> f64 {
        self.0 as f64 / 1_000.0
    }
}

/// The class that a call asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClassQuery {
    /// The name in the ScaledObject's namespace, as on Kubernetes.
    namespaced: Option<ClusterName>,
    /// The name without a namespace, as in standalone mode.
    plain: ClusterName,
}

impl ClassQuery {
    /// The class that a ScaledObject is about.
    pub(super) fn parse(reference: &proto::ScaledObjectRef) -> Result<Self, Status> {
        let class = reference.scaler_metadata.get(CLASS).map_or("", String::as_str);
        let wrong =
            |why: String| Status::invalid_argument(format!("scalerMetadata.{CLASS}: {why}"));
        if class.is_empty() {
            return Err(wrong("is missing: set it to the name of the WorkerClass".into()));
        }
        let plain = ClusterName::new(class).map_err(|error| wrong(error.to_string()))?;
        if plain.parts().0.is_some() {
            return Err(wrong(
                "must not contain a namespace: the ScaledObject's namespace is used".into(),
            ));
        }
        let namespaced = match reference.namespace.as_str() {
            "" => None,
            namespace => {
                let name = ClusterName::in_namespace(namespace, class);
                let wrong = |error| Status::invalid_argument(format!("namespace: {error}"));
                Some(name.map_err(wrong)?)
            }
        };
        Ok(Self { namespaced, plain })
    }

    /// Its name, with the ScaledObject's namespace if that has one.
    pub(super) fn name(&self) -> &ClusterName {
        self.namespaced.as_ref().unwrap_or(&self.plain)
    }

    /// The present demand for the class.
    pub(super) fn demand(&self, view: &PublishedView, now: Moment) -> Result<Demand, Status> {
        let unavailable = |why: ViewUnavailable| Status::unavailable(why.to_string());
        view.check_readable(self.name()).map_err(unavailable)?;
        let demands = view.demands(now).map_err(unavailable)?;
        // At most one of the two exists: names have namespaces only on Kubernetes.
        let mut names = self.namespaced.iter().chain([&self.plain]);
        names
            .find_map(|name| demands.get(name).copied())
            .ok_or_else(|| Status::not_found(format!("WorkerClass {} is not defined", self.name())))
    }
}

/// Whether the class has anything to do.
pub(super) fn activity(demand: Demand) -> proto::IsActiveResponse {
    proto::IsActiveResponse { result: demand.needed > 0 }
}

/// Both metrics with their targets per worker.
pub(super) fn specs(demand: Demand) -> proto::GetMetricSpecResponse {
    let spec = |metric: Metric| {
        let target = match metric {
            Metric::Request => Milli(demand.target.milli()),
            Metric::Needed => Milli::whole(1),
        };
        proto::MetricSpec {
            metric_name: metric.name().into(),
            target_size: target.rounded_up(),
            target_size_float: target.exact(),
        }
    };
    proto::GetMetricSpecResponse { metric_specs: Metric::ALL.map(spec).into() }
}

/// The value of one metric.
pub(super) fn value(metric: Metric, demand: Demand) -> proto::GetMetricsResponse {
    let value = match metric {
        Metric::Request => Milli(demand.request.milli()),
        Metric::Needed => Milli::whole(demand.needed),
    };
    let value = proto::MetricValue {
        metric_name: metric.name().into(),
        metric_value: value.rounded_up(),
        metric_value_float: value.exact(),
    };
    proto::GetMetricsResponse { metric_values: vec![value] }
}
