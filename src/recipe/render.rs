//! A resolved recipe as TOML again, and what tells two of them apart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Value;

use super::written::{
    AllLinear, Chat, CheckpointsWritten, Data, EarlyStoppingWritten, Eval, Feedback, Lora, Model, Output, PhaseWritten,
    PromptCompletion, TargetsWritten, Text, Train, Written,
};
use super::{DataRecipe, Format, Length, Recipe, Targets, TrainRecipe, Validation};

/// Keys that a resumed run may change: they touch neither the weights nor the order of anything. All others would break
/// the promise that a resumed run equals one that was never interrupted.
const FREE_ON_RESUME: [&str; 6] =
    ["name", "output.adapter", "output.checkpoints", "eval.every", "eval.early_stopping.patience", "train.recompute"];

impl Recipe {
    /// The recipe with every default filled in. [`Recipe::load_resolved`] gives an equal recipe back.
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.to_written()).expect("a loaded recipe holds only what TOML can hold")
    }

    /// The keys in which `new` differs from this one: `train.lr: 0.0005 -> 0.0001`, sorted by key.
    pub fn diff(&self, new: &Recipe) -> Vec<String> {
        self.changes(new).into_iter().map(|(_, change)| change).collect()
    }

    /// Those of [`Recipe::diff`] that forbid to resume a run of this recipe with `new`. What may change: the name, where
    /// and how often is written and validated, the patience of early stopping, and `train.recompute`.
    pub fn resume_conflicts(&self, new: &Recipe) -> Vec<String> {
        let free = |key: &str| {
            FREE_ON_RESUME
                .iter()
                .any(|free| key.strip_prefix(free).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
        };
        self.changes(new).into_iter().filter(|(key, _)| !free(key)).map(|(_, change)| change).collect()
    }

    fn changes(&self, new: &Recipe) -> Vec<(String, String)> {
        let (old, new) = (self.flat(), new.flat());
        let keys: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
        let shown = |side: &BTreeMap<String, String>, key: &str| side.get(key).cloned().unwrap_or("not set".into());
        keys.into_iter()
            .filter(|key| old.get(*key) != new.get(*key))
            .map(|key| (key.clone(), format!("{key}: {} -> {}", shown(&old, key), shown(&new, key))))
            .collect()
    }

    /// Key -> value as TOML.
    fn flat(&self) -> BTreeMap<String, String> {
        let value = Value::try_from(self.to_written()).expect("a loaded recipe holds only what TOML can hold");
        let mut flat = BTreeMap::new();
        flatten("", &value, &mut flat);
        flat
    }

    fn to_written(&self) -> Written {
        Written {
            name: Some(self.name.clone()),
            seed: self.seed,
            model: Model { base: self.model.base.clone(), dtype: self.model.dtype, device: self.model.device.clone() },
            data: data(&self.data),
            lora: self.lora.as_ref().map(|lora| Lora {
                rank: lora.rank,
                alpha: Some(lora.alpha),
                dropout: lora.dropout,
                targets: match &lora.targets {
                    Targets::AllLinear => TargetsWritten::Word(AllLinear::AllLinear),
                    Targets::Modules(names) => TargetsWritten::Modules(names.clone()),
                },
                variant: lora.variant,
            }),
            feedback: self.feedback.as_ref().map(|feedback| Feedback {
                form: feedback.form,
                gate: feedback.gate,
                init: feedback.init,
                prefix: feedback.prefix,
                jitter: feedback.jitter,
            }),
            train: self.train.to_written(self.lora.is_some(), self.feedback.is_some()),
            eval: Eval {
                every: self.eval.every,
                modes: Some(self.eval.modes.clone()),
                early_stopping: self
                    .eval
                    .early_stopping
                    .as_ref()
                    .map(|stop| EarlyStoppingWritten { metric: stop.metric, patience: stop.patience }),
            },
            output: Output {
                adapter: text(&self.output.adapter),
                checkpoints: self
                    .output
                    .checkpoints
                    .as_ref()
                    .map(|c| CheckpointsWritten { every: c.every, keep: c.keep }),
            },
        }
    }
}

impl TrainRecipe {
    /// A learning rate is written only where something has it: the checks refuse one that nothing reads.
    fn to_written(&self, lora: bool, feedback: bool) -> Train {
        let (epochs, max_steps) = match self.length {
            Length::Epochs(epochs) => (Some(epochs), None),
            Length::Steps(steps) => (None, Some(steps)),
        };
        let phase = |phase: &super::Phase| PhaseWritten {
            until: phase.until,
            mix: phase.mix.iter().map(|(passes, share)| (passes.to_string(), *share)).collect(),
            loss: phase.loss,
            update: phase.update.clone(),
        };
        Train {
            epochs,
            max_steps,
            batch_tokens: Some(self.batch_tokens),
            accumulate: self.accumulate,
            lr: lora.then_some(self.lr),
            feedback_lr: feedback.then_some(self.feedback_lr),
            schedule: self.schedule,
            warmup: self.warmup,
            weight_decay: self.weight_decay,
            clip_norm: self.clip_norm.unwrap_or(0.0),
            prompt_loss_weight: Some(self.prompt_loss_weight),
            recompute: self.recompute,
            phases: Some(self.phases.iter().map(phase).collect()),
        }
    }
}

fn data(data: &DataRecipe) -> Data {
    let texts = |paths: &[PathBuf]| paths.iter().map(|path| text(path)).collect::<Vec<_>>();
    let (validation, validation_fraction) = match &data.validation {
        Validation::Files(files) => (Some(texts(files)), None),
        Validation::Fraction(fraction) => (None, Some(*fraction)),
        Validation::None => (None, None),
    };
    let mut written = Data {
        train: texts(&data.train),
        validation,
        validation_fraction,
        max_seq_len: data.max_seq_len,
        overlong: data.overlong,
        packing: data.packing,
        id: data.id.clone(),
        prompt_completion: None,
        text: None,
        chat: None,
    };
    match data.format.clone() {
        Format::Text { template } => written.text = Some(Text { template }),
        Format::PromptCompletion { prompt, completion } => {
            written.prompt_completion = Some(PromptCompletion { prompt, completion });
        }
        Format::ChatMessages { messages } => {
            written.chat = Some(Chat { messages: Some(messages), system: None, user: None, assistant: None });
        }
        Format::ChatTurns { system, user, assistant } => {
            written.chat = Some(Chat { messages: None, system, user: Some(user), assistant: Some(assistant) });
        }
    }
    written
}

/// Paths of a loaded recipe are UTF-8 (`super::paths`).
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn flatten(key: &str, value: &Value, flat: &mut BTreeMap<String, String>) {
    match value {
        Value::Table(entries) => {
            for (name, inner) in entries {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                flatten(&key, inner, flat);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_table) => {
            for (index, inner) in items.iter().enumerate() {
                flatten(&format!("{key}[{index}]"), inner, flat);
            }
        }
        other => {
            flat.insert(key.to_string(), other.to_string());
        }
    }
}
