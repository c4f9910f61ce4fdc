//! GGUF files: config, tensors, tokenizer.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Value as Meta;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use fullband::checkpoint::{Checkpoint, Config, Family, RopeScaling};
use fullband::feedback::{Plan, Tuned, passes};
use fullband::model::{LoadOptions, Model, Predicted};
use fullband::recipe::Dtype;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support;
use crate::tiny;
use crate::tiny::{GgufFile, refusal};

fn llama() -> Config {
    tiny::config(Family::Llama)
}

fn gguf() -> GgufFile {
    GgufFile::new(&llama(), "llama", GgmlDType::F32)
}

fn open(file: &GgufFile) -> fullband::Result<Checkpoint> {
    let dir = tempdir().unwrap();
    // The map of the file outlives its name.
    Checkpoint::open_path("tiny", &file.write(&dir.path().join("tiny.gguf")))
}

#[test]
fn tensors_come_back_in_hugging_face_names_and_row_order() {
    for (family, architecture) in [(Family::Llama, "llama"), (Family::Qwen2, "qwen2"), (Family::Qwen3, "qwen3")] {
        let c = tiny::config(family);
        let opened = open(&GgufFile::new(&c, architecture, GgmlDType::F32)).unwrap();
        assert_eq!(opened.config, c, "{architecture}");
        for (name, expected) in tiny::tensors(&c) {
            let found = opened.tensor(&name).unwrap();
            assert_eq!(found.dims(), expected.dims(), "{name}");
            assert_eq!(tiny::values(&found), tiny::values(&expected), "{architecture} {name}");
        }
    }
}

#[test]
fn biases_of_permuted_rows_are_permuted_too() {
    let c = Config { qkv_bias: true, o_bias: true, ..llama() };
    let opened = open(&GgufFile::new(&c, "llama", GgmlDType::F32)).unwrap();
    assert_eq!(opened.config, c);
    for (name, expected) in tiny::tensors(&c) {
        assert_eq!(tiny::values(&opened.tensor(&name).unwrap()), tiny::values(&expected), "{name}");
    }
}

#[test]
fn quantised_tensors_are_dequantised() {
    for (dtype, stored, limit) in [
        (GgmlDType::Q4_1, "Q4_1+F32", 0.04),
        (GgmlDType::Q8_0, "Q8_0+F32", 0.003),
        (GgmlDType::BF16, "BF16+F32", 0.002),
    ] {
        let opened = open(&GgufFile::new(&llama(), "llama", dtype)).unwrap();
        assert_eq!(opened.identity.stored, stored);
        for (name, expected) in tiny::tensors(&llama()) {
            let found = opened.tensor(&name).unwrap();
            let wanted = if dtype == GgmlDType::BF16 && expected.rank() > 1 { DType::BF16 } else { DType::F32 };
            assert_eq!(found.dtype(), wanted, "{name}");
            let pairs = tiny::values(&found).into_iter().zip(tiny::values(&expected));
            let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
            assert!(worst <= limit, "{stored} {name}: {worst}");
            assert!(worst > 0.0 || expected.rank() == 1, "{name} was not quantised");
        }
    }
}

#[test]
fn an_untied_head_is_output_weight() {
    let c = Config { tie_word_embeddings: false, ..llama() };
    let opened = open(&GgufFile::new(&c, "llama", GgmlDType::F32)).unwrap();
    assert_eq!(opened.config, c);
    assert_eq!(opened.tensor("lm_head.weight").unwrap().dims(), [264, 32]);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let text = |s: &str| Meta::String(s.into());
    let cases = [
        ("general.architecture", text("gemma2"), "architecture 'gemma2' is not supported; known are llama"),
        ("llama.rope.scaling.type", text("yarn"), "rope type 'yarn' is not supported"),
        ("llama.rope.dimension_count", Meta::U32(4), "over 4 of 8 dimensions"),
        ("llama.expert_count", Meta::U32(8), "experts"),
        ("llama.attention.value_length", Meta::U32(16), "value heads of 16 beside key heads of 8"),
        ("llama.attention.head_count_kv", Meta::Array(vec![Meta::U32(2); 2]), "differs between layers"),
        ("llama.block_count", Meta::F32(2.0), "'llama.block_count' is not a whole number"),
        ("llama.block_count", Meta::U32(3), "9 tensors missing: model.layers.2.input_layernorm.weight"),
        ("llama.embedding_length", Meta::U32(64), "has the shape"),
    ];
    for (key, value, expected) in cases {
        let message = refusal(open(&gguf().set(key, value)));
        assert!(message.contains(expected), "{key}: {message}\nlacks: {expected}");
        assert!(message.contains("tiny.gguf"), "{message}");
    }
    let mut file = gguf();
    file.metadata.remove("llama.context_length");
    assert!(refusal(open(&file)).contains("metadata 'llama.context_length' is missing"));
    let mut file = gguf();
    let extra = Tensor::zeros(32, DType::F32, &Device::Cpu).unwrap();
    file.tensors.insert("blk.0.ffn_gate_inp.weight".into(), QTensor::quantize(&extra, GgmlDType::F32).unwrap());
    assert!(refusal(open(&file)).contains("does not have: blk.0.ffn_gate_inp.weight"));
}

#[test]
fn a_file_cut_short_is_refused() {
    let dir = tempdir().unwrap();
    let path = gguf().write(&dir.path().join("tiny.gguf"));
    let whole = fs::read(&path).unwrap();
    for keep in [3, 40, 2000, whole.len() / 2, whole.len() - 64] {
        fs::write(&path, &whole[..keep]).unwrap();
        let message = refusal(Checkpoint::open_path("tiny", &path));
        assert!(message.contains("cut short"), "{keep} bytes: {message}");
    }
}

#[test]
fn rope_scaling_from_metadata_and_divisors() {
    let linear = gguf().set("llama.rope.scaling.type", Meta::String("linear".into()));
    let linear = linear.set("llama.rope.scaling.factor", Meta::F32(4.0));
    assert_eq!(open(&linear).unwrap().config.rope.scaling, RopeScaling::Linear { factor: 4.0 });

    // transformers, head_dim 8, theta 500000, factor 8, low 1, high 4, original 8192: inv_freq default / inv_freq llama3
    let divisors = |last: f32| Tensor::new(&[1.0f32, 1.0, 2.694_529_7, last], &Device::Cpu).unwrap();
    let with = |t: Tensor| {
        let mut file = gguf().set("llama.rope.freq_base", Meta::F32(500_000.0));
        file.tensors.insert("rope_freqs.weight".into(), QTensor::quantize(&t, GgmlDType::F32).unwrap());
        open(&file)
    };
    let expected =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_positions: 8192 };
    assert_eq!(with(divisors(8.0)).unwrap().config.rope.scaling, expected);
    let message = refusal(with(Tensor::new(&[1.0f32, 1.5, 2.0, 8.0], &Device::Cpu).unwrap()));
    assert!(message.contains("rope_freqs.weight are not the frequencies of rope type 'llama3'"), "{message}");
}

#[test]
fn tokenizer_and_template_come_from_the_file() {
    let opened = open(&gguf()).unwrap();
    let tokenizer = opened.tokenizer().unwrap();
    assert_eq!((tokenizer.bos, tokenizer.eos), (None, 2));
    assert_eq!(tokenizer.stop, [2]);
    let text = "<|im_start|>hello he\n42é";
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(ids[..4], [1, 259, 260, tokenizer.id("o").unwrap()]);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    let message = json!({"role": "user", "content": "x"});
    let rendered = tokenizer.chat_template.unwrap().render(&[message], true).unwrap();
    assert_eq!(rendered, "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
}

// pains 44, 11: further stop tokens and the BOS are taken from the file
#[test]
fn bos_and_stops_come_from_the_file() {
    let file = gguf().set("tokenizer.ggml.eot_token_id", Meta::U32(1));
    let tokenizer = open(&file.set("tokenizer.ggml.add_bos_token", Meta::Bool(true))).unwrap().tokenizer().unwrap();
    assert_eq!(tokenizer.bos, Some(0));
    assert_eq!(tokenizer.stop, [2, 1]);
    let message = refusal(open(&gguf().set("tokenizer.ggml.eos_token_id", Meta::U32(262))).unwrap().tokenizer());
    assert!(message.contains("tokenizer.ggml.eos_token_id is 262, but there are 262 tokens"), "{message}");
}

#[test]
fn pre_tokenizers_by_name() {
    let pieces = |pre: &str, text: &str| {
        let file = gguf().set("tokenizer.ggml.pre", Meta::String(pre.into()));
        // With all of a text's pieces in the vocabulary, the number of tokens tells how it was cut.
        let mut tokens = tiny::vocabulary();
        tokens.truncate(259);
        let merges = ["1 2", "12 3", "123 4", "! !", "Ġ 12"];
        tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
        let types = (0..tokens.len()).map(|id| Meta::I32(if id < 3 { 3 } else { 1 })).collect();
        let file = file
            .set("tokenizer.ggml.merges", tiny::strings(merges.map(String::from)))
            .set("tokenizer.ggml.tokens", tiny::strings(tokens))
            .set("tokenizer.ggml.token_type", Meta::Array(types));
        let tokenizer = open(&file).unwrap().tokenizer().unwrap();
        let ids = tokenizer.encode(text).unwrap();
        ids.iter().map(|id| tokenizer.token(*id).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(pieces("gpt-2", "1234!!"), ["1234", "!!"]);
    assert_eq!(pieces("smollm", "1234!!"), ["1", "2", "3", "4", "!!"]);
    assert_eq!(pieces("qwen2", "1234!!"), ["1", "2", "3", "4", "!!"]);
    assert_eq!(pieces("llama-bpe", "1234!!"), ["123", "4", "!!"]);
    assert_eq!(pieces("default", "1234!!"), ["123", "4", "!!"]);
    // GPT-2 joins the space with the number; the others keep it apart.
    assert_eq!(pieces("gpt-2", " 12"), [" 12"]);
    assert_eq!(pieces("qwen2", " 12"), [" ", "1", "2"]);
    assert_eq!(pieces("smollm", " 12"), [" ", "1", "2"]);

    let message = refusal(open(&gguf().set("tokenizer.ggml.pre", Meta::String("tekken".into()))).unwrap().tokenizer());
    assert!(message.contains("pre-tokenizer 'tekken' (tokenizer.ggml.pre) is not supported"), "{message}");
    let message = refusal(open(&gguf().set("tokenizer.ggml.model", Meta::String("t5".into()))).unwrap().tokenizer());
    assert!(message.contains("tokenizer.ggml.model 't5' is not supported"), "{message}");
}

#[test]
fn sentencepiece_by_scores_with_bytes_where_no_piece_fits() {
    let mut pieces: Vec<(String, f32, i32)> =
        vec![("<unk>".into(), 0.0, 2), ("<s>".into(), 0.0, 3), ("</s>".into(), 0.0, 3)];
    pieces.extend((0..=255).map(|b| (format!("<0x{b:02X}>"), 0.0, 6)));
    // Sentencepiece joins the pair with the best score first: "ab" before "bc", so "abc" is ab + c.
    for (piece, score) in [("▁a", -3.0), ("ab", -1.0), ("bc", -2.0), ("▁", -10.0), ("a", -11.0), ("b", -12.0)] {
        pieces.push((piece.into(), score, 1));
    }
    pieces.truncate(3 + 256 + 6);
    pieces.push(("c".into(), -13.0, 1));
    let c = Config { vocab_size: 300, ..llama() };
    let file = GgufFile::new(&c, "llama", GgmlDType::F32)
        .set("tokenizer.ggml.model", Meta::String("llama".into()))
        .set("tokenizer.ggml.tokens", tiny::strings(pieces.iter().map(|p| p.0.clone())))
        .set("tokenizer.ggml.scores", Meta::Array(pieces.iter().map(|p| Meta::F32(p.1)).collect()))
        .set("tokenizer.ggml.token_type", Meta::Array(pieces.iter().map(|p| Meta::I32(p.2)).collect()))
        .set("tokenizer.ggml.bos_token_id", Meta::U32(1))
        .set("tokenizer.ggml.unknown_token_id", Meta::U32(0));
    let mut file = file;
    file.metadata.remove("tokenizer.ggml.add_bos_token");
    let tokenizer = open(&file).unwrap().tokenizer().unwrap();
    assert_eq!(tokenizer.bos, Some(1), "sentencepiece models have it by default");
    let spelled = |text: &str| {
        let ids = tokenizer.encode(text).unwrap();
        ids.iter().map(|id| pieces[*id as usize].0.clone()).collect::<Vec<_>>()
    };
    assert_eq!(spelled("abc"), ["▁", "ab", "c"]);
    assert_eq!(spelled("a bc"), ["▁a", "▁", "bc"]);
    assert_eq!(spelled("é</s>"), ["▁", "<0xC3>", "<0xA9>", "</s>"]);
    for text in ["abc a", "é b"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap(), true).unwrap(), text);
    }
}

// pains 45 (llama.cpp #19152): the tokenizer handed on gives the ids of the file's own
#[test]
fn companion_files_make_the_same_tokenizer() {
    let opened = open(&gguf().set("tokenizer.ggml.pre", Meta::String("smollm".into()))).unwrap();
    let dir = tempdir().unwrap();
    tiny::folder(dir.path(), &llama());
    for (name, bytes) in opened.companion_files().unwrap() {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let (own, copied) =
        (opened.tokenizer().unwrap(), Checkpoint::open_path("copy", dir.path()).unwrap().tokenizer().unwrap());
    assert_eq!((own.bos, own.eos, &own.stop), (copied.bos, copied.eos, &copied.stop));
    let templates = [&own, &copied].map(|t| t.chat_template.as_ref().unwrap().source.clone());
    assert_eq!(templates[0], templates[1]);
    let text = "hello 123 <|im_end|>é";
    assert_eq!(own.encode(text).unwrap(), copied.encode(text).unwrap());
}

#[test]
fn a_folder_with_one_gguf_is_that_file() {
    let dir = tempdir().unwrap();
    gguf().write(&dir.path().join("a.gguf"));
    let opened = Checkpoint::open(&dir.path().display().to_string()).unwrap();
    assert_eq!(opened.path, dir.path().join("a.gguf"));
    gguf().write(&dir.path().join("b.gguf"));
    let message = refusal(Checkpoint::open(&dir.path().display().to_string()));
    assert!(message.contains("2 .gguf files; name one"), "{message}");
}

/// The real base, from `FULLBAND_BASE` or where `fullband fetch` puts it.
fn real_base() -> Option<PathBuf> {
    let default =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf");
    let path = std::env::var_os("FULLBAND_BASE").map_or(default, PathBuf::from);
    if !path.exists() {
        eprintln!("skipped: no base at {}", path.display());
        return None;
    }
    Some(path)
}

/// The real base and what is expected of it; none, and a line that says so, where one of the two is not there.
fn golden_base() -> Option<(Checkpoint, Value)> {
    let golden = support::golden_root().join("smollm2.json");
    let base = real_base()?;
    let Ok(text) = fs::read_to_string(&golden) else {
        eprintln!("skipped: no {}", golden.display());
        return None;
    };
    Some((Checkpoint::open_path("smollm2", &base).unwrap(), serde_json::from_str(&text).unwrap()))
}

#[test]
fn token_ids_of_the_real_base_are_the_golden_ones() {
    let Some((opened, golden)) = golden_base() else { return };
    assert_eq!(opened.identity.stored, "Q4_1+Q8_0+F32");
    assert_eq!(opened.config.rms_norm_eps, 1e-5);
    let tokenizer = opened.tokenizer().unwrap();
    assert_eq!((tokenizer.bos, tokenizer.eos), (None, 2));
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 15);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(json!(ids), case["ids"], "{text:?}");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    }
}

/// All cases as one flat batch, in f32; and how far bf16 is from it.
#[test]
fn losses_of_the_real_base_are_the_golden_ones() {
    let Some((opened, golden)) = golden_base() else { return };
    let cases: Vec<&Value> = golden["cases"].as_array().unwrap().iter().filter(|c| c.get("nll").is_some()).collect();
    assert!(cases.len() >= 10);
    let (mut ids, mut offsets, mut want) = (Vec::new(), vec![0], Vec::new());
    let (mut positions, mut tokens) = (Vec::new(), Vec::new());
    for case in &cases {
        let of_case: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        positions.extend((0..of_case.len() as u32 - 1).map(|t| ids.len() as u32 + t));
        tokens.extend_from_slice(&of_case[1..]);
        want.extend(serde_json::from_value::<Vec<f64>>(case["nll"].clone()).unwrap());
        ids.extend(of_case);
        offsets.push(ids.len());
    }
    let predicted = Predicted { positions: &positions, tokens: &tokens };
    for (dtype, most, mean) in [(Dtype::F32, 2e-4, 5e-5), (Dtype::Bf16, 0.5, 0.05)] {
        let base = Model::load(&opened, &LoadOptions::cpu(dtype)).unwrap();
        let tuned = Tuned { base, lora: None, feedback: None };
        let states = &passes(&tuned, &ids, &offsets, &Plan::default()).unwrap()[0];
        let got = tuned.base.token_losses(states, predicted).unwrap();
        assert_eq!(got.len(), want.len());
        let gaps: Vec<f64> = got.iter().zip(&want).map(|(&got, want)| (got as f64 - want).abs()).collect();
        let (largest, average) =
            (gaps.iter().fold(0f64, |m, &g| m.max(g)), gaps.iter().sum::<f64>() / gaps.len() as f64);
        println!("{dtype:?}: largest gap {largest:.2e}, mean {average:.2e} over {} tokens", gaps.len());
        assert!(largest < most && average < mean, "{dtype:?}: largest gap {largest:e}, mean {average:e}");
        if dtype == Dtype::F32 {
            for (case, end) in cases.iter().zip(&offsets[1..]) {
                let last = states.narrow(0, end - 1, 1).unwrap().contiguous().unwrap();
                let logits: Vec<f32> = tuned.base.logits(&last).unwrap().flatten_all().unwrap().to_vec1().unwrap();
                let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
                assert_eq!(json!(best), case["argmax_next"], "{}", case["text"]);
            }
        }
    }
}
