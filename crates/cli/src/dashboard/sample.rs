//! A source that reads its numbers from files, for tests of the page with a browser. Builds for use do not have it.

use super::Source;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The numbers in `now.json` and `history.json` of a directory. Every request reads its file again, so that a test can change it.
pub(super) struct Sample(PathBuf);

impl Sample {
    pub(super) fn new(dir: &Path) -> Sample {
        Sample(dir.to_owned())
    }

    fn read(&self, name: &str) -> Result<Value, String> {
        let path = self.0.join(name);
        let failed = |e: &dyn std::fmt::Display| format!("cannot read {}: {e}", path.display());
        let text = std::fs::read(&path).map_err(|e| failed(&e))?;
        serde_json::from_slice(&text).map_err(|e| failed(&e))
    }
}

impl Source for Sample {
    fn now(&self) -> Result<Value, String> {
        self.read("now.json")
    }

    fn history(&self, _: &str) -> Result<Value, String> {
        self.read("history.json")
    }
}
