//! Chooses the format of the metrics by the header `Accept` of a scrape.

use axum::http::{HeaderMap, header};
use leasehold_driver::metrics::ExpositionFormat;

/// The format that the scrape prefers, or [`ExpositionFormat::Text`] if it accepts none of them.
pub(super) fn format(headers: &HeaderMap) -> ExpositionFormat {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let accepted = accepted.flat_map(|value| value.split(',')).filter_map(MediaRange::parse);
    let mut best: Option<(ExpositionFormat, f32)> = None;
    for range in accepted {
        let Some(format) = range.format() else { continue };
        // Of equal weights the first one wins, as with Prometheus' own libraries.
        if range.weight > best.map_or(0.0, |(_, weight)| weight) {
            best = Some((format, range.weight));
        }
    }
    best.map_or(ExpositionFormat::Text, |(format, _)| format)
}

/// One of the media types that a client accepts.
struct MediaRange<'a> {
    media_type: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    weight: f32,
}

impl<'a> MediaRange<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts.next().filter(|name| !name.is_empty())?;
        let pairs = parts.filter_map(|part| part.split_once('='));
        let parameters: Vec<_> =
            pairs.map(|(name, value)| (name.trim(), value.trim().trim_matches('"'))).collect();
        let mut range = Self { media_type, parameters, weight: 1.0 };
        if let Some(weight) = range.parameter("q") {
            range.weight = weight.parse().ok()?;
        }
        Some(range)
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        let found = self.parameters.iter().find(|(named, _)| named.eq_ignore_ascii_case(name));
        found.map(|(_, value)| *value)
    }

    /// The format that this asks for, if it is one of ours.
    fn format(&self) -> Option<ExpositionFormat> {
        let is = |media_type: &str| self.media_type.eq_ignore_ascii_case(media_type);
        let version = self.parameter("version");
        if is("application/vnd.google.protobuf") {
            let is_ours = self.parameter("proto") == Some("io.prometheus.client.MetricFamily")
                && self.parameter("encoding") == Some("delimited");
            is_ours.then_some(ExpositionFormat::Protobuf)
        } else if is("application/openmetrics-text") {
            version
                .is_none_or(|version| version == "1.0.0")
                .then_some(ExpositionFormat::OpenMetrics)
        } else if is("text/plain") {
            version.is_none_or(|version| version == "0.0.4").then_some(ExpositionFormat::Text)
        } else {
            (is("text/*") || is("*/*")).then_some(ExpositionFormat::Text)
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const PROTOBUF: &str = "application/vnd.google.protobuf;\
                            proto=io.prometheus.client.MetricFamily;encoding=delimited";
    const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0";

    fn accepted(accept: &[&str]) -> ExpositionFormat {
        let values = accept.iter().map(|text| HeaderValue::from_str(text).expect("a header"));
        format(&values.map(|value| (header::ACCEPT, value)).collect())
    }

    /// The headers of Prometheus 2.42 and 3.14, with and without native histograms.
    #[test]
    fn prometheus_gets_the_format_that_it_asks_for_first() {
        let old = "application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;\
                   q=0.5,*/*;q=0.1";
        assert_eq!(accepted(&[&format!("{OPEN_METRICS},{old}")]), ExpositionFormat::OpenMetrics);
        let native = format!("{PROTOBUF},{OPEN_METRICS};q=0.8,{old}");
        assert_eq!(accepted(&[&native]), ExpositionFormat::Protobuf);
        let new = "application/openmetrics-text;version=0.0.1;q=0.4,\
                   text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                   text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        let open_metrics = format!("{OPEN_METRICS};escaping=allow-utf-8;q=0.5,{new}");
        assert_eq!(accepted(&[&open_metrics]), ExpositionFormat::OpenMetrics);
        let native = format!("{PROTOBUF};q=0.6,{open_metrics}");
        assert_eq!(accepted(&[&native]), ExpositionFormat::Protobuf);
        let classic = "text/plain;version=0.0.4;q=0.6,*/*;q=0.5";
        assert_eq!(accepted(&[classic]), ExpositionFormat::Text);
    }

    #[test]
    fn others_get_text() {
        assert_eq!(accepted(&[]), ExpositionFormat::Text);
        assert_eq!(accepted(&["*/*"]), ExpositionFormat::Text, "curl");
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        assert_eq!(accepted(&[browser]), ExpositionFormat::Text);
        assert_eq!(accepted(&["application/json"]), ExpositionFormat::Text);
        assert_eq!(
            accepted(&["application/openmetrics-text;version=2.0.0"]),
            ExpositionFormat::Text
        );
        assert_eq!(accepted(&["application/vnd.google.protobuf"]), ExpositionFormat::Text);
        let compact = PROTOBUF.replace("delimited", "compact-text");
        assert_eq!(accepted(&[&compact]), ExpositionFormat::Text);
        assert_eq!(accepted(&[",;=;,q=1, ;q=x"]), ExpositionFormat::Text);
    }

    #[test]
    fn the_weight_decides_and_zero_refuses() {
        let text_first = format!("{OPEN_METRICS};q=0.3,text/plain;q=0.4");
        assert_eq!(accepted(&[&text_first]), ExpositionFormat::Text);
        assert_eq!(accepted(&[&format!("{PROTOBUF};q=0,*/*")]), ExpositionFormat::Text);
        assert_eq!(accepted(&[&format!("{PROTOBUF};q=0")]), ExpositionFormat::Text);
        assert_eq!(
            accepted(&["text/plain;q=0.2", OPEN_METRICS]),
            ExpositionFormat::OpenMetrics,
            "two lines"
        );
        let spaced = "Application/OpenMetrics-Text; Version=\"1.0.0\" ; Q=0.9 , text/plain;q=0.1";
        assert_eq!(accepted(&[spaced]), ExpositionFormat::OpenMetrics);
        assert_eq!(accepted(&["application/openmetrics-text"]), ExpositionFormat::OpenMetrics);
    }
}
