//! `shop-attributes`: product titles and the attributes that a title states.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{
    Draw,
    catalogue::{BRAND_ENDS, BRAND_PATTERNS, BRAND_STARTS, CATEGORIES, Category, FILLERS},
    title::{Segment, join, spell},
};

pub const TRAIN: usize = 3000;
pub const VALIDATION: usize = 150;
const CORPUS: u64 = 1;

pub struct Product {
    pub id: String,
    pub title: String,
    pub category: String,
    /// A JSON object: attribute -> its words, spelled as in the title, in the order of the category's schema.
    pub attributes: String,
    /// Missing for some products.
    pub price: Option<f64>,
}

impl Product {
    /// The attributes as pairs in their order.
    pub fn pairs(&self) -> Vec<(String, String)> {
        let map: Map<String, Value> = serde_json::from_str(&self.attributes).expect("the generator writes JSON");
        map.into_iter().map(|(k, v)| (k, v.as_str().unwrap_or_default().to_string())).collect()
    }
}

/// Training and validation rows. No title occurs twice, not even in other case.
pub fn splits(seed: u64) -> [Vec<Product>; 2] {
    let mut rows = products(seed, TRAIN + VALIDATION);
    let validation = rows.split_off(TRAIN);
    [rows, validation]
}

/// `count` products with distinct titles.
fn products(seed: u64, count: usize) -> Vec<Product> {
    let mut seen = HashSet::new();
    let mut rows = Vec::with_capacity(count);
    let mut attempt = 0;
    while rows.len() < count {
        let product = product(&mut Draw::new(seed, CORPUS, attempt), rows.len());
        attempt += 1;
        if seen.insert(product.title.to_lowercase()) {
            rows.push(product);
        }
    }
    rows
}

fn product(draw: &mut Draw, number: usize) -> Product {
    let category = &CATEGORIES[draw.below(CATEGORIES.len())];
    let segments = segments(category, draw);
    let stated = category.schema.iter().filter_map(|(key, ..)| segments.iter().find(|s| s.key == Some(key)));
    let attributes: Vec<String> =
        stated.map(|s| format!("{}: {}", quoted(s.key.unwrap_or_default()), quoted(&s.value))).collect();
    let cents =
        (category.price * (0.5 + 0.01 * draw.below(150) as f64)).floor() + draw.pick(&[&0.99, &0.95, &0.49, &0.0]);
    Product {
        id: format!("shop-{number:05}"),
        title: join(&segments),
        category: category.name.to_string(),
        attributes: format!("{{{}}}", attributes.join(", ")),
        price: (!draw.chance(0.06)).then_some(cents),
    }
}

/// A JSON string. The object around it is put together with a space after `:` and `,`, as most extraction sets have it.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A layout of the category with its slots filled, spelled.
pub fn segments(category: &Category, draw: &mut Draw) -> Vec<Segment> {
    let values: Vec<(&'static str, String)> = category
        .schema
        .iter()
        .filter_map(|&(key, often, patterns)| {
            let present = draw.chance(often);
            present.then(|| (key, if key == "Brand" { brand(draw) } else { draw.pick_expanded(patterns) }))
        })
        .collect();
    let layout = draw.pick(category.layouts);
    let mut segments: Vec<Segment> = layout.split('~').filter_map(|piece| fill(piece, &values, draw)).collect();
    if draw.chance(0.12) {
        let words = draw.pick_expanded(FILLERS);
        segments.push(Segment { before: ", ".into(), value: words, after: String::new(), key: None });
    }
    spell(&mut segments, draw);
    segments
}

/// A piece `before{Key}after` if the key has a value; `?words` half of the time; other pieces as they are.
fn fill(piece: &str, values: &[(&'static str, String)], draw: &mut Draw) -> Option<Segment> {
    if let Some((before, rest)) = piece.split_once('{') {
        let (slot, after) = rest.split_once('}').expect("every slot of the catalogue is closed");
        let (key, value) = values.iter().find(|(key, _)| *key == slot)?;
        return Some(Segment { before: before.into(), value: value.clone(), after: after.into(), key: Some(key) });
    }
    let words = match piece.strip_prefix('?') {
        Some(words) => draw.chance(0.5).then_some(words)?,
        None => piece,
    };
    Some(Segment { before: String::new(), value: words.into(), after: String::new(), key: None })
}

/// A name that no shop has, put together from syllables. A few names come often, most seldom, as in a real shop.
pub fn brand(draw: &mut Draw) -> String {
    let squeeze = |draw: &mut Draw, n: usize| draw.below(n).min(draw.below(n));
    let name = |draw: &mut Draw| {
        let start = BRAND_STARTS[squeeze(draw, BRAND_STARTS.len())];
        format!("{start}{}", BRAND_ENDS[squeeze(draw, BRAND_ENDS.len())])
    };
    let first = name(draw);
    let pattern = draw.pick(BRAND_PATTERNS);
    let second = name(draw);
    pattern.replace("%1", &first).replace("%2", &second)
}

impl Draw {
    fn pick_expanded(&mut self, patterns: &[&str]) -> String {
        let pattern = self.pick(patterns);
        self.expand(pattern)
    }
}
