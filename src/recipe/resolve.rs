//! From the written recipe to the resolved one: defaults that depend on other keys, files found, and the checks that need
//! more than one key. Reports all that is wrong.

use std::path::PathBuf;

use super::document::{Document, Problem};
use super::paths::Places;
use super::phases::{self, Parts};
use super::structure::not_allowed;
use super::written::{self, AllLinear, TargetsWritten, Written};
use super::{
    Checkpoints, DataRecipe, EarlyStopping, EvalRecipe, FeedbackInit, FeedbackRecipe, Form, Format, Length, LoraRecipe,
    Mode, ModelRecipe, OutputRecipe, Recipe, Targets, TrainRecipe, Validation, templates,
};

/// Resolves what `document` holds as `written`. `places`: where files are looked for; none: they are taken as written and
/// need not exist.
pub fn resolve(document: &Document, written: Written, places: Option<&Places>) -> Result<Recipe, Vec<Problem>> {
    let mut resolver = Resolver { document, places, problems: Vec::new() };
    let parts = Parts { lora: written.lora.is_some(), feedback: written.feedback.is_some() };
    if !parts.lora && !parts.feedback {
        resolver.report("", "nothing to train: there is neither a [lora] nor a [feedback] section");
    }
    let model = resolver.model(written.model);
    let data = resolver.data(written.data);
    let lora = written.lora.map(|lora| resolver.lora(lora));
    let feedback = written.feedback.map(|feedback| resolver.feedback(feedback));
    let train = resolver.train(written.train, parts, data.as_ref().map_or(0, |data| data.max_seq_len));
    let validates = data.as_ref().is_none_or(|data| data.validation != Validation::None);
    let eval = resolver.eval(written.eval, parts, validates);
    let checkpoints = written.output.checkpoints.map(|c| Checkpoints { every: c.every, keep: c.keep });
    let output = OutputRecipe { adapter: PathBuf::from(written.output.adapter), checkpoints };
    let stem = document.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = written.name.or(stem).unwrap_or_else(|| "recipe".into());
    match data {
        Some(data) if resolver.problems.is_empty() => {
            Ok(Recipe { name, seed: written.seed, model, data, lora, feedback, train, eval, output })
        }
        _ => Err(resolver.problems),
    }
}

struct Resolver<'a> {
    document: &'a Document,
    places: Option<&'a Places>,
    problems: Vec<Problem>,
}

impl Resolver<'_> {
    fn report(&mut self, key: &str, message: impl std::fmt::Display) {
        self.problems.push(self.document.problem(key, message));
    }

    fn model(&mut self, model: written::Model) -> ModelRecipe {
        let mut base = model.base;
        if let Some(places) = self.places {
            match places.base(&base) {
                Ok(found) => base = found,
                Err(message) => self.report("model.base", message),
            }
        }
        let numbered = model.device.strip_prefix("cuda:").is_some_and(|number| number.parse::<usize>().is_ok());
        let device = match model.device.as_str() {
            "cuda" => "cuda:0".to_string(),
            "cpu" | "metal" => model.device,
            _ if numbered => model.device,
            other => {
                self.report("model.device", not_allowed(other, &["cpu", "cuda:0", "metal"]));
                model.device
            }
        };
        ModelRecipe { base, dtype: model.dtype, device }
    }

    /// None: without a format there is nothing to go on with.
    fn data(&mut self, data: written::Data) -> Option<DataRecipe> {
        let train = self.files("data.train", &data.train);
        let validation = match (&data.validation, data.validation_fraction) {
            (Some(_), Some(_)) => {
                self.report("data.validation_fraction", "give either data.validation or this, not both");
                Validation::None
            }
            (Some(files), None) => Validation::Files(self.files("data.validation", files)),
            (None, Some(fraction)) => Validation::Fraction(fraction),
            (None, None) => Validation::None,
        };
        let format = self.format(&data)?;
        let (max_seq_len, overlong, packing) = (data.max_seq_len, data.overlong, data.packing);
        Some(DataRecipe { train, validation, max_seq_len, overlong, packing, id: data.id, format })
    }

    fn files(&mut self, key: &str, typed: &[String]) -> Vec<PathBuf> {
        let Some(places) = self.places else { return typed.iter().map(PathBuf::from).collect() };
        let mut found = Vec::new();
        for (index, typed) in typed.iter().enumerate() {
            match places.data(typed) {
                Ok(files) => found.extend(files),
                Err(message) => self.report(&format!("{key}[{index}]"), format!("{typed:?}: {message}")),
            }
        }
        found
    }

    fn format(&mut self, data: &written::Data) -> Option<Format> {
        match (&data.prompt_completion, &data.text, &data.chat) {
            (Some(format), None, None) => {
                self.template("data.prompt_completion.prompt", &format.prompt, false);
                self.template("data.prompt_completion.completion", &format.completion, true);
                let (prompt, completion) = (format.prompt.clone(), format.completion.clone());
                Some(Format::PromptCompletion { prompt, completion })
            }
            (None, Some(format), None) => {
                self.template("data.text.template", &format.template, true);
                Some(Format::Text { template: format.template.clone() })
            }
            (None, None, Some(chat)) => self.chat(chat),
            (prompt_completion, text, chat) => {
                let given = [
                    ("[data.prompt_completion]", prompt_completion.is_some()),
                    ("[data.text]", text.is_some()),
                    ("[data.chat]", chat.is_some()),
                ];
                let given: Vec<_> = given.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
                let found = if given.is_empty() { "none".into() } else { given.join(" and ") };
                let message = "expected exactly one of [data.prompt_completion], [data.text] and [data.chat]";
                self.report("data", format!("{message}, found {found}"));
                None
            }
        }
    }

    fn chat(&mut self, chat: &written::Chat) -> Option<Format> {
        let turns = chat.system.is_some() || chat.user.is_some() || chat.assistant.is_some();
        match (&chat.messages, &chat.user, &chat.assistant) {
            (Some(messages), ..) if !turns => Some(Format::ChatMessages { messages: messages.clone() }),
            (None, Some(user), Some(assistant)) => {
                if let Some(system) = &chat.system {
                    self.template("data.chat.system", system, false);
                }
                self.template("data.chat.user", user, false);
                self.template("data.chat.assistant", assistant, true);
                let (user, assistant) = (user.clone(), assistant.clone());
                Some(Format::ChatTurns { system: chat.system.clone(), user, assistant })
            }
            _ => {
                self.report("data.chat", "expected either messages, or user and assistant (and, if wanted, system)");
                None
            }
        }
    }

    /// What is trained must differ between rows; without a column it is most likely a misspelt `{{ }}`.
    fn template(&mut self, key: &str, template: &str, trained: bool) {
        match templates::columns(template) {
            Err(message) => self.report(key, message),
            Ok(used) if used.is_empty() && trained => {
                self.report(key, "uses no column of the row; a column is written {{ name }}");
            }
            Ok(_) => {}
        }
    }

    fn lora(&mut self, lora: written::Lora) -> LoraRecipe {
        let targets = match lora.targets {
            TargetsWritten::Word(AllLinear::AllLinear) => Targets::AllLinear,
            TargetsWritten::Modules(names) => {
                if names.is_empty() || names.iter().any(String::is_empty) {
                    self.report("lora.targets", "expected \"all-linear\" or names of modules, found none");
                }
                if let Some(twice) = (1..names.len()).find(|index| names[..*index].contains(&names[*index])) {
                    self.report("lora.targets", format!("{:?} is listed twice", names[twice]));
                }
                Targets::Modules(names)
            }
        };
        let alpha = lora.alpha.unwrap_or(2.0 * lora.rank as f64);
        LoraRecipe { rank: lora.rank, alpha, dropout: lora.dropout, targets, variant: lora.variant }
    }

    fn feedback(&mut self, feedback: written::Feedback) -> FeedbackRecipe {
        let written::Feedback { form, gate, init, prefix, jitter } = feedback;
        if init == FeedbackInit::WarmStart && form != Form::Replace {
            let message = "warm_start is for form = \"replace\"; \"residual\" starts equal to the base as it is";
            self.report("feedback.init", message);
        }
        FeedbackRecipe { form, gate, init, prefix, jitter }
    }

    fn train(&mut self, train: written::Train, parts: Parts, max_seq_len: usize) -> TrainRecipe {
        let length = match (train.epochs, train.max_steps) {
            (Some(_), Some(steps)) => {
                self.report("train.max_steps", "give either train.epochs or this, not both");
                Length::Steps(steps)
            }
            (None, Some(steps)) => Length::Steps(steps),
            (epochs, None) => Length::Epochs(epochs.unwrap_or(2.0)),
        };
        let batch_tokens = train.batch_tokens.unwrap_or(max_seq_len.max(1024));
        if batch_tokens < max_seq_len {
            let message =
                format!("{batch_tokens} is less than data.max_seq_len = {max_seq_len}: a document may not fit");
            self.report("train.batch_tokens", message);
        }
        if train.lr.is_some() && !parts.lora {
            self.report("train.lr", "there is no [lora] section; the feedback weights have train.feedback_lr");
        }
        if train.feedback_lr.is_some() && !parts.feedback {
            self.report("train.feedback_lr", "there is no [feedback] section");
        }
        let phases = match &train.phases {
            Some(written) => phases::resolve(self.document, written, parts, &mut self.problems),
            None => phases::defaults(parts),
        };
        TrainRecipe {
            length,
            batch_tokens,
            accumulate: train.accumulate,
            lr: train.lr.unwrap_or(5e-4),
            feedback_lr: train.feedback_lr.unwrap_or(1e-3),
            schedule: train.schedule,
            warmup: train.warmup,
            weight_decay: train.weight_decay,
            clip_norm: (train.clip_norm > 0.0).then_some(train.clip_norm),
            prompt_loss_weight: train.prompt_loss_weight.unwrap_or(if parts.feedback { 0.3 } else { 0.0 }),
            recompute: train.recompute,
            phases,
        }
    }

    fn eval(&mut self, eval: written::Eval, parts: Parts, validates: bool) -> EvalRecipe {
        let usual = if parts.feedback { vec![Mode::Standard, Mode::Fused] } else { vec![Mode::Standard] };
        let modes = eval.modes.unwrap_or(usual);
        if modes.iter().any(|mode| *mode != Mode::Standard) && !parts.feedback {
            self.report("eval.modes", "without a [feedback] section the only mode is \"standard\"");
        }
        if (1..modes.len()).any(|index| modes[..index].contains(&modes[index])) {
            self.report("eval.modes", "a mode is listed twice");
        }
        let missing = "needs data.validation or data.validation_fraction";
        if eval.every.is_some() && !validates {
            self.report("eval.every", missing);
        }
        let early_stopping = eval.early_stopping.map(|stop| {
            if !validates {
                self.report("eval.early_stopping", missing);
            }
            if eval.every.is_none() {
                self.report("eval.early_stopping", "needs eval.every, the steps between validations");
            }
            if !modes.contains(&stop.metric) {
                self.report("eval.early_stopping.metric", "this mode is not in eval.modes, so it is never measured");
            }
            EarlyStopping { metric: stop.metric, patience: stop.patience }
        });
        EvalRecipe { every: eval.every, modes, early_stopping }
    }
}
