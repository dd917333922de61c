//! One line of the report: a figure beside its goal.

use serde::Serialize;

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Unit {
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "B")]
    Bytes,
    #[serde(rename = "KiB")]
    Kibibytes,
    #[serde(rename = "MB")]
    Megabytes,
    /// Of one core.
    #[serde(rename = "%")]
    Percent,
    /// A slot for a second.
    #[serde(rename = "slot s")]
    SlotSeconds,
    #[serde(rename = "")]
    Count,
}

impl Unit {
    fn show(self, figure: f64) -> String {
        match self {
            Self::Milliseconds => format!("{figure:.1} ms"),
            Self::Seconds => format!("{figure:.3} s"),
            Self::Bytes => format!("{figure:.0} B"),
            Self::Kibibytes => format!("{figure:.1} KiB"),
            Self::Megabytes => format!("{figure:.1} MB"),
            Self::Percent => format!("{figure:.2} %"),
            Self::SlotSeconds => format!("{figure:.0} slot s"),
            Self::Count => format!("{figure:.0}"),
        }
    }
}

/// A figure and its goal.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    /// The number of the row that `--only` takes; several lines may have one.
    row: u8,
    name: String,
    unit: Unit,
    value: f64,
    /// The most that the figure may be; absent where nothing is declared for this size.
    goal: Option<f64>,
    met: Option<bool>,
}

impl Row {
    /// A line without a goal.
    pub(super) fn new(row: u8, name: String, unit: Unit, value: f64) -> Self {
        Self { row, name, unit, value, goal: None, met: None }
    }

    /// The same line with the goal that the figure is at most this.
    pub(super) fn with_goal(self, goal: Option<f64>) -> Self {
        Self { goal, met: goal.map(|most| self.value <= most), ..self }
    }

    /// The number of the row.
    pub(super) fn row(&self) -> u8 {
        self.row
    }

    /// The cells of the line: the row, the name, the figure, the goal, and whether it is met.
    pub(super) fn cells(&self) -> [String; 5] {
        let goal = self.goal.map(|goal| format!("<= {}", self.unit.show(goal)));
        let met = match self.met {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        [
            self.row.to_string(),
            self.name.clone(),
            self.unit.show(self.value),
            goal.unwrap_or_default(),
            met.to_owned(),
        ]
    }
}
