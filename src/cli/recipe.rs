//! `fullband recipe new | check | schema`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::out::{say, stdout};
use crate::corpus;
use crate::error::{Error, Result};
use crate::lora::LoraConfig;
use crate::model;
use crate::recipe::{
    Dtype, Form, Format, Gate, Group, Length, LoraVariant, Phase, Recipe, Scaffold, ScaffoldFormat, Targets,
    Validation, scaffold, schema,
};

#[derive(Debug, Args)]
pub struct RecipeArgs {
    #[command(subcommand)]
    command: RecipeCommand,
}

#[derive(Debug, Subcommand)]
enum RecipeCommand {
    /// Write a commented recipe to begin with
    New {
        /// Where the recipe is written, for example recipes/mine.toml
        path: PathBuf,
        /// How a row becomes a training document
        #[arg(long, value_enum, default_value = "prompt-completion")]
        format: FormatArg,
        /// Base checkpoint: folder, .gguf file, hub id or a name that `fullband fetch` knows
        #[arg(long, default_value = "smollm2-135m-instruct")]
        base: String,
        /// Training file (Parquet), relative to the recipe's folder or the working folder
        #[arg(long, default_value = "train.parquet")]
        train: String,
        /// Overwrite a recipe that is there
        #[arg(long)]
        force: bool,
    },
    /// Check a recipe and say what it would do
    Check {
        recipe: PathBuf,
        /// Override a key: --set train.lr=1e-4 (an empty value removes it)
        #[arg(long = "set", value_name = "KEY=VALUE")]
        set: Vec<String>,
    },
    /// Print the JSON schema of a recipe
    Schema,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatArg {
    PromptCompletion,
    Text,
    Chat,
}

pub fn run(args: RecipeArgs) -> Result<()> {
    match args.command {
        RecipeCommand::New { path, format, base, train, force } => new(&path, format, &base, &train, force),
        RecipeCommand::Check { recipe, set } => {
            let loaded = Recipe::load(&recipe, &set)?;
            check(&loaded)?;
            say!("OK {}", recipe.display());
            stdout(format_args!("{}", summary(&loaded)?));
            Ok(())
        }
        RecipeCommand::Schema => {
            say!("{:#}", schema());
            Ok(())
        }
    }
}

/// What a recipe's own text does not show: the files' columns, the modules that LoRA names, the device.
fn check(recipe: &Recipe) -> Result<()> {
    recipe.lora.as_ref().map(LoraConfig::resolve).transpose()?;
    model::device(&recipe.model.device)?;
    corpus::check(&recipe.data)
}

fn new(path: &Path, format: FormatArg, base: &str, train: &str, force: bool) -> Result<()> {
    let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) else {
        return Err(Error::Usage(format!("{}: expected the name of a file such as mine.toml", path.display())));
    };
    let format = match format {
        FormatArg::PromptCompletion => ScaffoldFormat::PromptCompletion,
        FormatArg::Text => ScaffoldFormat::Text,
        FormatArg::Chat => ScaffoldFormat::Chat,
    };
    let text = scaffold(&Scaffold { name, format, base, train });
    write_new(path, &text, force)?;
    say!("wrote {}", path.display());
    match Recipe::load(path, &[]).and_then(|recipe| check(&recipe)) {
        Ok(()) => say!("next: fullband train {} --dry-run", path.display()),
        Err(e) => say!("to do before it can run:\n{e}"),
    }
    Ok(())
}

/// Never replaces a file unless `force` is given, not even one that appears in between.
fn write_new(path: &Path, text: &str, force: bool) -> Result<()> {
    use std::io::Write;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).truncate(force).create(force).create_new(!force);
    match options.open(path) {
        Ok(mut file) => file.write_all(text.as_bytes()).map_err(Error::io(path)),
        Err(_) if path.is_dir() => {
            Err(Error::Usage(format!("{}: is a folder, expected the name of a file such as mine.toml", path.display())))
        }
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(Error::Usage(format!("{} exists; --force overwrites it", path.display())))
        }
        Err(e) => Err(Error::io(path)(e)),
    }
}

/// What the recipe would do, in a few lines.
fn summary(recipe: &Recipe) -> Result<String> {
    let columns: Vec<_> = recipe.template_columns()?.into_keys().collect();
    let format = match &recipe.data.format {
        Format::Text { .. } => "text",
        Format::PromptCompletion { .. } => "prompt and completion",
        Format::ChatMessages { .. } | Format::ChatTurns { .. } => "chat",
    };
    let validation = match &recipe.data.validation {
        Validation::Files(files) => format!("validation: {}", count(files.len(), "file")),
        Validation::Fraction(fraction) => format!("validation: {} of the rows", percent(*fraction)),
        Validation::None => "no validation".into(),
    };
    let train = &recipe.train;
    let length = match train.length {
        Length::Epochs(epochs) => format!("{epochs} epochs"),
        Length::Steps(steps) => count(steps, "step"),
    };
    let dtype = match recipe.model.dtype {
        Dtype::F32 => "f32",
        Dtype::Bf16 => "bf16",
    };
    let mut lines = vec![
        format!("  base    {}, {dtype} on {}", recipe.model.base, recipe.model.device),
        format!(
            "  data    {}, {validation}; {format} from the columns {}",
            count(recipe.data.train.len(), "file"),
            columns.join(", ")
        ),
        format!("  trains  {}", trained(recipe)),
        format!("  length  {length} of {} x {} tokens at most", train.accumulate, train.batch_tokens),
    ];
    let mut start = 0.0;
    for phase in &train.phases {
        lines.push(format!("  phase   {}", phase_line(start, phase)));
        start = phase.until;
    }
    lines.push(format!("  output  {}", recipe.output.adapter.display()));
    Ok(lines.join("\n") + "\n")
}

fn trained(recipe: &Recipe) -> String {
    let lora = recipe.lora.as_ref().map(|lora| {
        let targets = match &lora.targets {
            Targets::AllLinear => "all linear layers".to_string(),
            Targets::Modules(names) => names.join(", "),
        };
        let variant = match lora.variant {
            LoraVariant::Lora => "LoRA",
            LoraVariant::Rslora => "rsLoRA",
            LoraVariant::Dora => "DoRA",
        };
        format!("{variant} (rank {}, alpha {}, on {targets})", lora.rank, lora.alpha)
    });
    let feedback = recipe.feedback.as_ref().map(|feedback| {
        let form = match feedback.form {
            Form::Residual => "residual",
            Form::Replace => "replace",
        };
        let gate = match feedback.gate {
            Gate::Sigmoid => "sigmoid",
            Gate::Signed => "signed",
        };
        format!("feedback ({form}, {gate} gate)")
    });
    lora.into_iter().chain(feedback).collect::<Vec<_>>().join(" and ")
}

fn phase_line(start: f64, phase: &Phase) -> String {
    let mix: Vec<_> = phase.mix.iter().map(|(passes, share)| format!("{passes} ({})", percent(*share))).collect();
    let groups: Vec<_> = phase
        .update
        .iter()
        .map(|group| match group {
            Group::Lora => "LoRA",
            Group::Feedback => "feedback",
        })
        .collect();
    let [first, later] = phase.loss;
    format!(
        "{} to {} of the steps: updates {}; passes {}; loss weights {first} and {later}",
        percent(start),
        percent(phase.until),
        groups.join(" and "),
        mix.join(", "),
    )
}

fn percent(share: f64) -> String {
    format!("{} %", (share * 1000.0).round() / 10.0)
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_that_is_there_is_overwritten_only_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recipes/mine.toml");
        let write = |base: &str, force| new(&path, FormatArg::Text, base, "train.parquet", force);
        write("first", false).unwrap();
        let error = write("second", false).unwrap_err();
        assert_eq!(
            (error.exit_code(), error.to_string().ends_with("mine.toml exists; --force overwrites it")),
            (2, true)
        );
        assert!(std::fs::read_to_string(&path).unwrap().contains("base = \"first\""));
        write("second", true).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("base = \"second\"") && text.contains("name = \"mine\""));
    }

    #[test]
    fn the_summary_says_what_is_trained_and_when() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.parquet"), "").unwrap();
        let path = folder.path().join("shop.toml");
        new(&path, FormatArg::PromptCompletion, "org/name", "train.parquet", false).unwrap();
        let summary = summary(&Recipe::load(&path, &[]).unwrap()).unwrap();
        for wanted in [
            "org/name, bf16 on cpu",
            "validation: 10 % of the rows; prompt and completion from the columns completion, prompt",
            "LoRA (rank 16, alpha 32, on all linear layers) and feedback (residual, sigmoid gate)",
            "0 % to 50 % of the steps: updates LoRA; passes 1 (100 %); loss weights 1 and 1",
            "60 % to 100 % of the steps: updates LoRA and feedback; passes 2 (90 %), 3 (10 %); loss weights 0.3 and 1",
            "adapters/shop",
        ] {
            assert!(summary.contains(wanted), "wanted {wanted}\nfound\n{summary}");
        }
    }
}
