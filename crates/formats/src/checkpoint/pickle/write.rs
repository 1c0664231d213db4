//! Writes a Jacobian lens in `torch.save`'s format, for readers that use `torch.load`. A pickle of protocol 2 in an uncompressed ZIP
//! archive (PKWARE's APPNOTE 6.3).

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use flate2::Crc;
use half::f16;

use super::super::host::HostTensor;

/// `{"J": {layer: [D, D]}, "n_prompts": …, "source_layers": […], "d_model": D}`, the matrices in half precision as in the authors' files.
///
/// # Errors
/// More than 4 GB, the limit of this kind of archive.
pub fn lens(matrices: &BTreeMap<usize, HostTensor>, prompts: usize, width: usize) -> Result<Vec<u8>> {
    let mut pickle = vec![0x80, 2, b'}', b'('];
    text(&mut pickle, "J");
    pickle.extend(b"}(");
    for (key, (&layer, matrix)) in matrices.iter().enumerate() {
        number(&mut pickle, layer)?;
        tensor(&mut pickle, key, matrix)?;
    }
    pickle.push(b'u');
    for (name, value) in [("n_prompts", prompts), ("d_model", width)] {
        text(&mut pickle, name);
        number(&mut pickle, value)?;
    }
    text(&mut pickle, "source_layers");
    pickle.extend(b"](");
    matrices.keys().try_for_each(|&layer| number(&mut pickle, layer))?;
    pickle.extend(b"eu.");
    let mut archive = Archive::default();
    archive.add("lens/data.pkl", &pickle)?;
    archive.add("lens/byteorder", b"little")?;
    for (key, matrix) in matrices.values().enumerate() {
        let bytes: Vec<u8> = matrix.data.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
        archive.add(&format!("lens/data/{key}"), &bytes)?;
    }
    archive.add("lens/version", b"3\n")?;
    archive.end()
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

fn number(out: &mut Vec<u8>, number: usize) -> Result<()> {
    out.push(b'J');
    out.extend(i32::try_from(number).context("a number beyond 32 bits")?.to_le_bytes());
    Ok(())
}

/// `_rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict())`
fn tensor(out: &mut Vec<u8>, key: usize, matrix: &HostTensor) -> Result<()> {
    let global = |out: &mut Vec<u8>, module: &str, name: &str| out.extend(format!("c{module}\n{name}\n").as_bytes());
    global(out, "torch._utils", "_rebuild_tensor_v2");
    out.extend(b"((");
    text(out, "storage");
    global(out, "torch", "HalfStorage");
    text(out, &key.to_string());
    text(out, "cpu");
    number(out, matrix.data.len())?;
    out.extend(b"tQ");
    number(out, 0)?;
    for pair in [[matrix.rows(), matrix.width()], [matrix.width(), 1]] {
        pair.into_iter().try_for_each(|n| number(out, n))?;
        out.push(0x86);
    }
    out.push(0x89);
    global(out, "collections", "OrderedDict");
    out.extend(b")RtR");
    Ok(())
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    records: u16,
}

impl Archive {
    fn add(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let at = fits(self.bytes.len())?;
        let mut crc = Crc::new();
        crc.update(data);
        // Version 2.0, no flags, stored, midnight, 1 January 1980.
        let mut fields = [20_u16, 0, 0, 0, 33].map(u16::to_le_bytes).concat();
        fields.extend([crc.sum(), fits(data.len())?, fits(data.len())?].map(u32::to_le_bytes).concat());
        fields.extend([u16::try_from(name.len())?, 0].map(u16::to_le_bytes).concat());
        self.bytes.extend([b"PK\x03\x04".as_slice(), &fields, name.as_bytes(), data].concat());
        self.directory
            .extend([b"PK\x01\x02\x14\0".as_slice(), &fields, &[0; 10], &at.to_le_bytes(), name.as_bytes()].concat());
        self.records += 1;
        Ok(())
    }

    fn end(mut self) -> Result<Vec<u8>> {
        let (at, size) = (fits(self.bytes.len())?, fits(self.directory.len())?);
        self.bytes.extend(self.directory);
        self.bytes
            .extend([b"PK\x05\x06\0\0\0\0".as_slice(), &[self.records; 2].map(u16::to_le_bytes).concat()].concat());
        self.bytes.extend([size, at].map(u32::to_le_bytes).concat());
        self.bytes.extend([0, 0]);
        Ok(self.bytes)
    }
}

fn fits(bytes: usize) -> Result<u32> {
    u32::try_from(bytes).context("a lens of more than 4 GB is not written: name fewer layers")
}
