//! SentencePiece's `tokenizer.model`: the fields of its protocol buffer that a tokenizer needs.
//! Layout: <https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto>.

use anyhow::{Context, Result, bail, ensure};

use super::pieces::{Piece, UNKNOWN};

/// The fields of a `tokenizer.model`. Missing fields have the format's defaults.
pub(super) struct SentencePieceModel {
    pub pieces: Vec<Piece>,
    pub unigram: bool,
    pub byte_fallback: bool,
    pub unk: Option<u32>,
    pub bos: Option<String>,
    pub eos: Option<String>,
    /// Compiled rules of normalization.
    pub charsmap: Vec<u8>,
    pub dummy_prefix: bool,
    pub fewer_spaces: bool,
    pub escapes: bool,
}

pub(super) fn read(bytes: &[u8]) -> Result<SentencePieceModel> {
    let mut model = SentencePieceModel {
        pieces: vec![],
        unigram: true,
        byte_fallback: false,
        unk: None,
        bos: Some("<s>".to_owned()),
        eos: Some("</s>".to_owned()),
        charsmap: vec![],
        dummy_prefix: true,
        fewer_spaces: true,
        escapes: true,
    };
    let mut at = Wire(bytes);
    while let Some((field, value)) = at.next()? {
        match field {
            1 => model.pieces.push(piece(value.bytes()?)?),
            2 => trainer(&mut model, value.bytes()?)?,
            3 => normalizer(&mut model, value.bytes()?)?,
            _ => {}
        }
    }
    ensure!(!model.pieces.is_empty(), "not a SentencePiece model: it has no pieces");
    model.unk = model.pieces.iter().position(|piece| piece.kind == UNKNOWN).and_then(|id| u32::try_from(id).ok());
    Ok(model)
}

fn piece(bytes: &[u8]) -> Result<Piece> {
    let mut found = Piece { token: String::new(), score: 0.0, kind: 1 };
    let mut at = Wire(bytes);
    while let Some((field, value)) = at.next()? {
        match field {
            1 => found.token = value.text()?,
            2 => found.score = f64::from(f32::from_bits(value.number()? as u32)),
            3 => found.kind = value.number()?,
            _ => {}
        }
    }
    Ok(found)
}

fn trainer(model: &mut SentencePieceModel, bytes: &[u8]) -> Result<()> {
    let mut at = Wire(bytes);
    let (mut bos, mut eos) = (true, true);
    while let Some((field, value)) = at.next()? {
        match field {
            3 => {
                let kind = value.number()?;
                ensure!(kind == 1 || kind == 2, "SentencePiece model type {kind}: expected 1 (unigram) or 2 (BPE)");
                model.unigram = kind == 1;
            }
            35 => model.byte_fallback = value.number()? != 0,
            // Negative: no such token.
            41 => bos = (value.number()? as i64) >= 0,
            42 => eos = (value.number()? as i64) >= 0,
            46 => model.bos = Some(value.text()?),
            47 => model.eos = Some(value.text()?),
            _ => {}
        }
    }
    model.bos = model.bos.take().filter(|_| bos);
    model.eos = model.eos.take().filter(|_| eos);
    Ok(())
}

fn normalizer(model: &mut SentencePieceModel, bytes: &[u8]) -> Result<()> {
    let mut at = Wire(bytes);
    while let Some((field, value)) = at.next()? {
        match field {
            2 => model.charsmap = value.bytes()?.to_vec(),
            3 => model.dummy_prefix = value.number()? != 0,
            4 => model.fewer_spaces = value.number()? != 0,
            5 => model.escapes = value.number()? != 0,
            _ => {}
        }
    }
    Ok(())
}

/// A protocol buffer, field by field.
struct Wire<'a>(&'a [u8]);

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn number(&self) -> Result<u64> {
        match self {
            Field::Number(n) => Ok(*n),
            Field::Bytes(_) => bail!("not a SentencePiece model: bytes instead of a number"),
        }
    }

    fn bytes(&self) -> Result<&'a [u8]> {
        match self {
            Field::Bytes(bytes) => Ok(bytes),
            Field::Number(_) => bail!("not a SentencePiece model: a number instead of bytes"),
        }
    }

    fn text(&self) -> Result<String> {
        String::from_utf8(self.bytes()?.to_vec()).context("not a SentencePiece model: a piece is not UTF-8")
    }
}

impl<'a> Wire<'a> {
    fn next(&mut self) -> Result<Option<(u64, Field<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => Field::Number(u64::from_le_bytes(self.take(8)?.try_into()?)),
            2 => {
                let length = usize::try_from(self.varint()?)?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Number(u64::from(u32::from_le_bytes(self.take(4)?.try_into()?))),
            other => bail!("not a SentencePiece model: field of wire type {other}"),
        };
        Ok(Some((key >> 3, field)))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        bail!("not a SentencePiece model: a number without an end")
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(n).context("not a SentencePiece model, or a truncated one")?;
        self.0 = rest;
        Ok(part)
    }
}
