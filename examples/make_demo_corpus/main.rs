//! Writes the demo corpora of `datasets/`. Every row is made up from the word lists in `generate/catalogue.rs`; the same
//! seed gives the same rows on every machine.
//!
//! ```sh
//! cargo run --release --example make_demo_corpus            # into datasets/
//! cargo run --release --example make_demo_corpus -- /tmp/x  # into another folder
//! cargo run --release --example make_demo_corpus -- --show 20
//! ```

mod generate;
mod write;

use std::path::Path;

use generate::{SEED, attributes, chat, recommend};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().map(String::as_str) == Some("--show") {
        let count = args.get(1).map_or(Ok(20), |n| n.parse())?;
        show(count);
        return Ok(());
    }
    let out = args.first().map_or("datasets", String::as_str);
    let products = attributes::splits(SEED);
    let chats = chat::splits(SEED, &products);
    let baskets = recommend::splits(SEED);
    for (split, name) in ["train", "validation"].into_iter().enumerate() {
        let path = |corpus: &str| Path::new(out).join(corpus).join(format!("{name}.parquet"));
        write::attributes(&path("shop-attributes"), &products[split])?;
        write::chat(&path("shop-chat"), &chats[split])?;
        write::recommend(&path("shop-recommend"), &baskets[split])?;
    }
    Ok(())
}

/// Prints some rows of each corpus, spread over the training split.
fn show(count: usize) {
    let products = attributes::splits(SEED);
    let rows = &products[0];
    for row in rows.iter().step_by((rows.len() / count.max(1)).max(1)).take(count) {
        println!("{}  [{}]  {:?}\n  {}\n  {}", row.id, row.category, row.price, row.title, row.attributes);
    }
    for row in chat::splits(SEED, &products)[0].iter().take(count / 4) {
        println!("{}", row.id);
        for turn in &row.messages {
            println!("  {}: {}", turn.role, turn.content);
        }
    }
    for row in recommend::splits(SEED)[0].iter().take(count / 4) {
        println!("{}\n  {:?}\n  {:?}\n  {} {}", row.id, row.history, row.candidates, row.target_index, row.target);
    }
}
