//! Rotary positions of a GGUF file: base frequency, scaling from the metadata, and llama3's scaling from the stored
//! frequency divisors.

use std::f64::consts::PI;
use std::io::Cursor;

use candle_core::Device;
use candle_core::quantized::gguf_file::Content;
use memmap2::Mmap;

use super::super::config::{Rope, RopeScaling};
use super::metadata::Metadata;
use crate::error::{Error, Result};

/// `[head_dim / 2]` divisors of the rotary frequencies.
pub const FREQUENCIES: &str = "rope_freqs.weight";

pub fn read(metadata: &Metadata, architecture: &str, head_dim: usize, content: &Content, map: &Mmap) -> Result<Rope> {
    let key = |name: &str| format!("{architecture}.rope.{name}");
    if let Some(n) = metadata.count(&key("dimension_count"))?
        && n != head_dim
    {
        return Err(metadata.error(format!("rotary positions over {n} of {head_dim} dimensions are not supported")));
    }
    let theta = metadata.number(&key("freq_base"))?.unwrap_or(10_000.0);
    let factor = metadata.number(&key("scaling.factor"))?;
    let old_linear = metadata.number(&key("scale_linear"))?;
    let kind = metadata.text(&key("scaling.type"))?.unwrap_or(if old_linear.is_some() { "linear" } else { "none" });
    let scaling = match kind {
        "none" => RopeScaling::None,
        "linear" => {
            let factor = factor.or(old_linear).unwrap_or(1.0);
            if factor == 1.0 { RopeScaling::None } else { RopeScaling::Linear { factor } }
        }
        other => {
            let message =
                format!("rope type '{other}' is not supported; known are none, linear, and llama3's divisors");
            return Err(metadata.error(message));
        }
    };
    if !content.tensor_infos.contains_key(FREQUENCIES) {
        return Ok(Rope { theta, scaling });
    }
    if scaling != RopeScaling::None {
        return Err(metadata.error(format!("{FREQUENCIES} beside rope type '{kind}' is not supported")));
    }
    let divisors = content
        .tensor(&mut Cursor::new(&map[..]), FREQUENCIES, &Device::Cpu)
        .and_then(|t| t.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>())
        .map_err(|e| Error::model(metadata.path, format!("tensor '{FREQUENCIES}': {e}")))?;
    let original = metadata.count(&key("scaling.original_context_length"))?;
    let scaling = llama3_of(&divisors, theta, head_dim, original).ok_or_else(|| {
        metadata.error(format!("{FREQUENCIES} are not the frequencies of rope type 'llama3'; others are not supported"))
    })?;
    Ok(Rope { theta, scaling })
}

/// The llama3 scaling whose divisors these are. The file does not keep the factors for low and high frequencies; every
/// published model has 1 and 4, and what they give is compared with what is stored.
fn llama3_of(divisors: &[f32], theta: f64, head_dim: usize, original: Option<usize>) -> Option<RopeScaling> {
    let factor = f64::from(divisors.iter().copied().fold(1.0f32, f32::max));
    let (low, high) = (1.0, 4.0);
    [original.unwrap_or(8192), 8192].into_iter().find_map(|original| {
        let close = |i: usize, stored: f32| {
            let wanted = divisor(theta.powf(-2.0 * i as f64 / head_dim as f64), factor, low, high, original as f64);
            (f64::from(stored) - wanted).abs() <= 1e-3 * wanted
        };
        let same = divisors.len() == head_dim / 2 && divisors.iter().enumerate().all(|(i, d)| close(i, *d));
        let scaling = RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_positions: original,
        };
        same.then_some(scaling)
    })
}

/// What llama3's scaling divides a frequency by (`_compute_llama3_parameters` in transformers).
fn divisor(frequency: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength < original / high {
        1.0
    } else if wavelength > original / low {
        factor
    } else {
        let smooth = (original / wavelength - low) / (high - low);
        1.0 / ((1.0 - smooth) / factor + smooth)
    }
}
