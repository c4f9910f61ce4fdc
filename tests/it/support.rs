//! What several tests need.

use std::path::{Path, PathBuf};

/// Folders of golden models: the small ones of this repository, and those of `FULLBAND_GOLDEN` (or the folder beside the
/// checkout) where they are there.
pub fn golden_folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let outside = std::env::var_os("FULLBAND_GOLDEN").map_or_else(|| root.join("../shared/golden"), PathBuf::from);
    let mut folders = Vec::new();
    for parent in [root.join("tests/fixtures/golden"), outside] {
        let Ok(entries) = std::fs::read_dir(&parent) else {
            println!("skipped: no folder {}", parent.display());
            continue;
        };
        folders.extend(entries.flatten().map(|e| e.path()).filter(|p| p.join("expected.json").is_file()));
    }
    folders.sort();
    folders
}

/// Norm of the difference over the norm of what is expected.
pub fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |x: f64| x * x;
    let difference: f64 = got.iter().zip(want).map(|(&g, &w)| square(g as f64 - w as f64)).sum();
    let norm: f64 = want.iter().map(|&w| square(w as f64)).sum();
    (difference / norm.max(1e-30)).sqrt()
}
