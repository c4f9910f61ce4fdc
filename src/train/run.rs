//! The training loop: set up, loop, save, clean up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::adamw::{AdamW, clip_factor, global_norm, variables};
use super::adapter::{self, Losses, PREFILL_PASSES, RECIPE, Training};
use super::folder::write_folder;
use super::metrics::{EvalRecord, Metrics, Record, StepRecord};
use super::schedule::{lr_factor, passes_at, phase_at};
use super::state::{Best, Fingerprint, RunFolder, SUMMARY, State};
use super::step::{StepOutcome, StepSpec, run_step};
use super::watch::Watch;
use super::{Job, Observer, Start, Status, Summary};
use crate::corpus::{Batch, Example, Plan, Step};
use crate::error::{Error, Result};
use crate::eval::losses_by_mode;
use crate::feedback::warm_start;
use crate::files::{write_json, write_text};
use crate::kernels::profile::{Part, timed};
use crate::recipe::{FeedbackInit, Group, Mode, Recipe};

/// Checkpoints kept where the recipe asks for none: the one that an interrupted run leaves.
const KEEP: usize = 1;

/// Trains as the recipe says. `stop` is looked at after each step: once true, a checkpoint is saved and the run ends as
/// [`Status::Interrupted`]. [`Error::Diverged`] leaves the last checkpoint and the best adapter so far as they are.
pub fn run(job: Job, stop: &AtomicBool, observer: &mut dyn Observer) -> Result<Summary> {
    let mut trainer = Trainer::set_up(job, observer)?;
    observer.on_start(&trainer.start());
    if trainer.state.step == 0 {
        trainer.state.before = trainer.evaluate(observer)?;
    }
    let status = loop {
        if trainer.is_done() {
            break Status::Finished;
        }
        if trainer.has_stopped_improving() {
            break Status::StoppedEarly;
        }
        let record = trainer.step()?;
        observer.on_step(&record);
        if due(trainer.recipe().eval.every, record.step) || trainer.is_done() {
            trainer.evaluate(observer)?;
        }
        let interrupted = stop.load(Ordering::SeqCst) && !trainer.is_done();
        if due(trainer.recipe().output.checkpoints.as_ref().map(|c| c.every), record.step) || interrupted {
            trainer.save_checkpoint(observer)?;
        }
        if interrupted {
            break Status::Interrupted;
        }
    };
    let summary = trainer.finish(status)?;
    observer.on_end(&summary);
    Ok(summary)
}

/// Which documents make which step of a recipe.
pub fn steps(recipe: &Recipe, examples: &[Example]) -> Plan {
    let train = &recipe.train;
    let lengths = examples.iter().map(|example| example.ids.len()).collect();
    Plan::new(lengths, train.batch_tokens, train.accumulate, recipe.data.packing, recipe.seed, train.length)
}

fn check_documents(job: &Job) -> Result<()> {
    if job.train.is_empty() {
        return Err(Error::Usage("there is no document to train on".into()));
    }
    let reach = job.tuned.base.config().max_positions;
    match job.train.iter().chain(job.validation).find(|example| example.ids.len() > reach) {
        Some(long) => Err(Error::Usage(format!(
            "data.max_seq_len: row {} has {} tokens, but the base reaches {reach} positions",
            long.row,
            long.ids.len()
        ))),
        None => Ok(()),
    }
}

fn due(every: Option<usize>, step: usize) -> bool {
    every.is_some_and(|every| every > 0 && step.is_multiple_of(every))
}

struct Trainer<'a> {
    job: Job<'a>,
    plan: Plan,
    optimizer: AdamW,
    state: State,
    folder: RunFolder,
    metrics: Metrics,
    resumed: Option<usize>,
    /// What the newest validation gave, and at which step.
    newest: Option<(usize, Losses)>,
}

impl<'a> Trainer<'a> {
    /// A new run, or the newest checkpoint of a former one. All that can be refused is refused here.
    fn set_up(job: Job<'a>, observer: &mut dyn Observer) -> Result<Self> {
        let recipe = job.recipe;
        let train = &recipe.train;
        check_documents(&job)?;
        adapter::check_replaceable(&recipe.output.adapter, &recipe.name, job.force || job.resume)?;
        let plan = steps(recipe, job.train);
        let fingerprint = Fingerprint::of(job.base, job.train, job.validation);
        let folder = RunFolder::of(recipe);
        let (optimizer, state, resumed) = if job.resume {
            let (optimizer, state) = folder.resume(job.tuned, recipe, &fingerprint)?;
            let step = state.step;
            (optimizer, state, Some(step))
        } else {
            folder.begin(job.force)?;
            let state = State {
                step: 0,
                total_steps: plan.total_steps(),
                tokens: 0,
                seconds: 0.0,
                before: Losses::new(),
                best: None,
                without_improvement: 0,
                updates: Default::default(),
                watch: Watch::default(),
                fingerprint,
            };
            (AdamW::new(job.tuned, train.weight_decay), state, None)
        };
        let metrics = Metrics::open(folder.path(), resumed)?;
        write_text(&folder.file(RECIPE), &recipe.to_toml())?;
        if let Some(report) = &job.data_report {
            write_json(&folder.file("data_report.json"), report)?;
        }
        let trainer = Self { job, plan, optimizer, state, folder, metrics, resumed, newest: None };
        if resumed.is_none() {
            trainer.warm_start(observer)?;
        }
        Ok(trainer)
    }

    fn warm_start(&self, observer: &mut dyn Observer) -> Result<()> {
        let wanted = self.recipe().feedback.as_ref().is_some_and(|f| f.init == FeedbackInit::WarmStart);
        if let (true, Some(feedback)) = (wanted, &self.job.tuned.feedback) {
            let documents = self.job.train.iter().map(|example| &example.ids[..]);
            let seed = self.recipe().seed;
            let fit = warm_start(&self.job.tuned.base, feedback, documents, self.recipe().train.batch_tokens, seed)?;
            observer.on_warm_start(&fit);
        }
        Ok(())
    }

    fn recipe(&self) -> &'a Recipe {
        self.job.recipe
    }

    fn start(&self) -> Start {
        let values = |wanted: Group| {
            let variables = variables(self.job.tuned);
            variables.iter().filter(|(group, _)| *group == wanted).map(|(_, params)| params.len()).sum()
        };
        let values = (values(Group::Lora), values(Group::Feedback));
        Start { resumed: self.resumed, ..Start::new(self.recipe(), self.job.train, self.job.validation, values) }
    }

    fn is_done(&self) -> bool {
        self.state.step >= self.state.total_steps
    }

    /// One optimiser step.
    fn step(&mut self) -> Result<StepRecord> {
        let began = Instant::now();
        let recipe = self.recipe();
        let (step, total) = (self.state.step, self.state.total_steps);
        let index = phase_at(&recipe.train.phases, step, total);
        let phase = &recipe.train.phases[index];
        let passes = passes_at(phase, recipe.seed, step);
        let Step { epoch, micro_batches } = self.plan.step(step);
        let documents = |list: &Vec<usize>| Batch::pack(list.iter().map(|&i| (i as u64, &self.job.train[i])));
        let batches: Vec<Batch> = micro_batches.iter().map(documents).collect();
        let outcome = run_step(self.job.tuned, &batches, &StepSpec::of(recipe, phase, step, passes))?;
        let (norm, factor) = self.update(&outcome, index)?;
        let updated = |wanted: Group| {
            let variables = variables(self.job.tuned);
            variables.iter().zip(&outcome.gradients).any(|((group, _), g)| *group == wanted && g.is_some())
        };
        let record = StepRecord {
            step: step + 1,
            epoch: epoch + 1,
            phase: index + 1,
            passes,
            loss: outcome.loss,
            lr: updated(Group::Lora).then_some(recipe.train.lr * factor),
            feedback_lr: updated(Group::Feedback).then_some(recipe.train.feedback_lr * factor),
            grad_norm: norm,
            tokens: outcome.tokens,
            predicted: outcome.predicted,
            seconds: began.elapsed().as_secs_f64(),
            pass_losses: outcome.pass_losses,
        };
        self.state.step += 1;
        self.state.tokens += record.tokens as u64;
        self.state.seconds += record.seconds;
        self.metrics.add(Record::Step(record.clone()))?;
        Ok(record)
    }

    /// Checks the gradients and updates the weights; returns the gradients' norm and the factor on the rates.
    fn update(&mut self, outcome: &StepOutcome, phase: usize) -> Result<(f64, f64)> {
        let train = &self.recipe().train;
        let (step, tuned) = (self.state.step, &*self.job.tuned);
        self.state.watch.check(tuned, &outcome.gradients, phase, step + 1, outcome.feedback_reached)?;
        let norm = global_norm(&outcome.gradients);
        let factor = lr_factor(train.schedule, step, self.state.total_steps, train.warmup);
        let lr = |group| match group {
            Group::Lora => train.lr * factor,
            Group::Feedback => train.feedback_lr * factor,
        };
        let clip = clip_factor(norm, train.clip_norm);
        timed(Part::Optimizer, || self.optimizer.update(tuned, &outcome.gradients, lr, clip))?;
        self.state.updates = self.optimizer.steps().clone();
        Ok((norm, factor))
    }

    /// Validates in every mode of the recipe; keeps the weights as `best/` where the metric has not been as low. Before
    /// the first step nothing is kept: an adapter that does nothing is no result.
    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<Losses> {
        let recipe = self.recipe();
        let Some(metric) = self.metric() else { return Ok(Losses::new()) };
        let began = Instant::now();
        let (modes, tokens) = (&recipe.eval.modes, recipe.train.batch_tokens);
        let measured = losses_by_mode(self.job.tuned, self.job.validation, tokens, modes, PREFILL_PASSES)?;
        let losses: Losses = measured.iter().map(|(mode, loss)| (*mode, loss.loss)).collect();
        let step = self.state.step;
        if let Some((mode, loss)) = losses.iter().find(|(_, loss)| !loss.is_finite()) {
            return Err(Error::Diverged { step, message: format!("the validation loss in mode {mode:?} is {loss}") });
        }
        let loss = losses[&metric];
        let best = step > 0 && self.state.best.is_none_or(|best| loss < best.loss);
        self.newest = Some((step, losses.clone()));
        if best {
            self.state.best = Some(Best { step, loss });
            self.state.without_improvement = 0;
            write_folder(&self.folder.best(), |folder| {
                adapter::save(self.job.tuned, recipe, self.job.base, &self.training(), folder)
            })?;
        } else if step > 0 {
            self.state.without_improvement += 1;
        }
        let tokens = measured.first().map_or(0, |(_, loss)| loss.tokens);
        let seconds = began.elapsed().as_secs_f64();
        self.state.seconds += seconds;
        let record = EvalRecord { step, losses: losses.clone(), tokens, best, seconds };
        self.metrics.add(Record::Eval(record.clone()))?;
        observer.on_eval(&record);
        Ok(losses)
    }

    /// The mode that decides which weights are the best; none where nothing is validated.
    fn metric(&self) -> Option<Mode> {
        let eval = &self.recipe().eval;
        let mode = eval.early_stopping.as_ref().map(|stop| stop.metric).or(eval.modes.last().copied());
        mode.filter(|_| !self.job.validation.is_empty())
    }

    fn has_stopped_improving(&self) -> bool {
        let stopping = self.recipe().eval.early_stopping.as_ref();
        stopping.is_some_and(|stop| self.metric().is_some() && self.state.without_improvement >= stop.patience.max(1))
    }

    /// About the weights as they are now.
    fn training(&self) -> Training {
        let State { step, total_steps, .. } = self.state;
        let losses = self.newest.as_ref().filter(|(at, _)| *at == step).map(|(_, losses)| losses.clone());
        Training {
            name: self.recipe().name.clone(),
            step,
            total_steps,
            metric: self.metric(),
            losses: losses.unwrap_or_default(),
        }
    }

    fn save_checkpoint(&self, observer: &mut dyn Observer) -> Result<()> {
        let keep = self.recipe().output.checkpoints.as_ref().map_or(KEEP, |c| c.keep);
        let recipe = self.recipe();
        let folder = self.folder.save(self.job.tuned, &self.optimizer, &self.state, recipe, &self.training(), keep)?;
        observer.on_checkpoint(self.state.step, &folder);
        Ok(())
    }

    /// Puts the best weights (the last where nothing was validated) at `output.adapter` and into the job's model.
    fn finish(self, status: Status) -> Result<Summary> {
        let recipe = self.recipe();
        let mut summary = Summary {
            status,
            steps: self.state.step,
            total_steps: self.state.total_steps,
            epochs: self.plan.epochs(),
            tokens: self.state.tokens,
            seconds: self.state.seconds,
            before: self.state.before.clone(),
            after: Losses::new(),
            adapter_step: None,
            adapter: None,
            run: self.folder.path().to_path_buf(),
        };
        if status == Status::Interrupted {
            return Ok(summary);
        }
        let (output, best) = (&recipe.output.adapter, self.folder.best());
        let training = if self.state.best.is_some() {
            let training = adapter::read_training(&best)?;
            adapter::publish(&best, output)?;
            training
        } else {
            let training = self.training();
            write_folder(output, |folder| adapter::save(self.job.tuned, recipe, self.job.base, &training, folder))?;
            training
        };
        adapter::load(self.job.tuned, output)?;
        summary.after = training.losses;
        summary.adapter_step = Some(training.step);
        summary.adapter = Some(output.clone());
        write_json(&self.folder.file(SUMMARY), &summary)?;
        Ok(summary)
    }
}
