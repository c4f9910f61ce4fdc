//! What several tests need.

use std::path::{Path, PathBuf};

/// `FULLBAND_GOLDEN`, or the folder beside the checkout; it need not be there.
pub fn golden_root() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/golden");
    std::env::var_os("FULLBAND_GOLDEN").map_or_else(default, PathBuf::from)
}

/// Folders of golden models: the small ones of this repository, and those of [`golden_root`] where they are there.
pub fn golden_folders() -> Vec<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/golden");
    let mut folders = Vec::new();
    for parent in [ours, golden_root()] {
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
