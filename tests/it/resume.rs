//! A run that was broken off and continued is the run that was never broken off, bit for bit.

use std::path::{Path, PathBuf};

use fullband::files::write_text;
use fullband::recipe::Recipe;
use fullband::train::Status;
use fullband::train::metrics::{self, Record};
use serde_json::Value;

use crate::train::{Asked, PLAIN, Recorder, WHOLE, recipe, run};

const RESUME: Asked = Asked { resume: true, force: false, stop_after: None };

/// A run that is stopped after `step`.
fn broken_off(recipe: &Recipe, step: usize) {
    let (_, recorder, summary) = run(recipe, Asked { stop_after: Some(step), ..Asked::default() }).unwrap();
    assert_eq!((summary.status, summary.steps, summary.adapter), (Status::Interrupted, step, None));
    assert_eq!(recorder.checkpoints.last(), Some(&step));
    assert!(!recipe.output.adapter.exists());
}

fn refusal(recipe: &Recipe) -> String {
    match run(recipe, RESUME) {
        Ok(_) => panic!("this should have been refused"),
        Err(error) => {
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        }
    }
}

/// All records without the times, which no two runs share.
fn records(run: &Path) -> Vec<Record> {
    let mut records = metrics::read(&run.join(metrics::METRICS)).unwrap();
    for record in &mut records {
        match record {
            Record::Step(step) => step.seconds = 0.0,
            Record::Eval(eval) => eval.seconds = 0.0,
        }
    }
    records
}

/// Every file of a folder below `folder` that tells of the run, with what must not differ.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut out = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_path_buf();
            if path.is_dir() {
                open.push(path);
            } else if path.ends_with("state.json") {
                let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
                json["seconds"] = Value::Null;
                out.push((name, json.to_string().into_bytes()));
            } else if !path.ends_with("recipe.toml") {
                // The recipe names its own output folder.
                out.push((name, std::fs::read(&path).unwrap()));
            }
        }
    }
    out.sort();
    out
}

fn assert_equal(a: &Path, b: &Path) {
    let (a, b) = (contents(a), contents(b));
    let names = |list: &[(PathBuf, Vec<u8>)]| list.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&a), names(&b));
    for ((name, a), (_, b)) in a.iter().zip(&b) {
        assert!(a == b, "{} differs", name.display());
    }
}

// pains 25, 26, 27, 28 (transformers #34053, #8876, #21934; open-instruct #681): rates, order, dropout, K, prefixes and
// jitter of a resumed run are those of an undisturbed one
#[test]
fn resumed_at_five_of_ten_equals_ten_straight() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let straight = recipe(one.path(), WHOLE);
    let (_, whole, summary) = run(&straight, Asked::default()).unwrap();
    assert_eq!((summary.status, &whole.checkpoints[..]), (Status::Finished, &[5, 10][..]));

    let again = recipe(two.path(), WHOLE);
    broken_off(&again, 5);
    let (_, rest, resumed) = run(&again, RESUME).unwrap();
    assert_eq!(rest.start.as_ref().unwrap().resumed, Some(5));
    assert_eq!(rest.steps.iter().map(|s| s.step).collect::<Vec<_>>(), [6, 7, 8, 9, 10]);
    assert_equal(&one.path().join("adapter"), &two.path().join("adapter"));
    for folder in ["best", "checkpoints/step-000005", "checkpoints/step-000010"] {
        assert_equal(&one.path().join("adapter.run").join(folder), &two.path().join("adapter.run").join(folder));
    }
    assert_eq!(records(&one.path().join("adapter.run")), records(&two.path().join("adapter.run")));
    assert_eq!(
        (summary.after, summary.adapter_step, summary.tokens),
        (resumed.after, resumed.adapter_step, resumed.tokens)
    );
    // Something was drawn that could have gone wrong.
    let passes = |recorder: &Recorder| recorder.steps.iter().map(|s| s.passes).collect::<Vec<_>>();
    assert!(passes(&whole)[6..].iter().any(|&k| k != passes(&whole)[6]), "{:?}", passes(&whole));
    assert!(whole.steps.iter().any(|s| s.epoch > 1));
}

#[test]
fn a_crash_between_checkpoints_loses_nothing_but_time() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    run(&recipe(one.path(), WHOLE), Asked::default()).unwrap();
    let again = recipe(two.path(), WHOLE);
    broken_off(&again, 8);
    // What a crash after step 8 leaves: the checkpoint of step 5, records of later steps, half a line.
    let folder = two.path().join("adapter.run");
    std::fs::remove_dir_all(folder.join("checkpoints/step-000008")).unwrap();
    let path = folder.join(metrics::METRICS);
    let lines = std::fs::read_to_string(&path).unwrap();
    write_text(&path, &format!("{lines}{{\"kind\":\"step\",\"st")).unwrap();
    let (_, rest, _) = run(&again, RESUME).unwrap();
    assert_eq!(rest.start.unwrap().resumed, Some(5));
    assert_eq!(records(&one.path().join("adapter.run")), records(&folder));
    assert_equal(&one.path().join("adapter"), &two.path().join("adapter"));
}

#[test]
fn another_run_is_refused_by_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let mine = recipe(folder.path(), PLAIN);
    assert!(refusal(&mine).contains("no checkpoint to resume from"));
    broken_off(&mine, 2);
    let mut other = mine.clone();
    other.train.lr = 5e-4;
    other.seed = 7;
    let text = refusal(&other);
    assert!(text.contains("seed: 42 -> 7") && text.contains("train.lr: 0.01 -> 0.0005"), "{text}");
    // The state of another base or corpus.
    let state = folder.path().join("adapter.run/checkpoints/step-000002/state.json");
    let written = std::fs::read_to_string(&state).unwrap();
    let json: Value = serde_json::from_str(&written).unwrap();
    for (part, shown) in
        [("base", "the base's weights"), ("train", "training documents"), ("validation", "validation documents")]
    {
        let hash = match part {
            "base" => &json["fingerprint"]["base"]["sha256"],
            part => &json["fingerprint"][part],
        };
        write_text(&state, &written.replace(hash.as_str().unwrap(), &"0".repeat(64))).unwrap();
        let text = refusal(&mine);
        assert!(text.contains(shown), "{part}: {text}");
    }
    write_text(&state, &written).unwrap();
    let mut longer = mine.clone();
    longer.eval.every = Some(1);
    assert_eq!(run(&longer, RESUME).unwrap().2.status, Status::Finished);
}

#[test]
fn an_unfinished_run_is_not_thrown_away() {
    let folder = tempfile::tempdir().unwrap();
    let mine = recipe(folder.path(), PLAIN);
    broken_off(&mine, 2);
    let text = match run(&mine, Asked::default()) {
        Ok(_) => panic!("this should have been refused"),
        Err(error) => error.to_string(),
    };
    assert!(text.contains("step-000002") && text.contains("--resume") && text.contains("--force"), "{text}");
    let (_, recorder, _) = run(&mine, Asked { force: true, ..Asked::default() }).unwrap();
    assert_eq!(recorder.start.unwrap().resumed, None);
}

#[test]
fn the_newest_checkpoints_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mine = recipe(folder.path(), &WHOLE.replace("every = 5, keep = 2", "every = 2, keep = 2"));
    run(&mine, Asked::default()).unwrap();
    let kept = std::fs::read_dir(folder.path().join("adapter.run/checkpoints")).unwrap();
    let mut kept: Vec<String> = kept.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    kept.sort();
    assert_eq!(kept, ["step-000008", "step-000010"]);
    assert!(folder.path().join("adapter.run/best/training.json").is_file());
}
