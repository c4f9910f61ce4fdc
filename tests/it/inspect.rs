//! `fullband inspect`: what lies at a path.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use fullband::checkpoint::Family;
use fullband::cli::inspect::{describe, readable};
use serde_json::json;
use tempfile::tempdir;

use crate::tiny;

#[test]
fn a_checkpoint_folder_and_a_gguf() {
    let dir = tempdir().unwrap();
    let c = tiny::config(Family::Qwen3);
    tiny::folder(dir.path(), &c);
    let found = describe(dir.path()).unwrap();
    let parameters: usize = tiny::tensors(&c).values().map(|t| t.elem_count()).sum();
    assert_eq!(found["kind"], "checkpoint");
    assert_eq!(found["family"], "qwen3");
    assert_eq!(found["parameters"], parameters);
    assert_eq!(found["tokenizer"]["eos"], json!({"id": 2, "text": "<|im_end|>"}));
    let text = readable(&found);
    assert!(text.contains("family             qwen3\n"), "{text}");
    assert!(text.contains("  eos\n    id                 2\n"), "{text}");

    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    let error = describe(dir.path()).unwrap()["tokenizer"]["error"].as_str().unwrap().to_string();
    assert!(error.contains("tokenizer.json is missing"), "{error}");

    let path = dir.path().join("tiny.gguf");
    tiny::GgufFile::new(&tiny::config(Family::Llama), "llama", GgmlDType::Q4_1).write(&path);
    let found = describe(&path).unwrap();
    assert_eq!((&found["stored"], &found["layers"]), (&json!("Q4_1+F32"), &json!(2)));
}

#[test]
fn an_adapter() {
    let dir = tempdir().unwrap();
    let lora = json!({"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": ["q_proj"], "revision": null});
    tiny::write_json(&dir.path().join("adapter_config.json"), &lora);
    tiny::write_json(&dir.path().join("feedback_config.json"), &json!({"form": "residual", "gate": "sigmoid"}));
    let tensor = Tensor::zeros((16, 32), DType::F32, &Device::Cpu).unwrap();
    tiny::save(&[("a.lora_A.weight".to_string(), tensor)].into(), &dir.path().join("adapter_model.safetensors"));
    let found = describe(dir.path()).unwrap();
    assert_eq!(found["kind"], "adapter");
    assert_eq!(found["lora"], json!({"type": "LORA", "rank": 16, "alpha": 32, "targets": ["q_proj"]}));
    assert_eq!(found["feedback"]["form"], "residual");
    let weights = json!({"tensors": 1, "parameters": 512, "types": "F32"});
    assert_eq!(found["weights"]["adapter_model.safetensors"], weights);
}

#[test]
fn a_run_with_its_lowest_losses() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("recipe.toml"), "name = \"attributes\"\n[model]\nbase = \"models/x\"\n").unwrap();
    let lines = "{\"step\":1,\"loss\":3.0}\n{\"step\":2,\"loss\":1.5,\"lr\":0.1}\n{\"step\":3,\"loss\":2.0}\n{\"st";
    fs::write(dir.path().join("metrics.jsonl"), lines).unwrap();
    fs::create_dir_all(dir.path().join("checkpoints/step-000002")).unwrap();
    let found = describe(dir.path()).unwrap();
    assert_eq!(found["kind"], "run");
    assert_eq!(found["recipe"], json!({"name": "attributes", "base": "models/x"}));
    let loss = json!({"last": 2.0, "lowest": 1.5, "at_step": 2});
    assert_eq!(found["metrics"], json!({"steps": 3, "losses": {"loss": loss}}));
    assert_eq!(found["checkpoints"], json!(["step-000002"]));
    fs::write(dir.path().join("metrics.jsonl"), "{\"step\"\n{\"step\":1}\n").unwrap();
    assert!(tiny::refusal(describe(dir.path())).contains("line 1: not a JSON object"));
}

fn write_parquet(path: &Path) {
    use arrow_array::types::Int32Type;
    use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;
    use parquet::basic::Compression;
    use parquet::file::properties::WriterProperties;

    let title: ArrayRef = Arc::new(StringArray::from(vec!["trail shoes", "sofá"]));
    let price: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(3)]));
    let lists = vec![Some(vec![Some(1), Some(2)]), None];
    let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("title", title, false),
        ("price", price, true),
        ("list", list, true),
    ])
    .unwrap();
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = ArrowWriter::try_new(fs::File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    for i in 0..2 {
        writer.write(&batch.slice(i, 1)).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn a_parquet_file() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    write_parquet(&path);
    let found = describe(&path).unwrap();
    assert_eq!((&found["kind"], &found["rows"]), (&json!("parquet"), &json!(2)));
    assert_eq!((&found["row_groups"], &found["compression"]), (&json!([1, 1]), &json!(["SNAPPY"])));
    assert_eq!(found["columns"][0], json!({"name": "title", "type": "String", "nullable": false}));
    assert_eq!(found["columns"][1], json!({"name": "price", "type": "INT64", "nullable": true}));
    assert!(found["columns"][2]["name"].as_str().unwrap().starts_with("list.list."));
    assert_eq!(found["example"], json!({"title": "trail shoes", "price": null, "list": "[1, 2]"}));
    fs::write(&path, "PAR1 and no more").unwrap();
    let error = describe(&path).unwrap_err();
    assert_eq!(error.exit_code(), 3);
}

#[test]
fn parquet_files_of_other_engines() {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/parquet");
    let folder = std::env::var_os("FULLBAND_PARQUET").map_or(default, PathBuf::from);
    let Ok(entries) = fs::read_dir(&folder) else {
        eprintln!("skipped: no Parquet folder at {}", folder.display());
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "parquet") {
            let name = path.display();
            match describe(&path) {
                Ok(found) => assert!(found["columns"].as_array().is_some_and(|c| !c.is_empty()), "{name}"),
                Err(e) => assert_eq!(e.exit_code(), 3, "{name}: {e}"),
            }
        }
    }
}

#[test]
fn what_is_none_of_these() {
    let dir = tempdir().unwrap();
    assert_eq!(describe(&dir.path().join("absent")).unwrap_err().exit_code(), 2);
    let path = dir.path().join("notes.txt");
    fs::write(&path, "x").unwrap();
    assert!(tiny::refusal(describe(&path)).contains("known are folders, .gguf files and .parquet files"));
}
