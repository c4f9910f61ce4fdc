//! `fullband generate MODEL PROMPT`: one prompt, streamed.

use std::io::{ErrorKind, Read};
use std::path::Path;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::checkpoint::Checkpoint;
use crate::cli::out::{note, say, stdout};
use crate::corpus::prompt_ids;
use crate::error::{Error, Result};
use crate::infer::{Options, Sampling, Stop, decode};
use crate::model::LoadOptions;
use crate::recipe::{Dtype, Mode};
use crate::tuned;

#[derive(Args)]
pub struct GenerateArgs {
    /// A base (folder, .gguf, hub id, known name) or an adapter folder
    model: String,
    /// The prompt; - reads standard input
    prompt: String,
    /// Put the prompt into the base's chat template as the user's turn
    #[arg(long)]
    chat: bool,
    /// System turn, with --chat
    #[arg(long, requires = "chat")]
    system: Option<String>,
    #[arg(long, value_enum, default_value = "standard")]
    mode: ModeArg,
    /// Extra prefill passes of fused decoding [default: the adapter's]
    #[arg(long, value_name = "P")]
    passes: Option<usize>,
    #[arg(long, default_value_t = 128)]
    max_tokens: usize,
    /// 0: greedy
    #[arg(long, default_value_t = 0.0)]
    temperature: f64,
    /// Keep the K most likely tokens; 0: all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Keep the most likely tokens up to this probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f64,
    #[arg(long, default_value_t = 1.0)]
    repetition_penalty: f64,
    #[arg(long, default_value_t = 42)]
    seed: u64,
    #[arg(long, value_enum, default_value = "bf16")]
    dtype: DtypeArg,
    /// cpu, cuda:N or metal
    #[arg(long, default_value = "cpu")]
    device: String,
    /// The base of an adapter, where it is not found under its recorded name
    #[arg(long)]
    base: Option<String>,
    /// Print one JSON object instead of streaming
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArg {
    Standard,
    Soft,
    Fused,
}

#[derive(Clone, Copy, ValueEnum)]
enum DtypeArg {
    F32,
    Bf16,
}

/// Extra prefill passes that may be asked for: a map that has not settled after these will not.
const MAX_PASSES: usize = 32;

impl GenerateArgs {
    fn check(&self) -> Result<()> {
        let wrong = |flag: &str, expected: &str| Err(Error::Usage(format!("--{flag}: expected {expected}")));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return wrong("temperature", "a number of at least 0");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top-p", "a number above 0 and at most 1");
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return wrong("repetition-penalty", "a number above 0");
        }
        if self.passes.is_some_and(|passes| !(1..=MAX_PASSES).contains(&passes)) {
            return wrong("passes", &format!("1 to {MAX_PASSES}"));
        }
        if self.passes.is_some() && !matches!(self.mode, ModeArg::Fused) {
            return wrong("passes", "--mode fused beside it: the other modes have no extra passes");
        }
        if self.max_tokens == 0 {
            return wrong("max-tokens", "at least 1");
        }
        Ok(())
    }
}

pub fn run(args: GenerateArgs) -> Result<()> {
    args.check()?;
    let options = LoadOptions {
        dtype: match args.dtype {
            DtypeArg::F32 => Dtype::F32,
            DtypeArg::Bf16 => Dtype::Bf16,
        },
        device: crate::model::device(&args.device)?,
        ..LoadOptions::cpu(Dtype::Bf16)
    };
    if options.device.is_cpu() {
        super::engine()?;
    }
    let opened = tuned::open(&args.model, args.base.as_deref(), &options)?;
    for warning in &opened.warnings {
        note!("warning: {warning}");
    }
    let tokenizer = opened.checkpoint.tokenizer()?;
    let prompt = read_prompt(&args.prompt)?;
    let ids = if args.chat {
        chat_ids(&opened.checkpoint, &tokenizer, args.system.as_deref(), &prompt)?
    } else {
        prompt_ids(&tokenizer, &prompt)?
    };
    let options = Options {
        mode: match args.mode {
            ModeArg::Standard => Mode::Standard,
            ModeArg::Soft => Mode::Soft,
            ModeArg::Fused => Mode::Fused,
        },
        prefill_passes: args.passes.or(opened.prefill_passes).unwrap_or(1),
        max_new: args.max_tokens,
        stop: tokenizer.stop.clone(),
        sampling: Sampling {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            repetition_penalty: args.repetition_penalty,
            seed: args.seed,
        },
    };
    let mut tokens = Vec::new();
    let mut shown = String::new();
    let mut failed = None;
    let decoded = decode(&opened.tuned, &ids, &options, |token| {
        tokens.push(token);
        if args.json {
            return true;
        }
        match tokenizer.decode(&tokens, true) {
            // An unfinished character decodes to the replacement sign: wait for the rest of it.
            Ok(text) if !text.ends_with('\u{fffd}') && text.starts_with(&shown) => {
                let read = stdout(format_args!("{}", &text[shown.len()..]));
                shown = text;
                read
            }
            Ok(_) => true,
            Err(error) => {
                failed = Some(error);
                false
            }
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let text = tokenizer.decode(&decoded.tokens, true)?;
    if args.json {
        let reason = match decoded.stop {
            Stop::Token => "stop",
            Stop::Length | Stop::Positions => "length",
            Stop::Caller => "cancelled",
        };
        let out = json!({
            "text": text, "finish_reason": reason, "prompt_tokens": ids.len(), "completion_tokens": decoded.tokens.len(),
        });
        say!("{out}");
    } else {
        say!("{}", text.strip_prefix(&shown).unwrap_or_default());
    }
    Ok(())
}

fn read_prompt(prompt: &str) -> Result<String> {
    if prompt != "-" {
        return Ok(prompt.to_string());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| match e.kind() {
        ErrorKind::InvalidData => Error::Usage("standard input: the prompt is not UTF-8 text".into()),
        _ => Error::io("standard input")(e),
    })?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_string())
}

fn chat_ids(
    checkpoint: &Checkpoint,
    tokenizer: &crate::checkpoint::Tokenizer,
    system: Option<&str>,
    prompt: &str,
) -> Result<Vec<u32>> {
    let Some(template) = &tokenizer.chat_template else {
        return Err(Error::model(Path::new(&checkpoint.path), "the base has no chat template: leave --chat out"));
    };
    let mut messages = Vec::new();
    if let Some(system) = system {
        messages.push(json!({"role": "system", "content": system}));
    }
    messages.push(json!({"role": "user", "content": prompt}));
    prompt_ids(tokenizer, &template.render(&messages, true)?)
}
