//! The form as tables: for a terminal, and as a page of the documentation.

use crate::{ConstantKind, Experiment, Figure, FigureKind};
use nacre_base::table;

/// Mark behind every figure that misses its tolerance.
const MARK: &str = "MISSED";

/// A table with its header and its rows.
struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Experiment {
    /// The tables for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for table in self.results() {
            out += &(table.text() + "\n");
        }
        let comparison = self.comparison();
        if !comparison.rows.is_empty() {
            out += &format!("Beside the paper:\n\n{}\n", comparison.text());
        }
        if !self.constants.is_empty() {
            out += &format!("Constants:\n\n{}\n", self.constants_table(false).text());
        }
        let predicts = self.figures.iter().any(|f| f.kind == FigureKind::Predicted);
        if predicts { out + &self.verdict() + "\n" } else { out }
    }

    /// The page of the documentation; `command` prints it.
    pub fn markdown(&self, command: &str) -> String {
        let mut out = format!("# {}\n\n", command.split(" --").next().unwrap_or(command));
        out += &format!("Printed by `{command}`; do not edit it.");
        if let (Some(seed), Some(trace)) = (self.seed, &self.trace) {
            out += &format!(" Seed {seed}, trace {trace}.");
        }
        out += &format!("\n\n{}\n\n## Beside the paper\n\n{}", self.verdict(), self.comparison().markdown());
        out += "\n## Results\n";
        for table in self.results() {
            out += &format!("\n{}", table.markdown());
        }
        out + "\n" + &self.constants_markdown()
    }

    /// The part of the page that does not depend on a run.
    pub fn constants_markdown(&self) -> String {
        format!("## Constants\n\n{}", self.constants_table(true).markdown())
    }

    /// A sentence that says how many figures agree with the paper's.
    fn verdict(&self) -> String {
        let compared = self.figures.iter().filter(|f| f.kind == FigureKind::Predicted && f.paper.is_some());
        let (missed, within): (Vec<&Figure>, Vec<&Figure>) = compared.partition(|f| f.misses());
        format!(
            "Of {} figures that the model predicts, {} are within their tolerance and {} miss it.",
            missed.len() + within.len(),
            within.len(),
            missed.len()
        )
    }

    /// One table for each sequence of rows that have the same figures.
    fn results(&self) -> Vec<Table> {
        let mut rows: Vec<(&str, Vec<&Figure>)> = Vec::new();
        for figure in &self.figures {
            match rows.last_mut() {
                Some((row, figures)) if *row == figure.row => figures.push(figure),
                _ => rows.push((&figure.row, vec![figure])),
            }
        }
        let mut tables: Vec<Table> = Vec::new();
        for (row, figures) in rows {
            let header: Vec<String> = [String::new()].into_iter().chain(figures.iter().map(|f| title(f))).collect();
            if tables.last().is_none_or(|t| t.header != header) {
                tables.push(Table { header, rows: Vec::new() });
            }
            let cell = |f: &&Figure| value(f.ours) + if f.misses() { " " } else { "" } + mark(f);
            let cells = [row.to_owned()].into_iter().chain(figures.iter().map(cell)).collect();
            if let Some(table) = tables.last_mut() {
                table.rows.push(cells);
            }
        }
        tables
    }

    /// The table of all figures that the paper has, too.
    fn comparison(&self) -> Table {
        let cells = |f: &Figure| {
            let tolerance = f.tolerance.map_or_else(String::new, |t| format!("+- {}", number(t)));
            let kind = format!("{:?}", f.kind).to_lowercase();
            vec![f.row.clone(), title(f), value(f.paper), tolerance, value(f.ours), kind, mark(f).to_owned()]
        };
        Table {
            header: ["", "figure", "paper", "tolerance", "ours", "kind", ""].map(str::to_owned).to_vec(),
            rows: self.figures.iter().filter(|f| f.paper.is_some()).map(cells).collect(),
        }
    }

    fn constants_table(&self, with_source: bool) -> Table {
        let cells = self.constants.iter().map(|c| {
            let mut cells = vec![c.name.clone(), number(c.value), c.unit.clone(), c.kind.text().to_owned()];
            cells.extend(with_source.then(|| c.source.clone()));
            cells
        });
        let header = ["constant", "value", "unit", "kind", "source"].map(str::to_owned);
        Table { header: header[..4 + usize::from(with_source)].to_vec(), rows: cells.collect() }
    }
}

impl ConstantKind {
    fn text(self) -> &'static str {
        match self {
            ConstantKind::Paper => "paper",
            ConstantKind::Physical => "physical",
            ConstantKind::Fitted => "fitted",
        }
    }
}

impl Table {
    fn text(&self) -> String {
        let header: Vec<&str> = self.header.iter().map(String::as_str).collect();
        table::text(&header, &self.rows)
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = format!("|---|{}\n", "---:|".repeat(self.header.len().saturating_sub(1)));
        line(&self.header) + &rule + &self.rows.iter().map(|r| line(r)).collect::<String>()
    }
}

fn title(figure: &Figure) -> String {
    if figure.unit.is_empty() { figure.figure.clone() } else { format!("{}, {}", figure.figure, figure.unit) }
}

fn mark(figure: &Figure) -> &'static str {
    if figure.misses() { MARK } else { "" }
}

fn value(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// A number with about four digits, and no useless ones behind the point.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        large if large >= 1000.0 => 0,
        medium if medium >= 10.0 => 1,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use crate::tests::example;

    #[test]
    fn the_text_marks_what_misses() {
        let expected = "\
           of raw, %  commits
ext3              25       12
elsewhere  97.5 MISSED   -

Beside the paper:

           figure  paper  tolerance  ours       kind
ext3       of raw, %   24.9       +- 1    25     fitted
elsewhere  of raw, %   58.7       +- 5  97.5  predicted  MISSED

";
        let text = example().text();
        let plain = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(plain(&text)[..plain(expected).len()], plain(expected)[..], "{text}");
        assert!(text.ends_with("Of 1 figures that the model predicts, 0 are within their tolerance and 1 miss it.\n"));
    }

    #[test]
    fn the_page_has_the_sources_and_says_what_prints_it() {
        let page = example().markdown("nacre sim journal --markdown");
        assert!(page.starts_with("# nacre sim journal\n\nPrinted by `nacre sim journal --markdown`; do not edit it."));
        assert!(page.contains("| ext3 | 25 | 12 |\n"), "{page}");
        assert!(page.contains("| elsewhere | of raw, % | 58.7 | +- 5 | 97.5 | predicted | MISSED |\n"), "{page}");
        assert!(page.ends_with("| seek | 7.9 | ms | fitted | the first figure |\n"), "{page}");
    }
}
