//! The program as a user runs it: its output in a pipe, its exit codes, Ctrl-C, and a reader that goes away.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use fullband::checkpoint::{Config, Family};
use serde_json::Value;
use tempfile::TempDir;

use crate::corpus::fixtures::{words, write};
use crate::tiny;

const RECIPE: &str = r#"
name = "tiny"
seed = 7
[model]
base = "base"
[data]
train = ["train.parquet"]
validation = ["validation.parquet"]
max_seq_len = 96
[data.prompt_completion]
prompt = "{{ title }}:"
completion = " {{ colour }}"
[lora]
rank = 4
[feedback]
form = "residual"
[train]
max_steps = 8
batch_tokens = 192
lr = 1e-2
[eval]
every = 4
[output]
adapter = "adapter"
checkpoints = { every = 4, keep = 2 }
"#;

/// A folder with a tiny base, a corpus and a recipe; the program runs in it.
struct Shop {
    folder: TempDir,
}

impl Shop {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("base")).unwrap();
        tiny::folder(&folder.path().join("base"), &tiny::config(Family::Llama));
        let titles = ["red shoe", "blue shoe", "red hat", "green hat", "blue sock", "green belt"];
        let colours = titles.map(|title| title.split(' ').next().unwrap());
        write(&folder, "train.parquet", &[("title", words(&titles)), ("colour", words(&colours))]);
        write(&folder, "validation.parquet", &[("title", words(&titles[..3])), ("colour", words(&colours[..3]))]);
        fs::write(folder.path().join("recipe.toml"), RECIPE).unwrap();
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullband"));
        command.args(arguments).current_dir(self.path()).env_remove("FULLBAND_ISA").stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Files of the adapter by name, but for `training.json`'s neighbours that name paths.
    fn adapter(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let names = ["adapter_model.safetensors", "latent_feedback.safetensors", "adapter_config.json"];
        names.iter().map(|n| self.path().join("adapter").join(n)).map(|p| (p.clone(), fs::read(p).unwrap())).collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{:?}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_run_in_a_pipe_prints_plain_lines_and_a_closing_table() {
    let shop = Shop::new();
    let out = succeeded(&shop.run(&["train", "recipe.toml", "--threads", "1", "--profile"]));
    assert!(out.contains(" kernels, 1 threads"), "{out}");
    let frozen = out.lines().find(|line| line.starts_with("products with frozen weights")).expect("a profile");
    assert!(frozen.trim_end().ends_with('%'), "{frozen}");
    assert!(out.contains("step 8/8 phase 3 loss "), "{out}");
    assert!(out.contains("step 8 validation STANDARD "), "{out}");
    assert!(!out.contains('\r') && !out.contains('\u{1b}'), "{out:?}");
    let table = out.split("validation loss (nats per trained token)").nth(1).expect("a closing table");
    for mode in ["STANDARD", "FUSED"] {
        let line = table.lines().find(|line| line.starts_with(mode)).expect("a line of the mode");
        let numbers: Vec<f64> = line.split_whitespace().skip(1).map(|n| n.parse().unwrap()).collect();
        assert!(numbers.len() == 2 && numbers[1] < numbers[0], "{line}");
    }
    assert_eq!(out.matches("\n  completion ").count(), 2, "{out}");
    assert!(shop.path().join("adapter.run/metrics.jsonl").is_file());

    let json = succeeded(&shop.run(&["generate", "adapter", "red shoe:", "--mode", "fused", "--json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["completion_tokens"].as_u64().unwrap() > 0, "{json}");
    assert!(succeeded(&shop.run(&["inspect", "adapter"])).contains("residual"));
    assert!(succeeded(&shop.run(&["inspect", "adapter.run"])).contains("tiny"));
}

#[test]
fn json_alone_is_on_standard_output() {
    let shop = Shop::new();
    let output = shop.run(&["train", "recipe.toml", "--json"]);
    let json: Value = serde_json::from_str(&succeeded(&output)).unwrap();
    assert_eq!(json["summary"]["steps"], 8);
    assert_eq!(json["samples"].as_array().unwrap().len(), 2);
    assert!(text(&output.stderr).contains("step 8/8"));
    let json: Value =
        serde_json::from_str(&succeeded(&shop.run(&["train", "recipe.toml", "--dry-run", "--json"]))).unwrap();
    assert_eq!(json["data"]["train"]["rows"], 6, "{json}");
}

// pains 38 (qlora #28, unsloth-zoo #810): an adapter says which base it was trained on, and is heard on another one
#[test]
fn another_base_than_the_adapters_is_warned_of() {
    let shop = Shop::new();
    succeeded(&shop.run(&["train", "recipe.toml", "--set", "train.max_steps=3"]));
    let prompt = ["generate", "adapter", "red shoe:", "--max-tokens", "2"];
    assert_eq!(text(&shop.run(&prompt).stderr), "");
    fs::create_dir(shop.path().join("other")).unwrap();
    let config = tiny::config(Family::Llama);
    let mut tensors = tiny::folder(&shop.path().join("other"), &config);
    let norm = tensors.get_mut("model.norm.weight").unwrap();
    *norm = norm.affine(2.0, 0.0).unwrap();
    tiny::save(&tensors, &shop.path().join("other/model.safetensors"));
    let output = shop.run(&[&prompt[..], &["--base", "other"]].concat());
    succeeded(&output);
    let warning = text(&output.stderr);
    assert!(warning.contains("was trained on 'base'") && warning.contains("sha256"), "{warning}");

    fs::create_dir(shop.path().join("shallow")).unwrap();
    tiny::folder(&shop.path().join("shallow"), &Config { num_layers: 1, windows: vec![None], ..config });
    let output = shop.run(&[&prompt[..], &["--base", "shallow"]].concat());
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{message}");
    assert!(message.contains("model.layers.1") && message.contains("was trained on 'base'"), "{message}");
}

/// Reads lines until one contains `wanted`.
fn wait_for(reader: &mut impl BufRead, wanted: &str) {
    let mut line = String::new();
    while !line.contains(wanted) {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "no line with '{wanted}'");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_and_resume_gives_the_undisturbed_result() {
    let undisturbed = Shop::new();
    let long = ["train", "recipe.toml", "--set", "train.max_steps=200", "--set", "output.checkpoints="];
    succeeded(&undisturbed.run(&long));

    let shop = Shop::new();
    let mut child = shop.spawn(&long);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    wait_for(&mut out, "step 5/200");
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}{errors}");
    assert!(errors.contains("continue with --resume"), "{errors}");
    assert!(!shop.path().join("adapter").exists(), "an interrupted run writes no adapter");

    let again = shop.run(&long);
    assert_eq!(again.status.code(), Some(2), "an unfinished run is not replaced silently");
    assert!(text(&again.stderr).contains("--resume"), "{}", text(&again.stderr));
    let resumed = [&long[..], &["--resume"]].concat();
    succeeded(&shop.run(&resumed));
    for ((path, got), (_, want)) in shop.adapter().iter().zip(undisturbed.adapter()) {
        assert!(*got == want, "{} differs", path.display());
    }
}

// A reader that has gone: `fullband train recipe.toml | head -1` died of a panic in println!.
#[test]
fn a_reader_that_goes_away_ends_no_training() {
    let shop = Shop::new();
    let mut child = shop.spawn(&["train", "recipe.toml"]);
    drop(child.stdout.take());
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(shop.path().join("adapter/adapter_model.safetensors").is_file());
    let mut child = shop.spawn(&["inspect", "base"]);
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn exit_codes_and_messages_say_what_is_wrong() {
    let shop = Shop::new();
    let refused = |arguments: &[&str], code: i32, wanted: &[&str]| {
        let output = shop.run(arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        for wanted in wanted {
            assert!(message.contains(wanted), "{arguments:?}: no '{wanted}' in {message}");
        }
        assert!(!message.contains("panicked"), "{message}");
    };
    refused(&["train", "missing.toml"], 2, &["missing.toml"]);
    refused(&["train", "recipe.toml", "--set", "train.lrr=1"], 2, &["train.lrr", "train.lr"]);
    refused(&["train", "recipe.toml", "--set", "lora.targets=[\"c_attn\"]"], 2, &["c_attn"]);
    fs::write(shop.path().join("broken.parquet"), "no parquet").unwrap();
    refused(&["train", "recipe.toml", "--set", "data.train=[\"broken.parquet\"]"], 3, &["broken.parquet"]);
    refused(&["generate", "base", "red", "--mode", "fused"], 2, &["FUSED", "latent-feedback weights"]);
    refused(&["generate", "nowhere/base", "red"], 4, &["nowhere/base"]);
    refused(&["train", "recipe.toml", "--threads", "0"], 2, &["--threads", "1 to 1024"]);
    refused(&["train", "recipe.toml", "--threads", "99999"], 2, &["--threads", "1 to 1024"]);
    let output = shop.command(&["train", "recipe.toml"]).env("FULLBAND_ISA", "neon").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("FULLBAND_ISA=neon"), "{}", text(&output.stderr));

    fs::remove_file(shop.path().join("base/model.safetensors")).unwrap();
    refused(&["generate", "base", "red"], 4, &["safetensors"]);
}

// A recipe that was called OK failed in the next command: a column, a filter, a module or a device that is not there.
#[test]
fn recipe_check_finds_what_training_would() {
    let shop = Shop::new();
    assert!(succeeded(&shop.run(&["recipe", "check", "recipe.toml"])).starts_with("OK recipe.toml"));
    for (set, code, wanted) in [
        ("data.prompt_completion.prompt={{ nocol }}", 3, "column 'nocol' not found"),
        ("data.id=nocol", 3, "column 'nocol' not found"),
        ("data.prompt_completion.prompt={{ title | nofilter }}", 3, "nofilter"),
        ("lora.targets=[\"q_prj\"]", 2, "no linear module 'q_prj'"),
        ("train.epochs=1e300", 2, "train.epochs"),
        ("train.max_steps=9223372036854775807", 2, "train.max_steps"),
        ("lora.rank=100000", 2, "lora.rank"),
    ] {
        for command in [&["recipe", "check", "recipe.toml"][..], &["train", "recipe.toml", "--dry-run"]] {
            let output = shop.run(&[command, &["--set", set]].concat());
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{command:?} {set}: {message}");
            assert!(message.contains(wanted), "{command:?} {set}: {message}");
        }
    }
}

#[cfg(not(feature = "metal"))]
#[test]
fn a_device_that_was_not_built_is_refused_by_every_command() {
    let shop = Shop::new();
    let set = ["--set", "model.device=metal"];
    for command in [
        [&["recipe", "check", "recipe.toml"], &set[..]].concat(),
        [&["train", "recipe.toml", "--dry-run"], &set[..]].concat(),
        [&["train", "recipe.toml"], &set[..]].concat(),
        vec!["generate", "base", "red", "--device", "metal"],
    ] {
        let output = shop.run(&command);
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(text(&output.stderr).contains("--features metal"), "{}", text(&output.stderr));
    }
}

// What a user did was called an internal error (exit code 1), or went on without end.
#[test]
fn mistakes_are_not_internal_errors() {
    let shop = Shop::new();
    succeeded(&shop.run(&["train", "recipe.toml", "--set", "train.max_steps=3"]));
    let refused = |arguments: &[&str], code: i32, wanted: &str| {
        let output = shop.run(arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(message.contains(wanted), "{arguments:?}: no '{wanted}' in {message}");
    };
    refused(&["train", "recipe.toml", "--set", "train.max_steps=3", "--resume"], 2, "the run is finished");
    refused(&["generate", "adapter", "red", "--mode", "fused", "--passes", "9999999"], 2, "--passes");
    refused(&["generate", "adapter", "red", "--passes", "2"], 2, "--mode fused");
    refused(&["generate", "adapter", "red", "--max-tokens", "0"], 2, "--max-tokens");
    refused(&["generate", "base", "red", "--base", "base"], 2, "--base goes with an adapter");
    refused(&["inspect", "smollm2-135m-instruct"], 2, "`fullband fetch smollm2-135m-instruct`");
    refused(&["recipe", "new", "base"], 2, "is a folder");
    refused(&["recipe", "new", "base", "--force"], 2, "is a folder");
    fs::remove_file(shop.path().join("adapter/adapter_model.safetensors")).unwrap();
    refused(&["generate", "adapter", "red"], 4, "adapter_model.safetensors: not found");

    let mut child =
        shop.command(&["generate", "base", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"\xff\xfe").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("not UTF-8"), "{}", text(&output.stderr));
}
