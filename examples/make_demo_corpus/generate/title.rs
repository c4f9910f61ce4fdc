//! How a shop would spell it: a layout filled with values, then case, separators, abbreviations, slips of the keyboard and
//! HTML entities. Every change is made to a whole segment, so that a value is spelled in the attributes as in the title.

use super::Draw;

/// A piece of a title: what stands before the value, the value, what stands after it. `key` is none for words that are
/// no attribute.
#[derive(Clone)]
pub struct Segment {
    pub before: String,
    pub value: String,
    pub after: String,
    pub key: Option<&'static str>,
}

const ABBREVIATIONS: &[(&str, &str)] = &[
    ("Stainless Steel", "S/S"),
    ("Black", "Blk"),
    ("White", "Wht"),
    ("Silver", "Slv"),
    ("Count", "Ct"),
    ("Pack", "Pk"),
    ("Ounce", "oz"),
    ("with ", "w/ "),
    ("Large", "Lge"),
    ("Medium", "Med"),
    ("Organic", "Org"),
    ("Women's", "Womens"),
    ("Men's", "Mens"),
    ("Bluetooth", "BT"),
    ("Rechargeable", "Rechrg"),
    ("Tablets", "Tabs"),
    ("Capsules", "Caps"),
    ("and ", "& "),
];

/// Spells the segments the way one careless or careful shop would.
pub fn spell(segments: &mut [Segment], draw: &mut Draw) {
    if draw.chance(0.18) {
        abbreviate(segments, draw);
    }
    if draw.chance(0.06) {
        slip(segments, draw);
    }
    change_case(segments, draw);
    change_separators(segments, draw);
    if draw.chance(0.35) {
        entities(segments);
    }
}

/// The title that the segments give.
pub fn join(segments: &[Segment]) -> String {
    let mut title = String::new();
    for s in segments {
        title.push_str(&s.before);
        title.push_str(&s.value);
        title.push_str(&s.after);
    }
    title.trim_start_matches([' ', ',', '-', '|', '/']).to_string()
}

fn abbreviate(segments: &mut [Segment], draw: &mut Draw) {
    for s in segments.iter_mut().filter(|s| s.key != Some("Brand")) {
        for (long, short) in ABBREVIATIONS {
            if s.value.contains(long) && draw.chance(0.7) {
                s.value = s.value.replace(long, short);
            }
        }
    }
}

/// One slip: two letters swapped, one lost or one doubled, inside a word of at least five letters.
fn slip(segments: &mut [Segment], draw: &mut Draw) {
    let at = draw.below(segments.len());
    let mut chars: Vec<char> = segments[at].value.chars().collect();
    let inside: Vec<usize> = (1..chars.len().saturating_sub(3))
        .filter(|&i| chars[i - 1..i + 3].iter().all(|c| c.is_ascii_alphabetic()))
        .collect();
    if inside.is_empty() {
        return;
    }
    let i = inside[draw.below(inside.len())];
    match draw.below(3) {
        0 => chars.swap(i, i + 1),
        1 => drop(chars.remove(i)),
        _ => chars.insert(i, chars[i]),
    }
    segments[at].value = chars.into_iter().collect();
}

fn change_case(segments: &mut [Segment], draw: &mut Draw) {
    let style = draw.below(100);
    for s in segments {
        let change = |text: &str| match style {
            0..12 => text.to_uppercase(),
            12..22 => text.to_lowercase(),
            22..30 => sentence_case(text, s.key == Some("Brand")),
            // One shouting brand in an otherwise ordinary title.
            30..40 if s.key == Some("Brand") => text.to_uppercase(),
            _ => text.to_string(),
        };
        (s.before, s.value, s.after) = (change(&s.before), change(&s.value), change(&s.after));
    }
}

/// Lower case but for the brand and for words with a digit or two capitals (sizes, model numbers).
fn sentence_case(text: &str, brand: bool) -> String {
    let words = text.split(' ').map(|word| {
        let odd = word.chars().any(|c| c.is_ascii_digit()) || word.chars().filter(|c| c.is_uppercase()).count() > 1;
        if brand || odd { word.to_string() } else { word.to_lowercase() }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn change_separators(segments: &mut [Segment], draw: &mut Draw) {
    let separator = match draw.below(100) {
        0..14 => " - ",
        14..22 => " | ",
        22..27 => " / ",
        27..37 => " ",
        37..41 => ",",
        _ => return,
    };
    for s in segments {
        if s.before == ", " {
            s.before = separator.to_string();
        }
    }
}

/// What a web page leaves behind.
fn entities(segments: &mut [Segment]) {
    for s in segments {
        for text in [&mut s.before, &mut s.value, &mut s.after] {
            *text = text.replace('&', "&amp;").replace('\'', "&#39;").replace('"', "&quot;");
        }
    }
}
