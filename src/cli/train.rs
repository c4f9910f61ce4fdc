//! `fullband train RECIPE`: from a recipe to an adapter.

mod progress;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use self::progress::Progress;
use super::fetch::Shown;
use crate::checkpoint::{Checkpoint, Tokenizer, fetch};
use crate::cli::out::{note, say, stdout};
use crate::corpus::{self, Corpus, Encoder, Example};
use crate::error::{Error, Result};
use crate::feedback::Tuned;
use crate::infer;
use crate::kernels::profile;
use crate::lora::LoraConfig;
use crate::model::{self, Engine, LoadOptions, Model};
use crate::recipe::{Mode, Recipe};
use crate::train::memory::{Memory, trained_values};
use crate::train::{self, Job, Start, Status, Summary};

/// What shells expect of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// Completions shown at the end, and the most tokens of each.
const SAMPLES: usize = 2;
const SAMPLE_TOKENS: usize = 96;
/// Tokens of a document without a prompt (`text`) that a sample starts from.
const TEXT_PROMPT: usize = 12;

#[derive(Debug, clap::Args)]
pub struct TrainArgs {
    /// The recipe
    recipe: PathBuf,
    /// Override a key: --set train.lr=1e-4
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Continue the newest checkpoint; the result is that of a run that was never stopped
    #[arg(long, conflicts_with = "dry_run")]
    resume: bool,
    /// Read the data, print what would be trained on and how, and stop
    #[arg(long)]
    dry_run: bool,
    /// Replace an unfinished run, or an adapter that a recipe of another name has made
    #[arg(long)]
    force: bool,
    /// Say at the end what the steps' time was spent on
    #[arg(long, conflicts_with = "dry_run")]
    profile: bool,
    /// Print the final summary (or the plan of --dry-run) as JSON
    #[arg(long)]
    json: bool,
}

/// The exit code: 0, or 130 where Ctrl-C stopped the run after a step; a checkpoint was saved then.
pub fn run(args: TrainArgs) -> Result<u8> {
    let recipe = Recipe::load(&args.recipe, &args.set)?;
    if let Some(lora) = &recipe.lora {
        LoraConfig::resolve(lora)?;
    }
    let device = model::device(&recipe.model.device)?;
    let checkpoint = open_base(&recipe.model.base)?;
    let tokenizer = checkpoint.tokenizer()?;
    let data = &recipe.data;
    let encoder = Encoder::new(&data.format, data.max_seq_len, data.overlong, &tokenizer)?;
    let (training, validation) = corpus::load(data, recipe.seed, &encoder)?;
    let validation = validation.unwrap_or_default();
    if args.dry_run {
        return dry_run(&args, &recipe, &checkpoint, &tokenizer, &training, &validation).map(|()| 0);
    }
    let mut progress = Progress::new(args.json);
    for warning in training.report.warnings().iter().chain(&validation.report.warnings()) {
        progress.warn(warning);
    }
    if device.is_cpu() {
        progress.line(&super::engine()?);
    }
    let options = LoadOptions { dtype: recipe.model.dtype, device, engine: Engine::Auto };
    let mut tuned = train::initial(Model::load(&checkpoint, &options)?, &recipe)?;
    if args.profile {
        profile::enable();
    }
    let report = json!({ "train": training.report, "validation": validation.report });
    let job = Job {
        recipe: &recipe,
        base: &checkpoint.identity,
        tuned: &mut tuned,
        train: &training.examples,
        validation: &validation.examples,
        data_report: Some(report),
        resume: args.resume,
        force: args.force,
    };
    let summary = train::run(job, &*stop_on_ctrl_c()?, &mut progress)?;
    if args.profile {
        progress.profile();
    }
    if summary.status == Status::Interrupted {
        note!("stopped after step {}; continue with --resume", summary.steps);
        return Ok(INTERRUPTED);
    }
    let shown = if validation.examples.is_empty() { &training } else { &validation };
    let samples = samples(&tuned, &tokenizer, &shown.examples)?;
    match args.json {
        true => say!("{}", json!({ "summary": summary, "samples": samples })),
        false => print_closing(&summary, &samples),
    }
    Ok(0)
}

/// Opens the base; a known name that is not there yet is fetched first.
fn open_base(base: &str) -> Result<Checkpoint> {
    if let Some((known, models)) = fetch::target(base)
        && !models.join(known.name).is_dir()
    {
        let mut shown = Shown::default();
        fetch::ensure(known.name, &models, &mut |progress| shown.update(progress))?;
        shown.finish();
    }
    Checkpoint::open(base)
}

/// The first Ctrl-C sets the flag, which ends the run after its step; the second ends the program.
fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let handler = move || {
        if flag.swap(true, Ordering::SeqCst) {
            std::process::exit(INTERRUPTED as i32);
        }
        note!("finishing the step and saving; again to stop at once");
    };
    ctrlc::set_handler(handler).map_err(|e| Error::Internal(format!("Ctrl-C cannot be handled: {e}")))?;
    Ok(stop)
}

fn dry_run(
    args: &TrainArgs,
    recipe: &Recipe,
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    training: &Corpus,
    validation: &Corpus,
) -> Result<()> {
    let values = trained_values(&checkpoint.config, recipe);
    let longest = training.report.longest.max(validation.report.longest);
    let tokens = recipe.train.batch_tokens.max(longest);
    let memory = Memory::estimate(&checkpoint.config, recipe, tokens, values.0 + values.1);
    let start = Start::new(recipe, &training.examples, &validation.examples, values);
    if args.json {
        let report = json!({ "train": training.report, "validation": validation.report });
        say!("{}", json!({ "data": report, "plan": start, "memory": memory }));
        return Ok(());
    }
    stdout(format_args!("{}", training.report.render("training")));
    if !validation.examples.is_empty() {
        stdout(format_args!("{}", validation.report.render("validation")));
    }
    if let Some(example) = training.examples.first() {
        say!("\nrow {} with its trained tokens marked:", example.row);
        say!("{}\n", corpus::display(example, tokenizer, std::io::IsTerminal::is_terminal(&std::io::stdout()))?);
    }
    progress::start_lines(&start, recipe).iter().for_each(|line| say!("{line}"));
    say!("\nmemory, for micro-batches of {tokens} tokens:");
    memory.lines().iter().for_each(|line| say!("  {line}"));
    Ok(())
}

#[derive(serde::Serialize)]
struct Sample {
    row: String,
    mode: Mode,
    prompt: String,
    completion: String,
    expected: String,
}

/// Greedy completions of the first documents' prompts, in FUSED where there are feedback weights.
fn samples(tuned: &Tuned, tokenizer: &Tokenizer, examples: &[Example]) -> Result<Vec<Sample>> {
    let mode = if tuned.feedback.is_some() { Mode::Fused } else { Mode::Standard };
    let sample = |example: &Example| -> Result<Sample> {
        let cut = if example.prompt_len > 1 { example.prompt_len } else { TEXT_PROMPT.min(example.ids.len() - 1) };
        let (prompt, rest) = example.ids.split_at(cut);
        let (completion, _) = infer::complete(tuned, tokenizer, prompt, SAMPLE_TOKENS, mode)?;
        Ok(Sample {
            row: example.row.clone(),
            mode,
            prompt: tokenizer.decode(prompt, true)?,
            completion,
            expected: tokenizer.decode(rest, true)?,
        })
    };
    examples.iter().take(SAMPLES).map(sample).collect()
}

fn print_closing(summary: &Summary, samples: &[Sample]) {
    for sample in samples {
        say!("\nrow {}, {}:", sample.row, progress::title(sample.mode));
        say!("  prompt      {}", indented(&sample.prompt));
        say!("  completion  {}", indented(sample.completion.trim()));
        say!("  expected    {}", indented(sample.expected.trim()));
    }
    if !summary.before.is_empty() {
        say!("\nvalidation loss (nats per trained token)");
        say!("{:<12}{:>10}{:>10}", "", "before", "after");
        for (mode, before) in &summary.before {
            let after = summary.after.get(mode).map_or("-".to_string(), |loss| format!("{loss:.4}"));
            say!("{:<12}{before:>10.4}{after:>10}", progress::title(*mode));
        }
    }
    let (steps, seconds) = (summary.steps, summary.seconds);
    say!("\n{steps} steps, {} tokens in {seconds:.0} s", summary.tokens);
    if let (Some(adapter), Some(step)) = (&summary.adapter, summary.adapter_step) {
        say!("adapter of step {step} in {}; run in {}", adapter.display(), summary.run.display());
    }
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n              ")
}
