//! The one form in which an experiment that repeats a paper's reports its result: the constants that went in, each with
//! its source, and the figures that came out, each beside the paper's, if it has one, with a tolerance. `--json` prints
//! this form; the tables for people and those of the documentation are made from it, and [`plot`] draws.
//!
//! A *fitted* constant was chosen so that a *fitted* figure comes out. Nothing may be chosen so that a *predicted* figure
//! comes out. What must not be here: the measurements themselves.

pub mod plot;
mod tables;

use serde::{Deserialize, Serialize};

/// The result of one experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Name of the experiment, as in the command.
    pub experiment: String,
    /// Seed of the simulation; none for measurements of a real machine.
    pub seed: Option<u64>,
    /// Hash of all events in the simulation: equal for equal runs. None for measurements of a real machine.
    pub trace: Option<String>,
    /// All inputs of the model.
    pub constants: Vec<Constant>,
    /// All results.
    pub figures: Vec<Figure>,
}

/// A number that went into the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Constant {
    /// Name of the constant, for people.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Unit of the value.
    pub unit: String,
    /// Origin of the value.
    pub kind: ConstantKind,
    /// Place where the value was found; for a fitted constant, the figure that it was fitted to.
    pub source: String,
}

/// Origin of a constant's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConstantKind {
    /// The paper has it.
    Paper,
    /// A property of the machine or of the program, from its maker, or assumed before any run; the source says which.
    Physical,
    /// Chosen so that a figure of the paper comes out.
    Fitted,
}

/// A result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The run.
    pub row: String,
    /// The measured quantity.
    pub figure: String,
    /// Unit of both values and of the tolerance.
    pub unit: String,
    /// The paper's value, if it has one.
    pub paper: Option<f64>,
    /// The value measured here; none if the run failed.
    pub ours: Option<f64>,
    /// Meaning of the comparison.
    pub kind: FigureKind,
    /// Largest allowed difference from the paper's value, either way.
    pub tolerance: Option<f64>,
}

/// Meaning of a figure's agreement with the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureKind {
    /// The figure was an input of the model.
    Input,
    /// A constant was chosen so that this figure comes out.
    Fitted,
    /// The figure follows from constants that were not chosen for it.
    Predicted,
    /// Nothing has to agree: the paper has no such figure, or has it for another machine.
    Own,
}

impl Constant {
    /// A constant.
    pub fn new(name: &str, value: f64, unit: &str, kind: ConstantKind, source: &str) -> Constant {
        Constant { name: name.to_owned(), value, unit: unit.to_owned(), kind, source: source.to_owned() }
    }

    /// A constant that the command's arguments give.
    pub fn argument(name: &str, value: f64, unit: &str) -> Constant {
        Constant::new(name, value, unit, ConstantKind::Physical, "the command's arguments")
    }
}

impl Figure {
    /// A figure without a counterpart in the paper.
    pub fn own(row: &str, figure: &str, unit: &str, ours: Option<f64>) -> Figure {
        let (row, figure, unit) = (row.to_owned(), figure.to_owned(), unit.to_owned());
        Figure { row, figure, unit, paper: None, ours, kind: FigureKind::Own, tolerance: None }
    }

    /// Adds the paper's value, with which the figure is compared.
    pub fn beside(self, kind: FigureKind, paper: f64, tolerance: f64) -> Figure {
        Figure { kind, paper: Some(paper), tolerance: Some(tolerance), ..self }
    }

    /// Adds the paper's value as information: it comes from another machine, so nothing has to agree.
    pub fn with_paper(self, paper: Option<f64>) -> Figure {
        Figure { paper, ..self }
    }

    /// True if the figure is further from the paper's than its tolerance allows, or was not measured at all.
    pub fn misses(&self) -> bool {
        let (Some(paper), Some(tolerance)) = (self.paper, self.tolerance) else { return false };
        // NaN is within no tolerance.
        !self.ours.is_some_and(|ours| (ours - paper).abs() <= tolerance)
    }
}

impl Experiment {
    /// Figures that miss their tolerance.
    pub fn misses(&self) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(|f| f.misses())
    }

    /// The result of measurements of a real machine.
    pub fn live(name: &str, constants: Vec<Constant>, figures: Vec<Figure>) -> Experiment {
        Experiment { experiment: name.to_owned(), seed: None, trace: None, constants, figures }
    }

    /// The value of one figure, if it was measured.
    pub fn ours(&self, row: &str, figure: &str) -> Option<f64> {
        self.figures.iter().find(|f| f.row == row && f.figure == figure).and_then(|f| f.ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An experiment with one of everything that the form can hold.
    pub(crate) fn example() -> Experiment {
        let share = |ours| Figure::own("ext3", "of raw", "%", ours);
        Experiment {
            experiment: "journal".to_owned(),
            seed: Some(1),
            trace: Some("00ff".to_owned()),
            constants: vec![Constant::new("seek", 7.9, "ms", ConstantKind::Fitted, "the first figure")],
            figures: vec![
                share(Some(25.0)).beside(FigureKind::Fitted, 24.9, 1.0),
                Figure::own("ext3", "commits", "", Some(12.0)),
                Figure::own("elsewhere", "of raw", "%", Some(97.5)).beside(FigureKind::Predicted, 58.7, 5.0),
                Figure::own("elsewhere", "commits", "", None),
            ],
        }
    }

    #[test]
    fn the_json_has_its_shape() {
        let text = serde_json::to_string(&example()).unwrap();
        let expected = concat!(
            r#"{"experiment":"journal","seed":1,"trace":"00ff","constants":[{"name":"seek","value":7.9,"unit":"ms","#,
            r#""kind":"fitted","source":"the first figure"}],"figures":[{"row":"ext3","figure":"of raw","unit":"%","#,
            r#""paper":24.9,"ours":25.0,"kind":"fitted","tolerance":1.0},{"row":"ext3","figure":"commits","unit":"","#,
            r#""paper":null,"ours":12.0,"kind":"own","tolerance":null},{"row":"elsewhere","figure":"of raw","unit":"%","#,
            r#""paper":58.7,"ours":97.5,"kind":"predicted","tolerance":5.0},{"row":"elsewhere","figure":"commits","#,
            r#""unit":"","paper":null,"ours":null,"kind":"own","tolerance":null}]}"#,
        );
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Experiment>(&text).unwrap(), example());
    }

    #[test]
    fn a_figure_misses_beyond_its_tolerance_or_without_a_value() {
        let figure = |ours| Figure::own("", "", "%", ours).beside(FigureKind::Predicted, 50.0, 5.0);
        assert!(!figure(Some(55.0)).misses() && !figure(Some(45.0)).misses());
        assert!(figure(Some(55.1)).misses() && figure(Some(44.9)).misses());
        assert!(figure(None).misses() && figure(Some(f64::NAN)).misses());
        assert!(!Figure::own("", "", "%", None).misses(), "there is nothing to miss");
        assert_eq!(example().misses().map(|f| f.row.as_str()).collect::<Vec<_>>(), ["elsewhere"]);
    }
}
