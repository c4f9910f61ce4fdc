//! `shop-recommend`: what a shopper bought, five candidates, and the one bought next.
//!
//! A shopper has one or two interests, groups of categories bought together. The history follows the interests with a
//! stray item now and then; the target follows them, most of the other candidates do not.

use super::{
    Draw,
    attributes::segments,
    catalogue::{CATEGORIES, Category},
    title::{Segment, join},
};

pub const TRAIN: usize = 600;
pub const VALIDATION: usize = 60;
pub const CANDIDATES: usize = 5;
const CORPUS: u64 = 3;

const INTERESTS: &[&[&str]] = &[
    &["Coffee", "Tea", "Kitchen Knife", "Water Bottle"],
    &["Shoes", "Water Bottle", "Backpack", "Vitamin"],
    &["Notebook", "Lamp", "Backpack", "Headphones"],
    &["Toothbrush", "Shampoo", "Vitamin"],
    &["Bedding", "Lamp", "Tea"],
    &["Headphones", "Phone Case", "Backpack"],
    &["Pet Food", "Toothbrush", "Bedding"],
];

pub struct Basket {
    pub id: String,
    pub history: Vec<String>,
    pub candidates: Vec<String>,
    pub target: String,
    /// The place of `target` among the candidates, from 0.
    pub target_index: usize,
}

/// Training and validation rows, each a shopper of its own.
pub fn splits(seed: u64) -> [Vec<Basket>; 2] {
    let row = |number: usize| basket(number, &mut Draw::new(seed, CORPUS, number as u64));
    [(0..TRAIN).map(row).collect(), (TRAIN..TRAIN + VALIDATION).map(row).collect()]
}

fn basket(number: usize, draw: &mut Draw) -> Basket {
    let mut interest: Vec<&str> = draw.pick(INTERESTS).to_vec();
    if draw.chance(0.3) {
        interest.extend(draw.pick(INTERESTS).iter());
    }
    let outside: Vec<&str> = CATEGORIES.iter().map(|c| c.name).filter(|name| !interest.contains(name)).collect();
    let length = 3 + draw.below(5);
    let history = (0..length).map(|_| if draw.chance(0.12) { item(&outside, draw) } else { item(&interest, draw) });
    let history: Vec<String> = history.collect();
    let target = item(&interest, draw);
    let target_index = draw.below(CANDIDATES);
    let mut candidates: Vec<String> = Vec::with_capacity(CANDIDATES);
    while candidates.len() < CANDIDATES {
        let next = if candidates.len() == target_index { target.clone() } else { item(&outside, draw) };
        // A second copy of the target would make the answer ambiguous.
        if candidates.len() == target_index || next != target && !candidates.contains(&next) {
            candidates.push(next);
        }
    }
    Basket { id: format!("basket-{number:04}"), history, candidates, target, target_index }
}

/// A short title of a product of one of the categories: as the order list of a till has it.
fn item(categories: &[&str], draw: &mut Draw) -> String {
    let name = categories[draw.below(categories.len())];
    let category = CATEGORIES.iter().find(|c| c.name == name).expect("interests name categories");
    let mut segments = segments(category, draw);
    let keep = 2 + draw.below(2);
    let wanted = kind(category);
    let mut others = 0;
    segments.retain(|s: &Segment| {
        let is_kind = s.key == Some(wanted);
        others += usize::from(!is_kind && s.key.is_some());
        is_kind || (s.key.is_some() && others <= keep)
    });
    if !segments.iter().any(|s| s.key == Some(wanted)) {
        let before = if segments.is_empty() { "" } else { " " };
        segments.push(Segment { before: before.into(), value: name.into(), after: String::new(), key: None });
    }
    join(&segments)
}

/// The attribute that says what the thing is.
fn kind(category: &Category) -> &'static str {
    let keys = ["Type", "Form", "Supplement", "Variety", "Item form"];
    keys.into_iter().find(|key| category.schema.iter().any(|(k, ..)| k == key)).unwrap_or("Brand")
}
