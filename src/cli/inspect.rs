//! `fullband inspect PATH`: what a checkpoint, adapter, Parquet file or run is.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Map, Value, json};

use crate::checkpoint::{Checkpoint, Config, RopeScaling, Tokenizer, fetch, safetensors_summary};
use crate::cli::out::{say, stdout};
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// Checkpoint folder, .gguf file, adapter folder, run folder or Parquet file
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: InspectArgs) -> Result<()> {
    let description = describe(&args.path)?;
    if args.json {
        say!("{description:#}");
    } else {
        stdout(format_args!("{}", readable(&description)));
    }
    Ok(())
}

/// What lies at `path`, as an object with `kind`: `checkpoint`, `adapter`, `run` or `parquet`.
pub fn describe(path: &Path) -> Result<Value> {
    let has = |name: &str| path.join(name).is_file();
    if !path.exists() {
        let name = path.to_string_lossy();
        let hint = match fetch::target(&name) {
            Some((known, models)) => match models.join(known.name).is_dir() {
                true => format!("; the base of this name lies in {}", models.join(known.name).display()),
                false => format!("; `fullband fetch {}` brings the base of this name", known.name),
            },
            None => String::new(),
        };
        return Err(Error::Usage(format!("{}: there is no such file or folder{hint}", path.display())));
    }
    if path.is_file() {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
        return match extension.as_str() {
            "gguf" => checkpoint(path),
            "parquet" | "pq" => parquet(path),
            _ => {
                let message = "known are folders, .gguf files and .parquet files";
                Err(Error::Usage(format!("{}: {message}", path.display())))
            }
        };
    }
    if has("adapter_config.json") || has("feedback_config.json") {
        adapter(path)
    } else if has("metrics.jsonl") || has("summary.json") {
        let mut object = Map::from_iter([("kind".to_string(), json!("run")), ("path".to_string(), shown(path))]);
        object.extend(run_of(path)?);
        Ok(Value::Object(object))
    } else {
        checkpoint(path)
    }
}

fn shown(path: &Path) -> Value {
    json!(path.display().to_string())
}

fn checkpoint(path: &Path) -> Result<Value> {
    let checkpoint = Checkpoint::open_path(&path.display().to_string(), path)?;
    let c = &checkpoint.config;
    let parameters: usize = checkpoint.tensors().values().map(|shape| shape.iter().product::<usize>()).sum();
    // A checkpoint without a tokenizer is still a checkpoint; what is wrong with the tokenizer is part of the answer.
    let tokenizer = match checkpoint.tokenizer() {
        Ok(tokenizer) => tokenizer_of(&tokenizer),
        Err(e) => json!({ "error": e.to_string() }),
    };
    Ok(json!({
        "kind": "checkpoint",
        "path": shown(&checkpoint.path),
        "family": c.family.name(),
        "parameters": parameters,
        "stored": checkpoint.identity.stored,
        "sha256": checkpoint.identity.sha256,
        "layers": c.num_layers,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "heads": c.num_heads,
        "kv_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab_size,
        "max_positions": c.max_positions,
        "tied_embeddings": c.tie_word_embeddings,
        "rope": rope(c),
        "sliding_windows": windows(c),
        "tokenizer": tokenizer,
    }))
}

fn rope(config: &Config) -> Value {
    let theta = config.rope.theta;
    match &config.rope.scaling {
        RopeScaling::None => json!({ "theta": theta }),
        RopeScaling::Linear { factor } => json!({ "theta": theta, "type": "linear", "factor": factor }),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => json!({
            "theta": theta, "type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor, "original_max_positions": original_max_positions,
        }),
    }
}

/// None, one window for all layers, or a list.
fn windows(config: &Config) -> Value {
    match config.windows.first() {
        Some(first) if config.windows.iter().all(|w| w == first) => json!(first),
        _ => json!(config.windows),
    }
}

fn tokenizer_of(tokenizer: &Tokenizer) -> Value {
    let named = |id: u32| json!({ "id": id, "text": tokenizer.token(id) });
    json!({
        "tokens": tokenizer.vocab_size(),
        "bos": tokenizer.bos.map(named),
        "eos": named(tokenizer.eos),
        "stop": tokenizer.stop.iter().copied().map(named).collect::<Vec<_>>(),
        "chat_template": tokenizer.chat_template.is_some(),
    })
}

fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    serde_json::from_str(&text).map_err(|e| Error::model(path, format!("not JSON: {e}")))
}

fn adapter(path: &Path) -> Result<Value> {
    let mut object = Map::from_iter([("kind".to_string(), json!("adapter")), ("path".to_string(), shown(path))]);
    let config = path.join("adapter_config.json");
    if config.is_file() {
        let config = read_json(&config)?;
        let keys = [
            ("base", "base_model_name_or_path"),
            ("type", "peft_type"),
            ("rank", "r"),
            ("alpha", "lora_alpha"),
            ("dropout", "lora_dropout"),
            ("targets", "target_modules"),
            ("rslora", "use_rslora"),
            ("dora", "use_dora"),
        ];
        let present = |(name, key): (&str, &str)| config.get(key).map(|v| (name.to_string(), v.clone()));
        let lora: Map<String, Value> = keys.into_iter().filter_map(present).collect();
        object.insert("lora".into(), Value::Object(lora));
    }
    let feedback = path.join("feedback_config.json");
    if feedback.is_file() {
        object.insert("feedback".into(), read_json(&feedback)?);
    }
    let mut weights = Map::new();
    for name in ["adapter_model.safetensors", "latent_feedback.safetensors"] {
        let file = path.join(name);
        if file.is_file() {
            let summary = safetensors_summary(&file)?;
            let value = json!({
                "tensors": summary.tensors, "parameters": summary.parameters, "types": summary.types.join("+"),
            });
            weights.insert(name.into(), value);
        }
    }
    object.insert("weights".into(), Value::Object(weights));
    if path.join("metrics.jsonl").is_file() || path.join("summary.json").is_file() {
        object.insert("run".into(), Value::Object(run_of(path)?));
    }
    Ok(Value::Object(object))
}

/// Recipe's name, steps done, best values, and the run's own summary.
fn run_of(path: &Path) -> Result<Map<String, Value>> {
    let mut object = Map::new();
    let recipe = path.join("recipe.toml");
    if recipe.is_file() {
        let text = std::fs::read_to_string(&recipe).map_err(Error::io(&recipe))?;
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| Error::recipe(&recipe, 0, e.message()))?;
        let base = table.get("model").and_then(|m| m.get("base")).and_then(toml::Value::as_str);
        object
            .insert("recipe".into(), json!({ "name": table.get("name").and_then(toml::Value::as_str), "base": base }));
    }
    let metrics = path.join("metrics.jsonl");
    if metrics.is_file() {
        object.insert("metrics".into(), metrics_of(&metrics)?);
    }
    let checkpoints = path.join("checkpoints");
    if checkpoints.is_dir() {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&checkpoints).map_err(Error::io(&checkpoints))? {
            names.push(entry.map_err(Error::io(&checkpoints))?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        object.insert("checkpoints".into(), json!(names));
    }
    let summary = path.join("summary.json");
    if summary.is_file() {
        object.insert("summary".into(), read_json(&summary)?);
    }
    Ok(object)
}

/// The highest step, and of every number that a line gives its last value and its lowest with the step of that.
fn metrics_of(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    let mut steps = 0;
    let mut seen: Map<String, Value> = Map::new();
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    for (i, line) in lines.iter().enumerate() {
        let row: Map<String, Value> = match serde_json::from_str(line) {
            Ok(row) => row,
            // A run that was stopped while writing leaves half a line at the end.
            Err(_) if i + 1 == lines.len() => break,
            Err(e) => return Err(Error::data(path, format!("line {}: not a JSON object: {e}", i + 1))),
        };
        let step = row.get("step").and_then(Value::as_u64).unwrap_or(steps);
        steps = steps.max(step);
        for (key, value) in row.iter().filter(|(key, _)| key.contains("loss")) {
            let Some(number) = value.as_f64() else { continue };
            let lowest = seen.get(key).and_then(|v| v["lowest"].as_f64());
            let entry = seen.entry(key.clone()).or_insert(json!({}));
            entry["last"] = json!(number);
            if lowest.is_none_or(|l| number < l) {
                entry["lowest"] = json!(number);
                entry["at_step"] = json!(step);
            }
        }
    }
    Ok(json!({ "steps": steps, "losses": seen }))
}

fn parquet(path: &Path) -> Result<Value> {
    let broken = |e: parquet::errors::ParquetError| Error::data(path, format!("not a readable Parquet file: {e}"));
    let reader = SerializedFileReader::new(File::open(path).map_err(Error::io(path))?).map_err(broken)?;
    let metadata = reader.metadata();
    let file = metadata.file_metadata();
    let mut compression: Vec<String> = Vec::new();
    for column in metadata.row_groups().iter().flat_map(|g| g.columns()) {
        // Without the level: `ZSTD(ZstdLevel(1))`.
        let name = format!("{:?}", column.compression());
        let name = name.split('(').next().unwrap_or(&name).to_string();
        if !compression.contains(&name) {
            compression.push(name);
        }
    }
    let columns: Vec<Value> = file
        .schema_descr()
        .columns()
        .iter()
        .map(|c| {
            let logical = c.logical_type_ref().map(|l| format!("{l:?}"));
            json!({
                "name": c.path().string(),
                "type": logical.unwrap_or_else(|| c.physical_type().to_string()),
                "nullable": c.max_def_level() > 0,
            })
        })
        .collect();
    Ok(json!({
        "kind": "parquet",
        "path": shown(path),
        "rows": file.num_rows(),
        "row_groups": metadata.row_groups().iter().map(|g| g.num_rows()).collect::<Vec<_>>(),
        "compression": compression,
        "written_by": file.created_by(),
        "columns": columns,
        "example": example(&reader),
    }))
}

/// The first row, column by column. A layout that this plain reader lacks leaves the rest of the answer standing.
fn example(reader: &SerializedFileReader<File>) -> Value {
    let row = match reader.get_row_iter(None).map(|mut rows| rows.next()) {
        Ok(None) => return Value::Null,
        Ok(Some(Ok(row))) => row,
        Ok(Some(Err(e))) | Err(e) => return json!({ "error": e.to_string() }),
    };
    let field = |(name, value): (&String, &parquet::record::Field)| {
        let value = match value {
            parquet::record::Field::Null => Value::Null,
            parquet::record::Field::Str(text) => json!(text),
            other => json!(other.to_string()),
        };
        (name.clone(), value)
    };
    Value::Object(row.get_column_iter().map(field).collect())
}

/// As lines of text: one line for each key, nested ones indented; lists of plain values on one line.
pub fn readable(value: &Value) -> String {
    let mut out = String::new();
    if let Value::Object(map) = value {
        write_object(map, 0, &mut out);
    }
    out
}

fn write_object(map: &Map<String, Value>, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    for (key, value) in map {
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push_str(&format!("{indent}{key}\n"));
                write_object(inner, depth + 1, out);
            }
            Value::Array(list) if list.iter().any(Value::is_object) => {
                out.push_str(&format!("{indent}{key}\n"));
                for entry in list {
                    let parts = entry.as_object().into_iter().flatten().map(|(k, v)| format!("{k} {}", plain(v)));
                    out.push_str(&format!("{indent}  {}\n", parts.collect::<Vec<_>>().join("  ")));
                }
            }
            other => out.push_str(&format!("{indent}{key:<18} {}\n", plain(other))),
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::String(text) => text.replace('\n', "\\n"),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
