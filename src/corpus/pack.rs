//! Filling micro-batches with documents of known lengths.

/// Micro-batches that are filled at the same time. Few, so that documents stay close to where the shuffle put them;
/// with 32, batches of documents of mixed lengths are filled to well over nine tenths.
const OPEN: usize = 32;

/// A micro-batch being filled.
struct Bin {
    documents: Vec<usize>,
    tokens: usize,
}

/// First fit over a bounded number of open micro-batches: a document goes into the oldest one that has room. Where none
/// has and [`OPEN`] are open, the fullest is closed. No micro-batch is over `batch_tokens` unless a single document is.
pub(super) fn pack(lengths: &[usize], order: &[usize], batch_tokens: usize) -> Vec<Vec<usize>> {
    let (mut closed, mut open) = (Vec::new(), Vec::<Bin>::new());
    for &document in order {
        let length = lengths[document];
        match open.iter().position(|bin| bin.tokens + length <= batch_tokens) {
            Some(at) => {
                open[at].documents.push(document);
                open[at].tokens += length;
                if open[at].tokens == batch_tokens {
                    closed.push(open.remove(at).documents);
                }
            }
            None => {
                if open.len() == OPEN {
                    let fullest = (0..open.len()).max_by_key(|&at| open[at].tokens).unwrap_or(0);
                    closed.push(open.remove(fullest).documents);
                }
                open.push(Bin { documents: vec![document], tokens: length });
            }
        }
    }
    closed.extend(open.into_iter().map(|bin| bin.documents));
    closed
}

/// One document after the other; a micro-batch ends where the next does not fit.
pub(super) fn in_sequence(
    lengths: &[usize],
    order: impl IntoIterator<Item = usize>,
    batch_tokens: usize,
) -> Vec<Vec<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut tokens = 0;
    for document in order {
        match batches.last_mut() {
            Some(batch) if tokens + lengths[document] <= batch_tokens => batch.push(document),
            _ => {
                batches.push(vec![document]);
                tokens = 0;
            }
        }
        tokens += lengths[document];
    }
    batches
}
