//! How training shows itself: a bar on a terminal, plain lines in a pipe.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use crate::cli::out::{note, say};
use crate::feedback::Fit;
use crate::kernels::profile;
use crate::recipe::{Mode, Recipe};
use crate::train::{EvalRecord, Observer, Start, StepRecord, Summary};

/// Lines that a run in a pipe writes about its steps, about.
const LINES: usize = 40;

pub struct Progress {
    bar: Option<ProgressBar>,
    terminal: bool,
    /// Standard output is kept for JSON.
    json: bool,
    total: usize,
    /// Steps of this session and since the last line: tokens and seconds.
    session: Span,
    recent: Span,
    /// Seconds of validation in this session.
    validation: f64,
}

#[derive(Clone, Copy, Default)]
struct Span {
    steps: usize,
    tokens: usize,
    seconds: f64,
}

impl Span {
    fn add(&mut self, record: &StepRecord) {
        self.steps += 1;
        self.tokens += record.tokens;
        self.seconds += record.seconds;
    }

    fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds.max(1e-9)
    }
}

impl Progress {
    pub fn new(json: bool) -> Self {
        let terminal = std::io::stderr().is_terminal() && (json || std::io::stdout().is_terminal());
        Self { bar: None, terminal, json, total: 0, session: Span::default(), recent: Span::default(), validation: 0.0 }
    }

    pub fn warn(&mut self, warning: &str) {
        note!("warning: {warning}");
    }

    /// What this session's time was spent on. Validation is in it; what is not listed is the corpus, the gradient graph,
    /// files.
    pub fn profile(&self) {
        let whole = self.session.seconds + self.validation;
        self.line(&format!("\n{:<32}{:>10}{:>8}", "part", "seconds", "share"));
        let parts = profile::seconds();
        let other = whole - parts.iter().map(|(_, seconds)| seconds).sum::<f64>();
        for (name, seconds) in parts.map(|(part, seconds)| (part.name(), seconds)).into_iter().chain([("other", other)])
        {
            self.line(&format!("{name:<32}{seconds:>10.2}{:>7.1}%", 100.0 * seconds / whole));
        }
        let operations = profile::operations() as f64;
        self.line(&format!("{:<32}{whole:>10.2}", "steps and validation"));
        self.line(&format!("frozen weights: {:.3e} operations", operations));
    }

    /// A line above the bar; on standard error where standard output is kept for JSON.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| note!("{text}")),
            None if self.json || self.terminal => note!("{text}"),
            None => say!("{text}"),
        }
    }
}

/// STANDARD, SOFT, FUSED.
pub fn title(mode: Mode) -> &'static str {
    match mode {
        Mode::Standard => "STANDARD",
        Mode::Soft => "SOFT",
        Mode::Fused => "FUSED",
    }
}

/// Derived sizes as lines.
pub fn start_lines(start: &Start, recipe: &Recipe) -> Vec<String> {
    let train = &recipe.train;
    let mut lines = vec![
        format!("documents   {} to train on, {} to validate", start.documents, start.validation_documents),
        format!(
            "steps       {} ({} warm-up) over {} epochs, up to {} x {} tokens each",
            start.total_steps, start.warmup_steps, start.epochs, train.accumulate, train.batch_tokens
        ),
        format!("trained     {} LoRA values, {} feedback values", start.lora_values, start.feedback_values),
    ];
    let mut from = 1;
    for ((number, phase), &end) in (1..).zip(&train.phases).zip(&start.phase_ends) {
        let mix: Vec<String> = phase.mix.iter().map(|(passes, share)| format!("K = {passes}: {share}")).collect();
        let groups: Vec<String> = phase.update.iter().map(|group| format!("{group:?}").to_lowercase()).collect();
        let steps = if end < from { "no step".to_string() } else { format!("steps {from}-{end}") };
        let [first, later] = phase.loss;
        lines.push(format!(
            "phase {number}     {steps}, {}, updates {}, loss weights {first} and {later}",
            mix.join(", "),
            groups.join(" and ")
        ));
        from = from.max(end + 1);
    }
    if let Some(step) = start.resumed {
        lines.push(format!("resumed     after step {step}"));
    }
    lines.push(format!("run         {}", start.run.display()));
    lines
}

/// `1.234`, or `1.234/1.100` where several passes count.
fn losses(record: &StepRecord) -> String {
    let shown: Vec<String> =
        record.pass_losses.iter().map(|loss| loss.map_or("-".into(), |loss| format!("{loss:.3}"))).collect();
    shown.join("/")
}

impl Observer for Progress {
    fn on_start(&mut self, start: &Start) {
        self.total = start.total_steps;
        if self.terminal {
            let bar = ProgressBar::new(start.total_steps as u64);
            let template = "{pos}/{len} {wide_bar} {msg} {elapsed}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_position(start.resumed.unwrap_or(0) as u64);
            bar.enable_steady_tick(Duration::from_millis(500));
            self.bar = Some(bar);
        }
        let resumed = start.resumed.map(|step| format!(", resumed after step {step}")).unwrap_or_default();
        self.line(&format!(
            "{} documents, {} steps, {} trained values{resumed}",
            start.documents,
            start.total_steps,
            start.lora_values + start.feedback_values
        ));
    }

    fn on_warm_start(&mut self, fit: &Fit) {
        self.line(&format!(
            "warm start over {} pairs: relative error {:.3} -> {:.3} -> {:.3}",
            fit.pairs, fit.before, fit.solved, fit.after
        ));
    }

    fn on_step(&mut self, record: &StepRecord) {
        self.session.add(record);
        self.recent.add(record);
        let left = (self.total - record.step) as f64 * self.session.seconds / self.session.steps as f64;
        let left = HumanDuration(Duration::from_secs_f64(left.max(0.0)));
        if let Some(bar) = &self.bar {
            let speed = self.session.tokens_per_second();
            bar.set_position(record.step as u64);
            bar.set_message(format!("loss {} {speed:.0} tok/s, {left} left", losses(record)));
        } else if record.step.is_multiple_of(self.total.div_ceil(LINES)) || record.step == self.total {
            let speed = self.recent.tokens_per_second();
            self.line(&format!(
                "step {}/{} phase {} loss {} grad {:.3} {speed:.0} tok/s, {left} left",
                record.step,
                self.total,
                record.phase,
                losses(record),
                record.grad_norm
            ));
            self.recent = Span::default();
        }
    }

    fn on_eval(&mut self, record: &EvalRecord) {
        self.validation += record.seconds;
        let losses: Vec<String> =
            record.losses.iter().map(|(mode, loss)| format!("{} {loss:.4}", title(*mode))).collect();
        let best = if record.best { " (best)" } else { "" };
        self.line(&format!("step {} validation {}{best}", record.step, losses.join("  ")));
    }

    fn on_checkpoint(&mut self, step: usize, folder: &Path) {
        self.line(&format!("step {step} saved {}", folder.display()));
    }

    fn on_end(&mut self, _summary: &Summary) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
