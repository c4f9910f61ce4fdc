//! `shop-chat`: short talks with a shop's assistant, who answers from the title alone.

use super::{Draw, attributes::Product, catalogue::CATEGORIES};

pub const TRAIN: usize = 200;
pub const VALIDATION: usize = 40;
const CORPUS: u64 = 2;

const SYSTEM: &[&str] = &[
    "You are the assistant of an online shop. Answer from the product title only.",
    "You help shoppers. Use nothing but the title of the product.",
];
const ASK_VALUE: &[&str] = &["What is the {}?", "Which {} does it have?", "Can you tell me the {}?", "{}?"];
const ANSWER_VALUE: &[&str] = &["The {} is {}.", "{}: {}", "According to the title, the {} is {}."];
const ANSWER_MISSING: &[&str] = &["The title does not state the {}.", "I cannot tell the {} from the title."];

pub struct Turn {
    pub role: &'static str,
    pub content: String,
}

pub struct Conversation {
    pub id: String,
    pub messages: Vec<Turn>,
}

/// Training and validation talks, each about another product of the same split of `shop-attributes`.
pub fn splits(seed: u64, products: &[Vec<Product>; 2]) -> [Vec<Conversation>; 2] {
    let talk = |split: usize, count: usize| {
        let stride = products[split].len() / count;
        let rows = products[split].iter().step_by(stride).take(count).enumerate();
        rows.map(move |(i, product)| {
            let number = split * TRAIN + i;
            conversation(product, number, &mut Draw::new(seed, CORPUS, number as u64))
        })
    };
    [talk(0, TRAIN).collect(), talk(1, VALIDATION).collect()]
}

fn conversation(product: &Product, number: usize, draw: &mut Draw) -> Conversation {
    let mut messages = Vec::new();
    if draw.chance(0.6) {
        messages.push(Turn { role: "system", content: draw.pick(SYSTEM).to_string() });
    }
    let questions = 1 + draw.below(3);
    for turn in 0..questions {
        let (question, answer) = exchange(product, draw);
        let content = if turn == 0 { format!("{}\n{question}", product.title) } else { question };
        messages.push(Turn { role: "user", content });
        messages.push(Turn { role: "assistant", content: answer });
    }
    Conversation { id: format!("chat-{number:04}"), messages }
}

/// A question about the product and its answer.
fn exchange(product: &Product, draw: &mut Draw) -> (String, String) {
    let pairs = product.pairs();
    if draw.chance(0.15) {
        return ("What kind of product is this?".into(), product.category.clone());
    }
    if draw.chance(0.15) {
        let lines: Vec<String> = pairs.iter().map(|(key, value)| format!("- {key}: {value}")).collect();
        return ("List what the title says.".into(), lines.join("\n"));
    }
    let schema = CATEGORIES.iter().find(|c| c.name == product.category).map_or(&[][..], |c| c.schema);
    let key = schema[draw.below(schema.len())].0;
    let question = capitalised(&draw.pick(ASK_VALUE).replace("{}", &key.to_lowercase()));
    let value = pairs.iter().find(|(k, _)| k == key).map(|(_, value)| value);
    let answer = match value {
        Some(value) => draw.pick(ANSWER_VALUE).replacen("{}", &key.to_lowercase(), 1).replacen("{}", value, 1),
        None => draw.pick(ANSWER_MISSING).replace("{}", &key.to_lowercase()),
    };
    (question, capitalised(&answer))
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
}
